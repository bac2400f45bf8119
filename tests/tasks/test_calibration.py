"""Calibration on data whose right answer is known, and calibrations in files."""

import json

import numpy as np
import pytest

from bertcore.tasks.calibration import (
    IsotonicCalibration,
    TemperatureScaling,
    calibration_as_json,
    expected_calibration_error,
    read_calibration,
    reliability,
)
from bertcore.tasks.sequence_scores import softmax
from tests.refusals import refuses


def drawn(temperature, texts=20000, classes=4, seed=0):
    """Logits and labels that are drawn from softmax(logits / temperature)."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 3, (texts, classes))
    noise = rng.gumbel(size=logits.shape)
    return logits, (logits / temperature + noise).argmax(axis=1)


def plain_softmax(logits):
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.5])
def test_the_temperature_is_found(temperature):
    logits, labels = drawn(temperature)
    scaling = TemperatureScaling().fit(logits, labels)
    assert scaling.temperature == pytest.approx(temperature, rel=0.03)
    np.testing.assert_allclose(scaling.transform(logits), plain_softmax(logits / scaling.temperature), rtol=1e-12)

    def loss(t):
        return -np.log(plain_softmax(logits / t)[np.arange(len(labels)), labels]).mean()

    best = loss(scaling.temperature)
    assert best <= loss(scaling.temperature * 1.001) and best <= loss(scaling.temperature / 1.001)
    held_out, truth = drawn(temperature, seed=1)
    assert expected_calibration_error(scaling.transform(held_out), truth) < 0.02
    if temperature != 1:
        assert expected_calibration_error(plain_softmax(held_out), truth) > 0.04


def test_no_temperature_is_best():
    for labels in ([0, 1], [1, 1]):
        refuses(ValueError, "no temperature is best", TemperatureScaling().fit, [[3.0, 0.0], [0.0, 1.0]], labels)


def test_isotonic_calibration():
    logits, labels = drawn(2.5)
    held_out, truth = drawn(2.5, seed=1)
    calibration = IsotonicCalibration().fit(plain_softmax(logits), labels)
    found = calibration.transform(plain_softmax(held_out))
    np.testing.assert_allclose(found.sum(axis=1), 1)
    assert expected_calibration_error(found, truth) < 0.02 < expected_calibration_error(plain_softmax(held_out), truth)
    refuses(RuntimeError, "call fit first", IsotonicCalibration().transform, found)
    refuses(ValueError, "has 2 classes, fit had 4", calibration.transform, [[0.5, 0.5]])


def test_the_error_by_hand():
    probabilities = np.array([[0.9, 0.1], [0.95, 0.05], [0.4, 0.6], [1.0, 0.0]])
    labels = [0, 1, 1, 0]
    found = reliability(probabilities, labels, bins=10)
    assert found.counts.tolist() == [0, 0, 0, 0, 0, 1, 0, 0, 1, 2]
    assert found.confidence[[5, 8, 9]] == pytest.approx([0.6, 0.9, 0.975])
    assert found.accuracy[[5, 8, 9]] == pytest.approx([1, 1, 0.5])
    expected = (0.4 + 0.1 + 2 * 0.475) / 4
    assert expected_calibration_error(probabilities, labels, bins=10) == pytest.approx(expected)
    assert expected_calibration_error(probabilities, labels, bins=1) == pytest.approx(abs(0.75 - 0.8625))


@pytest.mark.parametrize(("probabilities", "labels", "bins", "message"), [
    ([0.5, 0.5], [0], 5, "probabilities has shape"),
    ([[0.5, 0.6]], [0], 5, "do not sum to 1"),
    ([[0.5, np.nan]], [0], 5, "inf or NaN"),
    ([[0.5, 0.5]], [2], 5, "labels has 2 to 2, expected 0 to 1"),
    ([[0.5, 0.5]], [0.5], 5, "labels has shape"),
    ([[0.5, 0.5]], [0, 1], 5, "labels has shape"),
    (np.zeros((0, 2)), np.zeros(0, int), 5, "labels is empty"),
    ([[0.5, 0.5]], [0], 0, "bins is 0"),
    ([[0.5, 0.5], [1]], [0], 5, "probabilities has rows of different lengths"),
    ([[0.5, 0.5]], ["a"], 5, "labels has dtype <U1, expected numbers"),
])  # fmt: skip
def test_bad_input(probabilities, labels, bins, message):
    refuses((TypeError, ValueError), message, reliability, probabilities, labels, bins=bins)


LABELS = ["no", "yes", "Ünklar"]


def written(tmp_path, held):
    file = tmp_path / "calibration.json"
    file.write_text(json.dumps(held), encoding="utf-8")
    return file


@pytest.mark.parametrize("kind", [TemperatureScaling, IsotonicCalibration])
def test_a_calibration_comes_back(kind, tmp_path):
    logits, labels = drawn(1.0, texts=300, classes=3)
    given = logits if kind.takes == "none" else softmax(logits)
    fitted = kind().fit(given, labels)
    found = read_calibration(written(tmp_path, calibration_as_json(fitted, LABELS)), LABELS)
    assert type(found) is kind
    np.testing.assert_array_equal(found.transform(given), fitted.transform(given))


def test_isotonic_functions_are_those_of_scikit_learn():
    from sklearn.isotonic import IsotonicRegression

    logits, labels = drawn(1.0, texts=300, classes=3)
    rows, held_out = softmax(logits[:200]), softmax(logits[200:])
    fitted = IsotonicCalibration().fit(rows, labels[:200])
    for index, corners in enumerate(fitted.functions):
        theirs = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(rows[:, index], labels[:200] == index)
        np.testing.assert_allclose(np.interp(held_out[:, index], *corners), theirs.predict(held_out[:, index]))


FUNCTION = {"from": [0.1, 0.9], "to": [0.0, 1.0]}


@pytest.mark.parametrize(("held", "message"), [
    ({"method": "guess"}, "method is 'guess', expected one of temperature, isotonic"),
    ({"method": "temperature", "labels": ["no"]}, r"is for the classes \['no'\], and the model has \['no', 'yes', "),
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
])  # fmt: skip
def test_invalid_calibrations(held, message, tmp_path):
    refuses(ValueError, message, read_calibration, written(tmp_path, held), LABELS)
    with pytest.raises(ValueError, match=r"nothing\.json cannot be read: No such file"):
        read_calibration(tmp_path / "nothing.json", LABELS)
