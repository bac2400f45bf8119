"""Rotary position embeddings on the CPU: a row of the tables serves all heads of its token from the first-level cache.

The input is read and written through its address: query and key of a joined projection are rotated in place, in one
pass.
"""

import numpy as np

from .._numba import address_of, as_addressed_array, as_kernel_array, empty, helper, inline_helper, parallel_kernel
from .._numba.rows import flat, share, task_count
from .._numba.simd import first_lanes, fma, lanes, load_masked, pointer, pointer_at, store_masked
from .._numba.steps import ADDRESS, FLOAT, INT32, array_at, filled, record
from ..deferred import Deferred, are_plain

GRAIN = 1 << 16


def rotary(input, cos, sin, cu_seqlens, positions, interleaved, inplace):
    """Rotate (tokens, ..., head_dim) by rows `positions` of the tables, or by the row of each token's position."""
    return _turn(input, cos, sin, cu_seqlens, positions, interleaved, inplace, 1)


def rotary_backward(grad_output, cos, sin, cu_seqlens, positions, interleaved, inplace):
    """Return the gradient of the input of `rotary`."""
    return _turn(grad_output, cos, sin, cu_seqlens, positions, interleaved, inplace, -1)


def _turn(input, cos, sin, cu_seqlens, positions, interleaved, inplace, direction):
    source = as_addressed_array(input)
    target = source if inplace else empty(input.shape, input.dtype)
    if input.size:
        offsets = np.array([0, len(input)], np.int32) if cu_seqlens is None else flat(cu_seqlens)
        positions = np.empty(0, np.int64) if positions is None else flat(np.asarray(positions, np.int64))
        plan = filled(PLAN, [plan_of(source, target, cos, interleaved, direction)])
        _rotate(flat(cos), flat(sin), offsets, positions, plan, task_count(input.size, GRAIN))
    if inplace and source is not input:
        input[...] = source
    return input if inplace else target


PLACE = record(("address", ADDRESS), *((f"{what}_stride", np.intp) for what in ("token", "part", "head")))  # in bytes
PLAN = record(
    ("source", PLACE),
    ("target", PLACE),
    *((name, np.intp) for name in ("tokens", "parts", "heads", "head_dim", "half", "direction")),
    ("interleaved", np.bool_),
)


def plan_of(source, target, cos, interleaved, direction):
    """Return the values of a PLAN for arrays from `as_addressed_array`; direction is 1, or -1 for the backward."""
    tokens, *parts, heads, head_dim = source.shape
    sizes = tokens, *(parts or (1,)), heads, head_dim, cos.shape[1]
    return *_place(source), *_place(target), *sizes, direction, interleaved


def _place(array):
    token, *part, head = array.strides[:-1]
    return address_of(array), token, *(part or (0,)), head


@inline_helper
def _turn_vector(x, c, s, sign, out, half, i, inside):
    a, b = load_masked(x, i, inside, 0.0), load_masked(x, half + i, inside, 0.0)
    cosine, sine = load_masked(c, i, inside, 0.0), load_masked(s, i, inside, 0.0) * sign
    store_masked(out, i, fma(-b, sine, a * cosine), inside)
    store_masked(out, half + i, fma(b, cosine, a * sine), inside)


@inline_helper
def _turn_halves(x, c, s, sign, out, half):
    """Rotate pairs that are half a head apart."""
    full = half - half % lanes(x)
    everywhere = first_lanes(x, lanes(x))
    for i in range(0, full, lanes(x)):
        _turn_vector(x, c, s, sign, out, half, i, everywhere)
    if full < half:
        _turn_vector(x, c, s, sign, out, half, full, first_lanes(x, half - full))


@inline_helper
def _turn_neighbours(x, c, s, sign, out, half):
    """Rotate pairs of neighbours."""
    for i in range(half):
        a, b, sine = x[2 * i], x[2 * i + 1], s[i] * sign
        out[2 * i] = a * c[i] - b * sine
        out[2 * i + 1] = a * sine + b * c[i]


@helper
def rotate_tokens(cos, sin, offsets, positions, plan, first, last):
    """Rotate the tokens from `first` to `last`."""
    half, sign, sequence = plan.half, cos.dtype.type(plan.direction), 0
    for token in range(first, last):
        while offsets[sequence + 1] <= token:
            sequence += 1
        position = positions[token] if positions.size > 0 else np.int64(token - offsets[sequence])
        c, s = pointer(cos, position * half), pointer(sin, position * half)
        for part in range(plan.parts):
            for head in range(plan.heads):
                x, out = _row(plan.source, token, part, head, sign), _row(plan.target, token, part, head, sign)
                if plan.interleaved:
                    _turn_neighbours(x, c, s, sign, out, half)
                else:
                    _turn_halves(x, c, s, sign, out, half)
                if plan.source.address != plan.target.address:
                    for i in range(2 * half, plan.head_dim):
                        out[i] = x[i]


@inline_helper
def _row(place, token, part, head, like):
    return pointer_at(
        place.address + token * place.token_stride + part * place.part_stride + head * place.head_stride, like
    )


@parallel_kernel
def _rotate(cos, sin, offsets, positions, plan, task, tasks):
    """Rotate a task's share of the tokens; `plan` is an array of one PLAN."""
    tokens = plan[0].tokens
    first, last = share(tokens, task, tasks), share(tokens, task + 1, tasks)
    rotate_tokens(cos, sin, offsets, positions, plan[0], first, last)


# --- as a step of a program -------------------------------------------------------------------------------------------

STEP = record(("plan", PLAN), ("cos", ADDRESS), ("sin", ADDRESS), ("cu_seqlens", ADDRESS), ("sequences", np.intp))


def deferred_rotary(program, input, cos, sin, cu_seqlens, positions, interleaved, inplace):
    """Record a step of `rotary` in float32; return None if that is impossible.

    The tables need as many rows as there are tokens, because the lengths of the sequences may change between runs.
    """
    if type(input) is not Deferred or input.dtype != np.float32 or not input.size or positions is not None:
        return None
    if len(cos) < len(input) or not are_plain(cos, sin):
        return None
    if as_addressed_array(input.array) is not input.array or (inplace and input.is_shared):
        return None
    target = input if inplace else program.empty(input.shape, input.dtype)
    if cu_seqlens is None:
        cu_seqlens = np.array([0, len(input)], np.int32)
    program.record(
        STEP,
        task_count(input.size, GRAIN),
        plan=plan_of(input.array, target.array, cos, interleaved, 1),
        cos=program.address(cos),
        sin=program.address(sin),
        cu_seqlens=program.address(as_kernel_array(cu_seqlens)),
        sequences=len(cu_seqlens) - 1,
    )
    for array in (input, target):
        program.address(array)  # keeps it alive
    return target


@helper
def run_step(step, task, tasks):
    """Rotate a task's share of the tokens of a step."""
    plan = step.plan
    table = (plan.tokens, plan.half)
    cos, sin = array_at(step.cos, table, FLOAT), array_at(step.sin, table, FLOAT)
    offsets = array_at(step.cu_seqlens, (step.sequences + 1,), INT32)
    positions = array_at(step.cu_seqlens, (0,), np.int64(0))  # none
    first, last = share(plan.tokens, task, tasks), share(plan.tokens, task + 1, tasks)
    rotate_tokens(cos, sin, offsets, positions, plan, first, last)
