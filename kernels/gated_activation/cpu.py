"""Gated activation on the CPU: a row of gate and value at a time."""

from .._numba import empty, helper, inline_helper, parallel_kernel
from .._numba.pointwise import activation_derivative, activation_function
from .._numba.rows import flat, share, task_count
from .._numba.simd import first_lanes, lanes, load_masked, store_masked, wide_pointer
from ..activation_names import activation_code

GRAIN = 1 << 15


def gated_activation(input, activation, gate):
    """Return (..., width) from (..., 2 * width)."""
    output = empty((*input.shape[:-1], input.shape[-1] // 2), input.dtype)
    if output.size:
        arguments = gate == "first", activation_code(activation), output.shape[-1], output.reshape(-1)
        _forward(flat(input), *arguments, task_count(output.size, GRAIN))
    return output


def gated_activation_backward(grad_output, input, activation, gate):
    """Return the gradient of the (..., 2 * width) input."""
    grad_input = empty(input.shape, input.dtype)
    if grad_input.size:
        arguments = gate == "first", activation_code(activation), grad_output.shape[-1], grad_input.reshape(-1)
        _backward(flat(grad_output), flat(input), *arguments, task_count(input.size, GRAIN))
    return grad_input


@inline_helper
def _gate_and_value(x, row, gate_first, width):
    """Return pointers to the two halves of a row."""
    first, second = wide_pointer(x, 2 * row * width), wide_pointer(x, (2 * row + 1) * width)
    return (first, second) if gate_first else (second, first)


@inline_helper
def _forward_vector(gate, value, code, out, i, inside):
    activated = activation_function(code, load_masked(gate, i, inside, 0.0))
    store_masked(out, i, activated * load_masked(value, i, inside, 0.0), inside)


@helper
def forward_rows(x, gate_first, code, width, out, first, last):
    """Compute the rows from `first` to `last`."""
    full = width - width % lanes(wide_pointer(x, 0))
    for row in range(first, last):
        (gate, value), target = _gate_and_value(x, row, gate_first, width), wide_pointer(out, row * width)
        everywhere = first_lanes(gate, lanes(gate))
        for i in range(0, full, lanes(gate)):
            _forward_vector(gate, value, code, target, i, everywhere)
        if full < width:
            _forward_vector(gate, value, code, target, full, first_lanes(gate, width - full))


@parallel_kernel
def _forward(x, gate_first, code, width, out, task, tasks):
    rows = out.size // width
    forward_rows(x, gate_first, code, width, out, share(rows, task, tasks), share(rows, task + 1, tasks))


@inline_helper
def _backward_vector(grad, gate, value, code, grad_gate, grad_value, i, inside):
    d, g = load_masked(grad, i, inside, 0.0), load_masked(gate, i, inside, 0.0)
    store_masked(grad_gate, i, d * load_masked(value, i, inside, 0.0) * activation_derivative(code, g), inside)
    store_masked(grad_value, i, d * activation_function(code, g), inside)


@parallel_kernel
def _backward(grad, x, gate_first, code, width, out, task, tasks):
    rows, full = grad.size // width, width - width % lanes(wide_pointer(x, 0))
    for row in range(share(rows, task, tasks), share(rows, task + 1, tasks)):
        gate, value = _gate_and_value(x, row, gate_first, width)
        targets, source = _gate_and_value(out, row, gate_first, width), wide_pointer(grad, row * width)
        everywhere = first_lanes(gate, lanes(gate))
        for i in range(0, full, lanes(gate)):
            _backward_vector(source, gate, value, code, *targets, i, everywhere)
        if full < width:
            _backward_vector(source, gate, value, code, *targets, full, first_lanes(gate, width - full))
