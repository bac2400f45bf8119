"""Gradients of weights and biases beside arrays of 16 bits need not be rounded to these: dtype="float32"."""

import ml_dtypes
import numpy as np
import pytest

from tests.kernels.arrays import backward, normal
from tests.tolerances import assert_close

WIDTH = 64
CALLS = {  # each gives the gradients of weight and bias
    "linear_backward": lambda x, square, line, **options: backward("linear", x, x, square, line, **options)[1:],
    "layer_norm_backward": lambda x, _, line, **options: backward("layer_norm", x, x, line, line, **options)[1:],
    "dropout_layer_norm_backward": lambda x, _, line, **options: backward(
        "dropout_layer_norm", x, x, x, line, line, p=0.3, seed=5, **options
    )[2:],
}


@pytest.mark.parametrize("place", ["numpy", "cupy"], indirect=True)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("name", CALLS)
def test_sums_that_are_not_rounded(name, dtype, place):
    arrays = [normal(number, shape).astype(dtype) for number, shape in enumerate([(39, WIDTH), (WIDTH, WIDTH), WIDTH])]
    exact = CALLS[name](*(array.astype(np.float64) for array in arrays), backend="numpy")
    given = list(map(place.to, arrays))
    whole, rounded = (
        map(place.back, CALLS[name](*given, dtype=each, backend=place.backend)) for each in ("float32", None)
    )
    for found, low, expected in zip(whole, rounded, exact, strict=True):
        assert (found.dtype, low.dtype) == (np.float32, dtype)
        assert_close(found, expected, at_least=1)
        np.testing.assert_array_equal(low, found.astype(dtype))


@pytest.mark.parametrize("name", CALLS)
def test_what_it_cannot_be(name):
    x, square, line = np.ones((3, WIDTH), np.float32), np.ones((WIDTH, WIDTH), np.float32), np.ones(WIDTH, np.float32)
    with pytest.raises(TypeError, match="dtype is float16, expected float32 for an input of float32"):
        CALLS[name](x, square, line, dtype="float16")
