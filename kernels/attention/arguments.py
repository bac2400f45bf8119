"""Checks of the arguments that the operations of attention have in common."""

import math
from typing import Any

import numpy as np

from .. import checks

COMPUTE_DTYPES = (None, "bfloat16")


def check_packed(query: Any, key: Any, value: Any, cu_seqlens: Any, cu_seqlens_k: Any) -> tuple[Any, Any]:
    """The offsets of queries and of keys, as int32."""
    checks.shape((None,) * 3, query=query)
    checks.shape((None, *query.shape[1:]), key=key)
    checks.shape(key.shape, value=value)
    cu_seqlens = checks.offsets("cu_seqlens", cu_seqlens, "query", query.shape[0])
    if cu_seqlens_k is None:
        if key.shape[0] != query.shape[0]:
            raise ValueError(
                f"key has {key.shape[0]} tokens and query has {query.shape[0]}: cu_seqlens_k must say where the "
                "sequences of the keys lie"
            )
        return cu_seqlens, cu_seqlens
    cu_seqlens_k = checks.offsets("cu_seqlens_k", cu_seqlens_k, "key", key.shape[0])
    checks.shape(cu_seqlens.shape, cu_seqlens_k=cu_seqlens_k)
    return cu_seqlens, cu_seqlens_k


def scores_shape(query: Any, key: Any, cu_seqlens: Any, cu_seqlens_k: Any, *masks: Any) -> tuple[int, ...]:
    """(sequences, heads, longest query sequence, longest key sequence)."""
    if cu_seqlens is None:
        return (*query.shape[:3], key.shape[2])
    longest = _longest(cu_seqlens, query, -2, *masks), _longest(cu_seqlens_k, key, -1, *masks)
    return (cu_seqlens.shape[0] - 1, query.shape[1], *longest)


def _longest(offsets: Any, array: Any, axis: int, *masks: Any) -> int:
    """The longest sequence; on a GPU, where offsets are not read, what the masks say or else a bound."""
    if isinstance(offsets, np.ndarray):
        return int(np.diff(offsets).max(initial=0))
    sizes = {mask.shape[axis] for mask in masks if mask is not None and mask.ndim >= -axis} - {1}
    return max(sizes, default=array.shape[0])


def broadcast_mask(name: str, array: Any, shape: tuple[int, ...]) -> Any:
    """A view of a mask or bias in the `scores_shape`; None stays None."""
    if array is None:
        return None
    padded = (1,) * (4 - array.ndim) + tuple(array.shape)
    if len(padded) > 4 or any(found not in (1, wanted) for found, wanted in zip(padded, shape, strict=True)):
        raise ValueError(
            f"{name} has shape {array.shape}, expected one that broadcasts to "
            f"(sequences, heads, longest query, longest key) = {shape}"
        )
    return np.broadcast_to(array, shape)  # CuPy takes the call over for its own arrays


def scale_or_default(scale: Any, query: Any) -> float:
    """The finite number `scale`, by default 1 / sqrt(head_dim)."""
    if scale is None:
        return 1 / math.sqrt(max(query.shape[-1], 1))
    return checks.finite_number("scale", scale)


def check_compute_dtype(compute_dtype: Any, backend: str, query: Any) -> None:
    """`compute_dtype` is one that the backend knows, for a query of the dtype that it is for."""
    if compute_dtype is None:
        return
    checks.choice("compute_dtype", compute_dtype, COMPUTE_DTYPES)
    if backend == "cupy":
        raise ValueError(
            f"compute_dtype is {compute_dtype!r}, but backend 'cupy' computes in the arrays' dtype: convert the arrays"
        )
    if query.dtype != np.float32:
        raise TypeError(f"query has dtype {query.dtype}, expected float32 with compute_dtype={compute_dtype!r}")
