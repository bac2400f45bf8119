"""Sums of objectives, losses of the caller's own, batches of a step, and runs that resume."""

import numpy as np
import pytest

import bertcore
from bertcore import AutoModel, AutoModelForMaskedLM, ReplacedTokenModel, use_backend, value_and_grad
from bertcore.nn import functional
from bertcore.nn.parameter import Parameter
from bertcore.passes import Pass
from bertcore.training import Trainer
from bertcore.training.collators import IGNORED
from bertcore.training.metrics import run_through
from bertcore.training.objectives import (
    CustomLoss,
    Distillation,
    EntityMaskedLM,
    HiddenStates,
    MaskedLM,
    MultipleNegativesRankingLoss,
    NextSentence,
    PermutationLM,
    ReplacedToken,
    SoftTargets,
    SpanBoundary,
    Supervised,
    TranslationLM,
)
from tests.tiny_bert import CONFIG, random_texts
from tests.tiny_families import tiny_config
from tests.tolerances import assert_same_arrays
from tests.training.objectives.students import WIDE, classifier
from tests.training.tiny_runs import assert_resumes, objective_trainer, quiet_arguments

pytestmark = pytest.mark.usefixtures("on_numpy")

IDS = np.random.default_rng(0).integers(5, 40, (4, 2, 6))


def distance(out, wanted):
    """Of a hidden layer from what a teacher has: the mean over examples of the squared difference."""
    difference = out.hidden_states[1] - wanted
    return (difference**2).sum() / len(wanted), {"hidden_states": (None, 2 * difference / len(wanted), None)}


def custom():
    return CustomLoss(distance, targets=["wanted"], output_hidden_states=True)


def test_a_loss_of_the_callers_own_with_targets():
    model, objective = AutoModel.from_config(CONFIG, dtype="float64"), custom()
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
    first, second = MultipleNegativesRankingLoss(), MultipleNegativesRankingLoss(scale=2.0, pooling="cls")
    total = first + second
    assert total.model_class == "AutoModel"
    assert total.weight(batch) == 4
    assert len(total.forward(model, batch).predictions()) == 2  # what the encoder returns, and not the loss
    check_sum(total, model, batch, [(first, batch), (second, batch)])


def test_masked_words_and_a_loss_of_the_callers_own():
    model, words, own = AutoModelForMaskedLM.from_config(CONFIG, dtype="float64"), MaskedLM(), custom()
    batch, total = TEXTS | WANTED, words + own
    assert total.model_class == (own + words).model_class == "AutoModelForMaskedLM"
    assert total.weight(batch) == (WORDS != IGNORED).sum()
    check_sum(total, model, batch, [(words, TEXTS), (own, batch)])


def test_a_sum_goes_through_its_batch_as_its_parts_do():
    model, sizes = AutoModel.from_config(CONFIG), []

    class Noted(type(model)):
        def __call__(self, input_ids, **more):
            sizes.append(len(input_ids))
            return super().__call__(input_ids, **more)

    model.__class__ = Noted
    total = MultipleNegativesRankingLoss(mini_batch_size=3) + MultipleNegativesRankingLoss(pooling="cls")
    total.value_and_grad(model, {"input_ids": IDS})
    assert sizes == [3, 3, 2, 3, 3, 2, 8]  # vectors, gradients; and all at once


def test_a_sum_trains_what_either_part_has_beside_the_model():
    model, beside = AutoModel.from_config(CONFIG), Parameter("scale", shape=(39,))
    beside.fill({"scale": np.ones(39, np.float32)}, "float32")

    class Scaled(MultipleNegativesRankingLoss):
        def parameters(self, model):
            return (beside,)

        def loss(self, model, batch):
            out = model(batch["input_ids"][:, 0])
            scaled = functional.rms_norm(Pass.begin(), out.last_hidden_state, beside.value(Pass.begin()), eps=1e-6)
            out.loss = functional.mean_squared_error(Pass.begin(), scaled, labels=np.zeros((4, 6, 39), np.float32))
            return out

    for total in (MultipleNegativesRankingLoss() + Scaled(), Scaled() + MultipleNegativesRankingLoss()):
        _, grads = total.value_and_grad(model, {"input_ids": IDS})
        assert grads["scale"].any() and grads.whole([beside])[0] is not None
        assert all(array is not None for array in grads.whole(list(model.parameters())))


RNG = np.random.default_rng(3)
MASK = (np.arange(11) < np.array([11, 4, 7, 2, 11, 6])[:, None]).astype(np.int64)
STEPS_IDS = RNG.integers(5, 40, MASK.shape) * MASK
WORDS = np.where((RNG.random(MASK.shape) < 0.4) & (MASK == 1), STEPS_IDS, IGNORED)
WORDS[:, 1], WORDS[1], WORDS[:, 0] = STEPS_IDS[:, 1], IGNORED, IGNORED
TEXTS = {"input_ids": STEPS_IDS, "attention_mask": MASK, "labels": WORDS}
PAIRS = {"next_sentence_label": np.array([0, 1, IGNORED, 0, 1, 1])}
ENTITIES = {
    "entity_ids": RNG.integers(4, 14, (6, 2)),
    "entity_attention_mask": np.ones((6, 2), np.int64),
    "entity_position_ids": RNG.integers(0, 2, (6, 2, 1)),
    "entity_labels": np.array([[5, 6], [IGNORED, 7], [IGNORED, IGNORED], [8, 9], [IGNORED, 4], [5, IGNORED]]),
}
REPLACED = {"draws": RNG.random(MASK.shape)}
WANTED = {"wanted": RNG.normal(size=(6, 11, 39))}


PLAIN = CONFIG | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def new(kind, config=PLAIN, **options):
    return lambda: kind.from_config(config, dtype="float64", seed=1, **options)


def distillation():
    terms = HiddenStates(weight=0.5), SoftTargets(weight=5)
    return Distillation(classifier(WIDE, seed=1), *terms, objective=Supervised(), objective_weight=2)


PRETRAINING, LUKE = new(bertcore.AutoModelForPreTraining), tiny_config("luke-base") | {"vocab_size": 75}
ELECTRA = tiny_config("electra-small-discriminator") | {"vocab_size": CONFIG["vocab_size"]}
CASES = {  # objective, model, batch, numbers that the summands are means over
    "words": (MaskedLM, new(AutoModelForMaskedLM), TEXTS, 1),
    "words and pairs": (lambda: MaskedLM() + NextSentence(), PRETRAINING, TEXTS | PAIRS, 2),
    "words, and a custom loss": (lambda: MaskedLM() + custom(), new(AutoModelForMaskedLM), TEXTS | WANTED, 2),
    "all": (lambda: MaskedLM() + NextSentence() + custom(), PRETRAINING, TEXTS | PAIRS | WANTED, 3),
    "boundaries": (SpanBoundary, new(bertcore.AutoModelForSpanBoundary), TEXTS, 2),
    "entities": (EntityMaskedLM, new(AutoModelForMaskedLM, LUKE), TEXTS | ENTITIES, 2),
    "replaced": (ReplacedToken, new(ReplacedTokenModel, ELECTRA, embeddings="tied"), TEXTS | REPLACED, 2),
    "distilled": (distillation, classifier, TEXTS | {"labels": np.array([0, 1, IGNORED, 2, 1, 0])}, 3),
}


@pytest.mark.parametrize("case", CASES)
def test_batches_of_a_step_add_up_to_the_whole(case):
    """Each summand is weighed by its own count."""
    objective, model, batch, summands = CASES[case]
    objective, model = objective(), model()
    whole, expected = objective.value_and_grad(model, batch)
    parts = [{name: array[rows] for name, array in batch.items()} for rows in ([0, 3], [5], [1, 2, 4])]
    counts = np.array([objective.counts(model, part) for part in parts])
    assert counts.shape == (3, summands) and counts.sum(0).tolist() == list(objective.counts(model, batch))
    assert summands == 1 or len({tuple(column) for column in (counts / counts.sum(0)).T}) > 1
    found = [objective.in_step(model, *each) for each in zip(parts, counts / counts.sum(0), strict=True)]
    assert sum(loss for loss, _ in found) == pytest.approx(float(whole.loss), rel=1e-12)
    for name, gradient in expected.items():
        total = sum(grads[name] for _, grads in found)
        np.testing.assert_allclose(total, gradient, rtol=1e-9, atol=1e-13, err_msg=name)


@pytest.mark.parametrize("case", CASES)
def test_batches_of_an_evaluation_add_up_to_the_whole(case):
    objective, model, batch, _ = CASES[case]
    objective, model = objective(), model()
    parts = [{name: array[rows] for name, array in batch.items()} for rows in ([0, 3], [5], [1, 2, 4])]
    found = [run_through(objective, model, batches, keep=False).loss for batches in ([batch], parts)]
    assert found[0] == pytest.approx(float(objective.forward(model, batch).loss), rel=1e-12)
    assert found[1] == pytest.approx(found[0], rel=1e-12)


@pytest.mark.parametrize("case", ["words and pairs", "words, and a custom loss"])
def test_a_run_that_accumulates_is_a_run_of_large_batches(tmp_path, case):
    objective, model, batch, _ = CASES[case]
    rows, losses = [{name: array[row] for name, array in batch.items()} for row in range(6)], []
    for size, steps in ((6, 1), (2, 3), (1, 6)):
        settings = {"per_device_train_batch_size": size, "gradient_accumulation_steps": steps, "max_steps": 2}
        args = quiet_arguments(tmp_path / str(size), logging_steps=1, adam_epsilon=1e-3, **settings)
        trainer = Trainer(model(), args, stacked, rows, objective=objective())
        trainer.train()
        losses.append([logs[name] for logs in trainer.state.log_history[:2] for name in ("loss", "grad_norm")])
    np.testing.assert_allclose(losses[1:], [losses[0]] * 2, rtol=1e-10)


def stacked(examples):
    return {name: np.stack([example[name] for example in examples]) for name in examples[0]}


RUNS_TEXTS = [f"the {text}" for text in random_texts(20)]
DOCUMENTS, RUNS_PAIRS = (
    [[text, "on an mat"] for text in RUNS_TEXTS],
    list(zip(RUNS_TEXTS, RUNS_TEXTS[::-1], strict=True)),
)
RUNS = {  # objective, the class of its model, a config, documents
    "masked words and pairs": (MaskedLM() + NextSentence(), bertcore.AutoModelForPreTraining, CONFIG, DOCUMENTS),
    "permutations": (PermutationLM(), bertcore.AutoModelForCausalLM, tiny_config("xlnet-base-cased"), DOCUMENTS),
    "span boundaries": (SpanBoundary(), bertcore.AutoModelForSpanBoundary, CONFIG, DOCUMENTS),
    "translations": (TranslationLM(), AutoModelForMaskedLM, CONFIG, RUNS_PAIRS),
}


@pytest.mark.parametrize("name", RUNS)
def test_weights_and_evaluations_are_the_same(tokenizer, tmp_path, name):
    objective, kind, config, documents = RUNS[name]
    examples = list(objective.examples(documents, tokenizer, max_length=20, seed=0))

    def trainer(folder, **settings):
        model = kind.from_config(config | dict.fromkeys(("hidden_dropout_prob", "dropout"), 0.1), seed=3)
        return objective_trainer(folder, model, objective, examples, tokenizer, settings=settings)

    whole, again = assert_resumes(trainer, tmp_path, 2)
    assert again.evaluate()["eval_loss"] == again.evaluate()["eval_loss"] == whole.evaluate()["eval_loss"]
