"""Shared by the tests of layers under a tape on a GPU: batches of one layout, passes operation by operation."""

import numpy as np

from bertcore import AutoModelForMaskedLM, use_backend
from bertcore.execution.graph_cache import TrainingGraphs
from tests.tiny_families import drawn_anew, tiny_config

# Batches of one layout, room for 26 tokens and 6 sequences: none, one and two tokens are spare.
BATCHES = ([7, 5, 6, 7, 0], [7, 7, 6, 5, 1], [4, 3, 7, 6, 5], [6, 7, 7, 1, 4])


def tiny_model(name, kind=AutoModelForMaskedLM, **changes):
    with use_backend("numpy"):
        return drawn_anew(kind.from_config(tiny_config(name) | changes))


def batch_of(lengths, seed=0):
    rng = np.random.default_rng([seed, *lengths])
    mask = (np.arange(7) < np.array(lengths)[:, None]).astype(int)
    ids = rng.integers(6, 90, mask.shape)
    labels = np.where(mask.astype(bool) & (rng.random(mask.shape) < 0.5), ids, -100)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def by_operations(monkeypatch, call):
    """Return the result of `call` operation by operation."""
    with monkeypatch.context() as patch:
        patch.setattr(TrainingGraphs, "begin", lambda *_: None)
        return call()


def on_host(grads):
    return {name: array.get() for name, array in grads.items()}


def check(found, expected, tolerance=0.0):
    """The same bits, or off by so much of the largest."""
    assert list(found) == list(expected)
    most = max(np.abs(array).max() for array in expected.values())
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=tolerance * most, err_msg=name)
