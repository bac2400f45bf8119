"""Predictions on a dataset, and metrics of them: functions of (predictions, label_ids) that return {name: number}.

`compute_metrics` of a Trainer takes an `EvalPrediction`, which is such a pair. Predictions are classes, or logits with
one axis more than the labels; labels of -100 are ignored. The logits of a whole vocabulary are too large to keep for a
dataset: pass `predicted_words` as `preprocess_logits_for_metrics` for `masked_accuracy` and `perplexity`,
`predicted_next_words` for a causal model.

scikit-learn and scipy (the extra `training`) compute scores and correlations; they are imported when needed.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bertcore import kernels
from bertcore.arguments import check_strings, required
from bertcore.kernels import checks
from bertcore.kernels.arrays import ArrayLike, NativeArray
from bertcore.training.collators import IGNORED

Prediction = tuple[Any, Any]
Metric = Callable[[Prediction], dict[str, float]]
Reduce = Callable[[Any, Any], Any]
AVERAGES = ("binary", "macro", "micro", "weighted")


def combined(*metrics: Callable[[Prediction], Mapping[str, float]]) -> Callable[[Prediction], dict[str, float]]:
    """Return one function for several metrics."""

    def compute(prediction: Prediction) -> dict[str, float]:
        return {name: value for metric in metrics for name, value in metric(prediction).items()}

    return compute


def accuracy(prediction: Prediction) -> dict[str, float]:
    """Return {"accuracy": fraction of correct predictions}; with several labels per text, all must match."""
    found, expected = classes_and_labels(*prediction)
    right = found == expected
    return {"accuracy": _mean(right.all(-1) if right.ndim > 1 else right)}


def f1(prediction: Prediction, average: str = "macro") -> dict[str, float]:
    """Return {"f1": harmonic mean of precision and recall}.

    Args:
        prediction: of classes, or of several labels per text (a logit above 0 predicts the label).
        average: "binary", of class 1; "macro", the mean over classes; "micro", over all decisions; "weighted", the mean
            weighted by the labels per class. A class without predictions and labels counts only if texts have several.
    """
    checks.choice("average", average, AVERAGES)
    found, expected = classes_and_labels(*prediction)
    if not expected.size:
        return {"f1": float("nan")}
    score = required("sklearn.metrics").f1_score(expected, found, average=average, zero_division=0.0)
    return {"f1": float(score)}


def micro_f1(left_out: Sequence[int] = ()) -> Callable[[Prediction], dict[str, float]]:
    """Return a metric: precision, recall and F1 over all texts and all classes except `left_out`.

    With one label per text, predictions and labels of the classes left out do not count. Without "no_relation" this is
    TACRED's measure (Zhang et al. 2017); if no class is left out, all three equal the accuracy. With several labels per
    text, a logit above 0 is a prediction and every label counts: the loose micro average of entity typing (Ling and
    Weld 2012). All three are 0 without predictions or labels.
    """

    def compute(prediction: Prediction) -> dict[str, float]:
        found, expected = classes_and_labels(*prediction)
        if expected.ndim > 1:
            kept = ~np.isin(np.arange(expected.shape[1]), left_out)
            found, expected = found[:, kept], expected[:, kept]
            return of_counts(int((found & expected).sum()), int(found.sum()), int(expected.sum()))
        predicted, labelled = ~np.isin(found, left_out), ~np.isin(expected, left_out)
        return of_counts(int((predicted & (found == expected)).sum()), int(predicted.sum()), int(labelled.sum()))

    return compute


def of_counts(right: int, predicted: int, expected: int) -> dict[str, float]:
    """Return {"precision", "recall", "f1"} from counts; 0 where the divisor is 0."""
    f1 = 2 * right / max(1, predicted + expected)
    return {"precision": right / max(1, predicted), "recall": right / max(1, expected), "f1": f1}


def matthews_correlation(prediction: Prediction) -> dict[str, float]:
    """Return {"matthews_correlation": correlation with the labels} (GLUE's CoLA); 0 if either is constant."""
    found, expected = classes_and_labels(*prediction)
    if not expected.size:
        return {"matthews_correlation": float("nan")}
    is_one_class = (found == expected[0]).all() and (expected == expected[0]).all()
    score = 0.0 if is_one_class else required("sklearn.metrics").matthews_corrcoef(expected, found)
    return {"matthews_correlation": float(score)}


def pearson(prediction: Prediction) -> dict[str, float]:
    """Return {"pearson": correlation of predicted and true numbers}; NaN if either is constant."""
    return {"pearson": _correlation("pearsonr", prediction)}


def spearman(prediction: Prediction) -> dict[str, float]:
    """Return {"spearmanr": rank correlation of predicted and true numbers}; NaN if either is constant."""
    return {"spearmanr": _correlation("spearmanr", prediction)}


def predicted_words(logits: NativeArray, labels: NativeArray) -> tuple[np.ndarray, ...]:
    """Reduce a language model's logits to two numbers per token, as `preprocess_logits_for_metrics`.

    Args:
        logits: (sequences, length, words), or a tuple that begins with them.
        labels: (sequences, length), or a tuple that begins with them; -100 marks no label.

    Returns:
        the most probable words, (sequences, length) int64; the surprisal (negative log-probability) of the labels,
        (sequences, length) float32, NaN without a label; then the other logits of a tuple.
    """
    logits, *others = logits if isinstance(logits, tuple) else (logits,)
    labels = labels[0] if isinstance(labels, tuple) else labels
    surprisal = np.full(labels.shape, np.nan, np.float32)
    where = np.nonzero(labels != IGNORED)
    scores = logits[where].astype(np.float64)
    scores -= scores.max(-1, keepdims=True, initial=-np.inf)
    of_label = np.take_along_axis(scores, labels[where][:, None], -1)[:, 0]
    surprisal[where] = np.log(np.exp(scores).sum(-1)) - of_label
    return np.argmax(logits, -1), surprisal, *others


def predicted_next_words(logits: NativeArray, labels: NativeArray) -> tuple[np.ndarray, np.ndarray]:
    """Return `predicted_words` of a causal model: each token is predicted at the position before it.

    The first token has no prediction: its word is -100 and its surprisal NaN.
    """
    logits, labels = (value[0] if isinstance(value, tuple) else value for value in (logits, labels))
    words, surprisal = predicted_words(logits[:, :-1], labels[:, 1:])
    first = [(0, 0), (1, 0)]
    return np.pad(words, first, constant_values=IGNORED), np.pad(surprisal, first, constant_values=np.nan)


def masked_accuracy(prediction: Prediction) -> dict[str, float]:
    """Return {"masked_accuracy": fraction of labelled words predicted correctly}, from what `predicted_words` kept."""
    return {"masked_accuracy": _share_of_words(prediction)}


def next_word_accuracy(prediction: Prediction) -> dict[str, float]:
    """Return {"next_word_accuracy": fraction of right predictions}, from what `predicted_next_words` kept."""
    return {"next_word_accuracy": _share_of_words(prediction)}


def pair_accuracy(prediction: Prediction) -> dict[str, float]:
    """Return {"pair_accuracy": accuracy of next-sentence or sentence-order prediction} from `predicted_words`."""
    (*_, logits), (*_, labels) = prediction
    return {"pair_accuracy": accuracy((logits, labels))["accuracy"]}


def replaced_tokens(prediction: Prediction) -> dict[str, float]:
    """Metrics of replaced-token detection, from what `predicted_words` kept of a `ReplacedTokenModel`.

    "replaced_accuracy" is the accuracy over tokens, "replaced_precision" the average precision over all levels of
    recall (NaN if no token was replaced). Early in training a discriminator is seldom more than half sure that a token
    was replaced, while its ranking is already informative. The values "..._trivial" belong to a discriminator that
    predicts no replacement, and to a random ranking.
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
    """Return {"masked_accuracy_trivial": fraction of labels that are the commonest word} from `predicted_words`.

    That is the accuracy of always predicting this word.
    """
    _, _, labels = _kept_words(prediction)
    return {"masked_accuracy_trivial": float(np.unique(labels, return_counts=True)[1].max() / labels.size)}


def perplexity(prediction: Prediction) -> dict[str, float]:
    """Return {"perplexity": exp of the mean surprisal}, from what `predicted_words` or `predicted_next_words` kept."""
    _, surprisal, _ = _kept_words(prediction)
    with np.errstate(over="ignore"):
        return {"perplexity": float(np.exp(_mean(surprisal)))}


def _share_of_words(prediction: Prediction) -> float:
    words, _, labels = _kept_words(prediction)
    return _mean(words == labels)


def _kept_words(prediction: Prediction) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (words, surprisal, labels) of all tokens with a prediction."""
    kept, labels = prediction
    labels = labels[0] if isinstance(labels, tuple) else labels
    if not isinstance(kept, tuple) or len(kept) < 2 or np.shape(kept[0]) != np.shape(labels):
        raise ValueError(
            "predictions are not words: pass predicted_words or predicted_next_words as preprocess_logits_for_metrics"
        )
    words, surprisal = kept[:2]
    counted = (labels != IGNORED) & ~np.isnan(surprisal)
    return words[counted], surprisal[counted], labels[counted]


def classes_and_labels(predictions: ArrayLike, labels: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Return (predicted, expected) classes for all labels except -100; for several labels per text, rows of 0 and 1.

    Args:
        predictions: logits (..., classes); or classes in the shape of `labels`; or, for labels that are rows of 0 and
            1, logits in that shape.
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
        raise ValueError(f"predictions have shape {predictions.shape}, expected {labels.shape} or one more axis")
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
    """Return (kind, first, last + 1) of each span of tags in the IOB2 scheme.

    "B-KIND" begins a span; "I-KIND" continues a span of its kind just before it, or begins one (as in conlleval);
    "O" is outside. Raises ValueError for a tag of another form.
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
    """Return a metric of tagged words: precision, recall and F1 of whole spans, and the accuracy of tags.

    A predicted span counts if its kind and both ends are right; precision and recall are over the spans of all kinds,
    and 0 without spans (as in seqeval). The metric takes (predictions, label_ids): logits (texts, length, classes) or
    classes, and labels (texts, length), -100 for none.

    Args:
        names: the tags of the classes, in the IOB2 scheme.
    """
    spans(check_strings("names", names))  # raises ValueError for a tag of another form

    def compute(prediction: tuple[Any, Any]) -> dict[str, float]:
        found, labels = prediction
        found = found.argmax(-1) if found.ndim == labels.ndim + 1 else found
        right = predicted = expected = same = words = 0
        for row, truth in zip(found, labels, strict=True):
            counted = truth != IGNORED
            guesses, wanted = (spans([names[index] for index in part[counted]]) for part in (row, truth))
            right, predicted, expected = right + len(guesses & wanted), predicted + len(guesses), expected + len(wanted)
            same, words = same + int((row == truth)[counted].sum()), words + int(counted.sum())
        return of_counts(right, predicted, expected) | {"accuracy": same / words if words else float("nan")}

    return compute


def normalized_answer(text: str) -> str:
    """Return an answer without case, punctuation, articles and extra white space (Rajpurkar et al. 2016)."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def answer_scores(answers: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return {"exact_match", "f1"}: percentages over questions, as in SQuAD's own script.

    F1 counts the words shared with the most similar right answer.

    Args:
        answers: one per question; "" for none.
        references: all right answers of each question; empty for a question without an answer.

    Raises:
        ValueError: if the numbers of answers and references differ or are 0.
    """
    if len(answers) != len(references) or not len(answers):
        raise ValueError(f"there are {len(answers)} answers and references of {len(references)} questions")
    exact = overlap = 0.0
    pairs = zip(check_strings("answers", answers), references, strict=True)
    for number, (answer, right) in enumerate(pairs):
        wanted = [normalized_answer(one) for one in check_strings(f"references[{number}]", right)] or [""]
        exact += normalized_answer(answer) in wanted
        overlap += max(_word_f1(normalized_answer(answer), one) for one in wanted)
    return {"exact_match": 100 * exact / len(answers), "f1": 100 * overlap / len(answers)}


def _word_f1(answer: str, right: str) -> float:
    found, wanted = Counter(answer.split()), Counter(right.split())
    if not found or not wanted:
        return float(found == wanted)
    return 2 * (found & wanted).total() / (found.total() + wanted.total())


class EvalPrediction(NamedTuple):
    """The argument of `compute_metrics`.

    Attributes:
        predictions: the logits of all examples (or the results of `preprocess_logits_for_metrics`): an array, or a
            tuple if the model has several outputs; shorter rows are filled with -100.
        label_ids: the labels, in the same form; None without labels.
    """

    predictions: Any
    label_ids: Any


class PredictionOutput(NamedTuple):
    """The result of `Trainer.predict`: an `EvalPrediction` and the metrics."""

    predictions: Any
    label_ids: Any
    metrics: dict[str, float]


class Evaluated(NamedTuple):
    """The result of a pass over a dataset: mean loss (None without labels), predictions, number of examples."""

    loss: float | None
    predictions: EvalPrediction | None
    examples: int


def run_through(
    objective: Any, model: Any, batches: Iterable[Mapping[str, Any]], *, keep: bool, reduce: Reduce | None = None
) -> Evaluated:
    """Run `model` on all batches.

    Args:
        objective: computes the loss; each term's mean is over the labels of all batches.
        model: a model of any class.
        batches: the model's inputs.
        keep: whether to keep the predictions and labels of all examples.
        reduce: maps a batch's (logits, labels) to the predictions to keep, such as the predicted words.
    """
    sums: dict[int, tuple[float, float]] = {}  # of each term: sum of losses, sum of counts
    examples = 0
    names = dict.fromkeys((*model.label_names, *objective.targets, "labels"))
    predictions: list[Any] = []
    labels: list[Any] = []
    for batch in batches:
        out, losses = objective.evaluated(model, batch)
        for index, (loss, count) in enumerate(losses):
            if count:
                total, counts = sums.get(index, (0.0, 0.0))
                sums[index] = total + float(loss) * count, counts + count
        examples += len(next(iter(batch.values())))
        if keep:
            truth = _one_or_all([np.asarray(batch[name]) for name in names if name in batch])
            scores = _one_or_all([kernels.to_host(array) for array in out.predictions()])
            predictions.append(scores if reduce is None else reduce(scores, truth))
            labels.append(truth)
    kept = EvalPrediction(_joined(predictions), _joined(labels)) if keep and examples else None
    return Evaluated(sum(total / counts for total, counts in sums.values()) if sums else None, kept, examples)


def _one_or_all(arrays: list[np.ndarray]) -> np.ndarray | tuple[np.ndarray, ...] | None:
    return tuple(arrays) if len(arrays) > 1 else arrays[0] if arrays else None


def _joined(parts: list[Any]) -> Any:
    """Return the batches' arrays as one; shorter rows are filled with -100."""
    if parts[0] is None:
        return None
    if isinstance(parts[0], tuple):
        return tuple(_joined(list(some)) for some in zip(*parts, strict=True))
    width = max((part.shape[1] for part in parts if part.ndim > 1), default=None)
    return np.concatenate([_widened(part, width) for part in parts])


def _widened(array: np.ndarray, width: int | None) -> np.ndarray:
    if width is None or array.shape[1] == width:
        return array
    widths = [(0, 0), (0, width - array.shape[1]), *[(0, 0)] * (array.ndim - 2)]
    return np.pad(array, widths, constant_values=IGNORED)
