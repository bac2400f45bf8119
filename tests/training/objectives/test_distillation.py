"""Distillation: each term beside its definition, gradients, errors, and what is kept of a run."""

import numpy as np
import pytest

import bertcore
from bertcore import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification, use_backend
from bertcore.checkpoint import open_checkpoint
from bertcore.heads import LanguageModelHead
from bertcore.kernels.program import Recordings
from bertcore.tape import value_of
from bertcore.training.objectives import (
    AttentionDistributions,
    AttentionScores,
    CosineSimilarityLoss,
    Distillation,
    HiddenCosine,
    HiddenStates,
    MaskedLM,
    Relations,
    SoftTargets,
    Supervised,
    TranslationLM,
)
from tests.refusals import refuses
from tests.slopes import assert_slope, assert_slope_of_parameters
from tests.tiny_bert import CONFIG
from tests.tiny_families import tiny_config
from tests.tolerances import assert_same_arrays
from tests.training.objectives.students import BATCH, DEEP, LENGTHS, WIDE, classifier, inputs
from tests.training.tiny_runs import LABELLED, assert_resumes, collate, objective_trainer

pytestmark = pytest.mark.usefixtures("on_numpy")

BOTH = {"output_hidden_states": True, "output_projections": True}


def softmax(scores):
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def divergence(wanted, found):
    """KL(softmax(wanted) || softmax(found)) of each row."""
    wanted, found = softmax(wanted), softmax(found)
    return (wanted * (np.log(wanted) - np.log(found))).sum(axis=-1)


def real(array):
    return np.concatenate([row[:length] for row, length in zip(array, LENGTHS, strict=True)])


def squared(found, wanted):
    return ((real(found) - real(wanted)) ** 2).mean()


def scores(layer, left, right, heads):
    """For each sequence and head the scores of its tokens."""
    for one, other, length in zip(layer[left], layer[right], LENGTHS, strict=True):
        width = one.shape[1] // heads
        for head in range(heads):
            columns = slice(head * width, (head + 1) * width)
            yield one[:length, columns] @ other[:length, columns].T / np.sqrt(width)


def of_scores(found, wanted, compare):
    """The mean over heads and tokens."""
    return np.concatenate([compare(*pair) for pair in zip(wanted, found, strict=True)]).mean()


def of_layers(student, teacher, left, right, layers, heads, compare=divergence):
    total = 0
    for own, other in layers:
        pair = student.projections[own - 1], teacher.projections[other - 1]
        total += of_scores(*(scores(each, left, right, heads) for each in pair), compare)
    return total


def cosine_distance(one, other):
    one, other = real(one), real(other)
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return (1 - (one * other).sum(axis=1) / lengths).mean()


def mean_square(wanted, found):
    return ((wanted - found) ** 2).mean(axis=1)


QUERY, KEY, VALUE = range(3)
EVEN = [(1, 2), (2, 4)]
TERMS = {  # name: (term, the teacher's config, the definition)
    "soft": (SoftTargets(), DEEP, lambda s, t: 4 * divergence(t.logits / 2, s.logits / 2).mean()),
    "cosine": (HiddenCosine(), DEEP, lambda s, t: cosine_distance(s.hidden_states[2], t.hidden_states[4])),
    "states": (
        HiddenStates(projected=False),
        DEEP,
        lambda s, t: sum(squared(s.hidden_states[i], t.hidden_states[2 * i]) for i in range(3)),
    ),
    "scores": (AttentionScores(), WIDE, lambda s, t: of_layers(s, t, QUERY, KEY, EVEN, 3, mean_square)),
    "attention": (AttentionDistributions(), WIDE, lambda s, t: of_layers(s, t, QUERY, KEY, [(2, 4)], 3)),
    "attention of a layer": (
        AttentionDistributions(layers={1: 3}),
        DEEP,
        lambda s, t: of_layers(s, t, QUERY, KEY, [(1, 3)], 3),
    ),
    "relations": (
        Relations(),
        WIDE,
        lambda s, t: sum(of_layers(s, t, part, part, [(2, 4)], 3) for part in (QUERY, KEY, VALUE)),
    ),
    "relations of values, other heads": (
        Relations(of=("value",), heads=13, layers="even"),
        DEEP,
        lambda s, t: of_layers(s, t, VALUE, VALUE, EVEN, 13),
    ),
}


@pytest.mark.parametrize("name", TERMS)
@pytest.mark.parametrize("backend", ["numpy", pytest.param("numba", marks=pytest.mark.slow)])  # in float64
def test_a_term_is_its_definition(name, backend):
    term, config, definition = TERMS[name]
    student, teacher = classifier(), classifier(config, seed=1)
    with use_backend(backend):
        found = Distillation(teacher, term).losses(student, BATCH)
        expected = definition(student(**inputs(), **BOTH), teacher(**inputs(), **BOTH))
    assert expected > 1e-3
    assert found == [pytest.approx(expected, rel=1e-9)]


def test_learned_maps_are_of_the_embeddings_and_of_all_layers():
    student, teacher = classifier(), classifier(WIDE, seed=1)
    objective = Distillation(teacher, SoftTargets(), HiddenStates())
    embeddings, layers = objective.parameters(student)
    assert embeddings.names == ("distillation.1.embeddings.weight",)
    assert layers.names == ("distillation.1.hidden_states.weight",)
    found, wanted = (model(**inputs(), **BOTH).hidden_states for model in (student, teacher))
    expected = squared(found[0] @ embeddings.array().T, wanted[0])
    expected += sum(squared(found[i] @ layers.array().T, wanted[2 * i]) for i in (1, 2))
    assert objective.losses(student, BATCH)[1] == pytest.approx(expected, rel=1e-9)
    assert objective.parameters(student)[0] is embeddings


def test_the_sum_is_weighted_beside_the_students_own_loss():
    student, teacher = classifier(), classifier(DEEP, seed=1)
    terms = SoftTargets(weight=5), HiddenCosine(weight=0.5)
    objective = Distillation(teacher, *terms, objective=Supervised(), objective_weight=2)
    own, soft, cosine = objective.losses(student, BATCH)
    assert own == pytest.approx(student(**BATCH).loss, rel=1e-12)
    assert objective.forward(student, BATCH).loss == pytest.approx(2 * own + 5 * soft + 0.5 * cosine, rel=1e-12)
    assert objective.weight(BATCH) == 4 == Distillation(teacher, SoftTargets()).weight(inputs())
    assert Distillation(teacher, SoftTargets(), HiddenCosine()).weight(inputs()) == sum(LENGTHS)
    assert Distillation(teacher, *terms).losses(student, BATCH) == pytest.approx([soft, cosine], rel=1e-12)


def test_soft_targets_of_labelled_tokens_alone():
    """If all tokens have a label they equal those of all tokens, else the mean over the labelled ones."""
    student, teacher = (AutoModelForMaskedLM.from_config(CONFIG, dtype="float64", seed=seed) for seed in (1, 2))
    real = BATCH["attention_mask"] == 1
    some = np.where(real & (BATCH["input_ids"] % 3 == 0), BATCH["input_ids"], -100)
    every = np.where(real, BATCH["input_ids"], -100)
    whole, labelled = (
        Distillation(teacher, SoftTargets(labelled_only=only), objective=MaskedLM()) for only in (False, True)
    )
    (_, all_tokens), (own, same) = (each.losses(student, {**inputs(), "labels": every}) for each in (whole, labelled))
    assert same == pytest.approx(all_tokens, rel=1e-12)
    batch = {**inputs(), "labels": some}
    logits, wanted = (model(**inputs()).logits[some != -100] for model in (student, teacher))
    p, q = softmax(wanted / 2), softmax(logits / 2)
    expected = 4 * (p * np.log(p / q)).sum(axis=-1).mean()
    own, soft = labelled.losses(student, batch)
    assert soft == pytest.approx(expected, rel=1e-9) and own == pytest.approx(student(**batch).loss, rel=1e-12)
    _, grads = labelled.value_and_grad(student, batch)
    names = ["bert.encoder.layer.0.output.dense.weight"]
    assert_slope(student, grads, lambda: labelled.forward(student, batch).loss, names, rel=1e-4, least=1e-9)


def test_soft_targets_of_labelled_tokens_score_no_others(monkeypatch):
    student, teacher = (AutoModelForMaskedLM.from_config(CONFIG, dtype="float64", seed=seed) for seed in (1, 2))
    labels = np.where(BATCH["input_ids"] % 3 == 0, BATCH["input_ids"], -100) * BATCH["attention_mask"]
    labels[BATCH["attention_mask"] == 0] = -100
    scored, call = [], LanguageModelHead.__call__

    def counted(self, run, hidden):
        scored.append(value_of(hidden).shape[0])
        return call(self, run, hidden)

    monkeypatch.setattr(LanguageModelHead, "__call__", counted)
    objective = Distillation(teacher, SoftTargets(labelled_only=True), objective=MaskedLM())
    objective.value_and_grad(student, {**inputs(), "labels": labels})
    assert scored == [(labels != -100).sum()] * 2


WEIGHED = [HiddenStates(weight=0.5), SoftTargets(weight=5)]


@pytest.mark.parametrize("terms, config", [*(([term], config) for term, config, _ in TERMS.values()), (WEIGHED, WIDE)])
def test_gradients_of_student_and_maps(terms, config):
    """Beside differences along a random direction."""
    student, teacher = classifier(), classifier(config, seed=1)
    objective = Distillation(teacher, *terms, objective=Supervised(), objective_weight=2)
    out, grads = objective.value_and_grad(student, BATCH)
    assert out.loss == pytest.approx(objective.forward(student, BATCH).loss, rel=1e-12)
    parameters = list(objective.trained(student).parameters())
    assert set(grads) == {name for parameter in parameters for name in parameter.names}
    some = [*parameters[::9], *parameters[-2:]]
    assert_slope_of_parameters(some, grads, lambda: objective.forward(student, BATCH).loss)


@pytest.mark.parametrize("kind", ["MaskedLM", "TokenClassification", "QuestionAnswering", "MultipleChoice"])
def test_soft_targets_of_every_head(kind):
    model_class = getattr(bertcore, f"AutoModelFor{kind}")
    student, teacher = (model_class.from_config(CONFIG, dtype="float64", seed=seed) for seed in (1, 2))
    given = inputs()
    if kind == "MultipleChoice":
        given = {name: array.reshape(2, 2, 9) for name, array in given.items()}
    both = [model(**given).predictions() for model in (student, teacher)]
    expected = 0.0
    for found, wanted in zip(*both, strict=True):
        if kind == "QuestionAnswering":
            rows = [divergence(wanted[row, :length], found[row, :length]) for row, length in enumerate(LENGTHS)]
        elif kind == "MultipleChoice":
            rows = divergence(wanted, found)
        else:
            rows = divergence(real(wanted), real(found))
        expected += np.mean(rows)
    losses = Distillation(teacher, SoftTargets(temperature=1)).losses(student, given)
    assert losses == [pytest.approx(expected, rel=1e-9)]


def test_the_teacher_runs_as_in_inference(monkeypatch):
    config = {**CONFIG, "hidden_dropout_prob": 0.5}
    kind = AutoModelForSequenceClassification
    student, teacher = (kind.from_config(config, num_labels=3, seed=seed) for seed in (1, 2))
    before, runs, run = teacher.state_dict(), [], Recordings.run

    def noted(self, *args):
        runs.append(self)
        return run(self, *args)

    monkeypatch.setattr(Recordings, "run", noted)
    objective = Distillation(teacher.train(1), SoftTargets(), objective=Supervised())
    with use_backend("numba"):
        _, grads = objective.value_and_grad(student.train(1), BATCH)
        assert not teacher.training and student.training
        teacher(**BATCH)
    assert len(runs) == 2 and runs[0] is runs[1]  # the teacher's recorded program, and the student none
    assert set(grads) == set(student.expected_tensors())
    assert_same_arrays(before, teacher.state_dict())


def test_projections_are_of_the_layers_that_are_compared():
    asked = []

    class Noted(type(classifier())):
        def __call__(self, *given, output_projections=False, **more):
            asked.append(output_projections)
            return super().__call__(*given, output_projections=output_projections, **more)

    teacher, student = classifier(DEEP), classifier()
    teacher.__class__ = student.__class__ = Noted
    for terms, expected in (
        ([Relations()], [[4], [2]]),
        ([AttentionScores(layers={1: 3}), Relations(), HiddenStates()], [[3, 4], [1, 2]]),
        ([HiddenStates()], [False, False]),
    ):
        asked.clear()
        Distillation(teacher, *terms).value_and_grad(student, inputs())
        assert asked == expected


def distilled(*terms, **options):
    return Distillation(classifier(), *(terms or [SoftTargets()]), **options)


@pytest.mark.parametrize("make, message", [
    (lambda: Distillation(None, SoftTargets()), "teacher is NoneType, expected a model"),
    (lambda: Distillation(classifier()), "terms is empty"),
    (lambda: Distillation(classifier(), Supervised()), "expected SoftTargets"),
    (lambda: distilled(objective=CosineSimilarityLoss()), "objective is CosineSimilarityLoss, expected Supervised"),
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
    (HiddenCosine(), WIDE, "student have 39 features, expected the teacher's 48"),
    (HiddenStates(projected=False), WIDE, "student have 39 features, expected the teacher's 48"),
    (HiddenStates(layers={1: 5}), DEEP, "layers has 5 of the teacher, expected 0 to 4"),
    (AttentionScores(layers={0: 1}), DEEP, "layers has 0 of the student, expected 1 to 2"),
    (AttentionScores(layers="all"), DEEP, "layers is 'all', expected 'last', 'even' or a mapping"),
    (AttentionScores(), {**WIDE, "num_attention_heads": 4}, r"of queries and of keys are \(3, 3\) and \(4, 4\)"),
    (AttentionDistributions(), {**tiny_config("mpnet-base"), "vocab_size": 75}, "the teacher needs attention to all"),
    (Relations(heads=13), WIDE, "heads is 13, expected a divisor of the teacher's 48"),
    (Relations(heads=3), {**tiny_config("deberta-base"), "vocab_size": 75}, "do not return query, key and value"),
    (SoftTargets(), {**CONFIG, "problem_type": "regression"}, "the teacher is for regression"),
])  # fmt: skip
def test_models_that_cannot_be_compared(term, config, message):
    refuses(ValueError, message, Distillation(classifier(config), term).losses, classifier(), BATCH)


def test_heads_that_cannot_be_compared():
    head, encoder = classifier(), AutoModel.from_config(CONFIG, dtype="float64")
    other = AutoModelForSequenceClassification.from_config(CONFIG, dtype="float64", num_labels=4)
    electra = bertcore.AutoModelForPreTraining.from_config(tiny_config("electra-small-discriminator"))
    own = {"objective": Supervised()}
    for student, teacher, term, options, message in (
        (head, encoder, SoftTargets(), {}, "needs the teacher's logits, but it has last_hidden_state, pooler_output"),
        (encoder, head, SoftTargets(), {}, "the student has no head"),
        (head, other, SoftTargets(), {}, r"are \(4, 3\) and \(4, 4\)"),
        (head, electra, SoftTargets(), {}, "SoftTargets needs classes, but the teacher detects replaced tokens"),
        (head, head, SoftTargets(labelled_only=True), own, "labelled_only needs masked or causal language models"),
        (head, head, SoftTargets(), own, "batch has no labels for the student's own objective"),
    ):
        refuses(ValueError, message, Distillation(teacher, term, **options).losses, student, inputs())


def distilling_trainer(folder, teacher, **settings):
    config = {**CONFIG, "hidden_dropout_prob": 0.1}
    student = AutoModelForSequenceClassification.from_config(config, num_labels=2, seed=2)
    settings = {"max_steps": 6, "save_steps": 3} | settings
    objective = Distillation(teacher, HiddenStates(), SoftTargets(), Relations(heads=1), objective=Supervised())
    return objective_trainer(folder, student, objective, LABELLED, collator=collate, settings=settings)


def test_a_resumed_run_has_the_same_bits_of_student_and_maps(tmp_path):
    teacher = AutoModelForSequenceClassification.from_config(WIDE, num_labels=2, seed=1)
    new = distilling_trainer(tmp_path, teacher)
    first = [parameter.array() for parameter in new.objective.parameters(new.model)]
    both = assert_resumes(lambda folder, **more: distilling_trainer(folder, teacher, **more), tmp_path, 3)
    other = AutoModelForSequenceClassification.from_config(WIDE, num_labels=2, seed=3)
    with pytest.raises(ValueError, match=r"the teacher's fingerprint is .*, in .* it was "):
        distilling_trainer(tmp_path / "part", other).train(resume_from_checkpoint=True)
    learned = [[p.array() for p in each.objective.parameters(each.model)] for each in both]
    for one, other, initial in zip(*learned, first, strict=True):
        np.testing.assert_array_equal(one, other)
        assert abs(one - initial).max() > 1e-3
    check_files_of_maps(both[0], tmp_path / "whole" / "checkpoint-6", tmp_path / "saved", teacher)


def check_files_of_maps(trainer, folder, saved, teacher):
    """A checkpoint keeps the maps beside the student, and goes on with no others; a saved model has none."""
    trainer.save_model(saved)
    for place in (folder, saved):
        assert not any("distillation" in name for name in open_checkpoint(place))
    assert {path.name for path in saved.iterdir()} == {"config.json", "model.safetensors"}
    kept = open_checkpoint(folder / "objective.safetensors")
    for parameter in trainer.objective.parameters(trainer.model):
        np.testing.assert_array_equal(kept[parameter.names[0]], parameter.array())
    again = distilling_trainer(folder.parent, teacher)
    again.objective = Distillation(teacher, HiddenStates(layers={1: 2}), objective=Supervised())
    before = again.model.state_dict()
    refuses(ValueError, r"objective\.safetensors is of another objective", again.train, resume_from_checkpoint=True)
    assert_same_arrays(before, again.model.state_dict())
    (folder / "objective.safetensors").unlink()
    resumed = distilling_trainer(folder.parent, teacher)
    refuses(ValueError, r"objective\.safetensors", resumed.train, resume_from_checkpoint=folder)
