"""Losses of the caller's own over a model's outputs: gradients through every field, checked by finite differences."""

import numpy as np
import pytest

import bertcore
from bertcore import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    use_backend,
    value_and_grad,
    vjp,
)
from tests.refusals import refuses
from tests.slopes import assert_slope
from tests.tiny_families import tiny_config
from tests.tolerances import assert_same_arrays

pytestmark = pytest.mark.usefixtures("on_numpy")

IDS = np.random.default_rng(3).integers(6, 90, (3, 5))
MASK = np.array([[1, 1, 1, 1, 1], [0, 1, 1, 1, 0], [1, 0, 0, 0, 0]])
BATCH = {"input_ids": IDS, "attention_mask": MASK}
TRACED = {"output_hidden_states": True, "output_attentions": True}
XLNET = {"perm_mask": np.triu(np.ones((5, 5)))[None].repeat(3, 0), "target_mapping": np.eye(5)[None, :4].repeat(3, 0)}
LUKE = {
    "entity_ids": [[3, 4], [5, 0], [6, 7]],
    "entity_attention_mask": [[1, 1], [1, 0], [1, 1]],
    "entity_position_ids": [[[1, 2], [3, -1]], [[2, -1], [-1, -1]], [[0, -1], [0, -1]]],
}
MODELS = {
    "bert": ("bert-base-uncased", "AutoModel", {}),
    "masked lm": ("bert-base-uncased", "AutoModelForMaskedLM", {}),
    "masked lm with labels": ("bert-base-uncased", "AutoModelForMaskedLM", {"labels": np.where(MASK, IDS, -100)}),
    "token classes": ("distilbert-base-uncased", "AutoModelForTokenClassification", {}),
    "question answering": ("bert-base-uncased", "AutoModelForQuestionAnswering", {}),
    "deberta": ("deberta-base", "AutoModel", {}),
    "deberta v2": ("deberta-v3-base", "AutoModel", {}),
    "xlnet": ("xlnet-base-cased", "AutoModel", {"token_type_ids": MASK}),
    "xlnet's predictions": ("xlnet-base-cased", "AutoModelForCausalLM", XLNET),
    "luke": ("luke-base", "AutoModel", LUKE),
    "modernbert": ("modernbert-base", "AutoModel", {}),
    "gpt2": ("gpt2", "AutoModelForCausalLM", {}),
    "albert's heads": ("albert-base-v2", "AutoModelForPreTraining", {}),
    "transformer-xl": ("transfo-xl-wt103", "AutoModelForCausalLM", {}),
}


def new_model(name, kind, **changes):
    return getattr(bertcore, kind).from_config(tiny_config(name) | changes, dtype="float64", seed=1)


def random_like(field, rng):
    if isinstance(field, tuple):
        return tuple(random_like(part, rng) for part in field)
    return rng.standard_normal(np.shape(field))


def product(field, seed):
    if isinstance(field, tuple):
        return sum(product(part, of_part) for part, of_part in zip(field, seed, strict=True))
    return 0.0 if seed is None else float((field * seed).sum())


@pytest.mark.parametrize("case", MODELS)
def test_gradients_through_every_field(case):
    name, kind, more = MODELS[case]
    model, rng = new_model(name, kind), np.random.default_rng(0)
    batch = BATCH | TRACED | more
    with use_backend("numpy"):
        plain = model(**batch)
        out, pullback = vjp(model)(**batch)
        fields = {key: value for key, value in out.items() if key != "mems"}
        assert set(fields) == set(plain) - {"mems"}  # which inference alone has
        for key in fields:
            for found, expected in zip(leaves(out[key]), leaves(plain[key]), strict=True):
                assert type(found) is type(expected)
                np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
        seeds = {key: random_like(value, rng) for key, value in fields.items()}
        grads = pullback(seeds)

        def loss():
            moved = model(**batch)
            return sum(product(moved[key], seed) for key, seed in seeds.items())

        assert_slope(model, grads, loss)


def leaves(field):
    return [leaf for part in field for leaf in leaves(part)] if isinstance(field, tuple) else [field]


@pytest.mark.parametrize("field", ["last_hidden_state", "pooler_output", "hidden_states", "attentions"])
def test_each_field_alone(field):
    """Its gradients are what is left of those of all fields, since a pullback is linear."""
    model, rng = new_model("bert-base-uncased", "AutoModel"), np.random.default_rng(0)
    with use_backend("numpy"):
        out, _ = vjp(model)(**BATCH, **TRACED)
        seeds = {key: random_like(value, rng) for key, value in out.items()}
        whole, alone, others = (
            vjp(model)(**BATCH, **TRACED)[1](chosen) for chosen in (seeds, {field: seeds[field]}, seeds | {field: None})
        )
    assert any(alone[name].any() for name in alone)
    for name, gradient in whole.items():
        np.testing.assert_allclose(alone[name] + others[name], gradient, rtol=1e-9, atol=1e-11)


def squared_logits(out):
    return (out.logits**2).sum(), {"logits": 2 * out.logits}


def test_a_loss_of_the_callers_own():
    model = new_model("bert-base-uncased", "AutoModelForSequenceClassification")
    out, grads = value_and_grad(model, squared_logits)(**BATCH)
    assert out.loss == (out.logits**2).sum()
    np.testing.assert_allclose(grads["classifier.bias"], 2 * out.logits.sum(axis=0), rtol=1e-12)
    _, pullback = vjp(model)(**BATCH)
    assert_same_arrays(grads, pullback({"logits": 2 * out.logits}))


def test_the_models_own_loss_may_be_a_part():
    model = new_model("bert-base-uncased", "AutoModelForMaskedLM")
    labels = np.where(MASK, IDS, -100)
    labels[0] = -100

    def both(out):
        value, grads = squared_logits(out)
        return out.loss + value, grads | {"loss": 1.0}

    _, own = value_and_grad(model)(**BATCH, labels=labels)
    logits_alone, other = value_and_grad(model, squared_logits)(**BATCH)
    out, grads = value_and_grad(model, both)(**BATCH, labels=labels)
    np.testing.assert_allclose(out.logits, logits_alone.logits, rtol=1e-12)
    for name, gradient in grads.items():
        np.testing.assert_allclose(gradient, own[name] + other[name], rtol=1e-9, atol=1e-12)


def test_a_pullback_of_other_parameters_is_refused():
    model = new_model("bert-base-uncased", "AutoModelForSequenceClassification")
    out, pullback = vjp(model)(**BATCH)
    next(model.parameters()).change(lambda array: np.negative(array, out=array))
    refuses(RuntimeError, "the parameters have changed since: call pullback before", pullback, {"logits": out.logits})
    vjp(model)(**BATCH)[1]({"logits": out.logits})


def test_float32_takes_any_real_gradient():
    model = AutoModelForSequenceClassification.from_config(tiny_config("bert-base-uncased"))
    out, pullback = vjp(model)(**BATCH)
    found = pullback({"logits": np.ones(out.logits.shape, int)})
    expected = vjp(model)(**BATCH)[1]({"logits": np.ones(out.logits.shape).tolist()})
    for name, gradient in found.items():
        assert gradient.dtype == np.float32
        np.testing.assert_array_equal(gradient, expected[name])


def freeze(model, prefix):
    for parameter in model.parameters():
        parameter.is_frozen = all(name.startswith(prefix) for name in parameter.names)


def test_frozen_parts_get_no_gradient_and_change_no_other():
    model = new_model("bert-base-uncased", "AutoModelForMultipleChoice")
    assert isinstance(model, AutoModelForMultipleChoice)
    batch = {name: array[None] for name, array in BATCH.items()} | TRACED

    def loss(out):
        states = tuple(2 * state for state in out.hidden_states)
        value = (out.logits**2).sum() + sum((state**2).sum() for state in out.hidden_states)
        return value, {"logits": 2 * out.logits, "hidden_states": states}

    _, whole = value_and_grad(model, loss)(**batch)
    for prefix in ("bert.embeddings", "bert.", "classifier", "bert.encoder.layer.1"):
        freeze(model, prefix)
        _, grads = value_and_grad(model, loss)(**batch)
        assert set(grads) == {name for name in whole if not name.startswith(prefix)} != set(whole)
        for name, gradient in grads.items():
            np.testing.assert_array_equal(gradient, whole[name])


def test_all_frozen_is_an_error():
    model = new_model("bert-base-uncased", "AutoModelForSequenceClassification")
    freeze(model, "")
    out, pullback = vjp(model)(**BATCH)
    for call in (
        lambda: pullback({"logits": out.logits}),
        lambda: value_and_grad(model, squared_logits)(**BATCH),
        lambda: value_and_grad(model)(**BATCH, labels=[0, 1, 0]),
    ):
        refuses(ValueError, "frozen", call)


def test_what_depends_on_frozen_parameters_alone_is_an_error():
    model = new_model("bert-base-uncased", "AutoModelForSequenceClassification")
    freeze(model, "bert.")
    out, pullback = vjp(model)(**BATCH, output_hidden_states=True)
    refuses(ValueError, "frozen", pullback, {"hidden_states": out.hidden_states})
    grads = pullback({"logits": out.logits})  # an error uses nothing up
    assert set(grads) == {"classifier.weight", "classifier.bias"}


STATES = np.ones((3, 5, 48))


@pytest.mark.parametrize("error, message, gradients", [
    (ValueError, "gradients has 'logits', which the output does not have; it has last_hidden_st", {"logits": STATES}),
    (ValueError, r"state'\] has shape \(3, 5, 7\), expected \(3, 5, 48", {"last_hidden_state": STATES[..., :7]}),
    (ValueError, "'hidden_states'.* is ndarray of float64, expected a tuple of 3", {"hidden_states": np.ones((3, 5))}),
    (ValueError, "is a tuple of 1, expected a tuple of 3, whose entries may be None", {"hidden_states": (None,)}),
    (ValueError, r"'hidden_states\[1\]'.* has shape \(3,\)", {"hidden_states": (None, np.ones(3), None)}),
    (ValueError, "gradients is empty", {}),
    (ValueError, "gradients is empty", {"last_hidden_state": None}),
    (TypeError, "gradients is list, expected a mapping", [STATES]),
    *((TypeError, r"gradients\['last_hidden_state'\] is .*, expected an array of real", {"last_hidden_state": wrong})
      for wrong in (STATES * 1j, STATES > 0, "x")),
])  # fmt: skip
def test_wrong_gradients(error, message, gradients):
    _, pullback = vjp(new_model("bert-base-uncased", "AutoModel"))(**BATCH, output_hidden_states=True)
    refuses(error, message, pullback, gradients)


@pytest.mark.parametrize("name, field", [("xlnet-base-cased", "mems"), ("deberta-v3-base", "attention_components")])
def test_fields_without_gradients(name, field):
    model = new_model(name, "AutoModel")
    asked = {"use_mems": True} if field == "mems" else {"output_attention_components": True}
    out, pullback = vjp(model)(**BATCH, **asked)
    refuses(ValueError, f"gradients has '{field}', through which no gradient flows", pullback, {field: out[field]})


@pytest.mark.parametrize("result", [1.0, (1.0, None), (1.0, {}, 2)])
def test_a_loss_that_returns_something_else(result):
    model = new_model("bert-base-uncased", "AutoModel")
    with pytest.raises(TypeError, match=r"loss returned .*, expected \(loss, \{field: gradient\}\)"):
        value_and_grad(model, lambda out: result)(**BATCH)


def test_a_pullback_is_called_once():
    out, pullback = vjp(new_model("bert-base-uncased", "AutoModel"))(**BATCH)
    pullback({"last_hidden_state": out.last_hidden_state})
    refuses(RuntimeError, "a second time", pullback, {"last_hidden_state": out.last_hidden_state})


def test_answers_have_gradients_in_all_columns():
    model = new_model("bert-base-uncased", "AutoModelForQuestionAnswering")
    assert isinstance(model, AutoModelForQuestionAnswering)
    out, pullback = vjp(model)(**BATCH)
    grads = pullback({"start_logits": np.ones(out.start_logits.shape)})
    np.testing.assert_allclose(grads["qa_outputs.bias"], [MASK.sum(), 0])  # padding is not read


def test_logits_that_are_read_late_have_no_tape():
    """A masked language model's logits beside its loss are computed where they are read."""
    model = new_model("bert-base-uncased", "AutoModelForMaskedLM")
    assert isinstance(model, AutoModelForMaskedLM)
    out, _ = value_and_grad(model)(**BATCH, labels=np.where(MASK, IDS, -100))
    np.testing.assert_allclose(out.logits, model(**BATCH).logits, rtol=1e-12)
    assert isinstance(AutoModel.from_config(tiny_config("bert-base-uncased"))(**BATCH).loss, type(None))


@pytest.mark.parametrize("model", [3, "bert-base-uncased", None])
def test_only_models_are_differentiated(model):
    refuses(TypeError, f"model is {type(model).__qualname__}, expected a model", value_and_grad, model)
