"""Gradients by finite differences, in float64."""

import numpy as np

STEP = 1e-3  # fourth order: truncation and rounding both stay near 1e-12 for functions of scale 1
TOLERANCE = 1e-9


def assert_gradient(function, array, grad_output, gradient, name="gradient"):
    """`gradient` is that of sum(grad_output * function(array)) with respect to the float64 `array`.

    `function` maps an array of this shape to one of grad_output's shape.
    """
    expected = np.empty(array.shape)
    for position in np.ndindex(array.shape):
        direction = np.zeros(array.shape)
        direction[position] = STEP

        def at(steps, direction=direction):
            return np.sum(grad_output * function(array + steps * direction))

        expected[position] = (8 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12 * STEP)
    assert gradient.shape == expected.shape, name
    scale = max(np.abs(expected).max(initial=0), 1)
    np.testing.assert_allclose(gradient, expected, rtol=0, atol=TOLERANCE * scale, err_msg=name)
