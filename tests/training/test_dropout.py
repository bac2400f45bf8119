"""Dropout of models: off in inference, at the config's rates in training, the same for the same seed."""

import numpy as np
import pytest

import bertcore
from bertcore import AutoModel, AutoModelForMaskedLM, set_num_threads, value_and_grad
from bertcore.kernels import get_num_threads
from tests.refusals import refuses
from tests.slopes import assert_slope
from tests.tiny_bert import CONFIG
from tests.tiny_families import runnable, tiny_config

IDS = np.random.default_rng(0).integers(6, 30, (3, 13))
RATES = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "classifier_dropout": None}


def new_model(kind=AutoModelForMaskedLM, dtype="float32", **rates):
    return kind.from_config(CONFIG | RATES | rates, dtype=dtype, seed=1)


def test_the_same_seed_drops_the_same(cpu_backend, cpu_dtype):
    model = new_model(dtype=cpu_dtype)
    first, second = model.train(seed=3)(IDS).logits, model(IDS).logits
    assert (first != second).any()
    before = get_num_threads()
    set_num_threads(1)
    again = model.train(seed=3)(IDS).logits
    set_num_threads(before)
    if cpu_backend == "numba":
        np.testing.assert_array_equal(again, first)
    np.testing.assert_allclose(again, first, rtol=1e-12)
    assert (model.train(seed=4)(IDS).logits != first).any()


@pytest.mark.parametrize("rate", [*RATES, None], ids=["hidden", "attention", "classifier", "none"])
def test_each_rate_is_that_of_its_key(rate):
    rates = dict.fromkeys(RATES, 0.0) | ({} if rate is None else {rate: 0.5})
    model = new_model(bertcore.AutoModelForSequenceClassification, **rates)
    expected = model(IDS).logits
    assert (model.train()(IDS).logits != expected).any() == (rate is not None)
    np.testing.assert_array_equal(model.eval()(IDS).logits, expected)


@pytest.mark.parametrize("name", runnable())
def test_every_family_drops(name):
    """Wherever its config has a rate, by whatever key; and gradients are those of what was computed."""
    config = tiny_config(name)
    rates = {key: 0.3 for key in config if "drop" in key and isinstance(config[key], float)}
    rates |= dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob", "attention_dropout"), 0.3)
    model = AutoModel.from_config(config | rates)
    expected = model(IDS)[0]
    found = model.train()(IDS)[0]
    assert np.isfinite(found).all() and (found != expected).any()


@pytest.mark.parametrize("kept", ["everything", "outputs"])
@pytest.mark.usefixtures("on_numpy")
def test_gradients_are_those_of_the_pass(kept):
    """Finite differences with the same seed; layers that run again draw what they drew."""
    model = new_model(dtype="float64", hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.3)
    if kept == "outputs":
        model.gradient_checkpointing_enable()
    batch = {"input_ids": IDS, "labels": IDS}
    _, grads = value_and_grad(model.train(seed=5))(**batch)
    for name in ("bert.encoder.layer.0.attention.self.key.weight", "bert.embeddings.position_embeddings.weight"):
        assert_slope(model, grads, lambda: model.train(seed=5)(**batch).loss, [name])


@pytest.mark.parametrize("rate", [1.0, -0.1, "high", float("nan")])
def test_invalid_rates(rate):
    refuses(ValueError, "config: attention_probs_dropout_prob is", new_model, attention_probs_dropout_prob=rate)


@pytest.mark.parametrize("seed", [-1, 2**64, 0.5, "one", True])
def test_invalid_seeds(seed):
    refuses((TypeError, ValueError), r"seed is", new_model().train, seed)
