"""Sums of objectives, and losses of the caller's own."""

import numpy as np
import pytest

from bertcore import AutoModel, AutoModelForMaskedLM, use_backend, value_and_grad
from bertcore.nn import functional
from bertcore.nn.parameter import Parameter
from bertcore.passes import Pass
from bertcore.training.objectives import CustomLoss, MaskedLM, MultipleNegativesRanking
from tests.tiny_bert import CONFIG
from tests.tolerances import assert_same_arrays

pytestmark = pytest.mark.usefixtures("on_numpy")

IDS = np.random.default_rng(0).integers(5, 40, (4, 2, 6))


def distance(out, wanted):
    """Of a hidden layer from what a teacher has: the mean over examples of the squared difference."""
    difference = out.hidden_states[1] - wanted
    return (difference**2).sum() / len(wanted), {"hidden_states": (None, 2 * difference / len(wanted), None)}


def test_a_loss_of_the_callers_own_with_targets():
    model = AutoModel.from_config(CONFIG, dtype="float64")
    objective = CustomLoss(distance, targets=["wanted"], output_hidden_states=True)
    batch = {"input_ids": IDS[:, 0], "wanted": np.random.default_rng(1).normal(size=(4, 6, 39))}
    with use_backend("numpy"):
        out, grads = objective.value_and_grad(model, batch)
        expected, expected_grads = value_and_grad(model, lambda out: distance(out, batch["wanted"]))(
            IDS[:, 0], output_hidden_states=True
        )
        assert out.loss == expected.loss == pytest.approx(objective.forward(model, batch).loss, rel=1e-12)
    assert objective.weight(batch) == 4
    assert_same_arrays(grads, expected_grads)
    assert not grads["encoder.layer.1.output.dense.weight"].any()
    assert grads["encoder.layer.0.output.dense.weight"].any()


def check_sum(total, model, batch, parts):
    """The loss and the gradients of a sum are those of its parts, (objective, its batch), added up."""
    with use_backend("numpy"):
        out, grads = total.value_and_grad(model, batch)
        assert total.forward(model, batch).loss == pytest.approx(out.loss, rel=1e-12)
        found = [objective.value_and_grad(model, part) for objective, part in parts]
    assert out.loss == pytest.approx(sum(part.loss for part, _ in found), rel=1e-12)
    for name, gradient in grads.items():
        np.testing.assert_allclose(gradient, sum(part[name] for _, part in found), rtol=1e-9, atol=1e-12)


def test_a_sum_adds_losses_and_gradients():
    model, batch = AutoModel.from_config(CONFIG, dtype="float64"), {"input_ids": IDS}
    first, second = MultipleNegativesRanking(), MultipleNegativesRanking(scale=2.0, pooling="cls")
    total = first + second
    assert total.model_class == "AutoModel"
    assert total.weight(batch) == 4
    assert len(total.forward(model, batch).predictions()) == 2  # what the encoder returns, and not the loss
    check_sum(total, model, batch, [(first, batch), (second, batch)])


def test_masked_words_and_a_loss_of_the_callers_own():
    model = AutoModelForMaskedLM.from_config(CONFIG, dtype="float64")
    texts = {"input_ids": IDS[:, 0], "labels": np.where(IDS[:, 0] % 3, -100, IDS[:, 0])}
    target = {"wanted": np.random.default_rng(1).normal(size=(4, 6, 39))}
    words, custom = MaskedLM(), CustomLoss(distance, targets=["wanted"], output_hidden_states=True)
    total = words + custom
    assert total.model_class == (custom + words).model_class == "AutoModelForMaskedLM"
    assert total.weight(texts | target) == (texts["labels"] != -100).sum()
    check_sum(total, model, texts | target, [(words, texts), (custom, texts | target)])


def test_a_sum_goes_through_its_batch_as_its_parts_do():
    model, sizes = AutoModel.from_config(CONFIG), []

    class Noted(type(model)):
        def __call__(self, input_ids, **more):
            sizes.append(len(input_ids))
            return super().__call__(input_ids, **more)

    model.__class__ = Noted
    total = MultipleNegativesRanking(chunk=3) + MultipleNegativesRanking(pooling="cls")
    total.value_and_grad(model, {"input_ids": IDS})
    assert sizes == [3, 3, 2, 3, 3, 2, 8]  # vectors, gradients; and all at once


def test_a_sum_trains_what_either_part_has_beside_the_model():
    model, beside = AutoModel.from_config(CONFIG), Parameter("scale", shape=(39,))
    beside.fill({"scale": np.ones(39, np.float32)}, "float32")

    class Scaled(MultipleNegativesRanking):
        def parameters(self, model):
            return (beside,)

        def loss(self, model, batch):
            out = model(batch["input_ids"][:, 0])
            scaled = functional.rms_norm(Pass.begin(), out.last_hidden_state, beside.value(Pass.begin()), eps=1e-6)
            out.loss = functional.mean_squared_error(Pass.begin(), scaled, labels=np.zeros((4, 6, 39), np.float32))
            return out

    for total in (MultipleNegativesRanking() + Scaled(), Scaled() + MultipleNegativesRanking()):
        _, grads = total.value_and_grad(model, {"input_ids": IDS})
        assert grads["scale"].any() and grads.whole([beside])[0] is not None
        assert all(array is not None for array in grads.whole(list(model.parameters())))
