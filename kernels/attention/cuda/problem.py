"""Common parts of the launches of attention's CUDA kernels: their struct of arguments, and probabilities."""

import numpy as np

from ... import _cuda
from ..arguments import table_rows

PROBS_TILE, PROBS_THREADS = 32, 256
BOOL_MASK, FLOAT_MASK = 1, 2  # of problem.cuh

PROBLEM = np.dtype(
    [
        *((name, np.int64, 3) for name in ("query", "key", "value", "grad_output")),
        *((name, np.int64, 4) for name in ("attn_mask", "bias")),
        ("position_bias", np.int64, 2),
        *(
            (name, np.int32)
            for name in ("heads", "sharing", "sequences", "length", "length_k", "head_dim", "mask_kind")
        ),
        *((name, np.int32) for name in ("rows", "distances", "left", "right")),
        ("scale", np.float32),
        *((name, np.bool_) for name in ("is_causal", "pairs")),
    ],
    align=True,
)
"""struct Problem of problem.cuh."""


def kernel_inputs(query, key, value, scoring):
    """Return (the arrays of struct Inputs of problem.cuh, the struct Problem that describes them)."""
    cu_seqlens, cu_seqlens_k, attn_mask, bias, is_causal, window, relative, scale, *_ = scoring
    problem = np.zeros((), dtype=PROBLEM)[()]
    problem["sequences"], problem["heads"], problem["length"], problem["head_dim"] = query.shape
    if cu_seqlens is not None:
        problem["sequences"] = cu_seqlens.shape[0] - 1
    problem["length_k"], problem["sharing"] = key.shape[2], query.shape[1] // max(key.shape[1], 1)
    if attn_mask is not None:
        problem["mask_kind"] = BOOL_MASK if attn_mask.dtype == np.bool_ else FLOAT_MASK
    problem["scale"], problem["is_causal"] = scale, is_causal
    problem["left"], problem["right"] = window
    position_bias = distance_rows = None
    if relative is not None:
        position_bias, distance_rows = relative.position_bias, relative.distance_rows
        problem["rows"], problem["distances"] = table_rows(relative), distance_rows.shape[0]
    floats = {name: _cuda.vector_rows(it) for name, it in (("query", query), ("key", key), ("value", value))}
    attn_mask, bias = (_readable_by_key(array) for array in (attn_mask, bias))
    problem["pairs"] = all(_has_pairs(array) for array in (attn_mask, bias) if array is not None)
    added = {"attn_mask": attn_mask, "bias": bias, "position_bias": position_bias}
    set_strides(problem, **floats, **added)
    offsets = _cuda.contiguous(cu_seqlens, cu_seqlens_k)
    return (*floats.values(), *offsets, *added.values(), *_cuda.contiguous(distance_rows)), problem


def set_strides(struct, **arrays):
    """Write the strides of each array, in elements, into the field of its name, as many as fit there; None: zeros.

    An axis of size 1 may have any stride; here it is 0, so that a tile that reads past its end stays in place.
    """
    for name, array in arrays.items():
        if array is not None:
            count = struct.dtype[name].shape[0]  # the last axis of query, key and value has stride 1
            axes = zip(array.strides[:count], array.shape[:count], strict=True)
            struct[name] = [stride // array.dtype.itemsize if size > 1 else 0 for stride, size in axes]


def added_kind(scoring):
    """Return the name in enum Added (problem.cuh) of the kernel that adds the masks and biases to the scores."""
    masks = [array for array in (scoring.attn_mask, scoring.bias) if array is not None]
    has_distances = scoring.relative is not None and scoring.relative.position_bias is not None
    if not masks:
        return "BY_DISTANCE" if has_distances else "NOTHING"
    by_key = not has_distances and all(array.strides[2] == 0 or array.shape[2] == 1 for array in masks)
    return "BY_KEY" if by_key else "EVERYTHING"


def _readable_by_key(array):
    """Return a mask or bias whose stride of the keys is 1 or, if broadcast, 0; copied if necessary."""
    if array is None or array.shape[3] == 1 or array.strides[3] in (0, array.itemsize):
        return array
    once = array[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in array.strides)]
    xp = _cuda.array_module(array)
    return np.broadcast_to(xp.ascontiguousarray(once), array.shape)  # CuPy handles the call for its own arrays


def _has_pairs(array):
    """Return whether each even key and the next one form an aligned word of memory."""
    steps = (stride for stride, size in zip(array.strides[:3], array.shape[:3], strict=True) if size > 1)
    is_even = all(step % (2 * array.itemsize) == 0 for step in steps)
    return array.strides[3] == array.itemsize and is_even and _cuda.is_aligned(array, 2 * array.itemsize)


def tile_count(problem, is_packed, rows):
    """Return the blocks of a head with tiles of `rows` queries; packed: see find_sequence in problem.cuh."""
    length, sequences = int(problem["length"]), int(problem["sequences"])
    return length // rows + sequences if is_packed else sequences * -(-length // rows)


def compute_probs(launch, query, key, cu_seqlens, cu_seqlens_k, sequences):
    """Return the probabilities that launch(blocks, probabilities, (longest queries, longest keys)) writes."""
    xp = _cuda.array_module(query)
    longest_q, longest_k = longest_sequences(query, key, cu_seqlens, cu_seqlens_k)
    heads = query.shape[1]
    probs = xp.empty((sequences, heads, longest_q, longest_k), dtype=query.dtype)
    if probs.size:
        tiles = -(-longest_q // PROBS_TILE) * -(-longest_k // PROBS_TILE)
        launch(sequences * heads * tiles, probs, (np.int32(longest_q), np.int32(longest_k)))
    if probs.dtype == np.float32:
        # The scores differ from the forward's by rounding, which exp() increases to 5e-4 at scores of 4000. Half
        # precision hides it.
        total = probs.sum(axis=-1, keepdims=True)
        probs /= xp.where(total == 0, 1, total)
    return probs


def longest_sequences(query, key, cu_seqlens, cu_seqlens_k):
    """Return the longest lengths of queries and of keys; reads packed offsets, which synchronises."""
    if cu_seqlens is None:
        return query.shape[2], key.shape[2]
    lengths = (offsets[1:] - offsets[:-1] for offsets in (cu_seqlens, cu_seqlens_k))
    return tuple(int(each.max()) if each.size else 0 for each in lengths)
