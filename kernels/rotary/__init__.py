"""Rotary position embeddings, forward and backward, and the tables of their angles."""

import math
from typing import Any, NamedTuple

import numpy as np

from .. import checks
from ..arguments import Flag, Floats, Integers, Offsets, WideFloats
from ..arrays import Array, ArrayT, NativeArray, Operand, ieee_arithmetic
from ..operation import Function, Operation

SCALINGS = (None, "linear", "ntk", "dynamic")


class RotarySaved(NamedTuple):
    """The arrays and numbers that `rotary` keeps for its backward: the angles, and the shape and dtype of the input."""

    cos: Array
    sin: Array
    cu_seqlens: Array | None
    positions: Array | None
    interleaved: bool
    shape: tuple[int, ...]
    dtype: np.dtype


def _forward(function: Function, backend: str, save: bool, input: Operand, *angles: Any) -> Any:
    *angles, inplace = angles
    output = function(input, *angles, inplace)
    return (output, RotarySaved(*angles, input.shape, input.dtype)) if save else output


def _backward(
    function: Function, backend: str, grad_output: NativeArray, saved: RotarySaved, inplace: bool = False
) -> NativeArray:
    return function(grad_output, *saved[:5], inplace)


ROTARY = Operation(
    __package__,
    "rotary",
    {
        "input": Floats("..."),
        "cos": WideFloats("rows pairs"),
        "sin": WideFloats("rows pairs"),
        "cu_seqlens": Offsets(of="input", optional=True),
        "positions": Integers("tokens", optional=True),
        "interleaved": Flag(),
        "inplace": Flag(schema=""),
    },
    saves=RotarySaved,
    gradients=("input",),
    output=lambda saved: (saved.shape, saved.dtype),
    options={"inplace": Flag()},
    forward=_forward,
    backward=_backward,
)


def rotary(
    input: ArrayT,
    cos: Array,
    sin: Array,
    *,
    cu_seqlens: Array | None = None,
    positions: Array | None = None,
    interleaved: bool = False,
    inplace: bool = False,
    save: bool = False,
    backend: str | None = None,
) -> Any:
    """Rotate each token's heads, pair by pair, by the angles of the token's position.

    Of the first rotary_dim = 2 * cos.shape[1] elements of a head, the pair (a, b) becomes (a cos - b sin, a sin + b
    cos); the others are unchanged. Pair i is (i, i + rotary_dim / 2), or (2 i, 2 i + 1) if `interleaved`. Source: Su et
    al. 2021, arXiv:2104.09864.

    Args:
        input: (tokens, heads, head_dim) or (tokens, parts, heads, head_dim): query and key of a joined projection are
            rotated in one call; float32 or float64 on Numba, float32, float16 or bfloat16 on CUDA, any floating dtype
            on NumPy. Views are taken as they are when head_dim is contiguous.
        cos, sin: (rows, rotary_dim / 2), a row for each position (see `rotary_tables`); float64 for float64 input,
            else float32.
        cu_seqlens: integer offsets of the sequences, (sequences + 1,): the positions count from each sequence's start.
            Without it all tokens are one sequence.
        positions: integers, (tokens,), rows of the tables; instead of cu_seqlens. On a GPU neither is checked.
        interleaved: which elements form a pair; see above.
        inplace: write to `input` and return it, instead of a new array.
        save: also return the state that `rotary_backward` needs.
        backend: "numpy", "numba" or "cupy"; by default the active one (see `use_backend`).

    Returns:
        An array of the kind, shape and dtype of `input`; with `save`, a tuple of it and a `RotarySaved`.

    Raises:
        TypeError: for a wrong kind of array or dtype.
        ValueError: for a wrong shape, a position beyond the tables, and an input that cannot be written to if
            `inplace`.
        BackendUnavailable: if the backend cannot run here.
    """
    call = ROTARY.open(backend, input, cos, sin, cu_seqlens, positions, interleaved, inplace)
    _check(*call.given)
    return call.run(save)


def rotary_backward(
    grad_output: ArrayT, saved: RotarySaved, *, inplace: bool = False, backend: str | None = None
) -> ArrayT:
    """Return the gradient of `rotary` with respect to its input: the gradient of the output, rotated back.

    Args:
        grad_output: the gradient with respect to the output, of its shape and dtype.
        saved: the state that `rotary` returned with `save=True`.
        inplace: write to `grad_output`.
        backend: as for `rotary`; errors are the same.

    Returns:
        An array of the kind, shape and dtype of `grad_output`.
    """
    call = ROTARY.open_backward(backend, grad_output, saved, inplace=inplace)
    _check(call.grad_output, *call.saved[:5])
    if call.options["inplace"]:
        _check_writable("grad_output", call.grad_output)
    return call.run()


def _check(
    input: Operand, cos: NativeArray, sin: NativeArray, cu_seqlens: NativeArray | None, positions: NativeArray | None,
    interleaved: bool, inplace: bool = False,
) -> None:  # fmt: skip
    """Check that tables, positions and the shape of the input are consistent."""
    if input.ndim not in (3, 4):
        raise ValueError(f"input has shape {input.shape}, expected (tokens, heads, head_dim) or one axis more")
    if 2 * cos.shape[1] > input.shape[-1]:
        raise ValueError(f"cos has shape {cos.shape}, expected at most {input.shape[-1] // 2} columns: head_dim / 2")
    if inplace:
        _check_writable("input", input)
    tokens, rows = input.shape[0], cos.shape[0]
    if positions is not None:
        if cu_seqlens is not None:
            raise ValueError("positions and cu_seqlens are both given, expected one of them")
        checks.shape((tokens,), positions=positions)
        checks.in_range("positions", positions, rows)
        return
    longest = tokens
    if cu_seqlens is not None:
        on_host = isinstance(cu_seqlens, np.ndarray)
        longest = int((cu_seqlens[1:] - cu_seqlens[:-1]).max(initial=0)) if on_host and rows < tokens else 0
    if longest > rows:
        raise ValueError(f"cos has {rows} rows, expected at least {longest}, one for each position")


def _check_writable(name: str, array: Operand) -> None:
    if not getattr(getattr(array, "flags", None), "writeable", True):
        raise ValueError(f"{name} is read-only, expected an array that can be written to with inplace=True")
    if checks.overlaps_itself(array):
        raise ValueError(f"{name} is broadcast or overlaps itself, expected an array for inplace=True without overlap")


def rotary_tables(
    length: int,
    rotary_dim: int,
    theta: float = 10000.0,
    *,
    scaling: str | None = None,
    factor: float = 1.0,
    trained_length: int | None = None,
    dtype: np.dtype | type = np.float32,
) -> tuple[np.ndarray, np.ndarray]:
    """Return cos and sin of the angles by which `rotary` rotates the pairs of the positions from 0 to length - 1.

    The angle of pair i at position p is p * theta^(-2 i / d), d = rotary_dim, in float64; only cos and sin are rounded.
    For texts longer than those trained on, `scaling` stretches the positions:

    - "linear": the angle is divided by factor (Chen et al. 2023, arXiv:2306.15595).
    - "ntk": theta is multiplied by factor, and the angle divided by factor^(2 / d).
    - "dynamic": theta is multiplied by (factor length / trained_length - factor + 1)^(d / (d - 2)) if `length`
      exceeds trained_length: `length` is that of the one text.

    The source of the last two is Peng et al. 2023, arXiv:2309.00071, section 3.

    Args:
        length: the number of positions.
        rotary_dim: how many elements of a head are rotated; even.
        theta: the base of the angles; positive.
        scaling: None, "linear", "ntk" or "dynamic".
        factor: at least 1.
        trained_length: the number of positions trained on; "dynamic" needs it.
        dtype: of the tables; floating.

    Returns:
        (cos, sin), each (length, rotary_dim / 2).

    Raises:
        TypeError, ValueError: for a number that is not as above, and for numbers that make the angles infinite.
    """
    length = checks.integer_number("length", length, minimum=0)
    rotary_dim = checks.integer_number("rotary_dim", rotary_dim, minimum=2)
    if rotary_dim % 2:
        raise ValueError(f"rotary_dim is {rotary_dim}, expected an even number")
    theta = checks.finite_number("theta", theta)
    if theta <= 0:
        raise ValueError(f"theta is {theta}, expected a positive number")
    checks.choice("scaling", scaling, SCALINGS)
    factor = checks.finite_number("factor", factor, minimum=1)
    divisor = 1.0
    if scaling == "linear":
        divisor = factor
    elif scaling == "ntk":
        theta, divisor = theta * factor, factor ** (2 / rotary_dim)
    elif scaling == "dynamic":
        theta *= _dynamic_stretch(length, rotary_dim, factor, trained_length)
    dtype = checks.floating_dtype("dtype", dtype)
    angles = _angles(length, rotary_dim, theta, divisor)
    if not (math.isfinite(theta) and np.isfinite(angles[-1:]).all()):
        raise ValueError(f"theta is {theta} with a factor of {factor}, expected numbers that keep the angles finite")
    return np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)


@ieee_arithmetic
def _angles(length: int, rotary_dim: int, theta: float, divisor: float) -> np.ndarray:
    """Return the angles, (length, rotary_dim / 2); inf or NaN if they overflow."""
    return np.arange(length)[:, None] * (theta ** (-np.arange(0, rotary_dim, 2) / rotary_dim) / divisor)


def _dynamic_stretch(length: int, rotary_dim: int, factor: float, trained_length: int | None) -> float:
    trained_length = checks.integer_number("trained_length", trained_length, minimum=1)
    if rotary_dim == 2:  # its only pair does not depend on theta
        return 1.0
    stretch = np.float64(factor * max(length / trained_length, 1.0) - (factor - 1))
    with np.errstate(over="ignore"):  # inf, which the caller rejects
        return float(stretch ** (rotary_dim / (rotary_dim - 2)))
