"""The base of all evaluators, and metrics of scores given the correct answers."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bertcore.arguments import Described, check_count, check_function, check_list, naming_nearest, required

if TYPE_CHECKING:
    from bertcore.kernels.arrays import ArrayLike
    from bertcore.tasks.encoders import Encoder

Metrics = dict[str, float]
Score = Callable[[Any, Any], np.ndarray]


class Evaluator(Described):
    """The base of all evaluators: the name of the data, and the file of results.

    Evaluators take these arguments, `options`, beside their own.

    Args:
        name: name of the data; the metrics' names begin with it.
        batch_size: number of texts computed at once.
        show_progress_bar: show progress while texts are embedded.
        write_csv: append the metrics to a table, as sentence-transformers has it, if a call has an `output_path`.
        truncate_dim: compare only the first dimensions of embeddings.

    Attributes:
        primary_metric: the name of the metric that ranks models, known after a call.
        greater_is_better: True.
        methods: a model must have a method of one of these names; ("predict",) for rerankers.
    """

    greater_is_better = True
    methods: tuple[str, ...] = ("encode", "encode_query")
    table = "{}_results.csv"  # name of the file of results; {} stands for the name of the data
    _column: Callable[[str], str] = staticmethod(str)  # the table's column of a metric; "" leaves it out

    @naming_nearest()
    def __init__(
        self,
        name: str = "",
        batch_size: int = 32,
        show_progress_bar: bool = False,
        write_csv: bool = True,
        truncate_dim: int | None = None,
    ):
        self.name, self.write_csv = name, write_csv
        self.batch_size = check_count("batch_size", batch_size)
        self.show_progress_bar = show_progress_bar
        self.truncate_dim = truncate_dim if truncate_dim is None else check_count("truncate_dim", truncate_dim)
        self.primary_metric: str | None = None

    def __call__(
        self, model: Encoder, output_path: str | os.PathLike[str] | None = None, epoch: int = -1, steps: int = -1
    ) -> Metrics:
        """Return the metrics of an encoder by name.

        Args:
            model: the encoder.
            output_path: folder of the table of results; a row is appended.
            epoch, steps: the progress of training, for the table.
        """
        if isinstance(model, str) or not any(hasattr(model, name) for name in self.methods):
            raise TypeError(f"model is {type(model).__name__}, expected one with {' or '.join(self.methods)}")
        found, primary = self.metrics(model)
        start = f"{self.name}_" if self.name else ""
        self.primary_metric = start + primary
        metrics = {start + name: float(value) for name, value in found.items()}
        if output_path is not None and self.write_csv:
            file = Path(output_path, self.table.format(f"_{self.name}" if self.name else ""))
            file.parent.mkdir(parents=True, exist_ok=True)
            row = {"epoch": epoch, "steps": steps, **self.columns(found)}
            with open(file, "a", newline="", encoding="utf-8") as stream:
                table = csv.DictWriter(stream, row)
                if not stream.tell():
                    table.writeheader()
                table.writerow(row)
        if (card := getattr(model, "model_card_data", None)) is not None:
            card.set_evaluation_metrics(self, metrics, epoch, steps)
        return metrics

    def metrics(self, model: Any) -> tuple[Metrics, str]:
        """Return the metrics without the data's name, and the primary metric."""
        raise NotImplementedError

    def columns(self, found: Metrics) -> Metrics:
        """Return the row of the table for what `metrics` found: values by column."""
        return {column: value for name, value in found.items() if (column := self._column(name))}

    def _embedded(self, encode: Callable[..., Any], texts: Sequence[str], **options: Any) -> Any:
        options |= given(truncate_dim=self.truncate_dim)
        return encode(list(texts), batch_size=self.batch_size, show_progress_bar=self.show_progress_bar, **options)


class SequentialEvaluator(Evaluator):
    """Call several evaluators; the metrics are theirs and `sequential_score`.

    Args:
        evaluators: the evaluators.
        main_score_function: maps the list of their primary metrics to `sequential_score`; by default the last of them.
    """

    def __init__(
        self,
        evaluators: Iterable[Callable[..., Any]],
        main_score_function: Callable[[list[float]], float] = lambda scores: scores[-1],
    ):
        super().__init__()
        check_function("main_score_function", main_score_function)
        self.evaluators = check_list("evaluators", evaluators, "evaluators")
        self.main_score_function = main_score_function
        if not self.evaluators:
            raise ValueError("evaluators is empty, expected at least one")
        for place, evaluator in enumerate(self.evaluators):
            if not callable(evaluator):
                raise TypeError(f"evaluators[{place}] is {type(evaluator).__name__}, expected an evaluator")

    def __call__(
        self, model: Encoder, output_path: str | os.PathLike[str] | None = None, epoch: int = -1, steps: int = -1
    ) -> Metrics:
        """Return the metrics of all evaluators, each called with these arguments."""
        results, scores = {}, []
        for place, evaluator in enumerate(self.evaluators):
            found = evaluator(model, output_path, epoch, steps)
            found = found if isinstance(found, dict) else {f"evaluator_{place}": found}
            if not found:
                raise ValueError(f"evaluators[{place}] returned no metrics, expected at least one")
            scores.append(found[getattr(evaluator, "primary_metric", None) or next(iter(found))])
            results |= found
        self.primary_metric = "sequential_score"
        return results | {"sequential_score": self.main_score_function(scores)}


def given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def of_dense(score: Score) -> Score:
    """Return a similarity that also accepts sparse matrices."""
    return lambda *rows: score(*(each.toarray() if hasattr(each, "toarray") else each for each in rows))


def by_threshold(scores: np.ndarray, is_right: np.ndarray, total: int) -> tuple[Any, ...]:
    """Return for each threshold, from the highest score down: the last rank above it, answers, precision, F1.

    The last entry is the average precision. Scores must be in descending order; ties share a threshold.
    """
    ends = np.flatnonzero(np.append(scores[1:] != scores[:-1], True))
    right = np.cumsum(is_right)[ends]
    precision, recall = right / (ends + 1), right / total
    f1 = np.divide(2 * precision * recall, precision + recall, out=np.zeros(len(ends)), where=right > 0)
    return ends, right, precision, f1, float((precision * np.diff(right, prepend=0)).sum() / total)


def average_precision(is_right: np.ndarray, scores: np.ndarray) -> float:
    order = np.argsort(-scores, kind="stable")
    return by_threshold(scores[order], is_right[order], int(is_right.sum()))[-1]


def ndcg(is_right: np.ndarray, scores: np.ndarray, k: int) -> float:
    """Return the normalised discounted gain of the first k; ties share the mean of their gains."""
    order = np.argsort(-scores, kind="stable")
    discounts = np.where(np.arange(len(scores)) < k, 1 / np.log2(np.arange(len(scores)) + 2), 0.0)
    starts = np.flatnonzero(np.append(True, np.diff(scores[order]) != 0))
    counts = np.diff(np.append(starts, len(scores)))
    gains = np.add.reduceat(is_right[order].astype(np.float64), starts) / counts * np.add.reduceat(discounts, starts)
    return float(gains.sum() / discounts[: is_right.sum()].sum())


def of_rankings(rankings: Iterable[np.ndarray], scores: Iterable[np.ndarray], k: int) -> Metrics:
    """Return the means of the average precision, and of the first k the reciprocal rank and the normalised gain.

    Rankings without an answer count as 0. Equal scores count in their order in the reciprocal rank.
    """
    found = []
    for is_right, some in zip(rankings, scores, strict=True):
        ranks = np.flatnonzero(is_right[np.argsort(-some, kind="stable")][:k])
        reciprocal = 1 / (ranks[0] + 1) if len(ranks) else 0.0
        precision, gain = (average_precision(is_right, some), ndcg(is_right, some, k)) if is_right.any() else (0.0, 0.0)
        found.append((precision, reciprocal, gain))
    return dict(zip(("map", f"mrr@{k}", f"ndcg@{k}"), np.mean(found, axis=0).tolist(), strict=True))


def correlations(first: np.ndarray, second: np.ndarray) -> Metrics:
    """Return the correlations pearson and spearman, NaN for constant numbers. Raises ImportError without SciPy."""
    stats = required("scipy.stats")
    constant = any(np.ptp(numbers) == 0 for numbers in (first, second))
    return {
        kind: float("nan") if constant else float(getattr(stats, f"{kind}r")(first, second).statistic)
        for kind in ("pearson", "spearman")
    }


def checked_numbers(name: str, values: ArrayLike, count: int) -> np.ndarray:
    """Return `count` finite numbers in float64. Raises TypeError or ValueError for others."""
    try:
        numbers = np.asarray(values, np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{name} is {values!r:.60}, expected {count} finite numbers") from error
    if numbers.shape != (count,):
        raise ValueError(f"{name} has shape {numbers.shape}, expected ({count},): finite numbers")
    if not np.isfinite(numbers).all():
        raise ValueError(f"{name} holds inf or NaN, expected finite numbers")
    return numbers


def of_thresholds(scores: np.ndarray, labels: np.ndarray) -> Metrics:
    """Return the metrics of classifying pairs by a threshold of their scores: the best one for accuracy and F1."""
    order = np.argsort(-scores, kind="stable")
    scores, is_right = scores[order], labels[order]
    ends, right, precision, f1, average = by_threshold(scores, is_right, max(int(labels.sum()), 1))
    accuracy = (right + (~labels).sum() - (ends + 1 - right)) / len(labels)
    names = ("accuracy", "accuracy_threshold", "f1", "precision", "recall", "f1_threshold", "ap", "mcc")
    found: Metrics = dict.fromkeys(names, 0.0)
    # No pair is predicted similar.
    found["accuracy"] = float((~labels).mean())
    found["accuracy_threshold"] = float(np.nextafter(scores[0], scores.dtype.type(np.inf)))
    best = int(np.argmax(accuracy))
    if accuracy[best] > found["accuracy"]:
        found |= {"accuracy": float(accuracy[best]), "accuracy_threshold": _between(scores, int(ends[best]))}
    if right[-1]:
        best = int(np.argmax(f1))
        found |= {"f1": float(f1[best]), "precision": float(precision[best])}
        found |= {"recall": float(right[best] / right[-1]), "f1_threshold": _between(scores, int(ends[best]))}
    predicted = scores >= found["f1_threshold"]
    found["mcc"] = float(np.corrcoef(predicted, is_right)[0, 1]) if 0 < predicted.mean() < 1 and right[-1] else 0.0
    found["ap"] = average
    return found


def _between(scores: np.ndarray, end: int) -> float:
    """Return a threshold below the score at `end` and above the next one."""
    if end + 1 == len(scores):
        return float(scores[end])
    middle = (scores[end] + scores[end + 1]) / 2
    return float(scores[end] if middle == scores[end + 1] else middle)
