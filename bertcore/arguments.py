"""Checks of arguments: each error names the argument, what came and what was expected."""

import math
import operator
import sys
from typing import Any

import numpy as np


def check_count(name: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """`value` as an integer; TypeError for what is none, ValueError below `least` or above `most`."""
    expected = "a positive integer" if least == 1 else f"an integer of at least {least}"
    try:
        count = operator.index(value)
    except TypeError as error:
        raise TypeError(f"{name} is {value!r}, expected {expected}") from error
    if isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}, expected {expected}")
    if count < least:
        raise ValueError(f"{name} is {count}, expected {expected}")
    if most is not None and count > most:
        raise ValueError(f"{name} is {count}, expected at most {most}")
    return count


def check_share(name: str, value: Any) -> float:
    """`value` as a number of Python's, if it is one from 0 to 1; else ValueError."""
    number = _plain(value)
    if not _is_number(number) or not 0 <= number <= 1:
        raise ValueError(f"{name} is {value!r}, expected a number from 0 to 1")
    return number


def check_number(name: str, value: Any, *, above_zero: bool = False) -> float:
    """`value` as a number of Python's.

    TypeError for what is no number, ValueError if it is not finite, below 0, or 0 with `above_zero`.
    """
    number = _plain(value)
    if not _is_number(number):
        raise TypeError(f"{name} is {value!r}, expected a number")
    if isinstance(number, int) and number > sys.float_info.max:
        raise ValueError(f"{name} is an integer of {number.bit_length()} bits, expected a finite number")
    if not 0 <= number < math.inf or (above_zero and number == 0):
        raise ValueError(f"{name} is {number}, expected a finite number {'above' if above_zero else 'of at least'} 0")
    return number


def _plain(value: Any) -> Any:
    """What of NumPy's scalars Python, and so JSON, has; others as they are."""
    return value.item() if isinstance(value, np.generic) else value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_numbers(name: str, values: Any) -> np.ndarray:
    """`values` as an array of numbers; TypeError or ValueError names what is none."""
    try:
        array = np.asarray(values)
    except ValueError as error:  # rows of different lengths
        raise ValueError(f"{name} is no table of numbers: {error}") from error
    if array.dtype.kind not in "fiu":
        raise TypeError(f"{name} has dtype {array.dtype}, expected numbers")
    return array
