"""Rotary position embeddings, forward and backward, and the tables of their angles."""

from typing import Any

import numpy as np

from .. import checks, dispatch
from ..precision import working_dtype

OPTIONAL = ("cu_seqlens", "positions")


def rotary(
    input: Any,
    cos: Any,
    sin: Any,
    *,
    cu_seqlens: Any = None,
    positions: Any = None,
    interleaved: bool = False,
    inplace: bool = False,
    backend: str | None = None,
) -> Any:
    """Each token's heads, turned pair by pair by the angles of the token's position.

    Of the first rotary_dim = 2 * cos.shape[1] elements of a head, the pair (a, b) becomes
    (a cos - b sin, a sin + b cos); the others stay as they are. Pair i is (i, i + rotary_dim / 2), or (2 i, 2 i + 1) if
    `interleaved`. Source: Su et al. 2021, arXiv:2104.09864.

    Args:
        input: (tokens, heads, head_dim) or (tokens, parts, heads, head_dim): query and key of a joined projection are
            turned in one call; float32 or float64 on Numba, float32, float16 or bfloat16 on CUDA, any floating dtype on
            NumPy. Views are taken as they are when head_dim is contiguous.
        cos, sin: (rows, rotary_dim / 2), a row for each position (see `rotary_tables`); float64 for float64 input,
            else float32.
        cu_seqlens: integer offsets of the sequences, (sequences + 1,): the positions count from each sequence's start.
            Without it all tokens are one sequence.
        positions: integers, (tokens,), rows of the tables; instead of cu_seqlens. On a GPU neither is checked.
        interleaved: which elements are a pair.
        inplace: write to `input`, which is then returned, and not to a new array.
        backend: "numpy", "numba" or "cupy"; by default the one in force (see `use_backend`).

    Returns:
        An array of the kind, shape and dtype of `input`.

    Raises:
        TypeError, ValueError: for a wrong kind of array, dtype or shape, for a position beyond the tables, and for an
            input that cannot be written to if `inplace`.
        BackendUnavailable: if the backend cannot run here.
    """
    angles = {"cos": cos, "sin": sin, "cu_seqlens": cu_seqlens, "positions": positions}
    call, checked = _open("rotary", {"input": input} | angles, interleaved, inplace, backend)
    return call.run("rotary", *checked, bool(interleaved), bool(inplace))


def rotary_backward(
    grad_output: Any,
    cos: Any,
    sin: Any,
    *,
    cu_seqlens: Any = None,
    positions: Any = None,
    interleaved: bool = False,
    inplace: bool = False,
    backend: str | None = None,
) -> Any:
    """The gradient of `rotary` with respect to its input: the gradient of the output, turned back.

    Args:
        grad_output: the gradient with respect to the output, of its shape and dtype.
        inplace: write to `grad_output`.
        cos, sin, cu_seqlens, positions, interleaved, backend: as for `rotary`.

    Returns:
        An array of the kind, shape and dtype of `grad_output`.

    Raises:
        As `rotary`.
    """
    angles = {"cos": cos, "sin": sin, "cu_seqlens": cu_seqlens, "positions": positions}
    call, checked = _open("rotary_backward", {"grad_output": grad_output} | angles, interleaved, inplace, backend)
    return call.run("rotary_backward", *checked, bool(interleaved), bool(inplace))


def _open(
    function: str, arrays: dict[str, Any], interleaved: bool, inplace: bool, backend: str | None
) -> tuple[dispatch.Call, tuple[Any, ...]]:
    """The call and its checked arrays; the first of them is what it turns."""
    call = dispatch.open_call(__package__, backend, optional=OPTIONAL, **arrays)
    return call, _check(call, next(iter(arrays)), *call.arrays, interleaved, inplace)


def _check(
    call: dispatch.Call, name: str, array: Any, cos: Any, sin: Any, cu_seqlens: Any, positions: Any, interleaved: Any,
    inplace: Any,
) -> tuple[Any, ...]:  # fmt: skip
    checks.floating(call.backend, **{name: array})
    checks.boolean("interleaved", interleaved)
    checks.boolean("inplace", inplace)
    if array.ndim not in (3, 4):
        raise ValueError(f"{name} has shape {array.shape}, expected (tokens, heads, head_dim) or one axis more")
    _check_tables(array, cos, sin)
    if inplace and not getattr(getattr(array, "flags", None), "writeable", True):
        raise ValueError(f"{name} is read-only, expected an array that can be written to with inplace=True")
    if inplace and checks.is_broadcast(array):
        raise ValueError(f"{name} is broadcast, expected an array that can be changed with inplace=True")
    tokens, rows = array.shape[0], cos.shape[0]
    if positions is not None:
        if cu_seqlens is not None:
            raise ValueError("positions and cu_seqlens are both given, expected one of them")
        checks.integer(positions=positions)
        checks.shape((tokens,), positions=positions)
        checks.in_range("positions", positions, rows)
        return array, cos, sin, None, positions
    longest = tokens
    if cu_seqlens is not None:
        cu_seqlens = checks.offsets("cu_seqlens", cu_seqlens, name, tokens)
        on_host = isinstance(cu_seqlens, np.ndarray)
        longest = int((cu_seqlens[1:] - cu_seqlens[:-1]).max(initial=0)) if on_host and rows < tokens else 0
    if longest > rows:
        raise ValueError(f"cos has {rows} rows, expected at least {longest}, one for each position")
    return array, cos, sin, cu_seqlens, None


def _check_tables(array: Any, cos: Any, sin: Any) -> None:
    expected = working_dtype(array.dtype)
    for name, table in (("cos", cos), ("sin", sin)):
        if table.dtype != expected:
            raise TypeError(f"{name} has dtype {table.dtype}, expected {expected} for an input of {array.dtype}")
    checks.shape((None, None), cos=cos)
    checks.shape(cos.shape, sin=sin)
    if 2 * cos.shape[1] > array.shape[-1]:
        raise ValueError(f"cos has shape {cos.shape}, expected at most {array.shape[-1] // 2} columns: head_dim / 2")
