"""Calibration on data whose right answer is known."""

import numpy as np
import pytest

from bertcore.tasks.calibration import (
    IsotonicCalibration,
    TemperatureScaling,
    expected_calibration_error,
    reliability,
)


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
    with pytest.raises(ValueError, match="no temperature is best"):
        TemperatureScaling().fit([[3.0, 0.0], [0.0, 1.0]], [0, 1])
    with pytest.raises(ValueError, match="no temperature is best"):
        TemperatureScaling().fit([[3.0, 0.0], [0.0, 1.0]], [1, 1])


def test_isotonic_calibration():
    logits, labels = drawn(2.5)
    held_out, truth = drawn(2.5, seed=1)
    calibration = IsotonicCalibration().fit(plain_softmax(logits), labels)
    found = calibration.transform(plain_softmax(held_out))
    np.testing.assert_allclose(found.sum(axis=1), 1)
    assert expected_calibration_error(found, truth) < 0.02 < expected_calibration_error(plain_softmax(held_out), truth)
    with pytest.raises(RuntimeError, match="call fit first"):
        IsotonicCalibration().transform(found)
    with pytest.raises(ValueError, match="has 2 classes, fit had 4"):
        calibration.transform([[0.5, 0.5]])


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


@pytest.mark.parametrize(
    ("probabilities", "labels", "bins", "message"),
    [
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
    ],
)
def test_bad_input(probabilities, labels, bins, message):
    with pytest.raises((TypeError, ValueError), match=message):
        reliability(probabilities, labels, bins=bins)
