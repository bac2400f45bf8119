"""Layers under a tape that are no CUDA graphs: computed operation by operation, with a warning where CUDA is why."""

import warnings
from contextlib import nullcontext

import cupy
import pytest

from bertcore import use_backend, value_and_grad, vjp
from bertcore.execution import graphs
from bertcore.execution.graph_cache import Workspace
from bertcore.execution.graphs import NotCapturedWarning
from bertcore.nn.parameter import Block
from tests.models.gpu_training import BATCHES, batch_of, by_operations, check, on_host, tiny_model


@pytest.fixture
def model():
    return tiny_model("bert-base-uncased")


@pytest.mark.slow
def test_what_is_worth_no_graphs(gpu, model, monkeypatch):
    monkeypatch.setattr(graphs, "MOST_WORK", 1 << 16)
    batch, empty = batch_of(BATCHES[0]), batch_of([0, 0, 0])
    for _ in range(3):
        _, grads = value_and_grad(model)(**batch)
        vjp(model)(**empty)
    with use_backend("numpy"):
        check(on_host(grads), value_and_grad(model)(**batch)[1], 1e-4)
    assert not gpu.graphs


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["much of it", "more than there is"])
def test_a_pass_that_takes_much_memory_is_not_captured(gpu, model, monkeypatch, kind):
    batch = batch_of(BATCHES[0])
    if kind == "much of it":
        gpu.memory_bytes = 1 << 20
    else:
        monkeypatch.setattr(Workspace, "arena", lambda *_: cupy.cuda.alloc(1 << 60))
    expected = by_operations(monkeypatch, lambda: on_host(value_and_grad(model)(**batch)[1]))
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotCapturedWarning)
        for _ in range(3):
            check(on_host(value_and_grad(model)(**batch)[1]), expected)
    assert not gpu.graphs


def test_a_pass_that_cannot_be_captured_is_computed_with_a_warning(gpu, model, monkeypatch):
    layer, batch = model.encoder.layers[1], batch_of(BATCHES[0])
    expected = by_operations(monkeypatch, lambda: on_host(value_and_grad(model)(**batch)[1]))

    class Waiting(Block):
        def __init__(self):
            self.layer = layer

        def __call__(self, run, hidden, context):
            cupy.cuda.get_current_stream().synchronize()
            return self.layer(run, hidden, context)

    model.encoder.layers[1] = Waiting()
    value_and_grad(model)(**batch)
    with pytest.warns(NotCapturedWarning, match="waits for the device") as warned:
        check(on_host(value_and_grad(model)(**batch)[1]), expected)
    assert [one.filename for one in warned] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotCapturedWarning)
        check(on_host(value_and_grad(model)(**batch)[1]), expected)
    assert not gpu.graphs


@pytest.mark.slow
@pytest.mark.parametrize("layers", [1, 2])
def test_nothing_to_train_below_a_decoder(gpu, monkeypatch, layers):
    """DeBERTa's runs the last layer by itself: there is none below, which raises an error, or it is frozen."""
    changes = {"position_biased_input": False, "enhanced_mask_decoder": True}
    model, batch = tiny_model("deberta-v3-small", num_hidden_layers=layers, **changes), batch_of(BATCHES[0])
    if layers == 2:
        for block in (model.encoder.embeddings, model.encoder.adapter, model.encoder.layers[0]):
            for parameter in block.parameters():
                parameter.is_frozen = True
    expected = by_operations(monkeypatch, lambda: on_host(value_and_grad(model)(**batch)[1]))
    for number in range(3):
        is_told = layers == 1 and number == 1
        with pytest.warns(NotCapturedWarning, match="has a gradient") if is_told else nullcontext():
            check(on_host(value_and_grad(model)(**batch)[1]), expected)
    assert expected and not gpu.graphs
