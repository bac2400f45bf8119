"""Layers under a tape as CUDA graphs: their gradients are those of passes that run operation by operation.

Passes that are no graphs run operation by operation, with a warning where CUDA is why.

Streams are captured, and graphs launched, by what stands for them without a driver (tests/cuda_emulator/streams.py);
unwritten memory is NaN there.
"""

import gc
import shutil
import warnings
import weakref
from contextlib import nullcontext
from dataclasses import replace

import cupy
import numpy as np
import pytest

import bertcore
from bertcore import AutoModel, AutoModelForMaskedLM, use_backend, value_and_grad, vjp
from bertcore.execution import graphs
from bertcore.execution.graph_cache import Workspace
from bertcore.execution.graphs import NotCapturedWarning
from bertcore.lora import LoraConfig, get_peft_model
from bertcore.nn.parameter import Block
from bertcore.passes import autocast
from bertcore.training.optimizers import AdamW
from tests.models.gpu_training import BATCHES, batch_of, by_operations, check, on_host, tiny_model
from tests.tiny_families import drawn_anew, runnable, tiny_config
from tests.training.tiny_runs import assert_same_weights, language_trainer, without_times

WITHOUT = ("transfo_xl",)  # no graphs: its passes return memories


@pytest.fixture
def model():
    return tiny_model("bert-base-uncased")


@pytest.mark.slow
def test_gradients_that_are_kept_stay_as_they_were(gpu, model, monkeypatch):
    batches = [batch_of(lengths) for lengths in BATCHES]
    found = [value_and_grad(model)(**batch)[1] for batch in batches]
    expected = by_operations(monkeypatch, lambda: [on_host(value_and_grad(model)(**batch)[1]) for batch in batches])
    assert len(gpu.graphs) == 6
    for grads, values in zip(found, expected, strict=True):
        check(on_host(grads), values)
    total = {name: sum(values[name] for values in expected) for name in expected[0]}
    for grads in found[1:]:
        found[0].accumulate(grads)
    check(on_host(found[0]), total, 1e-6)
    check(on_host(found[1]), expected[1])


@pytest.mark.slow
def test_passes_while_others_are_under_way(gpu, model, monkeypatch):
    """Four at once, each differentiated later: three have memory of their own. And one that never is."""
    batches = [batch_of(lengths) for lengths in BATCHES]
    expected = by_operations(monkeypatch, lambda: [on_host(value_and_grad(model)(**batch)[1]) for batch in batches])
    value_and_grad(model)(**batches[0])
    passes = [vjp(model)(**batch)[1] for batch in batches]
    assert len(set(gpu.graphs)) == len(gpu.graphs) == 3  # forwards
    for number in (1, 3, 0, 2):
        check(on_host(passes[number]({"loss": np.float32(1)})), expected[number])
    assert len(set(gpu.graphs)) == len(gpu.graphs) == 6
    dropped = vjp(model)(**batches[1])
    assert len(set(gpu.graphs)) == 6
    check(on_host(value_and_grad(model)(**batches[3])[1]), expected[3])
    del dropped
    gc.collect()
    check(on_host(value_and_grad(model)(**batches[3])[1]), expected[3])
    assert len(set(gpu.graphs)) == 6 and len(gpu.graphs) == 11


@pytest.mark.parametrize(
    "dtype", [None, *(pytest.param(name, marks=pytest.mark.slow) for name in ("bfloat16", "float16"))]
)
def test_replays_follow_parameters_that_change_in_place(gpu, model, monkeypatch, dtype):
    optimizer, batch = AdamW(model, lr=0.05), batch_of(BATCHES[0])
    for number in range(5):
        with autocast(dtype) if dtype else nullcontext():
            expected = by_operations(monkeypatch, lambda: value_and_grad(model)(**batch)[1])
            _, grads = value_and_grad(model)(**batch)
        check(on_host(grads), on_host(expected))
        optimizer.step(grads)
        assert len(gpu.graphs) == 2 * number


RATES = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3}


def train_over(model, batches):
    """The gradients of a pass over each batch, with dropout."""
    model.train(5)
    return [on_host(value_and_grad(model)(**batch)[1]) for batch in batches]


@pytest.mark.parametrize("name", ["roberta-base", pytest.param("xlnet-base-cased", marks=pytest.mark.slow)])
def test_dropout(gpu, monkeypatch, name):
    """Each pass drops what it drops operation by operation, also behind the layers: XLNet's graphs draw a seed before
    the first layer, and what follows the last one draws the next."""
    model = tiny_model(name, bertcore.AutoModelForSequenceClassification, **RATES, dropout=0.2)
    batches = [batch_of(lengths) | {"labels": [0, 1, 0, 1, 1]} for lengths in BATCHES[1:]]
    expected = by_operations(monkeypatch, lambda: train_over(model, batches))
    found = train_over(model, batches)
    assert len(gpu.graphs) == 2 * (len(batches) - 1)
    for grads, values in zip(found, expected, strict=True):
        check(grads, values)
    with use_backend("numpy"):
        model.train(5)
        for grads, batch in zip(found, batches, strict=True):
            check(grads, value_and_grad(model)(**batch)[1], 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["layers again", "adapters", "bfloat16"])
def test_dropout_beside(gpu, monkeypatch, kind):
    model = tiny_model("bert-base-uncased", **RATES)
    if kind == "layers again":
        model.gradient_checkpointing_enable()
    if kind == "adapters":
        with use_backend("numpy"):
            model = get_peft_model(model, LoraConfig(r=2, target_modules=["query", "dense"], lora_dropout=0.3))
    batches = [batch_of(lengths) for lengths in BATCHES]
    with autocast("bfloat16") if kind == "bfloat16" else nullcontext():
        expected = by_operations(monkeypatch, lambda: train_over(model, batches))
        for grads, values in zip(train_over(model, batches), expected, strict=True):
            check(grads, values)
    assert len(gpu.graphs) == 2 * (len(batches) - 1)


@pytest.mark.slow
def test_a_run_has_the_bits_that_it_has_operation_by_operation(gpu, monkeypatch, tmp_path):
    """Whatever came before: so a run that goes on from a checkpoint, which begins without graphs, has them, too."""

    def run(name, goes_on=False):
        trainer = language_trainer(tmp_path / name, max_steps=16, save_steps=9, logging_steps=1)
        trainer.train(resume_from_checkpoint=goes_on)
        return trainer

    expected = by_operations(monkeypatch, lambda: run("by operations"))
    assert not gpu.graphs
    found = run("by graphs")
    assert len(gpu.graphs) >= 10
    shutil.copytree(tmp_path / "by graphs" / "checkpoint-9", tmp_path / "again" / "checkpoint-9")
    again = run("again", goes_on=True)
    for trainer in (found, again):
        assert without_times(trainer.state.log_history) == without_times(expected.state.log_history)
        assert_same_weights(trainer.model, expected.model)


@pytest.mark.slow
def test_replaced_parameters_are_captured_anew(gpu, model, monkeypatch):
    batch = batch_of(BATCHES[0])
    for seed, launched in ((0, 0), (None, 2), (None, 4), (None, 6), (1, 6), (None, 8)):
        if seed is not None:
            arrays = [each.forms.on_gpus.get(0) for layer in model.encoder.layers for each in layer.parameters()]
            read = [weakref.ref(array) for array in arrays if array is not None]
            del arrays
            drawn_anew(model, seed)
            # Graphs are keyed by the ids of what they read, which stay unique as long as the graphs are kept.
            assert all(array() is not None for array in read)
        expected = by_operations(monkeypatch, lambda: value_and_grad(model)(**batch)[1])
        check(on_host(value_and_grad(model)(**batch)[1]), on_host(expected))
        assert len(gpu.graphs) == launched
        if seed is not None:
            assert not any(array() is not None for array in read)
    assert read and len(set(gpu.graphs)) == 4


@pytest.mark.slow
def test_frozen_parameters(gpu, model, monkeypatch):
    batch, encoder = batch_of(BATCHES[0]), model.encoder

    def check_each(launched):  # often enough for graphs to be worth their capture
        for number in range(4):
            expected = by_operations(monkeypatch, lambda: value_and_grad(model)(**batch)[1])
            del gpu.graphs[:]
            check(on_host(value_and_grad(model)(**batch)[1]), on_host(expected))
            assert len(gpu.graphs) == (launched if number else 0)

    check_each(2)
    for parameter in [*encoder.embeddings.parameters(), *encoder.layers[0].parameters()]:
        parameter.is_frozen = True
    check_each(2)
    weight = encoder.layers[0].feed_forward.expand.weight
    weight.change(lambda array: array.__imul__(2))
    check_each(2)
    weight.is_frozen = False
    check_each(2)
    for layer in encoder.layers:
        for parameter in layer.parameters():
            parameter.is_frozen = True
    check_each(0)


@pytest.mark.slow
def test_a_rate_of_dropout_that_changes(gpu, monkeypatch):
    with use_backend("numpy"):
        base = tiny_model("bert-base-uncased", **RATES)
        model = get_peft_model(base, LoraConfig(r=2, target_modules=["query"], lora_dropout=0.3))
    attention = base.encoder.layers[0].attention
    adapter = model.adapters[0]

    def rates(hidden, of_attention, of_adapter):
        attention.dropout, adapter.dropout = hidden, of_adapter
        attention.spec = replace(attention.spec, attention_dropout=of_attention)

    batch, other = batch_of(BATCHES[0]), batch_of(BATCHES[1])
    for given in ((0.2, 0.3, 0.3), (0.7, 0.3, 0.3), (0.7, 0.6, 0.3), (0.7, 0.6, 0.8)):
        rates(*given)
        expected = by_operations(monkeypatch, lambda: train_over(model, [batch, other, batch]))
        for grads, values in zip(train_over(model, [batch, other, batch]), expected, strict=True):
            check(grads, values)


@pytest.mark.slow
def test_what_is_not_finite_does_not_stay(gpu, model, monkeypatch):
    good, bad = batch_of(BATCHES[0]), batch_of(BATCHES[1])
    expected = by_operations(monkeypatch, lambda: on_host(value_and_grad(model)(**good)[1]))
    words, word = model.encoder.embeddings.words.table, bad["input_ids"][0, 0]
    for _ in range(3):
        check(on_host(value_and_grad(model)(**good)[1]), expected)
    vjp(model)(**bad)[1]({"loss": np.float32(np.nan)})
    check(on_host(value_and_grad(model)(**good)[1]), expected)
    row = words.array()[word].copy()
    for values in (np.nan, cupy.asarray(row)):
        words.change(lambda array, values=values: array.__setitem__(word, values))
        out, _ = value_and_grad(model)(**bad)
        assert np.isfinite(out.loss.get()) == (values is not np.nan)
    check(on_host(value_and_grad(model)(**good)[1]), expected)
    assert len(gpu.graphs) == 2 * 7


@pytest.mark.slow
@pytest.mark.parametrize("name", runnable())
def test_every_family(gpu, monkeypatch, name):
    model = tiny_model(name, AutoModel)
    has_graphs = model.config["model_type"].replace("-", "_") not in WITHOUT
    for number, lengths in enumerate(BATCHES):
        batch = batch_of(lengths)
        del batch["labels"]
        shape = *batch["input_ids"].shape, model.spec.hidden_size
        gradient = {"last_hidden_state": np.random.default_rng(number).normal(0, 1, shape).astype(np.float32)}
        expected = by_operations(monkeypatch, lambda: vjp(model)(**batch)[1](gradient))  # noqa: B023
        check(on_host(vjp(model)(**batch)[1](gradient)), on_host(expected))
        assert len(gpu.graphs) == 2 * number * has_graphs  # forward and backward, from the second of the layout on
    assert len(set(gpu.graphs)) == 2 * has_graphs
    with use_backend("numpy"):
        check(on_host(expected), vjp(model)(**batch)[1](gradient), 1e-3)


def test_gradients_of_a_model_in_sixteen_bits_are_in_these(gpu):
    """Sums over rows are not rounded where a parameter is in float32; here it is not."""
    with use_backend("numpy"):
        model = AutoModelForMaskedLM.from_config(tiny_config("bert-base-uncased"), dtype="float16", seed=1)
    for number in range(2):  # operation by operation, and by graphs
        _, grads = value_and_grad(model)(**batch_of(BATCHES[0]))
        assert {array.dtype for array in grads.values()} == {np.dtype(np.float16)}
        assert len(gpu.graphs) == 2 * number


# --- without graphs ---------------------------------------------------------------------------------------------------


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
