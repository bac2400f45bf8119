"""Attention as a step of a program, without and with relative terms: records, what notes them and what runs them."""

import numpy as np

from .._numba import as_kernel_array, helper, inline_helper
from .._numba.rows import task_count
from .._numba.simd import pointer_at
from .._numba.steps import ADDRESS, FLOAT, INT32, array_at, record
from ..deferred import Deferred
from .cpu import only_by_definition
from .forward import run
from .relative_cpu import floats_of, ids_or_none, tasks
from .views import GRAIN, STORAGE

STORAGE_BESIDE = {np.float32: np.float32, np.uint16: np.uint16, np.int8: np.uint16}  # by that of the weights
VIEW = record(("address", ADDRESS), ("head_stride", np.intp), ("row_stride", np.intp))  # in bytes
_FIELDS = (
    ("query", VIEW),
    ("key", VIEW),
    ("value", VIEW),
    ("output", VIEW),
    ("lse", ADDRESS),
    ("cu_seqlens", ADDRESS),
    ("cu_seqlens_k", ADDRESS),
    ("sequences", np.intp),
    ("heads", np.intp),
    ("tokens", np.intp),
    ("keys", np.intp),
    ("head_dim", np.intp),
    ("is_causal", np.bool_),
    ("scale", np.float32),
)
STEP = record(*_FIELDS)
_TERMS = "position_key", "position_query", "query_for_position", "segment_scores"
RELATIVE_STEP = record(
    *((name, VIEW) for name in _TERMS),  # zeros if absent
    *_FIELDS,  # not first: Numba would take a relative step for a STEP with more fields, and warn
    ("distance_rows", ADDRESS),
    ("distances", np.intp),
    ("segment_ids", ADDRESS),
    ("segment_ids_k", ADDRESS),
)


def deferred_attention(program, query, key, value, scoring, return_probs, return_components, compute_dtype):
    """Note the step of packed attention in float32, or in bfloat16 beside weights of low precision; None for others."""
    arrays, storage = (query, key, value), STORAGE[compute_dtype or query.dtype]
    has_masks = scoring.attn_mask is not None or scoring.bias is not None
    if scoring.cu_seqlens is None or return_probs or return_components or has_masks or not query.size:
        return None
    if STORAGE_BESIDE.get(type(program.storage)) is not type(storage) or not all(map(_is_deferred_float32, arrays)):
        return None
    if only_by_definition(query, key, scoring):
        return None
    output = program.empty((query.shape[2], *query.shape[1:4:2]), np.float32).transpose(1, 0, 2)[None]
    lse = program.empty((*query.shape[:3], 2), np.float32)
    fields = _fields(program, query, key, value, scoring, output, lse)
    sequences = len(scoring.cu_seqlens) - 1
    if scoring.relative is None:
        products = 2 * query.size * (key.shape[2] // sequences)
        program.note(STEP, task_count(products, GRAIN), **fields)
    else:
        terms = floats_of(scoring.relative, query)
        if not all(_is_readable(program, array) for array in terms):
            return None
        terms = _term_fields(program, scoring.relative, terms)
        program.note(RELATIVE_STEP, tasks(query.shape, key.shape[2], sequences), **fields, **terms)
    return output, lse, None, None


def _is_readable(program, array):
    """Whether a step can read a Deferred or an array, or None."""
    if type(array) is Deferred:
        return array.recorder is program and _is_deferred_float32(array)
    if array is None:
        return True
    *strides, unit = array.strides[1:]
    whole = unit == array.itemsize and not any(stride % array.itemsize for stride in strides)
    return array.dtype == np.float32 and array.flags.aligned and whole


def _fields(program, query, key, value, scoring, output, lse):
    """The values of _FIELDS by name; arrays are (1, heads, tokens, head_dim)."""
    _, heads, tokens, head_dim = query.shape
    return {
        "query": _view(program, query),
        "key": _view(program, key),
        "value": _view(program, value),
        "output": _view(program, output),
        "lse": program.address(lse),
        "cu_seqlens": program.address(as_kernel_array(scoring.cu_seqlens)),
        "cu_seqlens_k": program.address(as_kernel_array(scoring.cu_seqlens_k)),
        "sequences": len(scoring.cu_seqlens) - 1,
        "heads": heads,
        "tokens": tokens,
        "keys": key.shape[2],
        "head_dim": head_dim,
        "is_causal": scoring.is_causal,
        "scale": scoring.scale,
    }


def _term_fields(program, relative, terms):
    """What a relative step has beside those, by name."""
    return {
        **{name: _view(program, array) for name, array in zip(_TERMS, terms, strict=True)},
        "distance_rows": program.address(as_kernel_array(relative.distance_rows)),
        "distances": len(relative.distance_rows),
        "segment_ids": program.address(ids_or_none(relative.segment_ids)),
        "segment_ids_k": program.address(ids_or_none(relative.segment_ids_k)),
    }


def _view(program, array):
    """The values of a VIEW of (1, heads, rows, columns); zeros if it is absent."""
    return (0, 0, 0) if array is None else (program.address(array), *array.strides[1:3])


def _is_deferred_float32(array):
    """Whether an array is a Deferred whose rows are contiguous float32."""
    return type(array) is Deferred and array.dtype == np.float32 and array.strides[-1] == array.itemsize


@helper
def run_step(step, counter, storage):
    """Take tasks of a program's step until there are none left."""
    arrays, strides, lse, cu_seqlens, cu_seqlens_k, sizes = _arguments(step)
    run(
        arrays, strides, lse, cu_seqlens, cu_seqlens_k, sizes, step.is_causal, np.float32(step.scale), storage,
        counter, None,
    )  # fmt: skip


@helper
def run_relative_step(step, counter, storage):
    """As `run_step`, with relative terms."""
    arrays, strides, lse, cu_seqlens, cu_seqlens_k, sizes = _arguments(step)
    rows = pointer_at(step.distance_rows, INT32), step.distances // 2
    ids = pointer_at(step.segment_ids, INT32), pointer_at(step.segment_ids_k, INT32)
    terms = (
        (_term(step.query_for_position), _term(step.position_key)), _term(step.position_query), rows,
        (_term(step.segment_scores), *ids),
    )  # fmt: skip
    run(
        arrays, strides, lse, cu_seqlens, cu_seqlens_k, sizes, False, np.float32(step.scale), storage, counter, terms
    )  # fmt: skip


@inline_helper
def _term(view):
    """(address, strides in elements); see `kernel_view`."""
    return view.address, 0, view.head_stride // 4, view.row_stride // 4


@inline_helper
def _arguments(step):
    """What `run` takes of a step: (arrays, strides, lse, cu_seqlens, cu_seqlens_k, sizes)."""
    absent, row = array_at(step.output.address, (0,), FLOAT), (step.head_dim,)
    arrays = (
        array_at(step.query.address, row, FLOAT), array_at(step.key.address, row, FLOAT),
        array_at(step.value.address, row, FLOAT), array_at(step.output.address, row, FLOAT), absent, absent, absent,
    )  # fmt: skip
    nowhere = _strides(step.query)
    strides = (
        _strides(step.query), _strides(step.key), _strides(step.value), _strides(step.output), nowhere, nowhere, nowhere
    )  # fmt: skip
    lse = array_at(step.lse, (1, step.heads, step.tokens, 2), FLOAT)
    offsets = (step.sequences + 1,)
    cu_seqlens, cu_seqlens_k = array_at(step.cu_seqlens, offsets, INT32), array_at(step.cu_seqlens_k, offsets, INT32)
    sizes = step.sequences, step.heads, step.tokens, step.keys, step.head_dim
    return arrays, strides, lse, cu_seqlens, cu_seqlens_k, sizes


@inline_helper
def _strides(view):
    return 0, view.head_stride, view.row_stride, 0
