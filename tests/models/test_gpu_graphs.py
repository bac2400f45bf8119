"""Passes kept as CUDA graphs: launched again for other batches of their layout they give what NumPy gives.

Streams are captured, and graphs launched, by what stands for them without a driver (tests/cuda_emulator/streams.py).
"""

import warnings
import weakref

import cupy
import numpy as np
import pytest

from bertcore import AutoModel, AutoModelForMaskedLM, kernels, use_backend, value_and_grad
from bertcore.execution.graphs import NotCapturedWarning
from tests.cuda_emulator.streams import Graph
from tests.tiny_families import drawn_anew, runnable, tiny_config

RECURRENT = ("transfo-xl-wt103", "xlnet-base-cased")
# Batches of one layout, 24 tokens and 3 sequences, none of more than 16, of awkward lengths; the third fills it.
BATCHES = ([5, 11, 1], [16, 0, 3], [8, 8, 8], [1, 13, 9])


def tiny_model(name):
    with use_backend("numpy"):
        return drawn_anew(AutoModel.from_config(tiny_config(name), add_pooling_layer=False))


def texts(lengths, seed=0):
    rng = np.random.default_rng([seed, *lengths])
    return [rng.integers(6, 90, length) for length in lengths]


def check(model, batch):
    with use_backend("numpy"):
        expected, offsets = model.encode_packed(batch)
    hidden, found = model.encode_packed(batch)
    np.testing.assert_array_equal(found, offsets)
    np.testing.assert_allclose(hidden.get(), expected, atol=5e-5 * np.abs(expected).max(initial=0))


@pytest.mark.slow
@pytest.mark.parametrize("name", runnable())
def test_replays_give_what_numpy_gives(gpu, name):
    model = tiny_model(name)
    for number, lengths in enumerate(BATCHES):
        check(model, texts(lengths))
        assert len(gpu.graphs) == number
    assert len(set(gpu.graphs)) == 1


@pytest.mark.slow  # the kernels of relative attention
@pytest.mark.parametrize("name", RECURRENT)
def test_memories_come_out_of_graphs_and_go_into_none(gpu, name):
    """Texts of nearly the longest length share the graph of a layout."""
    model = tiny_model(name)
    for number in range(3):
        ids, mask = np.stack(texts([7, 7], number)), (np.arange(7) < [[7], [5]]).astype(int)
        with use_backend("numpy"):
            expected = model(ids, mask)
            after = model(ids, mask, mems=expected.mems)
        found = model(ids, mask)
        for one, other in zip((found[0], *found.mems), (expected[0], *expected.mems), strict=True):
            np.testing.assert_allclose(one.get(), other, atol=1e-4)
        np.testing.assert_allclose(model(ids, mask, mems=found.mems)[0].get(), after[0], atol=1e-4)
        assert len(gpu.graphs) == number
    launched = len(gpu.graphs)
    for count, lengths in enumerate(([20, 1], [17, 4], [3, 18], [5, 16])):  # room for 24 tokens each, and for 16
        check(model, texts(lengths))
        assert len(gpu.graphs) - launched == (0, 1, 2, 2)[count]


@pytest.mark.slow
def test_segments_of_xlnet_have_graphs_of_their_own(gpu):
    with use_backend("numpy"):
        model = drawn_anew(AutoModel.from_config(tiny_config("xlnet-base-cased")))
    ids = np.stack(texts([7, 7]))
    for count, types in enumerate((np.zeros_like(ids), ids % 2, np.zeros_like(ids), ids % 3 % 2)):
        with use_backend("numpy"):
            expected = model(ids, token_type_ids=types, use_mems=False)[0]
        found = model(ids, token_type_ids=types, use_mems=False)[0]
        np.testing.assert_allclose(found.get(), expected, atol=1e-4)
        assert len(set(gpu.graphs)) == max(count - 1, 0)


def test_batches_at_the_edges_of_layouts(gpu):
    model = tiny_model("modernbert-base")
    for lengths in ([], [0], [1], [16], [16, 0], [0, 3], [17], [24], [10, 7, 9, 6, 9], [8, 9, 8, 8, 8, 7]):
        check(model, texts(lengths))
    # (tokens, sequences): (16, 1), (16, 2), (24, 1), (48, 6)
    assert len(set(gpu.graphs)) == 4


def test_new_weights_are_captured_anew(gpu):
    model, batch = tiny_model("bert-base-uncased"), texts([5, 11])
    for _ in range(4):  # enough for a graph to be worth its capture
        check(model, batch)
    assert len(gpu.graphs) == 3
    drawn_anew(model, seed=1)
    for _ in range(3):
        check(model, batch)
    assert len(gpu.graphs) == 5 and len(set(gpu.graphs)) == 2


@pytest.mark.parametrize("name", ["bert-base-uncased", pytest.param("xlnet-base-cased", marks=pytest.mark.slow)])
def test_weights_that_are_replaced_meanwhile_stay_until_their_graph_has_run(gpu, monkeypatch, name):
    model, batch = tiny_model(name), texts([5, 11])
    with use_backend("numpy"):
        expected, _ = model.encode_packed(batch)
    for _ in range(2):
        model.encode_packed(batch)
    forms = [parameter.forms for parameter in model.parameters()]
    read = [array for each in forms for array in (*each.on_gpus.values(), *each.weights.values())]
    del forms
    for of_distances in getattr(model.encoder.adapter, "position_keys", {}).values():  # made of XLNet's
        read += [keys for _, keys in of_distances.values() if isinstance(keys, cupy.ndarray)]
    read = [*map(weakref.ref, read)]
    launch = Graph.launch

    def replaced_before(graph, stream=None):  # by another thread, which goes on
        drawn_anew(model, seed=1)
        model(np.stack(texts([30])), output_attentions=True)
        assert all(array() is not None for array in read)
        launch(graph, stream)

    with monkeypatch.context() as patch:
        patch.setattr(Graph, "launch", replaced_before)
        hidden, _ = model.encode_packed(batch)
    np.testing.assert_allclose(hidden.get(), expected, atol=2e-5 * np.abs(expected).max())
    check(model, batch)
    assert not any(array() is not None for array in read)


def test_batch_invariant_products_are_captured_anew(gpu):
    model, batch = tiny_model("bert-base-uncased"), texts([5, 11])
    try:
        for wanted in (False, True):
            kernels.set_batch_invariant(wanted)
            first, replayed = (model.encode_packed(batch)[0].get() for _ in range(2))
            np.testing.assert_allclose(replayed, first, atol=1e-4)
        np.testing.assert_array_equal(replayed, first)  # whatever stands behind the batch's own tokens
    finally:
        kernels.set_batch_invariant(False)
    assert len(set(gpu.graphs)) == 2


@pytest.mark.slow  # a quarter of a minute
def test_passes_that_return_more_or_drop_without_a_tape_are_not_replayed(gpu):
    with use_backend("numpy"):
        model = drawn_anew(AutoModelForMaskedLM.from_config(tiny_config("bert-base-uncased")))
    ids, holes = np.stack(texts([7, 7])), [[1, 0, 1, 1, 1, 1, 1]] * 2
    mpnet = tiny_model("mpnet-base")
    for _ in range(2):
        model(ids, output_attentions=True)
        model(ids, output_hidden_states=True, output_attentions=True)
        value_and_grad(model)(ids, labels=ids, output_hidden_states=True)
        mpnet(ids, holes)  # whose padding stays, behind a mask
    model.train(0)
    model(ids)
    assert not gpu.graphs
    model.eval()
    for count in range(2):
        model(ids)
        assert len(gpu.graphs) == count


def test_hidden_states_are_replayed(gpu):
    model = tiny_model("modernbert-base")
    mask = (np.arange(7) < np.array([[7], [0], [4]])).astype(int)
    for seed, asked in enumerate((True, True, False, False, True)):
        ids = np.random.default_rng(seed).integers(6, 90, mask.shape)
        with use_backend("numpy"):
            expected = model(ids, mask, output_hidden_states=True)
        found = model(ids, mask, output_hidden_states=asked)
        np.testing.assert_allclose(found.last_hidden_state.get(), expected.last_hidden_state, atol=1e-4)
        for state, values in zip(found.hidden_states or (), expected.hidden_states, strict=asked):
            np.testing.assert_allclose(state.get(), values, atol=1e-4)
        assert len(gpu.graphs) == (0, 1, 1, 2, 3)[seed]
    assert len(set(gpu.graphs)) == 2


def test_a_pass_that_cannot_be_captured_is_computed_with_a_warning(gpu, monkeypatch):
    """One warning for all layouts: what it shows is that the model is slower, and why."""
    model = tiny_model("bert-base-uncased")
    embeddings = model.encoder.embeddings

    def waiting(*args, **options):
        hidden = embeddings(*args, **options)
        assert not bool(hidden.sum() == 0.5)  # read on the host
        return hidden

    monkeypatch.setattr(model.encoder, "embeddings", waiting)
    check(model, texts([5, 11]))
    with pytest.warns(NotCapturedWarning, match="operation by operation, slower: .* waits for the device") as warned:
        check(model, texts([4, 12]))
    assert [one.filename for one in warned] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotCapturedWarning)
        for lengths in ([16, 0], [3, 30], [30, 3], [29, 4]):
            check(model, texts(lengths))
    assert not gpu.graphs


def test_a_replayed_pass_is_one_copy_and_one_launch(gpu):
    model = tiny_model("bert-base-uncased")
    results = [model.encode_packed(texts([5, 11], seed))[0] for seed in range(3)]
    with use_backend("numpy"):
        expected = [model.encode_packed(texts([5, 11], seed))[0] for seed in range(3)]
    gpu.launches, gpu.waits = [], []
    gpu.uploads.clear()
    results.append(model.encode_packed(texts([5, 11]))[0])
    assert (gpu.launches, gpu.waits, len(gpu.uploads)) == ([], [], 1)
    for result, values in zip(results, expected, strict=False):  # those of earlier passes are still theirs
        np.testing.assert_allclose(result.get(), values, atol=1e-4)
