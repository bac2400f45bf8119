"""Gradients by finite differences, in float64."""

from functools import partial

import numpy as np

from bench.ops import operations
from tests.kernels.arrays import normal

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


def assert_gradients(operation, arguments):
    """The definition's gradients of an operation at a conformance case's arguments are those of finite differences."""

    def output(changed, argument):
        given = operations.public_arguments(arguments | {argument: np.asarray(changed)})
        return operations.forward(operation, given, "numpy")

    given, grad = operations.public_arguments(arguments), lambda output: normal(98, output.shape)
    for name, gradient in operations.training(operation, given, grad, "numpy"):
        argument = name.removeprefix("grad_")
        array = arguments.get(argument)
        if array is None:
            assert argument == "output" or gradient is None, name
            continue
        expected = output(array, argument)
        if np.isnan(expected).any():
            continue  # the mean over no row (tests/kernels/test_contracts.py)
        if arguments.get("activation") == "relu":
            assert (np.abs(array) > 3 * STEP).all(), "relu has a corner at 0"
        assert_gradient(partial(output, argument=argument), array, grad(expected), gradient, name)
