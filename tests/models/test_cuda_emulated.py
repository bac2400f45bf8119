"""The whole model line on the CUDA kernels and CuPy's arrays, as on a GPU; the kernels run in the CPU emulator."""

from contextlib import nullcontext

import numpy as np
import pytest

from bertcore import AutoModelForMaskedLM, ReplacedTokenModel, autocast, kernels, use_backend, value_and_grad
from bertcore.kernels import _cuda
from bertcore.nn.functional import losses
from bertcore.passes import Pass
from tests.demo import demo_folder  # noqa: F401
from tests.kernels.cuda_support import batch_invariance
from tests.models.test_goldens import GOLDENS, NAMES, golden, inputs_of
from tests.tiny_families import drawn_anew, tiny_config

# Of hidden states, relative to their scale. Each kernel is within 1e-3 in float16 (tests/tolerances.py); through the
# layers of these models rounding the weights to float16 alone, computed in float64, costs up to 1.4e-3.
TOLERANCE = {"float32": 2e-6, "float16": 3e-3, "bfloat16": 2.5e-2}


def error(found, truth):
    return np.abs(found.get().astype(np.float64) - truth).max() / np.abs(truth).max()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_masked_lm(emulated_gpu, name, dtype):
    truth, products = golden(name), emulated_gpu.products
    model = AutoModelForMaskedLM.from_pretrained(GOLDENS / name, dtype=dtype)
    out = model(**inputs_of(name), output_hidden_states=True)
    assert out.logits.dtype.name == dtype
    for state, expected in zip(out.hidden_states, truth["hidden_states"], strict=True):
        assert error(state, expected) < TOLERANCE[dtype]
    assert error(out.logits, truth["logits"]) < 2 * TOLERANCE[dtype]  # one more layer, that amplifies
    launched = " ".join(launch.kernel for launch in emulated_gpu.launches)
    for operation in ("attention", "norm_", "embedding"):
        assert operation in launched
    assert emulated_gpu.products > products and "linear" not in launched


@pytest.mark.parametrize("is_own", [False, True])
def test_a_tied_decoder_is_on_the_device_once(emulated_gpu, is_own):
    with use_backend("numpy"):
        model = AutoModelForMaskedLM.from_config(tiny_config("bert-base-uncased"))
    (table,) = (parameter for parameter in model.parameters() if {"table", "weight"} <= parameter.uses)
    if is_own:
        table.change(lambda array: array.fill(0.5))
    weight = table.weight(Pass.begin())  # before the first token is looked up
    model([[1, 2, 3]])
    assert table.weight(Pass.begin()) is weight
    assert weight.array.data.ptr == table.value(Pass.begin()).data.ptr
    assert weight.array.shape == table.shape


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_batch_invariant_products(emulated_gpu, dtype):
    model = AutoModelForMaskedLM.from_pretrained(GOLDENS / NAMES[0], dtype=dtype)
    ids = np.random.default_rng(0).integers(5, 40, (3, 7))
    is_same = {}
    for wanted in (True, False):
        with batch_invariance(wanted):
            products = emulated_gpu.products
            among, alone = model(ids).logits[1].get(), model(ids[1:2, :]).logits[0].get()
            assert (emulated_gpu.products == products) == wanted
        is_same[wanted] = among.tobytes() == alone.tobytes()
    assert is_same[True]
    assert not is_same[False] or dtype != "float32"


def test_both_parts_of_a_replaced_token_model_follow_the_ids(emulated_gpu):
    """Words are drawn on the host; the discriminator gets them where the generator got its ids."""
    rng, model = np.random.default_rng(0), ReplacedTokenModel.from_config(tiny_config("electra-small-discriminator"))
    ids = rng.integers(5, 40, (2, 7))
    labels = np.where(np.arange(7) % 3 == 1, ids, -100)
    given = {"labels": labels, "draws": rng.random(ids.shape)}
    with use_backend("numpy"):
        expected = model(ids, **given)
    on_gpu = kernels.to_backend(ids)
    with use_backend("auto"):
        out = model(on_gpu, **given)
    np.testing.assert_array_equal(out.given_ids, expected.given_ids)
    assert error(out.logits, expected.logits) < 1e-4
    assert float(out.loss) == pytest.approx(float(expected.loss), rel=1e-4)


def tiny_masked_lm(preset="bert-base-uncased", **config):
    """Two narrow layers whose every parameter tells, and a ragged batch with labels."""
    with use_backend("numpy"):
        model = drawn_anew(AutoModelForMaskedLM.from_config({**tiny_config(preset), **config}))
    rng, real = np.random.default_rng(0), np.arange(7) < np.array([[7], [4]])
    ids = np.where(real, rng.integers(5, 40, real.shape), 0)
    labels = np.where(real & (rng.random(real.shape) < 0.5), ids, -100)
    return model, {"input_ids": ids, "attention_mask": real.astype(int), "labels": labels}


def check_gradients(found, expected, tolerance):
    """Each is within so much of its largest, or of a tenth of the largest of all: a bias of keys has rounding alone."""
    assert set(found) == set(expected)
    scale = max(float(abs(grad).max()) for grad in expected.values())
    for name, grad in expected.items():
        error = np.abs(kernels.to_host(found[name]) - kernels.to_host(grad)).max()
        assert error < tolerance * max(float(abs(grad).max()), scale / 10), name


@pytest.mark.parametrize("preset", ["bert-base-uncased", "deberta-v3-small"])
@pytest.mark.parametrize("is_dropping", [False, True])
def test_gradients(emulated_gpu, is_dropping, preset):
    model, batch = tiny_masked_lm(preset)
    found = {}
    for backend in ("numpy", "cupy"):
        if is_dropping:
            model.train(seed=5)
        with use_backend(backend):
            found[backend] = value_and_grad(model)(**batch)
    (expected, grads), (out, on_gpu) = found["numpy"], found["cupy"]
    assert float(out.loss) == pytest.approx(float(expected.loss), rel=1e-5)
    check_gradients(on_gpu, grads, 1e-5)
    launched = " ".join(launch.kernel for launch in emulated_gpu.launches)
    for kernel in ("attention_backward", "norm_backward", "cross_entropy_backward", "sum_runs"):
        assert kernel in launched
    assert ("OUTPUT" in launched) == is_dropping  # attention once more, of what dropout has left


@pytest.mark.parametrize("precision", [None, "bfloat16"])
def test_scores_of_labels_exist_in_chunks(emulated_gpu, precision, monkeypatch):
    """The gradients of those at once, in their place; no array has more rows of a vocabulary than a chunk. Each row of
    it begins on 16 bytes."""
    monkeypatch.setattr(_cuda, "WIDE", 1)
    model, batch = tiny_masked_lm()
    batch["labels"], found = np.where(batch["attention_mask"] == 1, batch["input_ids"], -100), {}
    for chunk in (1024, 4):
        monkeypatch.setattr(losses, "CHUNK", chunk)
        emulated_gpu.launches.clear()
        with autocast(precision) if precision else nullcontext():
            found[chunk] = value_and_grad(model)(**batch)
    (expected, grads), (out, in_chunks) = found.values()
    scored = [launch.args[0].shape for launch in emulated_gpu.launches if launch.kernel.startswith("cross_entropy")]
    assert scored == [(rows, model.spec.vocab_size) for rows in (4, 4, 4, 4, 3, 3)]
    for launch in emulated_gpu.launches:
        if launch.kernel.startswith("cross_entropy_backward"):
            scores, gradient = launch.args[0], launch.args[4]
            assert scores.strides[0] % 16 == 0 and scores.data.ptr == gradient.data.ptr
    assert float(out.loss) == pytest.approx(float(expected.loss), rel=1e-6)
    check_gradients(in_chunks, grads, 1e-5 if precision is None else 0.02)
    with autocast(precision) if precision else nullcontext():
        loss = float(model(**batch).loss)  # where fewer operations round to 16 bits
    assert loss == pytest.approx(float(out.loss), rel=1e-6 if precision is None else 5e-3)


@pytest.mark.parametrize("chunk", [1024, 4])
def test_gradients_of_weights_are_not_rounded_under_autocast(emulated_gpu, chunk, monkeypatch):
    model, batch = tiny_masked_lm(tie_word_embeddings=False)
    batch["labels"] = np.where(batch["attention_mask"] == 1, batch["input_ids"], -100)
    monkeypatch.setattr(losses, "CHUNK", chunk)
    with autocast("bfloat16"):
        _, grads = value_and_grad(model)(**batch)
    for parameter in model.parameters():
        if "weight" in parameter.uses:
            for name in parameter.names:
                bits = grads[name].get().view(np.uint32)
                assert grads[name].dtype == np.float32 and (bits & 0xFFFF).any(), name
