"""Errors of Distillation: settings, and models that cannot be compared."""

import pytest

import bertcore
from bertcore import AutoModel, AutoModelForSequenceClassification
from bertcore.kernels.linear import LOW_PRECISION
from bertcore.training.objectives import (
    AttentionDistributions,
    AttentionScores,
    CosineSimilarity,
    Distillation,
    HiddenCosine,
    HiddenStates,
    Relations,
    SoftTargets,
    Supervised,
    TranslationLM,
)
from tests.refusals import refuses
from tests.tiny_bert import CONFIG
from tests.tiny_families import tiny_config
from tests.training.objectives.students import BATCH, DEEP, WIDE, classifier, inputs

pytestmark = pytest.mark.usefixtures("on_numpy")


def distilled(*terms, **options):
    return Distillation(classifier(), *(terms or [SoftTargets()]), **options)


@pytest.mark.parametrize("make, message", [
    (lambda: Distillation(None, SoftTargets()), "teacher is NoneType, expected a model"),
    (lambda: Distillation(classifier()), "terms is empty"),
    (lambda: Distillation(classifier(), Supervised()), "expected SoftTargets"),
    (lambda: distilled(objective=CosineSimilarity()), "objective is CosineSimilarity, expected Supervised"),
    (lambda: distilled(objective=TranslationLM()), "whose batches have restart, which a teacher does not take"),
    (lambda: distilled(objective_weight=-1), "objective_weight is -1"),
    (lambda: distilled(objective_weight="2"), "objective_weight is '2', expected a number"),
    (lambda: distilled(SoftTargets(labelled_only=True)), "labelled_only needs an objective"),
    (lambda: SoftTargets(temperature=0), "temperature is 0, expected a finite number above 0"),
    (lambda: SoftTargets(temperature="2"), "temperature is '2', expected a number"),
    (lambda: HiddenStates(weight=float("nan")), "weight of HiddenStates is nan"),
    (lambda: Relations(of=("hidden",)), "of is"),
    (lambda: Relations(heads=0), "heads is 0"),
])  # fmt: skip
def test_wrong_settings(make, message):
    refuses((TypeError, ValueError), message, make)


@pytest.mark.parametrize("term, config, message", [
    (HiddenCosine(), WIDE, "student have 39 features, the teacher's 48"),
    (HiddenStates(projected=False), WIDE, "student have 39 features, the teacher's 48"),
    (HiddenStates(layers={1: 5}), DEEP, "layers has 5 of the teacher, expected 0 to 4"),
    (AttentionScores(layers={0: 1}), DEEP, "layers has 0 of the student, expected 1 to 2"),
    (AttentionScores(layers="all"), DEEP, "layers is 'all', expected 'last', 'even' or a mapping"),
    (AttentionScores(), {**WIDE, "num_attention_heads": 4}, r"of queries and of keys are \(3, 3\) and \(4, 4\)"),
    (AttentionDistributions(), {**tiny_config("mpnet-base"), "vocab_size": 75}, "attention of the teacher is not"),
    (Relations(heads=13), WIDE, "heads is 13, expected a divisor of the teacher's 48"),
    (Relations(heads=3), {**tiny_config("deberta-base"), "vocab_size": 75}, "do not give query, key and value"),
    (SoftTargets(), {**CONFIG, "problem_type": "regression"}, "the teacher is for regression"),
])  # fmt: skip
def test_models_that_cannot_be_compared(term, config, message):
    refuses(ValueError, message, Distillation(classifier(config), term).losses, classifier(), BATCH)


def test_heads_that_cannot_be_compared():
    head, encoder = classifier(), AutoModel.from_config(CONFIG, dtype="float64")
    other = AutoModelForSequenceClassification.from_config(CONFIG, dtype="float64", num_labels=4)
    for student, teacher, message in (
        (head, encoder, "needs the teacher's logits, it has last_hidden_state, pooler_output"),
        (encoder, head, "the student has no head"),
        (head, other, r"are \(4, 3\) and \(4, 4\)"),
    ):
        refuses(ValueError, message, Distillation(teacher, SoftTargets()).losses, student, inputs())
    electra = bertcore.AutoModelForPreTraining.from_config(tiny_config("electra-small-discriminator"))
    with pytest.raises(ValueError, match="SoftTargets is for classes, and the teacher detects replaced tokens"):
        Distillation(electra, SoftTargets()).losses(head, inputs())
    with pytest.raises(ValueError, match="labelled_only is for masked and causal language models"):
        Distillation(head, SoftTargets(labelled_only=True), objective=Supervised()).loss(head, BATCH)
    with pytest.raises(ValueError, match="batch has no labels for the student's own objective"):
        Distillation(head, SoftTargets(), objective=Supervised()).losses(head, inputs())


@pytest.mark.parametrize("dtype", LOW_PRECISION)
def test_students_in_low_precision(dtype):
    student = AutoModelForSequenceClassification.from_config(CONFIG, dtype=dtype)
    with pytest.raises(ValueError, match=f"dtype='{dtype}', which on the CPU is for inference alone"):
        Distillation(classifier(), HiddenStates()).value_and_grad(student, BATCH)
