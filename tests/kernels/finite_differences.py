"""Gradients by finite differences, in float64."""

import numpy as np

STEP = 1e-3  # fourth order: truncation and rounding both stay near 1e-12 for functions of scale 1
TOLERANCE = 1e-9
DIRECTIONS = 3  # random ones; every element takes part in each


def assert_gradient(function, array, grad_output, gradient, name="gradient"):
    """`gradient` is that of sum(grad_output * function(array)) with respect to the float64 `array`.

    `function` maps an array of this shape to one of grad_output's shape. Derivatives are compared along DIRECTIONS.
    """
    assert gradient.shape == array.shape, name
    scale = max(np.abs(gradient).max(initial=0), 1)
    for way in np.random.default_rng(0).normal(size=(DIRECTIONS, *array.shape)):
        way /= max(np.linalg.norm(way), 1e-30)

        def at(steps, way=way):
            return np.sum(grad_output * function(array + steps * STEP * way))

        expected = (8 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12 * STEP)
        np.testing.assert_allclose(np.sum(gradient * way), expected, rtol=0, atol=TOLERANCE * scale, err_msg=name)
