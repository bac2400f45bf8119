"""Activation functions of input + bias, forward and backward.

The work goes line by line. With a bias a line is a row; without one it is any run of LINE elements, and the bias is
-0.0, which changes no number: one loop serves both. (With a separate pass for the sum it takes 1.5 times as long.)
"""

import numpy as np

from ..activation_names import activation_code
from .compile import helper, inline_helper, kernel, parallel_kernel, region
from .memory import empty
from .rows import BLOCK_ROWS, add_lines, block_count, flat, share, sum_blocks, task_count
from .simd import first_lanes, lanes, load, load_masked, store, store_masked, wide_pointer
from .simd import math as simd_math

LINE = 1024
GRAIN = 1 << 16

_RELU, _TANH, _SILU, _GELU = map(activation_code, ("relu", "tanh", "silu", "gelu"))


def activate(input, name, bias):
    """Apply the activation `name` to input + bias; bias is along the last axis or None."""
    output = empty(input.shape, input.dtype)
    if output.size:
        line, bias = _line_and_bias(input, bias)
        _forward(flat(input), bias, activation_code(name), line, output.reshape(-1), task_count(output.size, GRAIN))
    return output


def activate_backward(grad_output, input, name, bias):
    """Return (grad_input, grad_bias or None)."""
    grad_input = empty(input.shape, input.dtype)
    grad_bias = np.zeros(0 if bias is None else bias.size)
    if grad_input.size:
        line, bias_line = _line_and_bias(input, bias)
        arguments = flat(grad_output), flat(input), bias_line, activation_code(name), line, grad_input.reshape(-1)
        partial = np.zeros((block_count(input.size // line), grad_bias.size), input.dtype)
        _backward(*arguments, partial, grad_bias, task_count(input.size, GRAIN))
    return grad_input, None if bias is None else grad_bias.astype(input.dtype, copy=False)


def _line_and_bias(input, bias):
    return (LINE, np.full(LINE, -0.0, input.dtype)) if bias is None else (bias.size, flat(bias))


@inline_helper
def activation_function(code, x):
    if code == _RELU:
        return simd_math.relu(x)
    if code == _TANH:
        return simd_math.tanh(x)
    if code == _SILU:
        return simd_math.silu(x)
    if code == _GELU:
        return simd_math.gelu(x)
    return simd_math.gelu_tanh(x)


@inline_helper
def activation_derivative(code, x):
    if code == _RELU:
        return simd_math.relu_derivative(x)
    if code == _TANH:
        return simd_math.tanh_derivative(x)
    if code == _SILU:
        return simd_math.silu_derivative(x)
    if code == _GELU:
        return simd_math.gelu_derivative(x)
    return simd_math.gelu_tanh_derivative(x)


@helper
def _forward_line(x, bias, code, out, count):
    full = count - count % lanes(x)
    for i in range(0, full, lanes(x)):
        store(out, i, activation_function(code, load(x, i) + load(bias, i)))
    if full < count:
        tail = first_lanes(x, count - full)
        shifted = load_masked(x, full, tail, 0.0) + load_masked(bias, full, tail, 0.0)
        store_masked(out, full, activation_function(code, shifted), tail)


@parallel_kernel
def _forward(x, bias, code, line, out, task, tasks):
    lines = (x.size + line - 1) // line
    for at in range(share(lines, task, tasks) * line, min(share(lines, task + 1, tasks) * line, x.size), line):
        count = min(line, x.size - at)
        _forward_line(wide_pointer(x, at), wide_pointer(bias, 0), code, wide_pointer(out, at), count)


@helper
def _backward_line(grad, x, bias, code, out, count):
    full = count - count % lanes(x)
    for i in range(0, full, lanes(x)):
        store(out, i, load(grad, i) * activation_derivative(code, load(x, i) + load(bias, i)))
    if full < count:
        tail = first_lanes(x, count - full)
        shifted = load_masked(x, full, tail, 0.0) + load_masked(bias, full, tail, 0.0)
        store_masked(out, full, load_masked(grad, full, tail, 0.0) * activation_derivative(code, shifted), tail)


@helper
def _backward_block(grad, x, bias, code, line, out, block, partial):
    for at in range(block * BLOCK_ROWS * line, min((block + 1) * BLOCK_ROWS * line, x.size), line):
        count, target = min(line, x.size - at), wide_pointer(out, at)
        _backward_line(wide_pointer(grad, at), wide_pointer(x, at), wide_pointer(bias, 0), code, target, count)
        if partial.size:
            sums = wide_pointer(partial, block * line)
            add_lines(sums, target, sums, line)


@region
def _backward_blocks(grad, x, bias, code, line, out, partial, task, tasks):
    blocks = (x.size + line * BLOCK_ROWS - 1) // (line * BLOCK_ROWS)
    for block in range(share(blocks, task, tasks), share(blocks, task + 1, tasks)):
        _backward_block(grad, x, bias, code, line, out, block, partial)


@kernel(regions=True)
def _backward(grad, x, bias, code, line, out, partial, grad_bias, tasks):
    _backward_blocks(grad, x, bias, code, line, out, partial, tasks)
    sum_blocks(partial, grad_bias)
