"""Attention on the CPU: what a call is to the kernels (forward.py, backward.py)."""

import numpy as np

from .. import deferred
from .._numba import as_kernel_array, num_threads
from .._numba.arrays import address_of
from .._numba.rows import task_count
from .._numba.steps import ADDRESS, record
from . import (
    backward,
    forward,
    relative_backward,  # noqa: F401  it tells terms.py what terms are in the backward
    relative_forward,  # noqa: F401  and in the forward
)
from .positions import RelativePositions
from .records import (
    COMMON,
    VIEW,
    added_mask,
    addressed,
    filled,
    integer_arrays,
    lse_like,
    make_scratch,
    numbers,
    term_arrays,
    view,
    visible_keys,
)
from .reference import empty_like, score_components, scores_shape, unbroadcast

TABLES = "position_key", "position_query", "position_bias"
GRAIN = 300_000  # multiply-adds: see task_count
LEAST_TASKS = 32  # of a backward with tables, if there are as many sequences and heads
RELATIVE = np.int8(0)  # the marker for compiled code with terms.py's terms
STORAGE = {"bfloat16": np.uint16(0), np.dtype(np.float32): np.float32(0), np.dtype(np.float64): np.float64(0)}

FORWARD = record(
    *COMMON,
    ("output", VIEW),
    ("probs", VIEW),
    ("cu_seqlens", ADDRESS),  # 0 of dense arrays
    ("cu_seqlens_k", ADDRESS),
    *((name, np.intp) for name in ("sequences", "length", "length_k")),
)
_WITH_GRADIENT = (
    "query", "key", "value", "bias", "query_for_position", "position_key", "position_query", "position_bias",
    "segment_scores",
)  # fmt: skip
BACKWARD = record(
    *COMMON,
    *((name, VIEW) for name in ("grad_output", *(f"grad_{name}" for name in _WITH_GRADIENT))),
    *((name, np.intp) for name in ("visible", "parts", "head_parts")),  # keys that a query sees; see `_groups`
)


def attention(query, key, value, scoring, return_probs, return_components, compute_dtype):
    """(output, lse, probabilities or None, components or None); components are computed as the definition does."""
    scoring = scoring._replace(relative=computed(scoring.relative))
    query, key, value = addressed(query), addressed(key), addressed(value)
    output, lse = empty_like(query, scoring.cu_seqlens), lse_like(query)
    shape, dtype = scores_shape(query, key, scoring.cu_seqlens, scoring.cu_seqlens_k), query.dtype
    probs = np.zeros(shape, dtype) if return_probs else None
    if output.size or lse.size:
        masks = added_mask(scoring.attn_mask, dtype), added_mask(scoring.bias, dtype)
        arrays = {"query": query, "key": key, "value": value, "output": output, "lse": lse, "probs": probs}
        arrays |= {"mask": masks[0], "bias": masks[1]}
        arrays |= {name: addressed(array) for name, array in term_arrays(scoring.relative, query).items()}
        integers = integer_arrays(scoring.relative)
        marker, like = marker_of(scoring.relative), dtype.type(0)
        tasks = tasks_of(query, key, scoring)
        room = forward.scratch_size(shape[2], shape[3], query.shape[3], marker, like)
        scratch = make_scratch(tasks, room, dtype)
        offsets = offset_arrays(scoring)
        fields = forward_fields(query, key, scoring, integers) | {
            "scratch": address_of(scratch),
            "rooms": tasks,
            "room": room,
        }
        fields |= {name: view(array) for name, array in arrays.items()} | addresses(integers, offsets)
        storage, counter = STORAGE[compute_dtype or dtype], np.zeros(1, np.int64)
        forward.forward(filled(FORWARD, fields), counter, like, storage, marker, tasks)
    components = score_components(query, key, scoring, compute_dtype) if return_components else None
    return output, lse, probs, components


def computed(relative):
    """The terms with what a program defers as arrays."""
    if relative is None:
        return None
    return RelativePositions(**{name: deferred.computed(value) for name, value in vars(relative).items()})


def marker_of(relative):
    """Whether compiled code needs terms.py's terms: biases by distance are no such."""
    has_tables = relative is not None and not relative.position_key is relative.position_query is None
    return RELATIVE if has_tables or (relative is not None and relative.segment_scores is not None) else None


def tasks_of(query, key, scoring):
    """How many tasks a forward is worth."""
    batch, heads, length, head_dim = query.shape
    sequences = 1 if scoring.cu_seqlens is None else max(len(scoring.cu_seqlens) - 1, 1)
    products = 2 if marker_of(scoring.relative) is None else 5  # one and a half of each table
    return task_count(
        products * batch * heads * length * visible_keys(scoring, key.shape[2] // sequences) * head_dim, GRAIN
    )


def offset_arrays(scoring):
    """The offsets as compiled code reads them, or Nones."""
    if scoring.cu_seqlens is None:
        return None, None
    return as_kernel_array(scoring.cu_seqlens), as_kernel_array(scoring.cu_seqlens_k)


def forward_fields(query, key, scoring, integers):
    """The values of FORWARD's numbers, by name; not the scratch's."""
    sequences = query.shape[0] if scoring.cu_seqlens is None else len(scoring.cu_seqlens) - 1
    return numbers(query, key, scoring, integers) | {
        "sequences": sequences, "length": query.shape[2], "length_k": key.shape[2],
    }  # fmt: skip


def addresses(integers, offsets=()):
    """Where the integers lie, by name; 0 for None."""
    names = "distance_rows", "segment_ids", "segment_ids_k", "cu_seqlens", "cu_seqlens_k"
    given = zip(names, (*integers, *offsets), strict=False)
    return {name: 0 if array is None else address_of(array) for name, array in given}


# --- backward ---------------------------------------------------------------------------------------


def attention_backward(grad_output, query, key, value, output, lse, scoring):
    """(grad_query, grad_key, grad_value, grad_bias or None, gradients of the relative terms or None).

    Rows of probabilities are whole here, so `output` is not needed (see reference.py for why that is better).
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
    grads = {name: empty_like(arrays[name], scoring.cu_seqlens) for name in ("query", "key", "value")}
    grads["bias"] = grad_bias
    grads |= _relative_gradients(relative, parts, scoring.cu_seqlens)
    if query.size or key.size:
        of_grads = {f"grad_{name}": None if it is None else _as_viewed(name, it) for name, it in grads.items()}
        _run_backward(arrays | of_grads, sequences, scoring, parts, head_parts)
    else:  # with a head_dim of 0 there may be segment scores nevertheless
        for array in grads.values():
            if array is not None:
                array.fill(0)
    if bias is not None and unbroadcast(bias).shape[3] < bias.shape[3]:
        grad_bias = grad_bias.sum(axis=3, keepdims=True)
    of_relative = None
    if relative is not None:
        names = ("position_key", "position_query", "position_bias")
        grads |= {name: None if grads[name] is None else _sum_parts(grads[name]) for name in names}
        of_relative = RelativePositions(
            None, **{name: grads[name] for name in (*names, "query_for_position", "segment_scores")}
        )
    return grads["query"], grads["key"], grads["value"], grad_bias, of_relative


def _groups(sequences, heads_k, relative, grad_bias):
    """(parts, head parts): sequence s and the keys' head h belong to the group (s % parts, h % head parts).

    A group is one task, as it adds to gradients that no other adds to: those of tables are summed in parts, of which
    there are as many as the numbers of sequences and heads say, so that their bits do not depend on the threads.
    """
    parts, head_parts = sequences, heads_k
    if relative is not None:
        parts = max(min(sequences, -(-LEAST_TASKS // max(heads_k, 1))), 1)
    if grad_bias is not None:
        parts, head_parts = min(parts, grad_bias.shape[0]), min(head_parts, grad_bias.shape[1])
    return parts, head_parts


def _relative_gradients(relative, parts, cu_seqlens):
    """Room for the gradients of the terms, by name; those of tables in parts, zeros."""
    grads = {}
    for name in TABLES:
        table = getattr(relative, name, None)
        grads[name] = None if table is None else np.zeros((max(parts, 1), *table.shape), table.dtype)
    for name in ("query_for_position", "segment_scores"):
        array = getattr(relative, name, None)
        grads[name] = None if array is None else empty_like(array, cu_seqlens)
    return grads


def _as_viewed(name, grad):
    """The gradient of a table, (parts, rows, heads, ...), as (parts, heads, rows, columns); others as they are."""
    if name in ("position_key", "position_query"):
        return grad.transpose(0, 2, 1, 3)
    return grad.transpose(0, 2, 1)[..., None] if name == "position_bias" else grad


def _run_backward(arrays, sequences, scoring, parts, head_parts):
    query, key, dtype = arrays["query"], arrays["key"], arrays["query"].dtype
    marker, like = marker_of(scoring.relative), dtype.type(0)
    longest, longest_k = (int(sequences[:, column].max(initial=0)) for column in (1, 3))
    visible, integers = visible_keys(scoring, longest_k), integer_arrays(scoring.relative)
    room = backward.scratch_size(longest, longest_k, visible, query.shape[3], marker, like)
    tasks = min(num_threads(), max(parts * head_parts, 1))
    scratch = make_scratch(tasks, room, dtype)
    fields = numbers(query, key, scoring, integers) | {"scratch": address_of(scratch), "rooms": tasks, "room": room}
    fields |= {name: view(array) for name, array in arrays.items()} | addresses(integers)
    fields |= {"visible": visible, "parts": parts, "head_parts": head_parts}
    counter = np.zeros(1, np.int64)
    backward.backward(filled(BACKWARD, fields), sequences, counter, like, marker, tasks)


def sequence_table(query, key, scoring):
    """Per sequence: first query, queries, first key, keys."""
    batch, _, length, _ = query.shape
    if scoring.cu_seqlens is None:
        return np.tile(np.array([0, length, 0, key.shape[2]], np.int64), (batch, 1))
    table = np.zeros((len(scoring.cu_seqlens) - 1, 4), np.int64)
    table[:, 0], table[:, 1] = scoring.cu_seqlens[:-1], np.diff(scoring.cu_seqlens)
    table[:, 2], table[:, 3] = scoring.cu_seqlens_k[:-1], np.diff(scoring.cu_seqlens_k)
    return table


def _sum_parts(parts):
    return parts[0] if len(parts) == 1 else parts.sum(axis=0, dtype=np.float64).astype(parts.dtype)
