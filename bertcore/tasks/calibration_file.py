"""Calibrations in files of JSON, with the classes that they are of."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertcore.checkpoint.files import read_json_object
from bertcore.tasks.calibration import Calibration, IsotonicCalibration, TemperatureScaling

METHODS: dict[str, type[Calibration]] = {"temperature": TemperatureScaling, "isotonic": IsotonicCalibration}


def calibration_as_json(calibration: Calibration, labels: Sequence[str]) -> dict[str, Any]:
    """What a file holds of a calibration that was fitted to probabilities of these classes."""
    if isinstance(calibration, TemperatureScaling):
        return {"method": "temperature", "labels": list(labels), "temperature": calibration.temperature}
    functions = [{"from": given.tolist(), "to": becomes.tolist()} for given, becomes in calibration.functions]
    return {"method": "isotonic", "labels": list(labels), "functions": functions}


def read_calibration(file: str | os.PathLike, labels: Sequence[str]) -> Calibration:
    """The calibration of a file, for a model of these classes, in their order.

    Raises:
        CheckpointError (a ValueError): for a file that is not there, or is no object of JSON.
        ValueError: for a calibration of other classes, or what is none.
    """
    held = read_json_object(Path(file))
    method = held.get("method")
    if method not in METHODS:
        raise ValueError(f"{file}: method is {method!r}, expected one of {', '.join(METHODS)}")
    if held.get("labels") != list(labels):
        raise ValueError(f"{file} is of the classes {held.get('labels')}, and the model has {list(labels)}")
    if method == "temperature":
        return _temperature(file, held.get("temperature"))
    return _isotonic(file, held.get("functions"), len(labels))


def _temperature(file: Any, value: Any) -> TemperatureScaling:
    if not isinstance(value, float | int) or isinstance(value, bool) or not 0 < value < math.inf:
        raise ValueError(f"{file}: temperature is {value!r}, expected a number above 0")
    scaling = TemperatureScaling()
    scaling.temperature = float(value)
    return scaling


def _isotonic(file: Any, functions: Any, count: int) -> IsotonicCalibration:
    calibration = IsotonicCalibration()
    try:
        calibration.functions = [tuple(np.array(each[key], np.float64) for key in ("from", "to")) for each in functions]
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(f"{file}: functions is no list of numbers 'from' and 'to' for each class") from error
    is_right = len(calibration.functions) == count and all(map(_is_rising, calibration.functions))
    if not is_right:
        raise ValueError(f"{file}: functions is not a rising function from 0 to 1 for each of {count} classes")
    return calibration


def _is_rising(corners: tuple[np.ndarray, np.ndarray]) -> bool:
    """Whether the corners are probabilities, in their order, and what they become."""
    first, second = corners
    if first.ndim != 1 or first.shape != second.shape or not first.size:
        return False
    is_share = min(first.min(), second.min()) >= 0 and max(first.max(), second.max()) <= 1  # NaN is none
    return bool(is_share and (np.diff(first) > 0).all() and (np.diff(second) >= 0).all())
