"""Checks of arguments, from metadata alone: a GPU array's values are never read, so no synchronisation is forced.

Each error names the argument, its value and the expected one.
"""

import functools
import itertools
import math
from collections.abc import Collection
from typing import Any

import numpy as np

from .arrays import DTypeLike, NativeArray, Operand, is_bfloat16, working_dtype

LARGEST = int(np.finfo(np.float64).max)
SMALLEST_FLOAT32, LARGEST_FLOAT32 = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
_NUMBERS = (int, float, np.integer, np.floating)

# The dtypes that each backend computes in; the reference accepts any floating dtype.
BACKEND_DTYPES = {"numba": ("float32", "float64"), "cupy": ("float32", "float16", "bfloat16")}


def floating(backend: str, **arrays: Operand | None) -> None:
    """Raise TypeError unless all arrays share a floating dtype that `backend` computes in; None entries are skipped."""
    dtype = None
    for name, array in arrays.items():
        if array is None:
            continue
        if dtype is None:
            first, dtype = name, array.dtype
            problem = _floating_problem(backend, dtype)
            if problem is not None:
                raise TypeError(f"{name} has dtype {dtype}, backend {backend!r} expects {problem}")
        elif array.dtype is not dtype and array.dtype != dtype:
            raise TypeError(f"{name} has dtype {array.dtype}, expected {dtype} as {first} has")


@functools.cache  # NumPy builds a dtype's name anew at each access
def _floating_problem(backend: str, dtype: np.dtype) -> str | None:
    """Return what `backend` expects instead of `dtype`; None if it computes in it."""
    allowed = BACKEND_DTYPES.get(backend)
    # The kind of ml_dtypes.bfloat16 is "V" (void), not "f".
    is_floating = dtype.isnative and (dtype.kind == "f" or is_bfloat16(dtype))
    if is_floating and (allowed is None or dtype.name in allowed):
        return None
    return ("a floating dtype" if allowed is None else " or ".join(allowed)) + (
        "" if dtype.isnative else " in native byte order"
    )


def integer(**arrays: Operand) -> None:
    """Raise TypeError unless all arrays hold integers; booleans are not integers."""
    for name, array in arrays.items():
        if array.dtype.kind not in "iu" or not array.dtype.isnative:
            order = "" if array.dtype.isnative else " in native byte order"
            raise TypeError(f"{name} has dtype {array.dtype}, expected an integer dtype{order}")


def of_one_length(**lists: Any) -> int:
    """Return the length of all lists; TypeError for anything but lists and tuples, ValueError if they differ."""
    for name, arrays in lists.items():
        if not isinstance(arrays, list | tuple):
            raise TypeError(f"{name} is {type(arrays).__qualname__}, expected a list of arrays")
    (first, count), *others = ((name, len(arrays)) for name, arrays in lists.items())
    for name, length in others:
        if length != count:
            raise ValueError(f"{name} is {length} arrays, expected a list of {count} arrays as {first} has")
    return count


@functools.lru_cache(maxsize=64)  # every training step needs the same 600
def numbers(name: str, count: int) -> list[str]:
    """Return the names in errors of the arrays of a list: "grads[0]", "grads[1]" ..."""
    return [f"{name}[{index}]" for index in range(count)]


def shape(expected: tuple[int | None, ...], **arrays: Operand | None) -> None:
    """Raise ValueError unless all arrays have the shape `expected`, None for any length; None entries are skipped."""
    for name, array in arrays.items():
        if array is not None and array.shape != expected and not _fits(array.shape, expected):
            wanted = ", ".join("any" if size is None else str(size) for size in expected)
            comma = "," if len(expected) == 1 else ""
            raise ValueError(f"{name} has shape {array.shape}, expected ({wanted}{comma})")


def _fits(found: tuple[int, ...], expected: tuple[int | None, ...]) -> bool:
    if len(found) != len(expected):
        return False
    for size, wanted in zip(found, expected, strict=True):  # noqa: SIM110 (all() of a generator: twice as long)
        if wanted is not None and wanted != size:
            return False
    return True


def axis(name: str, value: object, ndim: int) -> int:
    """Return `value` as an axis of an array with `ndim` axes, counted from the front."""
    value = integer_number(name, value)
    if not -ndim <= value < ndim:
        raise ValueError(f"{name} is {value}, expected an axis of an array with {ndim} axes")
    return value % ndim


def integer_number(name: str, value: object, *, minimum: int | None = None) -> int:
    """Return `value` as an int, not below `minimum`."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}, expected an integer")
    if minimum is not None and value < minimum:
        raise ValueError(f"{name} is {value}, expected an integer of at least {minimum}")
    return int(value)


def boolean(name: str, value: object) -> bool:
    """Return `value` as a bool; TypeError for anything else."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} is {value!r}, expected True or False")
    return bool(value)


def floating_dtype(name: str, value: DTypeLike | None) -> np.dtype:
    """Return `value` as a floating dtype of NumPy or ml_dtypes."""
    try:
        dtype = np.dtype(value)
    except (TypeError, ValueError) as error:  # ValueError of tuples
        raise TypeError(f"{name} is {value!r}, expected a floating dtype") from error
    problem = _floating_problem("numpy", dtype)
    if problem is not None:
        raise TypeError(f"{name} is {dtype}, expected {problem}")
    return dtype


def gradient_dtype(input: Operand, dtype: Any, found: str = "dtype is") -> np.dtype:
    """Return the dtype of parameter gradients: that of `input`, also for None, or float32 for a 16-bit input."""
    if dtype is None:
        return input.dtype
    dtype, allowed = floating_dtype("dtype", dtype), dict.fromkeys((input.dtype, working_dtype(input.dtype)))
    if dtype not in allowed:
        expected = " or ".join(map(str, allowed))
        raise TypeError(f"{found} {dtype}, expected {expected} for an input of {input.dtype}")
    return dtype


def same_dtype(like: str, array: Operand, **arrays: Operand) -> None:
    """Raise TypeError unless the arrays have the dtype of `array`, whose name is `like`."""
    for name, other in arrays.items():
        if other.dtype != array.dtype:
            raise TypeError(f"{name} has dtype {other.dtype}, expected {array.dtype} as {like} has")


def dtype_of_moments(**parameter: NativeArray) -> np.dtype:
    """Return the dtype of a parameter and its moments: not 16 bits, in which eps and most squared gradients are 0."""
    ((name, array),) = parameter.items()
    if array.dtype.itemsize < 4:
        raise TypeError(f"{name} has dtype {array.dtype}, expected float32 or float64: moments need more than 16 bits")
    return array.dtype


def choice(name: str, value: object, options: Collection[Any]) -> None:
    """Raise TypeError for anything but text (or None, if that is an option), ValueError for another text."""
    if isinstance(value, str | None) and value in options:
        return
    error = ValueError if isinstance(value, str) else TypeError
    raise error(f"{name} is {value!r}, expected one of {', '.join(map(repr, options))}")


def finite_number(name: str, value: object, *, minimum: float | None = None) -> float:
    """Return `value` as a finite float, not below `minimum`."""
    if type(value) is not float and (not isinstance(value, _NUMBERS) or isinstance(value, bool)):
        raise TypeError(f"{name} is {value!r}, expected a number")
    if isinstance(value, int) and abs(value) > LARGEST:  # float() and isfinite() raise OverflowError
        raise ValueError(f"{name} is an integer of {value.bit_length()} bits, expected a finite number")
    if not math.isfinite(value) or (minimum is not None and value < minimum):
        expected = "a finite number" if minimum is None else f"a finite number of at least {minimum}"
        raise ValueError(f"{name} is {value}, expected {expected}")
    return float(value)


def number_of(
    dtype: np.dtype, name: str, value: object, *, minimum: float | None = None, may_vanish: bool = False
) -> float:
    """Return `value` as a float for arrays of `dtype`: 0, or a normal number of the working dtype.

    Other numbers would become inf or 0 in compiled code, at limits that depend on the backend. With `may_vanish` a
    number that is too small counts as 0.
    """
    value = finite_number(name, value, minimum=minimum)
    if not value or SMALLEST_FLOAT32 <= abs(value) <= LARGEST_FLOAT32:  # normal in every working dtype; saves 1 us
        return value
    working, smallest, largest = _normal_range(dtype)
    if not smallest <= abs(value) <= largest:
        if may_vanish and abs(value) < smallest:
            return 0.0
        raise ValueError(
            f"{name} is {value}, expected 0 or a magnitude from {smallest:.3g} to {largest:.3g}, as {working} has it"
        )
    return value


@functools.cache
def _normal_range(dtype: np.dtype) -> tuple[np.dtype, float, float]:
    """Return the working dtype, its smallest normal number and its largest."""
    working = working_dtype(dtype)
    limits = np.finfo(working)
    return working, float(limits.tiny), float(limits.max)


def overlaps_itself(array: Operand) -> bool:
    """Return whether elements of `array` may share memory: an axis steps by less than those within it span."""
    span, steps = array.itemsize, zip(map(abs, array.strides), array.shape, strict=True)
    for stride, size in sorted(step for step in steps if step[1] > 1):
        if stride < span:
            return array.size > 0
        span += (size - 1) * stride
    return False


def aligned(**arrays: Any) -> None:
    """Raise ValueError unless the elements of CuPy arrays are at multiples of their size, as a GPU requires."""
    for name, array in arrays.items():
        if array is None or not math.gcd(array.data.ptr, *array.strides) % array.itemsize:
            continue
        size, address = array.itemsize, array.data.ptr
        strides = (stride for stride, length in zip(array.strides, array.shape, strict=True) if length > 1)
        if array.size and (address % size or any(stride % size for stride in strides)):
            raise ValueError(
                f"{name} has elements of {size} bytes at addresses that are not multiples of {size}, expected an array "
                "that is aligned: copy it"
            )


def updatable(**arrays: NativeArray) -> None:
    """Raise ValueError unless the arrays can be changed in place, in C order."""
    for name, array in arrays.items():
        flags = array.flags
        # On a GPU all arrays are writable; see `aligned`.
        if flags.c_contiguous and (not isinstance(array, np.ndarray) or (flags.writeable and flags.aligned)):
            continue
        is_read_only = isinstance(array, np.ndarray) and not flags.writeable
        what = "read-only" if is_read_only else "not C-contiguous and aligned"
        raise ValueError(f"{name} is {what}, expected an array that can be updated in place")


def writable_rows(name: str, array: NativeArray) -> None:
    """Raise ValueError unless `array` is writable and its rows are contiguous."""
    flags = array.flags
    is_writable = getattr(flags, "writeable", True) and not overlaps_itself(array)
    has_rows = array.size == 0 or array.shape[-1] == 1 or array.strides[-1] == array.itemsize
    if not (is_writable and has_rows and getattr(flags, "aligned", True)):
        what = "not of contiguous rows and aligned" if is_writable else "read-only, broadcast or overlapping itself"
        raise ValueError(f"{name} is {what}, expected an array that can be written to row by row")


def no_two_overlap(**arrays: NativeArray) -> None:
    """Raise ValueError if two C-contiguous arrays in host memory overlap."""
    on_host = [(name, array) for name, array in arrays.items() if isinstance(array, np.ndarray)]
    for (name, array), (other, beside) in itertools.combinations(on_host, 2):
        if np.may_share_memory(array, beside):
            raise ValueError(f"{name} and {other} share memory, expected arrays that do not overlap")


def overlaps_none(target: str, arrays: dict[str, Any]) -> None:
    """Raise ValueError if the array named `target` overlaps another in host memory; None entries are skipped.

    Takes 0.3 us for each pair in separate memory, up to 30 us for two views of one array.
    """
    on_host = {name: array for name, array in arrays.items() if isinstance(array, np.ndarray)}
    written = on_host.pop(target, None)
    for name, array in on_host.items():
        if written is not None and np.shares_memory(written, array):
            raise ValueError(f"{target} shares memory with {name}, expected an array that overlaps no other")


def probability(name: str, value: object) -> float:
    """Return `value` as a float of at least 0 and below 1."""
    value = finite_number(name, value, minimum=0)
    if value >= 1:
        raise ValueError(f"{name} is {value}, expected a probability of at least 0 and below 1")
    return value


def seed(name: str, value: object) -> int:
    """Return `value` as an int of 64 bits, not negative."""
    value = integer_number(name, value, minimum=0)
    if value >= 1 << 64:
        raise ValueError(f"{name} is {value}, expected an integer below 2^64")
    return value


def seed_array(backend: str, **arrays: NativeArray | None) -> None:
    """Raise an error unless a seed that is an array is one uint64 on CUDA, whose kernels read it when they run."""
    for name, array in arrays.items():
        if array is None:
            continue
        if backend != "cupy":
            raise TypeError(f"{name} is an array, backend {backend!r} expects an integer")
        if array.dtype != np.uint64:
            raise TypeError(f"{name} has dtype {array.dtype}, expected an integer or an array of uint64")
        if array.shape not in ((), (1,)):
            raise ValueError(f"{name} has shape {array.shape}, expected () or (1,)")


def in_range(name: str, values: NativeArray, size: int, *, also: int | None = None) -> None:
    """Raise ValueError unless host integers lie in [0, size) or equal `also`; arrays on a GPU are not read."""
    if not isinstance(values, np.ndarray) or values.size == 0:
        return
    wrong = (values < 0) | (values >= size)
    if also is not None:
        wrong &= values != also
    if wrong.any():
        where = tuple(int(index) for index in np.argwhere(wrong)[0])
        expected = [f"a value from 0 to {size - 1}"] * (size > 0) + [str(also)] * (also is not None)
        found = f"{name}{list(where) or ''} is {values[where]}"
        raise ValueError(f"{found}, expected {' or '.join(expected) or 'an empty array'}")


def offsets(name: str, values: NativeArray, what: str, tokens: int) -> NativeArray:
    """Return `values` as int32 offsets of sequences that fill the `tokens` of `what`; on a GPU they are not read."""
    integer(**{name: values})
    if values.ndim != 1 or values.shape[0] == 0:
        raise ValueError(f"{name} has shape {values.shape}, expected (sequences + 1,)")
    if isinstance(values, np.ndarray):
        if values.item(0) != 0 or values.item(-1) != tokens:
            raise ValueError(
                f"{name} runs from {values[0]} to {values[-1]}, expected 0 to {tokens}, the tokens of {what}"
            )
        # A single pair of offsets was already compared above, which saves 2 us in a call with one sequence.
        falls = (values[1:] < values[:-1]).nonzero()[0] if values.shape[0] > 2 else ()
        if len(falls):
            at = int(falls[0])
            raise ValueError(f"{name}[{at + 1}] is {values[at + 1]}, expected at least {values[at]} as {name}[{at}] is")
    return values.astype(np.int32, copy=False)
