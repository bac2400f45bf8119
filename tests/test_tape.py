"""The tape: gradients of composed operations, sharing, and what it refuses."""

import numpy as np
import pytest

from bertcore.nn import functional
from bertcore.tape import Tape, Variable, current_tape, differentiable


@differentiable(lambda left, right: (left * right, lambda grad: (grad * right, grad * left)))
def multiply(left, right):
    return left * right


def test_without_a_tape_operations_return_plain_arrays():
    assert current_tape() is None
    assert type(multiply(np.float64(2), np.float64(3))) is np.float64


def test_gradient_of_a_composition():
    with Tape() as tape:
        x = tape.leaf("x", lambda: np.float64(3))
        y = tape.leaf("y", lambda: np.float64(5))
        output = functional.add(multiply(x, y), multiply(x, x))  # xy + x²
    assert output.value == 24
    assert tape.gradients(output, np.float64(1)) == {"x": 5 + 2 * 3, "y": 3}


def test_a_leaf_is_made_once_and_sums_its_uses():
    with Tape() as tape:
        first = tape.leaf("x", lambda: np.float64(2))
        assert tape.leaf("x", lambda: pytest.fail("made twice")) is first
        output = first
        for _ in range(3):
            output = multiply(output, first)  # x⁴
    assert tape.gradients(output, np.float64(1)) == {"x": 4 * 2.0**3}


def test_what_the_output_does_not_depend_on_has_no_gradient():
    with Tape() as tape:
        x, y = tape.leaf("x", lambda: np.float64(2)), tape.leaf("y", lambda: np.float64(2))
        multiply(y, y)
        output = multiply(x, x)
    assert tape.gradients(output, np.float64(1)) == {"x": 4}


def test_a_shared_gradient_is_not_written_into():
    """add hands the same array to both sides; summing into it in place would count it twice."""
    with Tape() as tape:
        x = tape.leaf("x", lambda: np.ones(3))
        y = tape.leaf("y", lambda: np.ones(3))
        z = functional.add(x, y)
        output = functional.add(functional.add(z, x), x)
    seed = np.ones(3)
    gradients = tape.gradients(output, seed)
    np.testing.assert_array_equal(gradients["x"], [3, 3, 3])
    np.testing.assert_array_equal(gradients["y"], [1, 1, 1])
    np.testing.assert_array_equal(seed, [1, 1, 1])


def test_arithmetic_outside_the_operations_fails_loudly():
    with Tape() as tape:
        x = tape.leaf("x", lambda: np.ones(3))
    assert isinstance(x, Variable)
    for expression in (lambda: x + x, lambda: x * 2, lambda: x[0], lambda: np.ones(3)[0] + x):
        with pytest.raises(TypeError):
            expression()


def test_the_tape_ends_with_its_block():
    with pytest.raises(RuntimeError, match="inside"), Tape():
        raise RuntimeError("inside")
    assert current_tape() is None
