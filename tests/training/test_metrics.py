"""Metrics: beside what they are by definition, with labels of -100, and at the edges."""

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertcore.training import metrics
from bertcore.training.collators import IGNORED
from bertcore.training.metrics import answer_scores, normalized_answer, span_f1, spans
from tests.refusals import refuses

RNG = np.random.default_rng(3)
LABELS = RNG.integers(0, 3, 97)
LOGITS = (RNG.normal(size=(97, 3)) + 1.5 * np.eye(3)[LABELS]).astype(np.float32)
FOUND = LOGITS.argmax(-1)


def f1_of(found, expected, kind):
    hits = ((found == kind) & (expected == kind)).sum()
    return 2 * hits / max(1, (found == kind).sum() + (expected == kind).sum())


def test_accuracy_and_f1_by_definition():
    assert metrics.accuracy((LOGITS, LABELS)) == {"accuracy": (FOUND == LABELS).mean()}
    assert metrics.accuracy((FOUND, LABELS)) == metrics.accuracy((LOGITS, LABELS))
    each = [f1_of(FOUND, LABELS, kind) for kind in range(3)]
    assert metrics.f1((LOGITS, LABELS))["f1"] == pytest.approx(np.mean(each))
    assert metrics.f1((LOGITS, LABELS), "micro")["f1"] == pytest.approx((FOUND == LABELS).mean())
    weighted = np.average(each, weights=np.bincount(LABELS))
    assert metrics.f1((LOGITS, LABELS), "weighted")["f1"] == pytest.approx(weighted)
    found, labels = np.minimum(FOUND, 1), np.minimum(LABELS, 1)
    assert metrics.f1((found, labels), "binary")["f1"] == pytest.approx(f1_of(found, labels, 1))


def test_matthews_by_definition():
    labels, found = np.minimum(LABELS, 1), np.minimum(FOUND, 1)
    expected = np.corrcoef(labels, found)[0, 1]  # of two classes, it is their correlation
    assert metrics.matthews_correlation((found, labels))["matthews_correlation"] == pytest.approx(expected)
    assert metrics.matthews_correlation((np.ones(5, int), np.ones(5, int)))["matthews_correlation"] == 0


def test_correlations_by_definition():
    truth = RNG.normal(size=41)
    found = truth**3 + RNG.normal(size=41)
    ranks = [np.argsort(np.argsort(values)) for values in (found, truth)]
    compute = metrics.combined(metrics.pearson, metrics.spearman)
    for predictions in (found, found[:, None]):
        scores = compute((predictions, truth))
        assert scores["pearson"] == pytest.approx(np.corrcoef(found, truth)[0, 1])
        assert scores["spearmanr"] == pytest.approx(np.corrcoef(*ranks)[0, 1])
    assert np.isnan(metrics.pearson((np.ones(4), truth[:4]))["pearson"])
    assert np.isnan(metrics.spearman((found[:1], truth[:1]))["spearmanr"])


def test_tokens_without_a_label_are_left_out():
    labels = LABELS.reshape(1, -1).copy()
    labels[0, ::2] = -100
    kept = np.arange(97) % 2 == 1
    assert metrics.accuracy((LOGITS[None], labels)) == {"accuracy": (FOUND == LABELS)[kept].mean()}
    none = np.full((1, 97), -100)
    assert np.isnan(metrics.accuracy((LOGITS[None], none))["accuracy"])
    assert np.isnan(metrics.f1((LOGITS[None], none))["f1"])


def test_several_labels_for_each_text():
    labels = np.array([[1, 0, 1], [0, 0, 0]])
    logits = np.array([[0.5, -1, 2], [-1, 0.5, -1]], np.float32)
    assert metrics.accuracy((logits, labels))["accuracy"] == 0.5
    assert metrics.accuracy((logits, labels.astype(np.float32)))["accuracy"] == 0.5
    assert metrics.f1((logits, labels), "micro")["f1"] == pytest.approx(4 / 5)


@pytest.mark.parametrize("left_out", [(), (1,), (0, 3)])
def test_micro_f1_is_scikit_learn_s(left_out):
    from sklearn.metrics import precision_recall_fscore_support as measure

    rng = np.random.default_rng(1)
    logits, labels = rng.normal(size=(60, 4)), rng.integers(0, 4, 60)
    kept = [number for number in range(4) if number not in left_out]
    options = {"average": "micro", "zero_division": 0.0}
    found = metrics.micro_f1(left_out)((logits, labels))
    assert list(found.values()) == pytest.approx(measure(labels, logits.argmax(1), labels=kept, **options)[:3])
    several = rng.integers(0, 2, (60, 4)).astype(np.float32)
    found = metrics.micro_f1(left_out)((logits, several))
    assert list(found.values()) == pytest.approx(measure(several[:, kept], logits[:, kept] > 0, **options)[:3])


def test_micro_f1_without_predictions_is_zero():
    none = {"precision": 0.0, "recall": 0.0, "f1": 0.0}
    assert metrics.micro_f1((0,))((np.zeros((3, 2)), np.array([1, 0, 1]))) == none
    assert metrics.micro_f1()((np.zeros((0, 2)), np.zeros(0, int))) == none


def test_words_of_a_masked_model():
    logits = RNG.normal(size=(3, 7, 11)).astype(np.float32) * 5
    labels = np.where(RNG.random((3, 7)) < 0.5, RNG.integers(0, 11, (3, 7)), -100)
    kept = metrics.predicted_words(logits, labels)
    assert [part.shape for part in kept] == [(3, 7), (3, 7)]
    counted = labels != -100
    exact = logits.astype(np.float64)
    losses = np.log(np.exp(exact).sum(-1)) - np.take_along_axis(exact, np.maximum(labels, 0)[..., None], -1)[..., 0]
    np.testing.assert_allclose(kept[1][counted], losses[counted], rtol=1e-6)
    scores = metrics.combined(metrics.masked_accuracy, metrics.perplexity)((kept, labels))
    assert scores["masked_accuracy"] == (logits.argmax(-1) == labels)[counted].mean()
    assert scores["perplexity"] == pytest.approx(np.exp(losses[counted].mean()), rel=1e-6)


def test_pairs_beside_words():
    logits, pairs = RNG.normal(size=(4, 3, 5)), np.array([[2, 1], [0, 3], [1, 0], [5, 4.0]])
    labels = np.full((4, 3), -100), np.array([0, 1, 1, 1])
    kept = metrics.predicted_words((logits, pairs), labels)
    assert metrics.pair_accuracy((kept, labels)) == {"pair_accuracy": 0.5}
    assert np.isnan(metrics.masked_accuracy((kept, labels))["masked_accuracy"])


def test_words_of_a_causal_model():
    logits, labels = RNG.normal(size=(2, 5, 11)), RNG.integers(0, 11, (2, 5))
    labels[1, 3:] = -100
    kept = metrics.predicted_next_words(logits, labels)
    pairs = [(row, place) for row in range(2) for place in range(1, 5) if labels[row, place] != -100]
    right = [logits[row, place - 1].argmax() == labels[row, place] for row, place in pairs]
    before = [(logits[row, place - 1], labels[row, place]) for row, place in pairs]
    losses = [np.log(np.exp(scores).sum()) - scores[label] for scores, label in before]
    scores = metrics.combined(metrics.next_word_accuracy, metrics.perplexity)((kept, labels))
    assert scores["next_word_accuracy"] == np.mean(right)
    assert scores["perplexity"] == pytest.approx(np.exp(np.mean(losses)), rel=1e-6)


def test_extreme_logits_and_no_labels():
    labels = np.array([[0, -100]])
    kept = metrics.predicted_words(np.array([[[-1e4, 1e4], [0, 0]]], np.float32), labels)
    assert kept[1][0, 0] == 2e4
    assert metrics.perplexity((kept, labels))["perplexity"] == np.inf
    none = np.full((1, 2), -100)
    assert np.isnan(metrics.perplexity((metrics.predicted_words(np.zeros((1, 2, 3)), none), none))["perplexity"])
    refuses(ValueError, "preprocess_logits_for_metrics", metrics.perplexity, (np.zeros((1, 2, 3)), none))


@pytest.mark.parametrize("name, package", [("f1", "scikit-learn"), ("pearson", "SciPy")])
def test_a_missing_package_is_named_with_the_extra(monkeypatch, name, package):
    for module in ("sklearn.metrics", "scipy.stats"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"{package} is not installed.*: pip install 'bertcore\[training\]'"):
        getattr(metrics, name)((np.arange(3), np.arange(3)))


@pytest.mark.parametrize("predictions, labels, error", [
    (np.zeros((3, 2)), np.zeros(4), r"predictions have shape \(3, 2\)"),
    (np.zeros((3, 0)), np.zeros(3), r"predictions have shape \(3, 0\)"),
    (np.full((3, 2), np.nan), np.zeros(3), "predictions holds NaN"),
])  # fmt: skip
def test_invalid_predictions(predictions, labels, error):
    refuses(ValueError, error, metrics.accuracy, (predictions, labels))
    refuses(ValueError, "average is 'mean'", metrics.f1, (LOGITS, LABELS), "mean")


TAGS = ["O", "B-A", "I-A", "B-B", "I-B"]


def brute_force(tags):
    """Every (kind, first, last + 1) that is a span by the definition, tried one after another."""
    found = set()
    for kind in "AB":
        for start in range(len(tags)):
            before = tags[start - 1] if start else "O"
            begins = tags[start] == f"B-{kind}" or (tags[start] == f"I-{kind}" and before[2:] != kind)
            for end in range(start + 1, len(tags) + 1):
                goes_on = all(tag == f"I-{kind}" for tag in tags[start + 1 : end])
                ends = end == len(tags) or tags[end] != f"I-{kind}"
                if begins and goes_on and ends:
                    found.add((kind, start, end))
    return found


@given(st.lists(st.sampled_from(TAGS), max_size=12))
def test_spans_by_definition(tags):
    assert spans(tags) == brute_force(tags)


def test_scores_of_spans():
    labels = np.array([[1, 2, 0, 3, -100], [0, 0, 1, -100, -100]])
    found = np.array([[1, 2, 0, 1, 3], [0, 1, 1, 3, 3]])  # one of two right; a wrong one before the right one
    expected = {"precision": 2 / 4, "recall": 2 / 3, "f1": 4 / 7, "accuracy": 5 / 7}
    assert span_f1(TAGS)((found, labels)) == pytest.approx(expected)
    assert span_f1(TAGS)((np.eye(5)[found], labels)) == pytest.approx(expected)
    nothing = np.zeros((2, 5), int)
    assert span_f1(TAGS)((nothing, nothing)) == {"precision": 0, "recall": 0, "f1": 0, "accuracy": 1}
    for names in (["O", "PER"], ["B-"], ["S-A"]):
        refuses(ValueError, "expected O, B-KIND or I-KIND", span_f1, names)


def test_scores_of_answers():
    assert normalized_answer("The  Cat's, an example!") == "cats example"
    scores = answer_scores(["the cat", "a big dog", "", "x"], [["Cat!", "no"], ["big red dog"], [], ["y"]])
    assert scores == pytest.approx({"exact_match": 50.0, "f1": 100 * (1 + 2 * 2 / 5 + 1 + 0) / 4})
    refuses(ValueError, "1 answers and references of 0 questions", answer_scores, ["x"], [])


def test_replaced_tokens_beside_what_is_trivial():
    replaced = np.array([[1, 0, 0, IGNORED], [0, 1, 0, 0]])
    logits = np.array([[0.5, 2.0, -1.0, 9.0], [-1.0, -2.0, -3.0, -4.0]])  # one of two is found, one is wrong
    words = np.array([[5, IGNORED, 5, IGNORED], [6, 5, IGNORED, IGNORED]])
    kept = np.zeros_like(words), np.zeros(words.shape, np.float32), logits, replaced
    found = metrics.combined(metrics.replaced_tokens, metrics.commonest_word)((kept, words))
    assert found == pytest.approx(
        {
            "replaced_accuracy": 5 / 7, "replaced_accuracy_trivial": 5 / 7, "masked_accuracy_trivial": 3 / 4,
            # The replaced tokens are the second and the fifth by their scores.
            "replaced_precision": (1 / 2 + 2 / 5) / 2, "replaced_precision_trivial": 2 / 7,
        }
    )  # fmt: skip
