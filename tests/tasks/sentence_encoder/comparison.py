"""Comparisons shared by SentenceEncoder's tests."""

import numpy as np

TEXTS = ["the cat sat on a mat.", "", "paris", "zzz qqq the", "a " * 30, "paris is the capital of france."]


def assert_same(found, expected):
    """Equal but for the order in which another batch's matrix products may sum."""
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, atol=1e-6 * np.abs(expected).max(), rtol=0)
