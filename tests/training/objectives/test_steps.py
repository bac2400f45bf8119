"""Several batches of a step have the loss and the gradients of one batch of all their examples."""

import numpy as np
import pytest

from bertcore import AutoModelForMaskedLM, AutoModelForPreTraining, AutoModelForSpanBoundary, ReplacedTokenModel
from bertcore.training import Trainer, TrainingArguments
from bertcore.training.evaluation import run_through
from bertcore.training.masking import IGNORED
from bertcore.training.objectives import (
    CustomLoss,
    Distillation,
    EntityMaskedLM,
    HiddenStates,
    MaskedLM,
    NextSentence,
    ReplacedToken,
    SoftTargets,
    SpanBoundary,
    Supervised,
)
from tests.tiny_bert import CONFIG
from tests.tiny_families import tiny_config
from tests.training.objectives.students import WIDE, classifier

pytestmark = pytest.mark.usefixtures("on_numpy")

RNG = np.random.default_rng(3)
MASK = (np.arange(11) < np.array([11, 4, 7, 2, 11, 6])[:, None]).astype(np.int64)
IDS = RNG.integers(5, 40, MASK.shape) * MASK
WORDS = np.where((RNG.random(MASK.shape) < 0.4) & (MASK == 1), IDS, IGNORED)
WORDS[:, 1], WORDS[1], WORDS[:, 0] = IDS[:, 1], IGNORED, IGNORED
TEXTS = {"input_ids": IDS, "attention_mask": MASK, "labels": WORDS}
PAIRS = {"next_sentence_label": np.array([0, 1, IGNORED, 0, 1, 1])}
ENTITIES = {
    "entity_ids": RNG.integers(4, 14, (6, 2)),
    "entity_attention_mask": np.ones((6, 2), np.int64),
    "entity_position_ids": RNG.integers(0, 2, (6, 2, 1)),
    "entity_labels": np.array([[5, 6], [IGNORED, 7], [IGNORED, IGNORED], [8, 9], [IGNORED, 4], [5, IGNORED]]),
}
REPLACED = {"draws": RNG.random(MASK.shape)}
WANTED = {"wanted": RNG.normal(size=(6, 11, 39))}


def distance(out, wanted):
    difference = out.hidden_states[1] - wanted
    return (difference**2).sum() / len(wanted), {"hidden_states": (None, 2 * difference / len(wanted), None)}


def custom():
    return CustomLoss(distance, targets=["wanted"], output_hidden_states=True)


PLAIN = CONFIG | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def new(kind, config=PLAIN, **options):
    return lambda: kind.from_config(config, dtype="float64", seed=1, **options)


def distillation():
    terms = HiddenStates(weight=0.5), SoftTargets(weight=5)
    return Distillation(classifier(WIDE, seed=1), *terms, objective=Supervised(), objective_weight=2)


PRETRAINING, LUKE = new(AutoModelForPreTraining), tiny_config("luke-base") | {"vocab_size": 75}
ELECTRA = tiny_config("electra-small-discriminator") | {"vocab_size": CONFIG["vocab_size"]}
CASES = {  # objective, model, batch, numbers that the summands are means over
    "words": (MaskedLM, new(AutoModelForMaskedLM), TEXTS, 1),
    "words and pairs": (lambda: MaskedLM() + NextSentence(), PRETRAINING, TEXTS | PAIRS, 2),
    "words, and a custom loss": (lambda: MaskedLM() + custom(), new(AutoModelForMaskedLM), TEXTS | WANTED, 2),
    "all": (lambda: MaskedLM() + NextSentence() + custom(), PRETRAINING, TEXTS | PAIRS | WANTED, 3),
    "boundaries": (SpanBoundary, new(AutoModelForSpanBoundary), TEXTS, 2),
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
        args = TrainingArguments(tmp_path / str(size), logging_steps=1, report_to="none", disable_tqdm=True,
                                 save_strategy="no", adam_epsilon=1e-3, **settings)  # fmt: skip
        trainer = Trainer(model(), args, stacked, rows, objective=objective())
        trainer.train()
        losses.append([logs[name] for logs in trainer.state.log_history for name in ("loss", "grad_norm")])
    np.testing.assert_allclose(losses[1:], [losses[0]] * 2, rtol=1e-10)


def stacked(examples):
    return {name: np.stack([example[name] for example in examples]) for name in examples[0]}
