"""Losses of labels: smoothing, weights of classes, probabilities of classes, of every kind of head."""

import numpy as np
import pytest

import bertcore
from bertcore import AutoTokenizer
from bertcore.training import Trainer, TrainingArguments
from bertcore.training.collators import IGNORED
from bertcore.training.objectives import Supervised
from tests.refusals import refuses
from tests.tiny_bert import CONFIG, save_tiny_bert
from tests.tiny_families import tiny_config
from tests.training.objectives.students import assert_gradients

RNG = np.random.default_rng(5)
IDS = RNG.integers(5, 40, (3, 6))
MASK = np.array([[1] * 6, [0, 1, 1, 1, 0, 0], [1] * 6])
BATCH = {"input_ids": IDS, "attention_mask": MASK}
WEIGHTS = [0.5, 2.0, 1.25]
TOKENS = np.where(MASK, RNG.integers(0, 3, (3, 6)), IGNORED)
TOKENS[0, 2:5] = IGNORED


pytestmark = pytest.mark.usefixtures("on_numpy")


def defined(logits, labels, smoothing, weights):
    """torch.nn.functional.cross_entropy row by row; labels are classes or probabilities."""
    total, count = 0.0, 0.0
    for row, label in zip(logits, labels, strict=True):
        if np.ndim(label) == 0 and label == IGNORED:
            continue
        wanted = np.eye(len(row))[label] if np.ndim(label) == 0 else label
        wanted = (1 - smoothing) * wanted + smoothing / len(row)
        logarithms = row - row.max() - np.log(np.exp(row - row.max()).sum())
        total -= (wanted * weights * logarithms).sum()
        count += weights[label] if np.ndim(label) == 0 else 1
    return total / count


def model_of(kind, **options):
    return getattr(bertcore, f"AutoModelFor{kind}").from_config(CONFIG, dtype="float64", **options)


def check(objective, model, batch, expected):
    """The loss, and its gradients along a random direction of all parameters."""
    assert assert_gradients(objective, model, batch, rel=1e-4) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_classes_of_sequences_and_tokens(smoothing, weights):
    objective = Supervised(smoothing, weights)
    plain = np.ones(3) if weights is None else np.array(weights)
    model = model_of("SequenceClassification", num_labels=3)
    labels = np.array([2, IGNORED, 0])
    check(objective, model, BATCH | {"labels": labels}, defined(model(**BATCH).logits, labels, smoothing, plain))
    assert objective.weight({"labels": labels}) == plain[[2, 0]].sum()
    model = model_of("TokenClassification", num_labels=3)
    expected = defined(model(**BATCH).logits.reshape(-1, 3), TOKENS.reshape(-1), smoothing, plain)
    check(objective, model, BATCH | {"labels": TOKENS}, expected)


@pytest.mark.parametrize("smoothing", [0.0, 0.25])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_probabilities_of_classes(smoothing, weights):
    labels = np.random.default_rng(0).dirichlet(np.ones(3), 3)
    plain = np.ones(3) if weights is None else np.array(weights)
    options = {"num_labels": 3, "problem_type": "single_label_classification"}
    model = model_of("SequenceClassification", **options)
    expected = defined(model(**BATCH).logits, labels, smoothing, plain)
    check(Supervised(smoothing, weights), model, BATCH | {"labels": labels}, expected)


def test_smoothed_words():
    """Only labelled tokens are scored against the vocabulary in training."""
    model, labels = model_of("MaskedLM"), np.where(TOKENS == 1, IDS, IGNORED)
    logits = model(**BATCH).logits.reshape(18, -1)
    expected = defined(logits, labels.reshape(-1), 0.1, np.ones(logits.shape[1]))
    check(Supervised(0.1), model, BATCH | {"labels": labels}, expected)


def test_smoothed_answers():
    model = model_of("QuestionAnswering")
    batch = {"input_ids": IDS, "start_positions": np.array([1, 0, 9]), "end_positions": np.array([5, 2, 9])}
    out = model(IDS)
    ends = (out.start_logits, [1, 0, IGNORED]), (out.end_logits, [5, 2, IGNORED])
    expected = sum(defined(logits, labels, 0.1, np.ones(6)) for logits, labels in ends) / 2
    check(Supervised(0.1), model, batch, expected)
    assert Supervised().weight(batch) == 2


@pytest.mark.parametrize(
    "kind, labels", [("NextSentencePrediction", [0, 1, 1]), ("MultipleChoice", [1]), ("PreTraining", None)]
)
def test_all_heads_with_classes_are_smoothed(kind, labels):
    model, batch = model_of(kind), BATCH | {"labels": labels}
    if kind == "MultipleChoice":
        batch = {name: array[None] for name, array in BATCH.items()} | {"labels": labels}
    if labels is None:
        batch = BATCH | {"labels": np.where(MASK, IDS, IGNORED), "next_sentence_label": [0, 1, 1]}
    smooth, plain = (Supervised(share).forward(model, batch).loss for share in (0.5, 0.0))
    assert smooth != plain
    assert plain == model(**batch).loss


def test_a_loss_over_no_label_is_nan():
    model = model_of("SequenceClassification", num_labels=3)
    batch = BATCH | {"labels": np.full(3, IGNORED)}
    assert np.isnan(Supervised(0.1, WEIGHTS).forward(model, batch).loss)
    assert Supervised(0.1, WEIGHTS).weight(batch) == 0


@pytest.mark.parametrize("options, error, message", [
    ({"label_smoothing": -0.1}, ValueError, "label_smoothing is -0.1, expected a number from 0 to 1"),
    ({"label_smoothing": True}, TypeError, "label_smoothing is True"),
    ({"class_weights": [[1.0]]}, ValueError, "class_weights is .*, expected a finite number"),
    ({"class_weights": [1.0, -1.0]}, ValueError, "class_weights"),
    ({"class_weights": [1.0, np.inf]}, ValueError, "class_weights"),
    ({"class_weights": [0, 0]}, ValueError, r"class_weights is \[0, 0\], expected at least one number above 0"),
    ({"class_weights": []}, ValueError, "class_weights"),
])  # fmt: skip
def test_wrong_options(options, error, message):
    refuses(error, message, Supervised, **options)


def test_options_that_do_not_fit_the_loss():
    model = model_of("SequenceClassification", num_labels=3)
    with pytest.raises(ValueError, match=r"class_weights has shape \(2,\), expected \(3,\)"):
        Supervised(class_weights=[1, 2]).forward(model, BATCH | {"labels": [0, 1, 2]})
    regression = model_of("SequenceClassification", num_labels=1)
    with pytest.raises(ValueError, match="label_smoothing needs labels that are classes"):
        Supervised(0.1).forward(regression, BATCH | {"labels": [0.0, 1.0, 2.0]})
    adaptive = bertcore.AutoModelForCausalLM.from_config(tiny_config("transfo-xl-wt103"))
    with pytest.raises(ValueError, match="class_weights needs labels that are classes"):
        Supervised(class_weights=WEIGHTS).forward(adaptive, {"input_ids": IDS, "labels": IDS})
    refuses(ValueError, "batch has no labels", Supervised().weight, BATCH)
    soft = model_of("SequenceClassification", num_labels=3, problem_type="single_label_classification")
    refuses(ValueError, r"labels holds -1\.0, expected probabilities", soft, **BATCH, labels=-np.ones((3, 3)))


def test_the_trainer_smooths_labels_as_its_arguments_say(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(save_tiny_bert(tmp_path / "model"))
    model = model_of("SequenceClassification", num_labels=3)
    for share in (0.0, 0.1):
        args = TrainingArguments(output_dir=str(tmp_path / "out"), label_smoothing_factor=share)
        assert Trainer(model, args, processing_class=tokenizer).objective.label_smoothing == share
