"""Constraints on the arguments of operations, declared by name in a record (operation.py).

`check` returns the value to compute with. It raises TypeError for a wrong type or dtype, ValueError for a wrong value,
shape or length.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from . import checks
from .arrays import DTypeLike, NativeArray, Operand, is_bfloat16, working_dtype

MISSING = "expected a NumPy, CuPy or PyTorch array"


class Call(Protocol):
    """The call whose arguments are checked, in their order; see operation.Call.

    Attributes:
        backend: the backend that computes it.
        given: the arguments, checked up to the current one.
        dtype, first: the dtype of the floating arrays, and the name of the first of them; None and "" before it.
        sizes: the sizes of axes by name.
    """

    backend: str
    given: list[Any]
    dtype: Any
    first: str
    sizes: dict[Any, Any]

    def value(self, name: str) -> Any:
        """Return an argument by name."""


class Argument:
    """The constraint on one argument; `check` returns the value to compute with.

    Attributes:
        schema: the argument's type in a PyTorch operator; "" if only eager calls accept values other than the default.
    """

    is_array = False
    schema = ""
    plain: tuple[type, ...] = ()  # classes other than arrays that an array argument accepts

    def __init__(self, schema: str | None = None):
        if schema is not None:
            self.schema = schema

    def traced(self, name: str, value: object) -> object:
        """Return the value in the form of a PyTorch operator with this schema."""
        return value

    def check(self, name: str, value: Any, call: Call) -> Any:
        """Return the value to compute with."""
        return value


class _Array(Argument):
    """An array whose axes have names: an axis has the same size wherever its name occurs in one call.

    Args:
        shape: the names of the axes, "rows classes", or "... width": any number of axes, then one called width. "" if
            the contract checks the shape itself.
        optional: whether the argument may be None.
    """

    is_array, schema = True, "Tensor?"

    def __init__(self, shape: str, *, optional: bool = False):
        self.axes, self.optional = tuple(shape.split()), optional

    def check(self, name: str, array: Operand | None, call: Call) -> Operand | None:
        if array is None:
            if self.optional:
                return None
            raise TypeError(f"{name} is None, {MISSING}")
        self._check_dtype(name, array, call)
        sizes = call.sizes
        if self.axes and sizes.get(self.axes) != array.shape:
            check_axes(name, array.shape, self.axes, sizes)
        return array

    def _check_dtype(self, name: str, array: Operand, call: Call) -> None:
        raise NotImplementedError


class Floats(_Array):
    """An array of a floating dtype that the backend computes in, the same for all arrays of a call.

    With `stored` the array may also be bfloat16 on Numba, which widens it.
    """

    def __init__(self, shape: str, *, optional: bool = False, stored: bool = False):
        super().__init__(shape, optional=optional)
        self.stored = stored

    def _check_dtype(self, name: str, array: Operand, call: Call) -> None:
        dtype = call.dtype
        if dtype is None:
            if not (self.stored and call.backend == "numba" and is_bfloat16(array.dtype)):
                checks.floating(call.backend, **{name: array})
            call.dtype, call.first = array.dtype, name
        elif array.dtype is not dtype and array.dtype != dtype:
            raise TypeError(f"{name} has dtype {array.dtype}, expected {dtype} as {call.first} has")


class WideFloats(_Array):
    """An array of the dtype that the call computes in: float64 for float64 arrays, else float32."""

    def _check_dtype(self, name: str, array: Operand, call: Call) -> None:
        expected = working_dtype(call.dtype)
        if array.dtype != expected:
            raise TypeError(f"{name} has dtype {array.dtype}, expected {expected} for {call.first} of {call.dtype}")


class Integers(_Array):
    """An array of integers."""

    def _check_dtype(self, name: str, array: Operand, call: Call) -> None:
        checks.integer(**{name: array})


class QuantizedRows(_Array):
    """An array of bits, eight in a byte (uint8), or of int8, the same dtype for all arrays of a call."""

    def _check_dtype(self, name: str, array: Operand, call: Call) -> None:
        if array.dtype not in (np.uint8, np.int8):
            raise TypeError(f"{name} has dtype {array.dtype}, expected uint8 or int8")
        if call.dtype is None:
            call.dtype, call.first = array.dtype, name
        elif array.dtype != call.dtype:
            raise TypeError(f"{name} has dtype {array.dtype}, expected {call.dtype} as {call.first} has")


class AnyArray(_Array):
    """An array of any dtype, which the contract checks itself."""

    def _check_dtype(self, name: str, array: Operand, call: Call) -> None:
        pass


class Offsets(Argument):
    """Integer offsets of packed sequences, (sequences + 1,), from 0 to the size of the first axis of another argument.

    They become int32. On a GPU their values are not read.
    """

    is_array, schema = True, "Tensor?"

    def __init__(self, of: str, *, optional: bool = False):
        self.of, self.optional = of, optional

    def check(self, name: str, value: NativeArray | None, call: Call) -> NativeArray | None:
        if value is None and self.optional:
            return None
        if value is None:
            raise TypeError(f"{name} is None, {MISSING}")
        if not (shape := call.value(self.of).shape):
            raise ValueError(f"{self.of} has shape (), expected (tokens, ...) with {name}")
        return checks.offsets(name, value, self.of, shape[0])


class Seed(Argument):
    """A seed of dropout: an integer of 64 bits or, on CUDA, an array of one uint64."""

    is_array, schema = True, "SymInt"
    plain = (int, float, str, np.generic)  # `check` distinguishes them

    def traced(self, name: str, value: object) -> object:
        if hasattr(value, "dtype") and not isinstance(value, np.generic):
            raise TypeError(f"{name} is an array, expected an integer under PyTorch's transforms")
        if isinstance(value, int) and 1 << 63 <= value < 1 << 64:  # an operator's integers are signed
            return value - (1 << 64)
        return value

    def check(self, name: str, value: Any, call: Call) -> int | NativeArray:
        if hasattr(value, "dtype") and not isinstance(value, np.generic):
            checks.seed_array(call.backend, **{name: value})
            return value
        return checks.seed(name, value)


class Axis(Argument):
    """An axis of another argument; `check` returns its number counted from the front."""

    schema = "SymInt"

    def __init__(self, of: str):
        self.of = of

    def check(self, name: str, value: object, call: Call) -> int:
        array = call.value(self.of)
        if not array.ndim:
            raise ValueError(f"{self.of} has shape (), expected one or more axes")
        return checks.axis(name, value, array.ndim)


class Number(Argument):
    """A number in the range of the call's dtype."""

    schema = "float"

    def __init__(self, minimum: float | None = None):
        self.minimum = minimum

    def check(self, name: str, value: object, call: Call) -> float:
        return checks.number_of(call.dtype, name, value, minimum=self.minimum)


class Integer(Argument):
    """An integer, not below `minimum`; if `bits` is given, it must fit in a signed integer of that many bits."""

    schema = "SymInt"

    def __init__(self, minimum: int | None = None, bits: int | None = None):
        self.minimum, self.bits = minimum, bits

    def check(self, name: str, value: object, call: Call) -> int:
        value = checks.integer_number(name, value, minimum=self.minimum)
        if self.bits is not None and not -(2 ** (self.bits - 1)) <= value < 2 ** (self.bits - 1):
            raise ValueError(f"{name} is {value}, expected an integer of {self.bits} bits")
        return value


class Probability(Argument):
    """A number of at least 0 and below 1."""

    schema = "float"

    def check(self, name: str, value: object, call: Call) -> float:
        return checks.probability(name, value)


class Flag(Argument):
    """True or False."""

    schema = "bool"

    def check(self, name: str, value: object, call: Call) -> bool:
        return checks.boolean(name, value)


class ResultDtype(Argument):
    """The floating dtype of the result; by default that of the arrays."""

    def check(self, name: str, value: DTypeLike | None, call: Call) -> np.dtype:
        return call.dtype if value is None else checks.floating_dtype(name, value)


class ParameterDtype(Argument):
    """The dtype of the gradients of parameters: by default that of `saved.input`; or float32 if that has 16 bits."""

    def check(self, name: str, value: DTypeLike | None, call: Any) -> np.dtype:
        return checks.gradient_dtype(call.saved.input, value)


class Choice(Argument):
    """One of several names, or None if None is one of the options."""

    schema = "str?"

    def __init__(self, *options: str | None):
        self.options = options

    def check(self, name: str, value: object, call: Call) -> object:
        checks.choice(name, value, self.options)
        return value


def check_axes(name: str, shape: tuple[int, ...], axes: tuple[str, ...], sizes: dict[Any, Any]) -> None:
    """Check a shape against the names of its axes and record their sizes; ValueError if it does not fit."""
    found = dict(zip(reversed(axes), reversed(shape), strict=False))  # from the end, so that "..." comes last
    if axes[0] == "...":
        fits = len(shape) >= len(axes) - 1
        found["..."] = shape[: len(shape) - len(axes) + 1]
    else:
        fits = len(shape) == len(axes)
    known = sizes | {axes: shape}
    for axis, size in found.items():
        fits = fits and known.setdefault(axis, size) == size
    if not fits:
        raise ValueError(f"{name} has shape {tuple(shape)}, expected {_expected(axes, sizes)}")
    sizes.update(known)


def _expected(axes: tuple[str, ...], sizes: dict[Any, Any]) -> str:
    parts: list[str] = []
    for axis in axes:
        size = sizes.get(axis, axis)
        parts += map(str, size) if isinstance(size, tuple) else [str(size)]
    return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"
