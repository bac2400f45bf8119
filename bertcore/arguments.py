"""Arguments of public functions: dtype names, checks, warnings at the caller's line, printable text, optional packages.

Each error names the argument, what came and what was expected: TypeError for a wrong type, ValueError for a wrong
value. Imports nothing but the standard library, because `bertcore --help` reads it.
"""

import functools
import importlib
import math
import numbers
import operator
import os
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeAlias, TypeVar, get_args

if TYPE_CHECKING:
    import numpy as np

INT8 = ("int8", "int8_weight_only")
DType: TypeAlias = Literal["float32", "float64", "float16", "bfloat16", "int8", "int8_weight_only"]
DTYPES: tuple[str, ...] = get_args(DType)  # that a model can be loaded in

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_PACKAGE = os.path.dirname(__file__) + os.sep


def check_count(name: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """Return `value` as an int from `least` to `most`. Raises TypeError for anything but an integer."""
    expected = "a positive integer" if least == 1 else f"an integer of at least {least}"
    try:
        count = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        count = None
    if count is None:
        raise TypeError(f"{name} is {value!r}, expected {expected}")
    if count < least:
        raise ValueError(f"{name} is {count}, expected {expected}")
    if most is not None and count > most:
        raise ValueError(f"{name} is {count}, expected at most {most}")
    return count


def check_share(name: str, value: object) -> float:
    """Return `value` as a Python number from 0 to 1. Raises TypeError for a non-number."""
    number = _number(name, value, "a number from 0 to 1")
    if not 0 <= number <= 1:
        raise ValueError(f"{name} is {value!r}, expected a number from 0 to 1")
    return number


def check_number(name: str, value: object, *, above_zero: bool = False) -> float:
    """Return `value` as a finite Python number of at least 0, or above 0. Raises TypeError for a non-number."""
    number = _number(name, value, "a number")
    if isinstance(number, int) and number > sys.float_info.max:
        raise ValueError(f"{name} is an integer of {number.bit_length()} bits, expected a finite number")
    if not 0 <= number < math.inf or (above_zero and number == 0):
        raise ValueError(f"{name} is {number}, expected a finite number {'above' if above_zero else 'of at least'} 0")
    return number


def _number(name: str, value: object, expected: str) -> float:
    """Convert one of Python's or NumPy's numbers to Python's, which JSON can hold."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} is {value!r}, expected {expected}")
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def check_numbers(name: str, values: object) -> "np.ndarray":
    """Return `values` as an array. Raises TypeError for non-numbers, ValueError for rows of different lengths."""
    import numpy as np

    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ValueError(f"{name} has rows of different lengths, expected a table of numbers: {error}") from error
    if array.dtype.kind not in "fiu":
        raise TypeError(f"{name} has dtype {array.dtype}, expected numbers")
    return array


def as_float32(name: str, numbers: Any) -> Any:
    """Return an array, or a sparse matrix, as float32. Raises ValueError for finite numbers beyond its range."""
    import numpy as np

    try:
        with np.errstate(over="raise"):
            return numbers.astype(np.float32, copy=False)
    except FloatingPointError as error:
        raise ValueError(f"{name} holds numbers beyond the range of float32, expected smaller ones") from error


def check_function(name: str, value: object) -> None:
    """Raise TypeError for anything that cannot be called."""
    if not callable(value):
        raise TypeError(f"{name} is {value!r:.60}, expected a function")


def check_list(name: str, values: object, of: str) -> list[Any]:
    """Return the items of an iterable. Raises TypeError for anything else, and for a string or a mapping."""
    if isinstance(values, str | Mapping) or not isinstance(values, Iterable) or not getattr(values, "ndim", 1):
        raise TypeError(f"{name} is {type(values).__name__}, expected a list of {of}")
    return list(values)


def check_mapping(name: str, values: object, by: str = "names") -> dict[Any, Any]:
    """Return a mapping as a dict. Raises TypeError for anything else."""
    if not isinstance(values, Mapping):
        raise TypeError(f"{name} is {type(values).__name__}, expected a mapping by {by}")
    return dict(values)


def check_path(name: str, value: object) -> Path:
    """Return the name of a file or folder as a Path. Raises TypeError for anything else."""
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"{name} is {value!r:.60}, expected the name of a file or folder")
    return Path(value)


def check_strings(name: str, values: object) -> list[str]:
    """Return a collection of strings as a list. Raises TypeError for anything else: a string is one of its letters."""
    if isinstance(values, str | bytes) or not isinstance(values, Collection):
        raise TypeError(f"{name} is {values!r:.80}, expected a list of strings")
    found = list(values)
    for place, value in enumerate(found):
        if not isinstance(value, str):
            raise TypeError(f"{name}[{place}] is {type(value).__name__}, expected str")
    return found


def warn_caller(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the innermost line outside bertcore (Python 3.11 lacks `skip_file_prefixes`)."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn("\n".join(map(printable, message.split("\n"))), category, stacklevel=level)


def naming_nearest(*more: str) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Decorate a function whose error for an unknown argument is to name the nearest one of its own.

    `more` are names that it takes beside those of its signature.
    """

    def decorate(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        own = [*_parameters(function), *more]

        @functools.wraps(function)
        def call(*args: Arguments.args, **given: Arguments.kwargs) -> Result:
            for name in given:
                if name not in own:
                    import difflib  # for an error alone

                    where, known = function.__qualname__, own
                    if function.__name__ == "__init__" and args:  # perhaps of a subclass, which passes others on
                        kinds = [
                            kind for kind in type(args[0]).__mro__ if hasattr(vars(kind).get("__init__"), "__code__")
                        ]
                        where = type(args[0]).__name__
                        known = [*(each for kind in kinds for each in _parameters(vars(kind)["__init__"])), *more]
                    others = [each for each in known if each != name]  # a base's argument that a subclass lacks
                    near = difflib.get_close_matches(name, others, 1, cutoff=0.5)
                    hint = f"; did you mean {near[0]}?" if near else f", it takes {', '.join(dict.fromkeys(known))}"
                    raise TypeError(f"{where} has no argument {name}{hint}")
            return function(*args, **given)

        return call

    return decorate


def _parameters(function: Any) -> list[str]:
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code = function.__code__
    return [name for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] if name != "self"]


def older_names(**names: str) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Decorate a function to take arguments by older names, too: `names` are the present ones, by the older."""

    def decorate(function: Callable[..., Result]) -> Callable[..., Result]:
        @functools.wraps(function)
        def call(*args: Any, **given: Any) -> Result:
            for older in names.keys() & given.keys():
                if names[older] in given:
                    raise TypeError(f"{names[older]} and {older}, its older name, are both given, expected one")
                given[names[older]] = given.pop(older)
            return function(*args, **given)

        return call

    return decorate


class Described:
    """An object whose repr has its public numbers and texts, and the lengths of its lists."""

    def __repr__(self) -> str:
        parts = [type(self).__name__]
        for name, value in vars(self).items():
            if isinstance(value, list | tuple | dict):
                value = value and f"of {len(value)}"
            if isinstance(value, int | float | str) and value != "" and not isinstance(value, bool) and name[0] != "_":
                parts.append(f"{name} {value}")
        return f"<{', '.join(parts)}>"


def printable(text: str) -> str:
    """Return the text with control characters escaped, as these may command a terminal."""
    return "".join(each if each.isprintable() else repr(each)[1:-1].replace("\\\\", "\\") for each in text)


def required(name: str) -> Any:
    """Import a module of scikit-learn, SciPy, PyTorch or onnx. Raises ImportError that says how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package, by = {
            "sklearn": ("scikit-learn", "'bertcore[training]'"),
            "scipy": ("SciPy", "'bertcore[training]'"),
            "torch": ("PyTorch", "torch"),
            "onnx": ("onnx", "onnx"),
        }[name.partition(".")[0]]
        raise ImportError(f"{package} is not installed, which this needs: pip install {by}") from error
