"""Predictions of a model on a dataset, batch by batch, without gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from bertcore import kernels
from bertcore.training.masking import IGNORED

Reduce = Callable[[Any, Any], Any]


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


def _one_or_all(arrays: list[np.ndarray]) -> Any:
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
