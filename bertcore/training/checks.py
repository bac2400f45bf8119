"""Checks of numbers that callers give."""

from __future__ import annotations

import math
import operator
from typing import Any


def check_count(name: str, value: Any, least: int = 1) -> int:
    """`value` as an integer; TypeError for what is none, ValueError below `least`."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} is {value!r}, expected an integer of at least {least}")
    count = operator.index(value)
    if count < least:
        raise ValueError(f"{name} is {count}, expected an integer of at least {least}")
    return count


def check_share(name: str, value: Any) -> float:
    """`value`, if it is a number from 0 to 1; else ValueError."""
    if not _is_number(value) or not 0 <= value <= 1:
        raise ValueError(f"{name} is {value!r}, expected a number from 0 to 1")
    return value


def check_weight(name: str, value: Any) -> float:
    """`value`, if it is a finite number from 0 on; else ValueError."""
    if not _is_number(value) or not 0 <= value < math.inf:
        raise ValueError(f"{name} is {value!r}, expected a finite number from 0 on")
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_flag(name: str, value: Any) -> bool:
    """`value`, if it is True or False; else TypeError."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}, expected True or False")
    return value
