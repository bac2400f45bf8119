"""Attention as a step of a program, with the record of the forward."""

import numpy as np

from ..._numba import helper
from ..._numba.low_precision import ROUNDED
from ..._numba.steps import FLOAT
from ...deferred import Deferred
from . import FORWARD, RELATIVE, STORAGE, forward, forward_fields, marker_of, offset_arrays, tasks_of
from .forward import run
from .records import absent_fields, integer_arrays, term_arrays

STEP = FORWARD
# By the storage of the weights; those of uint8 (int8 in groups) are used with float32.
STORAGE_BESIDE = {np.float32: np.float32, np.uint16: ROUNDED, np.int8: ROUNDED, np.uint8: np.float32}


def deferred_attention(program, query, key, value, scoring, return_probs, return_components, compute_dtype):
    """Record a step of packed attention in float32, or bfloat16 with low-precision weights; return None for others."""
    has_masks = scoring.attn_mask is not None or scoring.bias is not None
    if scoring.cu_seqlens is None or return_probs or return_components or has_masks or not query.size:
        return None
    if STORAGE_BESIDE.get(type(program.storage)) is not type(STORAGE[compute_dtype or query.dtype]):
        return None
    terms = term_arrays(scoring.relative, query)
    if not all(_is_readable(program, array) for array in (query, key, value, *terms.values())):
        return None
    _, heads, tokens, head_dim = query.shape
    rows = program.empty((tokens, heads, head_dim), np.float32)
    output = rows.transpose(1, 0, 2)[None]
    lse = program.empty((1, heads, tokens, 2), np.float32)
    marker, tasks = marker_of(scoring.relative), tasks_of(query, key, scoring)
    size = forward.scratch_size(tokens, key.shape[2], head_dim, marker, FLOAT)
    scratch = program.empty((tasks, size), np.float32)
    arrays = {"query": query, "key": key, "value": value, "output": output, "lse": lse, **terms}
    integers, offsets = integer_arrays(scoring.relative), offset_arrays(scoring)
    for array in (*arrays.values(), *integers.values(), *offsets):
        program.address(array)  # the program keeps them
    arrays = {name: it.array if type(it) is Deferred else it for name, it in arrays.items()}
    fields = forward_fields(arrays, integers, offsets, (program.address(scratch), tasks, size), scoring)
    program.record(STEP, tasks, **(absent_fields(STEP) | fields))
    return output, lse, None, None


def _is_readable(program, array):
    """Return whether a step can read a Deferred, an array or None."""
    if array is None:
        return True
    if type(array) is Deferred:
        if array.recorder is not program:
            return False
        array = array.array
    whole = array.strides[-1] == array.itemsize or array.shape[-1] == 1
    return array.dtype == np.float32 and array.flags.aligned and whole


def marker_of_steps(records):
    """Return the marker for code with relative terms, which takes seconds to compile, if a record needs it."""
    names = "position_key", "position_query", "segment_scores"
    return RELATIVE if any(records[name]["address"].any() for name in names) else None


@helper
def run_step(step, counter, storage, relative, task):
    """Compute tasks of a program's step until all are done."""
    run(step, counter, FLOAT, storage, relative, task)
