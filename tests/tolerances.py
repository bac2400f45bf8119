"""One tolerance per dtype, relative to the largest finite magnitude of the expected array."""

import numpy as np

TOLERANCES = {"float64": 1e-12, "float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}


def assert_close(found, expected, *, name="result", factor=1.0, at_least=0.0):
    """`found` equals `expected` (of higher precision) within the tolerance of found's dtype.

    Infinities and NaNs must stand at the same places. `factor` widens the tolerance where an error is known to build up
    (say why where it is used); `at_least` is the smallest scale, for results that cancel to nothing.
    """
    assert found.shape == expected.shape, f"{name} has shape {found.shape}, expected {expected.shape}"
    tolerance = factor * TOLERANCES[found.dtype.name]
    found, expected = found.astype(np.float64), np.asarray(expected, np.float64)
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(found[~finite], expected[~finite], err_msg=name)
    assert np.isfinite(found[finite]).all(), f"{name} is not finite where it should be"
    scale = max(np.abs(expected[finite]).max(initial=0.0), at_least)
    error = np.abs(found[finite] - expected[finite]).max(initial=0.0)
    assert error <= tolerance * scale, (
        f"{name} is off by {error:.3g} at a scale of {scale:.3g} (allowed {tolerance:.1g})"
    )


def assert_all_close(found, expected, **options):
    """`assert_close` of each array."""
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other, **options)


def assert_same_arrays(found, expected):
    """Two sequences of arrays, or mappings of names to them, have the same names and the same bits."""
    if not hasattr(found, "keys"):
        found, expected = dict(enumerate(found)), dict(enumerate(expected))
    assert found.keys() == expected.keys()
    for name, array in found.items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)
