"""Calibrations in files: they come back as they were, and what is none is refused by name."""

import json

import numpy as np
import pytest

from bertcore.tasks.calibration import IsotonicCalibration, TemperatureScaling, calibration_as_json, read_calibration
from bertcore.tasks.sequence_scores import softmax

LABELS = ["no", "yes", "Ünklar"]


@pytest.fixture(scope="module")
def logits():
    return np.random.default_rng(0).normal(0, 2, (300, 3))


@pytest.fixture(scope="module")
def labels(logits):
    return (logits + np.random.default_rng(1).gumbel(size=logits.shape)).argmax(axis=1)


def written(tmp_path, held):
    file = tmp_path / "calibration.json"
    file.write_text(json.dumps(held), encoding="utf-8")
    return file


@pytest.mark.parametrize("kind", [TemperatureScaling, IsotonicCalibration])
def test_a_calibration_comes_back(kind, logits, labels, tmp_path):
    given = logits if kind.takes == "none" else softmax(logits)
    fitted = kind().fit(given, labels)
    found = read_calibration(written(tmp_path, calibration_as_json(fitted, LABELS)), LABELS)
    assert type(found) is kind
    np.testing.assert_array_equal(found.transform(given), fitted.transform(given))


def test_isotonic_functions_are_those_of_scikit_learn(logits, labels):
    from sklearn.isotonic import IsotonicRegression

    rows, held_out = softmax(logits[:200]), softmax(logits[200:])
    fitted = IsotonicCalibration().fit(rows, labels[:200])
    for index, corners in enumerate(fitted.functions):
        theirs = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(rows[:, index], labels[:200] == index)
        np.testing.assert_allclose(np.interp(held_out[:, index], *corners), theirs.predict(held_out[:, index]))


FUNCTION = {"from": [0.1, 0.9], "to": [0.0, 1.0]}


@pytest.mark.parametrize(
    ("held", "message"),
    [
        ({"method": "guess"}, "method is 'guess', expected one of temperature, isotonic"),
        (
            {"method": "temperature", "labels": ["no"]},
            r"is for the classes \['no'\], and the model has \['no', 'yes', ",
        ),
        *(
            ({"method": "temperature", "labels": LABELS, "temperature": wrong}, "temperature is .*, expected a number")
            for wrong in (0, -1, True, "1", None, float("nan"), float("inf"))
        ),
        *(
            (
                {"method": "isotonic", "labels": LABELS, "functions": wrong},
                "functions (must be a list|is not a rising function)",
            )
            for wrong in (
                *(None, 5, [FUNCTION] * 2, [FUNCTION] * 2 + [{"from": [0.1]}], [FUNCTION] * 2 + [{}]),
                *([FUNCTION] * 2 + [{"from": [0.9, 0.1], "to": [0.0, 1.0]}], [{"from": [], "to": []}] * 3),
                *([{"from": [0.1, 0.9], "to": [1.0, 0.0]}] * 3, [{"from": [0.1, 0.9], "to": [0.0, 1.1]}] * 3),
                *([{"from": [0.1, 0.9], "to": [0.0]}] * 3, [{"from": [0.1, float("nan")], "to": [0.0, 1.0]}] * 3),
            )
        ),
    ],
)
def test_invalid_calibrations(held, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        read_calibration(written(tmp_path, held), LABELS)


def test_a_missing_file(tmp_path):
    with pytest.raises(ValueError, match=r"nothing\.json cannot be read: No such file"):
        read_calibration(tmp_path / "nothing.json", LABELS)
