"""Rotary position embeddings as a step of a program: the record, what notes it and what runs it."""

import numpy as np

from .._numba import as_addressed_array, as_kernel_array, helper
from .._numba.rows import share, task_count
from .._numba.steps import ADDRESS, FLOAT, INT32, array_at, record
from ..deferred import Deferred, is_plain
from .cpu import GRAIN, PLAN, plan_of, rotate_tokens

STEP = record(
    ("plan", PLAN),
    ("cos", ADDRESS),
    ("sin", ADDRESS),
    ("cu_seqlens", ADDRESS),
    ("sequences", np.intp),
)


def deferred_rotary(program, input, cos, sin, cu_seqlens, positions, interleaved, inplace):
    """Note the step of `rotary` of float32; None for what has no deferred form.

    The tables need a row for each token: when the program runs again, the sequences may have other lengths.
    """
    if type(input) is not Deferred or input.dtype != np.float32 or not input.size or positions is not None:
        return None
    if len(cos) < len(input) or not is_plain(cos) or not is_plain(sin):
        return None
    if as_addressed_array(input.array) is not input.array or (inplace and input.is_shared):
        return None
    target = input if inplace else program.empty(input.shape, input.dtype)
    if cu_seqlens is None:
        cu_seqlens = np.array([0, len(input)], np.int32)
    program.note(
        STEP,
        task_count(input.size, GRAIN),
        plan=plan_of(input.array, target.array, cos, interleaved, 1),
        cos=program.address(cos),
        sin=program.address(sin),
        cu_seqlens=program.address(as_kernel_array(cu_seqlens)),
        sequences=len(cu_seqlens) - 1,
    )
    for array in (input, target):
        program.address(array)  # the program keeps it
    return target


@helper
def run_step(step, task, tasks):
    """A task's share of the tokens of a step."""
    plan = step.plan
    table = (plan.tokens, plan.half)
    cos, sin = array_at(step.cos, table, FLOAT), array_at(step.sin, table, FLOAT)
    offsets = array_at(step.cu_seqlens, (step.sequences + 1,), INT32)
    positions = array_at(step.cu_seqlens, (0,), np.int64(0))  # none
    first, last = share(plan.tokens, task, tasks), share(plan.tokens, task + 1, tasks)
    rotate_tokens(cos, sin, offsets, positions, plan, first, last)
