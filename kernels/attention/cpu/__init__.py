"""Attention on the CPU: the calls of the kernels in forward.py and backward.py, and a program's step."""

import numpy as np

from ... import deferred
from ..._numba import as_kernel_array, empty, helper, num_threads, zeros
from ..._numba.low_precision import ROUNDED
from ..._numba.memory import address_of
from ..._numba.rows import task_count
from ..._numba.steps import ADDRESS, FLOAT, record
from ..arguments import scores_shape
from ..positions import TABLES, TERMS, RelativePositions
from ..reference import empty_like, score_components, unbroadcast
from . import (
    backward,
    forward,
    relative_backward,  # noqa: F401  registers the backward of the terms
    relative_forward,  # noqa: F401  and their forward
)
from .records import (
    COMMON,
    OPTIONAL,
    VIEW,
    absent_fields,
    added_mask,
    addressed,
    common_fields,
    filled_record,
    integer_arrays,
    integer_fields,
    lse_like,
    make_scratch,
    term_arrays,
    view,
    visible_keys,
)

ALWAYS = "query", "key", "value", "output", "lse"
GRAIN = 300_000  # multiply-adds: see task_count
LEAST_TASKS = 32  # of a backward with tables, given enough sequences and heads
RELATIVE = np.int8(0)  # the marker for code with the terms of terms.py
STORAGE = {"bfloat16": ROUNDED(0), np.dtype(np.float32): np.float32(0), np.dtype(np.float64): np.float64(0)}

# By the storage of the weights; those of uint8 (int8 in groups) are used with float32.
STORAGE_BESIDE = {np.float32: np.float32, np.uint16: ROUNDED, np.int8: ROUNDED, np.uint8: np.float32}

FORWARD = record(
    *COMMON,
    ("output", VIEW),
    *((name, np.intp) for name in ("sequences", "length", "length_k")),
    ("cu_seqlens", ADDRESS),  # 0 for dense arrays
    ("cu_seqlens_k", ADDRESS),
    *OPTIONAL,
    ("probs", VIEW),
)
_WITH_GRADIENT = (
    "query", "key", "value", "bias", "query_for_position", "position_key", "position_query", "position_bias",
    "segment_scores",
)  # fmt: skip
BACKWARD = record(
    *COMMON,
    *OPTIONAL,
    *((name, VIEW) for name in ("grad_output", *(f"grad_{name}" for name in _WITH_GRADIENT))),
    *((name, np.intp) for name in ("visible", "parts", "head_parts")),  # keys that a query sees, and see `_groups`
)


def attention(query, key, value, scoring, return_probs, return_components, compute_dtype):
    """Return (output, lse, probabilities or None, components or None); the reference computes the components."""
    if scoring.relative is not None:
        scoring = scoring._replace(relative=computed(scoring.relative))
    query, key, value = addressed(query), addressed(key), addressed(value)
    output, lse, dtype = empty_like(query, scoring.cu_seqlens, empty), lse_like(query), query.dtype
    probs = None
    if return_probs:
        probs = np.zeros(scores_shape(query, key, scoring.cu_seqlens, scoring.cu_seqlens_k), dtype)
    if output.size or lse.size:
        arrays = {"query": query, "key": key, "value": value, "output": output, "lse": lse}
        if probs is not None:
            arrays["probs"] = probs
        if scoring.attn_mask is not None:
            arrays["mask"] = added_mask(scoring.attn_mask, dtype)
        if scoring.bias is not None:
            arrays["bias"] = added_mask(scoring.bias, dtype)
        integers = {}
        if scoring.relative is not None:
            arrays |= {name: addressed(array) for name, array in term_arrays(scoring.relative, query).items()}
            integers = integer_arrays(scoring.relative)
        marker, like, tasks = marker_of(scoring.relative), dtype.type(0), tasks_of(query, key, scoring)
        size = forward.scratch_size(query.shape[2], key.shape[2], query.shape[3], marker, like)
        memory, scratch = make_scratch(tasks, size, dtype)
        offsets = offset_arrays(scoring)
        fields = forward_fields(arrays, integers, offsets, scratch, scoring)
        storage, counter = STORAGE[compute_dtype or dtype], np.zeros(1, np.int64)
        forward.forward(filled_record(FORWARD, fields), counter, like, storage, marker, tasks)
        del memory
    components = score_components(query, key, scoring, compute_dtype) if return_components else None
    return output, lse, probs, components


def computed(relative):
    """Return the terms with deferred arrays computed."""
    if relative is None:
        return None
    return RelativePositions(**{name: deferred.computed(value) for name, value in vars(relative).items()})


def marker_of(relative):
    """Return RELATIVE if the kernels need the terms of terms.py (biases by distance do not), else None."""
    has_tables = relative is not None and not relative.position_key is relative.position_query is None
    return RELATIVE if has_tables or (relative is not None and relative.segment_scores is not None) else None


def tasks_of(query, key, scoring):
    """Return the number of tasks for a forward."""
    batch, heads, length, head_dim = query.shape
    sequences = 1 if scoring.cu_seqlens is None else max(len(scoring.cu_seqlens) - 1, 1)
    products = 2 if scoring.relative is None or marker_of(scoring.relative) is None else 5  # 1.5 of each table
    keys = visible_keys(scoring, key.shape[2] // sequences)
    return task_count(products * batch * heads * length * keys * head_dim, GRAIN)


def offset_arrays(scoring):
    """Return the offsets of queries and keys as kernels read them, or None."""
    if scoring.cu_seqlens is None:
        return None
    offsets = as_kernel_array(scoring.cu_seqlens)
    same = scoring.cu_seqlens_k is scoring.cu_seqlens
    return offsets, offsets if same else as_kernel_array(scoring.cu_seqlens_k)


def forward_fields(arrays, integers, offsets, scratch, scoring):
    """Return the fields of FORWARD from arrays by field name, integers of the relative terms, offsets and scratch."""
    fields = common_fields(arrays, scratch, scoring)
    fields["output"] = view(arrays["output"])
    fields["sequences"], _, fields["length"], _ = arrays["query"].shape
    fields["length_k"] = arrays["key"].shape[2]
    if offsets is not None:
        cu_seqlens, cu_seqlens_k = offsets
        fields["sequences"], fields["cu_seqlens"] = len(cu_seqlens) - 1, address_of(cu_seqlens)
        fields["cu_seqlens_k"] = fields["cu_seqlens"] if cu_seqlens_k is cu_seqlens else address_of(cu_seqlens_k)
    if len(arrays) > len(ALWAYS):
        fields |= {name: view(array) for name, array in arrays.items() if array is not None and name not in ALWAYS}
    return fields | integer_fields(integers, scoring) if integers else fields


# --- backward ---------------------------------------------------------------------------------------


def attention_backward(grad_output, query, key, value, output, lse, scoring, out):
    """Return (grad_query, grad_key, grad_value, grad_bias or None, gradients of the relative terms or None).

    Rows of probabilities are whole here, so `output` is not needed (reference.py says why that is better).
    """
    relative, bias, dtype = computed(scoring.relative), scoring.bias, query.dtype
    scoring = scoring._replace(relative=relative)
    query, key, value, grad_output = (addressed(array) for array in (query, key, value, grad_output))
    sequences = sequence_table(query, key, scoring)
    grad_bias = None if bias is None else np.zeros((*unbroadcast(bias).shape[:3], bias.shape[3]), dtype)
    parts, head_parts = _groups(len(sequences), key.shape[1], relative, grad_bias)
    arrays = {"query": query, "key": key, "value": value, "lse": as_kernel_array(lse), "grad_output": grad_output}
    arrays |= {"mask": added_mask(scoring.attn_mask, dtype), "bias": added_mask(bias, dtype)}
    arrays |= {name: addressed(array) for name, array in term_arrays(relative, query).items()}
    names = "query", "key", "value"
    targets = out or (empty_like(arrays[name], scoring.cu_seqlens, empty) for name in names)
    grads = dict(zip(names, targets, strict=True))
    grads["bias"] = grad_bias
    grads |= _relative_gradients(relative, parts, scoring.cu_seqlens)
    if query.size or key.size:
        of_grads = {f"grad_{name}": None if it is None else _as_viewed(name, it) for name, it in grads.items()}
        _run_backward(arrays | of_grads, sequences, scoring, parts, head_parts)
    else:  # a head_dim of 0 leaves segment scores
        for array in grads.values():
            if array is not None:
                array.fill(0)
    if bias is not None and unbroadcast(bias).shape[3] < bias.shape[3]:
        grad_bias = grad_bias.sum(axis=3, keepdims=True)
    of_relative = None
    if relative is not None:
        grads |= {name: None if grads[name] is None else _sum_parts(grads[name]) for name in TABLES}
        of_relative = RelativePositions(None, **{name: grads[name] for name in TERMS})
    return grads["query"], grads["key"], grads["value"], grad_bias, of_relative


def _groups(sequences, heads_k, relative, grad_bias):
    """Return (parts, head parts): sequence s and key head h belong to the group (s % parts, h % head parts).

    A group is one task, which alone adds to its gradients. The gradients of tables are summed in parts whose number
    depends on sequences and heads only, so that their bits do not depend on the threads.
    """
    parts, head_parts = sequences, heads_k
    if relative is not None:
        parts = max(min(sequences, -(-LEAST_TASKS // max(heads_k, 1))), 1)
    if grad_bias is not None:
        parts, head_parts = min(parts, grad_bias.shape[0]), min(head_parts, grad_bias.shape[1])
    return parts, head_parts


def _relative_gradients(relative, parts, cu_seqlens):
    """Return memory for the gradients of the terms by name; those of tables are zeros, in parts."""
    grads = dict.fromkeys(TERMS)
    for name in TERMS:
        if (array := getattr(relative, name, None)) is not None:
            in_parts = (max(parts, 1), *array.shape)
            grads[name] = zeros(in_parts, array.dtype) if name in TABLES else empty_like(array, cu_seqlens, empty)
    return grads


def _as_viewed(name, grad):
    """Return a table's gradient, (parts, rows, heads, ...), as (parts, heads, rows, columns); others unchanged."""
    if name in ("position_key", "position_query"):
        return grad.transpose(0, 2, 1, 3)
    return grad.transpose(0, 2, 1)[..., None] if name == "position_bias" else grad


def _run_backward(arrays, sequences, scoring, parts, head_parts):
    query, dtype = arrays["query"], arrays["query"].dtype
    marker, like = marker_of(scoring.relative), dtype.type(0)
    longest, longest_k = (int(sequences[:, column].max(initial=0)) for column in (1, 3))
    visible, integers = visible_keys(scoring, longest_k), integer_arrays(scoring.relative)
    size = backward.scratch_size(longest, longest_k, visible, query.shape[3], marker, like)
    tasks = min(num_threads(), max(parts * head_parts, 1))
    memory, scratch = make_scratch(tasks, size, dtype)
    fields = common_fields(arrays, scratch, scoring) | integer_fields(integers, scoring)
    fields |= {name: view(array) for name, array in arrays.items() if array is not None}
    fields |= {"visible": visible, "parts": parts, "head_parts": head_parts}
    counter = np.zeros(1, np.int64)
    backward.backward(filled_record(BACKWARD, fields), sequences, counter, like, marker, tasks)
    del memory


def sequence_table(query, key, scoring):
    """Return first query, queries, first key and keys of each sequence."""
    batch, _, length, _ = query.shape
    if scoring.cu_seqlens is None:
        return np.tile(np.array([0, length, 0, key.shape[2]], np.int64), (batch, 1))
    table = np.zeros((len(scoring.cu_seqlens) - 1, 4), np.int64)
    table[:, 0], table[:, 1] = scoring.cu_seqlens[:-1], np.diff(scoring.cu_seqlens)
    table[:, 2], table[:, 3] = scoring.cu_seqlens_k[:-1], np.diff(scoring.cu_seqlens_k)
    return table


def _sum_parts(parts):
    return parts[0] if len(parts) == 1 else parts.sum(axis=0, dtype=np.float64).astype(parts.dtype)


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
    arrays = {name: it.array if type(it) is deferred.Deferred else it for name, it in arrays.items()}
    fields = forward_fields(arrays, integers, offsets, (program.address(scratch), tasks, size), scoring)
    program.record(FORWARD, tasks, **(absent_fields(FORWARD) | fields))
    return output, lse, None, None


def _is_readable(program, array):
    """Return whether a step can read a Deferred, an array or None."""
    if array is None:
        return True
    if type(array) is deferred.Deferred:
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
    forward.run(step, counter, FLOAT, storage, relative, task)
