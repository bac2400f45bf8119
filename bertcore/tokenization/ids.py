"""Checking the token ids given to a tokenizer."""

from collections.abc import Iterable, Mapping
from typing import Any


def is_id(value: Any) -> bool:
    """Whether `value` is one integer: Python's, NumPy's, or an array's of no axes, but not an array's of several."""
    return hasattr(value, "__index__") and not getattr(value, "shape", ())


def as_ids(argument: str, values: Any, *, nested: bool = False) -> list:
    """`values`, an integer or a sequence of them, as a list of integers; if `nested`, it may be a list of sequences.

    Raises TypeError, naming the argument (and the place in it), for anything else.
    """
    expected = "an integer or a sequence of integers" + (", or a sequence of such sequences" if nested else "")
    found = values.tolist() if hasattr(values, "tolist") else values
    if is_id(found):
        return [found.__index__()]
    if isinstance(found, str | bytes | Mapping) or not isinstance(found, Iterable):
        raise TypeError(f"{argument} is {type(values).__name__}, expected {expected}")
    ids = list(found)
    if nested and ids and isinstance(ids[0], Iterable) and not isinstance(ids[0], str) and not is_id(ids[0]):
        return [as_ids(f"{argument}[{index}]", row) for index, row in enumerate(ids)]
    for index, number in enumerate(ids):
        if not is_id(number):
            raise TypeError(f"{argument}[{index}] is {type(number).__name__}, expected an integer")
    return [number.__index__() for number in ids]


def each_of(argument: str, values: Any, entries: str) -> Iterable:
    """`values`, if one can go over them; TypeError naming the argument and its `entries` otherwise."""
    if isinstance(values, bytes) or not isinstance(values, Iterable):
        raise TypeError(f"{argument} is {type(values).__name__}, expected a list of {entries}")
    return values
