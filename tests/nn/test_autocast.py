"""autocast: products in bfloat16 over parameters in float32."""

import numpy as np
import pytest

from bertcore import AutoModelForMaskedLM, autocast, use_backend, value_and_grad
from bertcore.kernels._numba import LEVEL
from bertcore.kernels.linear import LINEAR
from bertcore.lora import LoraConfig, get_peft_model
from tests.conftest import CPU_BACKENDS
from tests.tiny_bert import CONFIG
from tests.tolerances import assert_same_arrays

RNG = np.random.default_rng(3)
IDS = RNG.integers(5, CONFIG["vocab_size"], (4, 11))
BATCH = {"input_ids": np.where(RNG.random(IDS.shape) < 0.3, 3, IDS), "labels": IDS}


def made(**config):
    return AutoModelForMaskedLM.from_config({**CONFIG, **config}, seed=1)


def relative(found, expected):
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


@pytest.fixture
def products(monkeypatch):
    """The dtypes of the weights of all products, forward and backward."""
    seen = {"linear": set(), "linear_backward": set()}
    forward, backward = LINEAR.forward, LINEAR.backward

    def spied_forward(backend, input, weight, *others, **options):
        seen["linear"].add(weight.dtype.name)
        return forward(backend, input, weight, *others, **options)

    def spied_backward(backend, grad_output, saved, *options):
        seen["linear_backward"].add(saved.weight.dtype.name)
        return backward(backend, grad_output, saved, *options)

    monkeypatch.setattr(LINEAR, "forward", spied_forward)
    monkeypatch.setattr(LINEAR, "backward", spied_backward)
    return seen


@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_every_product_forward_and_backward_is_in_bfloat16(backend, products):
    model = made()
    before = {name: array.copy() for name, array in model.state_dict().items()}
    with use_backend(backend):
        expected, expected_grads = value_and_grad(model)(**BATCH)
        assert products == {"linear": {"float32"}, "linear_backward": {"float32"}}
        products["linear"].clear(), products["linear_backward"].clear()
        with autocast("bfloat16"):
            out, grads = value_and_grad(model)(**BATCH)
    assert products == {"linear": {"bfloat16"}, "linear_backward": {"bfloat16"}}
    assert 0 < relative(out.logits, expected.logits) < 0.03
    for name, array in grads.items():
        assert array.dtype == np.float32
        if np.linalg.norm(expected_grads[name]) > 1e-6:  # the keys' biases have none but what rounding leaves
            assert relative(array, expected_grads[name]) < 0.1, name
    for name, array in model.state_dict().items():
        assert array.dtype == np.float32
        np.testing.assert_array_equal(array, before[name])


def test_backends_agree():
    """But for numbers that lie between two of bfloat16, which the last bit of a sum moves to one or the other; and for
    all that Numba does not round on a CPU where it widens the weights."""
    tolerance = 0.02 if LEVEL.bfloat16_dot else 0.05
    found = []
    for backend in CPU_BACKENDS:
        with use_backend(backend), autocast("bfloat16"):
            found.append(value_and_grad(made())(**BATCH))
    (first, grads), (second, other_grads) = found
    assert abs(first.loss - second.loss) < 1e-3 * abs(first.loss)
    for name, array in grads.items():
        assert np.abs(array - other_grads[name]).max() <= tolerance * np.abs(array).max() + 1e-7, name


def test_a_call_follows_the_block_it_is_in():
    model = made()
    plain = model(BATCH["input_ids"]).logits
    with autocast("bfloat16"):
        rounded = model(BATCH["input_ids"]).logits
        with pytest.raises(ValueError, match="dtype is 'int8', expected 'bfloat16' or 'float16'"), autocast("int8"):
            pass
        with pytest.raises(ValueError, match=r"autocast\('float16'\) is for GPUs"), autocast("float16"):
            model(BATCH["input_ids"])
        np.testing.assert_array_equal(model(BATCH["input_ids"]).logits, rounded)
    assert 0 < relative(rounded, plain) < 0.03
    np.testing.assert_array_equal(model(BATCH["input_ids"]).logits, plain)


def test_the_weights_are_rounded_anew_when_they_change():
    model = made()
    with autocast("bfloat16"):
        before = model(BATCH["input_ids"]).logits
        for parameter in model.parameters():
            parameter.update(parameter.array() * np.float32(1.5))
        assert relative(model(BATCH["input_ids"]).logits, before) > 0.1


def test_layers_that_run_again_have_the_same_bits():
    model = made()
    with autocast("bfloat16"):
        _, expected = value_and_grad(model)(**BATCH)
        model.gradient_checkpointing_enable()
        _, found = value_and_grad(model)(**BATCH)
    assert_same_arrays(found, expected)


@pytest.mark.usefixtures("on_numpy")
def test_other_dtypes_are_left_as_they_are():
    model = AutoModelForMaskedLM.from_config(CONFIG, dtype="float64", seed=1)
    expected, expected_grads = value_and_grad(model)(**BATCH)
    with autocast("bfloat16"):
        out, grads = value_and_grad(model)(**BATCH)
    assert out.loss == expected.loss
    assert_same_arrays(grads, expected_grads)


def test_adapters_beside_frozen_weights():
    model = get_peft_model(made(), LoraConfig(target_modules=["query", "dense"]), seed=2)
    _, expected = value_and_grad(model)(**BATCH)
    with autocast("bfloat16"):
        _, grads = value_and_grad(model)(**BATCH)
    assert grads.keys() == expected.keys()
    joined, other = (np.concatenate([part.ravel() for part in some.values()]) for some in (grads, expected))
    assert 0 < relative(joined, other) < 0.05
