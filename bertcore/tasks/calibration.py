"""Calibrate a classifier's probabilities on held-out data, and measure calibration.

scikit-learn and SciPy are imported where they are used: `pip install "bertcore[training]"`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from bertcore.arguments import check_count, check_numbers, required
from bertcore.checkpoint.files import read_json_object
from bertcore.kernels.arrays import ArrayLike
from bertcore.tasks.sequence_scores import softmax

MOST = 10.0  # bounds of the logarithm of the temperature in the search


def _classes(labels: ArrayLike, texts: int, count: int) -> np.ndarray:
    labels = check_numbers("labels", labels)
    if labels.shape != (texts,) or labels.dtype.kind not in "iu":
        raise ValueError(f"labels has shape {labels.shape} and dtype {labels.dtype}, expected {texts} integers")
    if texts == 0:
        raise ValueError("labels is empty, expected at least one text")
    if labels.min() < 0 or labels.max() >= count:
        raise ValueError(f"labels has {labels.min()} to {labels.max()}, expected 0 to {count - 1}")
    return labels


def _table(name: str, values: ArrayLike) -> np.ndarray:
    array = check_numbers(name, values).astype(np.float64)
    if array.ndim != 2 or array.shape[1] < 2:
        raise ValueError(f"{name} has shape {array.shape}, expected (texts, classes) with at least two classes")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} holds inf or NaN, expected finite numbers")
    return array


def _probabilities(values: ArrayLike) -> np.ndarray:
    array = _table("probabilities", values)
    if (array < 0).any() or not np.allclose(array.sum(axis=1), 1, atol=1e-4):
        raise ValueError("probabilities has rows that are negative or do not sum to 1")
    return array


class TemperatureScaling:
    """softmax(logits / temperature), with the temperature that minimises cross-entropy on held-out texts.

    The predicted class does not change. Source: Guo et al. 2017, arXiv:1706.04599.

    Attributes:
        temperature: above 1 for an overconfident model; 1 before `fit`.
        takes: the function applied to a model's scores before calibration, one of `sequence_scores.FUNCTIONS`.
        needs: the module that `fit` imports, from the extra `training`.
    """

    takes = "none"
    needs = "scipy.optimize"

    def __init__(self) -> None:
        self.temperature = 1.0

    def fit(self, logits: ArrayLike, labels: ArrayLike) -> Self:
        """Fit the temperature to logits (texts, classes) and true classes (texts,); return this object.

        Raises ValueError for other shapes, and if no temperature is best: all texts right, or no better than chance.
        """
        logits = _table("logits", logits)
        labels = _classes(labels, *logits.shape)
        shifted = logits - logits.max(axis=1, keepdims=True)
        own = shifted[np.arange(len(labels)), labels]

        def loss(log_temperature: float) -> float:
            scale = np.exp(-log_temperature)
            return float(np.mean(np.log(np.exp(shifted * scale).sum(axis=1)) - own * scale))

        # The loss is convex in 1 / temperature: it falls without end if all texts are right, and rises from 0 on if
        # the true classes' scores do not exceed the mean.
        if not own.any() or own.mean() <= shifted.mean():
            raise ValueError("no temperature is best for these texts: all are right, or no better than chance")
        found = required(self.needs).minimize_scalar(
            loss, bounds=(-MOST, MOST), method="bounded", options={"xatol": 1e-9}
        )
        self.temperature = float(np.exp(found.x))
        return self

    def transform(self, logits: ArrayLike) -> np.ndarray:
        """Return probabilities, float64 (texts, classes)."""
        return softmax(_table("logits", logits) / self.temperature)


class IsotonicCalibration:
    """A rising function of each class's probability, fitted to held-out texts and normalised to sum to 1.

    The predicted class may change. Source: Zadrozny and Elkan 2002, doi:10.1145/775047.775151.

    Attributes:
        functions: the corners of each class's function: rising probabilities and their calibrated values; empty
            before `fit`. A function is linear between corners and constant beyond them.
        takes, needs: as for `TemperatureScaling`.
    """

    takes = "softmax"
    needs = "sklearn.isotonic"

    def __init__(self) -> None:
        self.functions: list[tuple[np.ndarray, np.ndarray]] = []

    def fit(self, probabilities: ArrayLike, labels: ArrayLike) -> Self:
        """Fit to probabilities (texts, classes) and true classes (texts,); return this object.

        Raises ValueError for other shapes, and for rows that are not probabilities.
        """
        probabilities = _probabilities(probabilities)
        labels = _classes(labels, *probabilities.shape)
        regression = required(self.needs).IsotonicRegression
        options = {"y_min": 0.0, "y_max": 1.0, "out_of_bounds": "clip"}
        fitted = [regression(**options).fit(column, labels == index) for index, column in enumerate(probabilities.T)]
        self.functions = [(each.X_thresholds_, each.y_thresholds_) for each in fitted]
        return self

    def transform(self, probabilities: ArrayLike) -> np.ndarray:
        """Return calibrated probabilities, float64 (texts, classes); a row that becomes all zeros stays uncalibrated.

        Raises RuntimeError before `fit`, and ValueError for another number of classes.
        """
        if not self.functions:
            raise RuntimeError("call fit first")
        given = _probabilities(probabilities)
        if given.shape[1] != len(self.functions):
            raise ValueError(f"probabilities has {given.shape[1]} classes, fit had {len(self.functions)}")
        found = np.stack([np.interp(column, *corners) for corners, column in zip(self.functions, given.T, strict=True)])
        total = found.sum(axis=0)
        return np.where(total > 0, found / np.where(total > 0, total, 1), given.T).T


Calibration = TemperatureScaling | IsotonicCalibration


@dataclass(frozen=True)
class Reliability:
    """Accuracy by the probability of the predicted class, in bins of equal width from 0 to 1.

    Attributes:
        edges: edges of the bins, (bins + 1,).
        counts: number of texts in each bin, (bins,).
        confidence: mean probability of the predicted class, (bins,); NaN for empty bins.
        accuracy: share of correct predictions, (bins,); NaN for empty bins.
    """

    edges: np.ndarray
    counts: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray

    @property
    def error(self) -> float:
        """The expected calibration error: the mean of |accuracy - confidence|, weighted by the bins' counts."""
        there = self.counts > 0
        gaps = np.abs(self.accuracy - self.confidence)[there]
        return float((gaps * self.counts[there]).sum() / self.counts.sum())


def reliability(probabilities: ArrayLike, labels: ArrayLike, *, bins: int = 15) -> Reliability:
    """Return the accuracy of predictions by their probability.

    Args:
        probabilities: (texts, classes), each row summing to 1.
        labels: the true classes, (texts,) integers.
        bins: number of bins.

    Raises ValueError for other shapes, rows that are not probabilities, and `bins` below 1; TypeError for a `bins` that
    is not an integer.
    """
    check_count("bins", bins)
    probabilities = _probabilities(probabilities)
    labels = _classes(labels, *probabilities.shape)
    sure, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    edges = np.linspace(0, 1, bins + 1)
    where = np.clip(np.searchsorted(edges, sure, side="left") - 1, 0, bins - 1)  # (lower, upper], as Guo et al.
    counts = np.bincount(where, minlength=bins)
    with np.errstate(invalid="ignore"):
        confidence, accuracy = (np.bincount(where, values, minlength=bins) / counts for values in (sure, right))
    return Reliability(edges, counts, confidence, accuracy)


def expected_calibration_error(probabilities: ArrayLike, labels: ArrayLike, *, bins: int = 15) -> float:
    """Return the mean distance between accuracy and probability over bins of texts.

    Arguments and errors as for `reliability`. Sources: Naeini et al. 2015; Guo et al. 2017, arXiv:1706.04599.
    """
    return reliability(probabilities, labels, bins=bins).error


METHODS: dict[str, type[Calibration]] = {"temperature": TemperatureScaling, "isotonic": IsotonicCalibration}


def calibration_as_json(calibration: Calibration, labels: Sequence[str]) -> dict[str, Any]:
    """Return the content of a calibration's file, with the classes that it was fitted to."""
    if isinstance(calibration, TemperatureScaling):
        return {"method": "temperature", "labels": list(labels), "temperature": calibration.temperature}
    functions = [{"from": given.tolist(), "to": becomes.tolist()} for given, becomes in calibration.functions]
    return {"method": "isotonic", "labels": list(labels), "functions": functions}


def read_calibration(file: str | os.PathLike[str], labels: Sequence[str]) -> Calibration:
    """Read a calibration for a model with these classes, in this order.

    Raises:
        CheckpointError (a ValueError): the file is missing or not a JSON object.
        ValueError: the calibration is invalid or for other classes.
    """
    held = read_json_object(Path(file))
    method = held.get("method")
    if method not in METHODS:
        raise ValueError(f"{file}: method is {method!r}, expected one of {', '.join(METHODS)}")
    if held.get("labels") != list(labels):
        raise ValueError(f"{file} is for the classes {held.get('labels')}, and the model has {list(labels)}")
    if method == "isotonic":
        return _isotonic(file, held.get("functions"), len(labels))
    value, scaling = held.get("temperature"), TemperatureScaling()
    if not isinstance(value, float | int) or isinstance(value, bool) or not 0 < value < math.inf:
        raise ValueError(f"{file}: temperature is {value!r}, expected a number above 0")
    scaling.temperature = float(value)
    return scaling


def _isotonic(file: str | os.PathLike[str], functions: Any, count: int) -> IsotonicCalibration:
    calibration = IsotonicCalibration()
    try:
        calibration.functions = [tuple(np.array(each[key], np.float64) for key in ("from", "to")) for each in functions]
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(f"{file}: functions must be a list with numbers 'from' and 'to' for each class") from error
    if len(calibration.functions) != count or not all(map(_is_rising, calibration.functions)):
        raise ValueError(f"{file}: functions is not a rising function from 0 to 1 for each of {count} classes")
    return calibration


def _is_rising(corners: tuple[np.ndarray, np.ndarray]) -> bool:
    """Return whether the corners are rising probabilities with rising values in [0, 1]."""
    first, second = corners
    if first.ndim != 1 or first.shape != second.shape or not first.size:
        return False
    is_share = min(first.min(), second.min()) >= 0 and max(first.max(), second.max()) <= 1  # False for NaN
    return bool(is_share and (np.diff(first) > 0).all() and (np.diff(second) >= 0).all())
