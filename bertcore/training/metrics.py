"""Metrics of predictions, for `compute_metrics` of a Trainer: functions of (predictions, label_ids) to {name: number}.

An `EvalPrediction` is such a pair. Predictions are logits, with one axis more than the labels, or classes; labels of
-100 are left out. Logits of every word of a vocabulary are too many to keep of a whole dataset: give
`predicted_words` as `preprocess_logits_for_metrics`, for `masked_accuracy`, `next_word_accuracy` and `perplexity`.

Scores and correlations are computed by scikit-learn and scipy (the extra `training`), which are imported when needed.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bertcore.arguments import required
from bertcore.kernels import checks
from bertcore.training.masking import IGNORED

Prediction = tuple[Any, Any]
AVERAGES = ("binary", "macro", "micro", "weighted")


def combined(*metrics: Callable[[Prediction], Mapping[str, float]]) -> Callable[[Prediction], dict[str, float]]:
    """One function for several metrics."""

    def compute(prediction: Prediction) -> dict[str, float]:
        return {name: value for metric in metrics for name, value in metric(prediction).items()}

    return compute


def accuracy(prediction: Prediction) -> dict[str, float]:
    """{"accuracy": the share of labels that were predicted}; of several labels for each text, all have to be."""
    found, expected = classes_and_labels(*prediction)
    right = found == expected
    return {"accuracy": _mean(right.all(-1) if right.ndim > 1 else right)}


def f1(prediction: Prediction, average: str = "macro") -> dict[str, float]:
    """{"f1": the harmonic mean of precision and recall}.

    Args:
        prediction: of classes, or of several labels for each text (a logit above 0 is a yes).
        average: "binary", of class 1; "macro", the mean over classes; "micro", over all decisions; "weighted", the mean
            by the number of labels of each class. A class that is neither predicted nor a label counts as 0.
    """
    checks.choice("average", average, AVERAGES)
    found, expected = classes_and_labels(*prediction)
    if not expected.size:
        return {"f1": float("nan")}
    score = required("sklearn.metrics").f1_score(expected, found, average=average, zero_division=0.0)
    return {"f1": float(score)}


def matthews_correlation(prediction: Prediction) -> dict[str, float]:
    """{"matthews_correlation": Matthews' coefficient of classes} (GLUE's CoLA); 0 where all are of one class."""
    found, expected = classes_and_labels(*prediction)
    if not expected.size:
        return {"matthews_correlation": float("nan")}
    is_one_class = (found == expected[0]).all() and (expected == expected[0]).all()
    score = 0.0 if is_one_class else required("sklearn.metrics").matthews_corrcoef(expected, found)
    return {"matthews_correlation": float(score)}


def pearson(prediction: Prediction) -> dict[str, float]:
    """{"pearson": the correlation of predicted and true numbers}; NaN where either are all the same."""
    return {"pearson": _correlation("pearsonr", prediction)}


def spearman(prediction: Prediction) -> dict[str, float]:
    """{"spearmanr": the correlation of the ranks of predicted and true numbers}; NaN where either are all the same."""
    return {"spearmanr": _correlation("spearmanr", prediction)}


def predicted_words(logits: Any, labels: Any) -> tuple[np.ndarray, ...]:
    """What `preprocess_logits_for_metrics` keeps of a language model: two numbers for each token.

    Args:
        logits: (sequences, length, words), or a tuple that begins with them.
        labels: (sequences, length), or a tuple that begins with them: -100 where there is none.

    Returns:
        the most probable words, (sequences, length) int64; the surprise at the labels, the logarithm of 1 over the
        probability of each, (sequences, length) float32, NaN where there is no label; the other logits of a tuple.
    """
    logits, *others = logits if isinstance(logits, tuple) else (logits,)
    labels = labels[0] if isinstance(labels, tuple) else labels
    surprise = np.full(labels.shape, np.nan, np.float32)
    where = np.nonzero(labels != IGNORED)
    scores = logits[where].astype(np.float64)
    scores -= scores.max(-1, keepdims=True, initial=-np.inf)
    of_label = np.take_along_axis(scores, labels[where][:, None], -1)[:, 0]
    surprise[where] = np.log(np.exp(scores).sum(-1)) - of_label
    return np.argmax(logits, -1), surprise, *others


def predicted_next_words(logits: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    """`predicted_words` of a causal model: for each token what the one before predicts of it.

    Nothing is predicted of the first: its word is -100, its surprise NaN.
    """
    logits, labels = (value[0] if isinstance(value, tuple) else value for value in (logits, labels))
    words, surprise = predicted_words(logits[:, :-1], labels[:, 1:])
    first = [(0, 0), (1, 0)]
    return np.pad(words, first, constant_values=IGNORED), np.pad(surprise, first, constant_values=np.nan)


def masked_accuracy(prediction: Prediction) -> dict[str, float]:
    """{"masked_accuracy": the share of labelled words that were predicted}, of what `predicted_words` keeps."""
    return {"masked_accuracy": _share_of_words(prediction)}


def next_word_accuracy(prediction: Prediction) -> dict[str, float]:
    """{"next_word_accuracy": likewise of words after the first}, of what `predicted_next_words` keeps."""
    return {"next_word_accuracy": _share_of_words(prediction)}


def pair_accuracy(prediction: Prediction) -> dict[str, float]:
    """{"pair_accuracy": the share of pairs of segments told right}, of a model with a head for pairs beside that for
    words, of what `predicted_words` keeps."""
    (*_, logits), (*_, labels) = prediction
    return {"pair_accuracy": accuracy((logits, labels))["accuracy"]}


def replaced_tokens(prediction: Prediction) -> dict[str, float]:
    """How well replaced tokens are told, of what `predicted_words` keeps of a `ReplacedTokenModel`.

    "replaced_accuracy" is the share of tokens told right, "replaced_precision" the mean precision over all levels of
    recall (the area under their curve; NaN if no token was replaced): a young discriminator is seldom more than half
    sure that a token was replaced, while its order of the tokens is already telling. "..._trivial" are those of calling
    no token replaced, and of a random order.
    """
    (*_, logits, replaced), _ = prediction
    is_real = replaced != IGNORED
    scores, expected = logits[is_real], replaced[is_real] == 1
    share = _mean(expected)
    curve = required("sklearn.metrics").average_precision_score
    return {
        "replaced_accuracy": _mean((scores > 0) == expected),
        "replaced_accuracy_trivial": 1 - share,
        "replaced_precision": float(curve(expected, scores)) if expected.any() else float("nan"),
        "replaced_precision_trivial": share,
    }


def commonest_word(prediction: Prediction) -> dict[str, float]:
    """{"masked_accuracy_trivial": the share of labelled words that are the commonest one of them}, of what
    `predicted_words` keeps: what is right without looking at the text."""
    _, _, labels = _kept_words(prediction)
    return {"masked_accuracy_trivial": float(np.unique(labels, return_counts=True)[1].max() / labels.size)}


def perplexity(prediction: Prediction) -> dict[str, float]:
    """{"perplexity": exp of the mean surprise}, of what `predicted_words` or `predicted_next_words` keeps."""
    _, surprise, _ = _kept_words(prediction)
    with np.errstate(over="ignore"):
        return {"perplexity": float(np.exp(_mean(surprise)))}


def _share_of_words(prediction: Prediction) -> float:
    words, _, labels = _kept_words(prediction)
    return _mean(words == labels)


def _kept_words(prediction: Prediction) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(words, surprise, labels) of all tokens that something was predicted of."""
    kept, labels = prediction
    labels = labels[0] if isinstance(labels, tuple) else labels
    if not isinstance(kept, tuple) or len(kept) < 2 or np.shape(kept[0]) != np.shape(labels):
        raise ValueError(
            "predictions are no words: give predicted_words, or predicted_next_words, as preprocess_logits_for_metrics"
        )
    words, surprise = kept[:2]
    counted = (labels != IGNORED) & ~np.isnan(surprise)
    return words[counted], surprise[counted], labels[counted]


def classes_and_labels(predictions: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    """(predicted, expected) classes of all labels but -100; of several labels for each text, rows of 0 and 1.

    Args:
        predictions: logits (..., classes); or classes of the shape of `labels`; or, where labels are rows of 0 and 1,
            logits of that shape.
        labels: integers.

    Raises:
        ValueError: for other shapes, and for logits that are NaN.
    """
    predictions, labels = np.asarray(predictions), np.asarray(labels)
    if predictions.dtype.kind == "f" and np.isnan(predictions).any():
        raise ValueError("predictions holds NaN, expected logits")
    if predictions.ndim == labels.ndim + 1 and predictions.shape[:-1] == labels.shape and predictions.shape[-1]:
        predictions = predictions.argmax(-1)
    elif predictions.shape != labels.shape:
        raise ValueError(f"predictions have shape {predictions.shape}, expected {labels.shape} as labels, and classes")
    elif predictions.dtype.kind == "f":
        return (predictions > 0).astype(np.int64), (labels > 0).astype(np.int64)
    counted = labels != IGNORED
    return predictions[counted], labels[counted]


def _correlation(name: str, prediction: Prediction) -> float:
    found, expected = (np.asarray(value, np.float64) for value in prediction)
    if found.size != expected.size:
        raise ValueError(f"predictions have shape {found.shape}, expected {expected.shape}: a number for each label")
    found, expected = found.reshape(-1), expected.reshape(-1)
    if len(found) < 2 or np.ptp(found) == 0 or np.ptp(expected) == 0:
        return float("nan")
    return float(getattr(required("scipy.stats"), name)(found, expected).statistic)


def _mean(values: Sequence[Any] | np.ndarray) -> float:
    return float(np.mean(values, dtype=np.float64)) if len(values) else float("nan")


OUTSIDE = "O"
ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)

Span = tuple[str, int, int]


def spans(tags: Sequence[str]) -> set[Span]:
    """(kind, first, last + 1) of each span of tags in the IOB2 scheme.

    "B-KIND" begins a span, "I-KIND" goes on with one of its kind that ends just before, and begins one where there is
    none (as conlleval has it); "O" is outside.

    Raises:
        ValueError: for a tag of another form.
    """
    found: set[Span] = set()
    kind, start = "", 0
    for place, tag in enumerate([*tags, OUTSIDE]):
        mark, _, this = tag.partition("-")
        if tag != OUTSIDE and (mark not in ("B", "I") or not this):
            raise ValueError(f"tags[{place}] is {tag!r}, expected O, B-KIND or I-KIND")
        if kind and (mark != "I" or this != kind):
            found.add((kind, start, place))
            kind = ""
        if this and not kind:
            kind, start = this, place
    return found


def span_f1(names: Sequence[str]) -> Callable[[tuple[Any, Any]], dict[str, float]]:
    """A metric of tagged words: precision, recall and F1 of whole spans, and the accuracy of tags.

    A predicted span counts if its kind and both its ends are right; precision and recall are over the spans of all
    kinds, and 0 where there are none (as seqeval has it).

    Args:
        names: the tags of the classes, in the IOB2 scheme.

    The function takes (predictions, label_ids): logits (texts, length, classes) or classes, and labels (texts, length),
    -100 where there is none.
    """
    spans(names)  # they have the right form

    def compute(prediction: tuple[Any, Any]) -> dict[str, float]:
        found, labels = prediction
        found = found.argmax(-1) if found.ndim == labels.ndim + 1 else found
        right = predicted = expected = same = words = 0
        for row, truth in zip(found, labels, strict=True):
            counted = truth != IGNORED
            guesses, wanted = (spans([names[index] for index in part[counted]]) for part in (row, truth))
            right, predicted, expected = right + len(guesses & wanted), predicted + len(guesses), expected + len(wanted)
            same, words = same + int((row == truth)[counted].sum()), words + int(counted.sum())
        precision, recall = right / max(1, predicted), right / max(1, expected)
        return {
            "precision": precision,
            "recall": recall,
            "f1": 2 * right / max(1, predicted + expected),
            "accuracy": same / words if words else float("nan"),
        }

    return compute


def normalized_answer(text: str) -> str:
    """An answer without case, punctuation, articles and further white space (Rajpurkar et al. 2016,
    arXiv:1606.05250)."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def answer_scores(answers: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """{"exact_match", "f1"}: percentages over questions, as SQuAD's own script has them.

    Args:
        answers: one for each question; "" for none.
        references: all right answers of each question; none where it has no answer.

    F1 is that of words, of the best right answer.

    Raises:
        ValueError: for other numbers of answers and references, or none.
    """
    if len(answers) != len(references) or not len(answers):
        raise ValueError(f"there are {len(answers)} answers and references of {len(references)} questions")
    exact = overlap = 0.0
    for answer, right in zip(answers, references, strict=True):
        wanted = [normalized_answer(one) for one in right] or [""]
        exact += normalized_answer(answer) in wanted
        overlap += max(_word_f1(normalized_answer(answer), one) for one in wanted)
    return {"exact_match": 100 * exact / len(answers), "f1": 100 * overlap / len(answers)}


def _word_f1(answer: str, right: str) -> float:
    found, wanted = Counter(answer.split()), Counter(right.split())
    if not found or not wanted:
        return float(found == wanted)
    return 2 * (found & wanted).total() / (found.total() + wanted.total())
