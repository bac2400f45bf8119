"""Checks of arguments, from metadata alone: a GPU array's values are never read, so no synchronisation is forced.

Each error names the argument, what came and what was expected.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

# What each backend computes in; the reference takes any floating dtype.
BACKEND_DTYPES = {"numba": ("float32", "float64"), "cupy": ("float32", "float16", "bfloat16")}


def floating(backend: str, **arrays: Any) -> None:
    """All given arrays (None is skipped) share one floating dtype that `backend` can compute in."""
    given = {name: array for name, array in arrays.items() if array is not None}
    (first, array), *others = given.items()
    allowed = BACKEND_DTYPES.get(backend)
    if not _is_floating(array.dtype) or (allowed is not None and array.dtype.name not in allowed):
        expected = "a floating dtype" if allowed is None else " or ".join(allowed)
        expected += "" if array.dtype.isnative else " in native byte order"
        raise TypeError(f"{first} has dtype {array.dtype}, backend {backend!r} expects {expected}")
    for name, other in others:
        if other.dtype != array.dtype:
            raise TypeError(f"{name} has dtype {other.dtype}, expected {array.dtype} as {first} has")


def _is_floating(dtype: np.dtype) -> bool:
    # ml_dtypes.bfloat16 reports the kind "V" (void), not "f".
    return dtype.isnative and (dtype.kind == "f" or dtype.name == "bfloat16")


def integer(**arrays: Any) -> None:
    """All arrays hold integers (bool is not one)."""
    for name, array in arrays.items():
        if array.dtype.kind not in "iu" or not array.dtype.isnative:
            order = "" if array.dtype.isnative else " in native byte order"
            raise TypeError(f"{name} has dtype {array.dtype}, expected an integer dtype{order}")


def at_least_ndim(ndim: int, **arrays: Any) -> None:
    """All arrays have `ndim` axes or more."""
    for name, array in arrays.items():
        if array.ndim < ndim:
            raise ValueError(f"{name} has shape {array.shape}, expected at least {ndim} axes")


def shape(expected: tuple[int | None, ...], **arrays: Any) -> None:
    """All given arrays (None is skipped) have exactly the shape `expected`, in which None stands for any length."""
    for name, array in arrays.items():
        if array is None:
            continue
        pairs = zip(array.shape, expected, strict=False)
        if array.ndim != len(expected) or any(wanted not in (None, found) for found, wanted in pairs):
            wanted = ", ".join("any" if size is None else str(size) for size in expected)
            comma = "," if len(expected) == 1 else ""
            raise ValueError(f"{name} has shape {array.shape}, expected ({wanted}{comma})")


def axis(name: str, value: Any, ndim: int) -> int:
    """`value` as an axis of an array with `ndim` axes, counted from the front."""
    value = integer_number(name, value)
    if not -ndim <= value < ndim:
        raise ValueError(f"{name} is {value}, expected an axis of an array with {ndim} axes")
    return value % ndim


def integer_number(name: str, value: Any, *, minimum: int | None = None) -> int:
    """`value` as an int, not below `minimum`."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if minimum is not None and value < minimum:
        raise ValueError(f"{name} is {value}, expected an integer of at least {minimum}")
    return int(value)


def choice(name: str, value: Any, options: Iterable[Any]) -> None:
    """`value` is one of `options`."""
    options = tuple(options)
    if value not in options:
        raise ValueError(f"{name} is {value!r}, expected one of {', '.join(map(repr, options))}")


def finite_number(name: str, value: Any, *, minimum: float | None = None) -> float:
    """`value` as a finite float, not below `minimum`."""
    if not isinstance(value, int | float | np.integer | np.floating) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not np.isfinite(value) or (minimum is not None and value < minimum):
        expected = "a finite number" if minimum is None else f"a finite number of at least {minimum}"
        raise ValueError(f"{name} is {value}, expected {expected}")
    return float(value)


def in_range(name: str, values: Any, size: int, *, also: int | None = None) -> None:
    """Host integers lie in [0, size), or equal `also`; arrays on a GPU are not read (the kernels guard themselves)."""
    if not isinstance(values, np.ndarray) or values.size == 0:
        return
    wrong = (values < 0) | (values >= size)
    if also is not None:
        wrong &= values != also
    if wrong.any():
        where = tuple(int(index) for index in np.argwhere(wrong)[0])
        otherwise = "" if also is None else f" or {also}"
        raise ValueError(f"{name}{list(where)} is {values[where]}, expected a value from 0 to {size - 1}{otherwise}")
