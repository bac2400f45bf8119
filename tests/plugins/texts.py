"""Texts for plug-ins."""

import numpy as np

TEXTS = ["the cat sat on a mat.", "", "paris is the capital of france.", "a cat", "an upper mat"]
LONG = "the cat " * 60


def close(found, expected):
    """Equal embeddings, whatever batch they were computed in."""
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-4, atol=1e-5)
