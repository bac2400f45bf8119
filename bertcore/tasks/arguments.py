"""Checks of arguments that tasks have in common."""

from collections.abc import Sequence
from typing import Any

import numpy as np


def check_positive(name: str, value: Any, expected: str = "a positive integer") -> None:
    """ValueError, which says what is `expected`, for what is no integer above 0."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name} is {value!r}, expected {expected}")


def check_flag(name: str, value: Any) -> None:
    """TypeError for what is neither True nor False."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} is {value!r}, expected True or False")


def check_one_of(name: str, value: Any, choices: Sequence[str]) -> None:
    """ValueError for what is none of the choices."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} is {value!r}, expected one of {', '.join(map(repr, choices))}")
