"""LUKE with entities on a GPU: its passes are CUDA graphs, in inference and in training."""

import numpy as np
import pytest

from bertcore import AutoModel, use_backend, vjp
from bertcore.execution.graph_cache import TrainingGraphs
from tests.models.test_luke import with_entities
from tests.tiny_families import drawn_anew, tiny_config

FIELDS = "last_hidden_state", "entity_last_hidden_state"
# (tokens, entities) of sequences, of one layout in inference; in training, of closer ones, all but the second.
BATCHES = (
    ([7, 5, 6, 3], [2, 3, 0, 1]),
    ([2, 2, 1, 2], [0, 1, 0, 0]),
    ([7, 6, 6, 2], [1, 1, 3, 1]),
    ([7, 4, 7, 3], [0, 3, 2, 1]),
)


@pytest.fixture
def model():
    with use_backend("numpy"):
        return drawn_anew(AutoModel.from_config(tiny_config("luke-base") | {"type_vocab_size": 2}))


def batch_of(lengths, counts, *, most=3):
    rng = np.random.default_rng([*lengths, *counts])
    mask = (np.arange(7) < np.array(lengths)[:, None]).astype(int)
    batch = {"input_ids": rng.integers(6, 90, mask.shape), "attention_mask": mask}
    batch, _ = with_entities(batch, counts, rng, vocabulary=23, most=most)
    row = np.argmax(counts)
    batch["entity_position_ids"][row, 0] = 0, 1, -1, 1  # so that all batches have mentions of as many tokens
    return batch


def values(out):
    return {name: np.asarray(out[name] if isinstance(out[name], np.ndarray) else out[name].get()) for name in FIELDS}


def test_replays_give_what_numpy_gives(gpu, model):
    for number, (lengths, counts) in enumerate(BATCHES):
        batch = batch_of(lengths, counts)
        with use_backend("numpy"):
            expected = values(model(**batch))
        found = values(model(**batch))
        for name in FIELDS:
            np.testing.assert_allclose(found[name], expected[name], atol=1e-4, err_msg=name)
        assert len(gpu.graphs) == max(number - 1, 0)  # the second batch has a layout of its own
    assert len(set(gpu.graphs)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("has_entities", [False, True])
def test_gradients_of_replays(gpu, model, monkeypatch, has_entities):
    def grads(batch):
        out, pullback = vjp(model)(**batch)
        rng = np.random.default_rng(0)
        seeds = {name: rng.normal(size=out[name].shape).astype(np.float32) for name in FIELDS}
        return pullback(seeds)

    for number, (lengths, counts) in enumerate((BATCHES[0], *BATCHES[2:])):
        batch = batch_of(lengths, np.multiply(counts, has_entities))
        with monkeypatch.context() as patch:
            patch.setattr(TrainingGraphs, "begin", lambda *_: None)
            expected = grads(batch)
        found = grads(batch)
        assert len(gpu.graphs) == 2 * number
        with use_backend("numpy"):
            known = grads(batch)
        most = max(np.abs(array).max() for array in known.values())
        for name, array in known.items():
            np.testing.assert_array_equal(found[name].get(), expected[name].get(), err_msg=name)
            np.testing.assert_allclose(found[name].get(), array, atol=1e-4 * most, err_msg=name)


@pytest.mark.slow
def test_a_batch_without_sequences(gpu, model):
    batch = {name: array[:0] for name, array in batch_of(*BATCHES[0]).items()}
    for _ in range(3):
        out, pullback = vjp(model)(**batch)
        grads = pullback({name: np.zeros(out[name].shape, np.float32) for name in FIELDS})
        assert not any(array.get().any() for array in grads.values())
        assert values(model(**batch))["last_hidden_state"].shape == out["last_hidden_state"].shape
