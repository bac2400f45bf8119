"""Reading the fields of a request's JSON object."""

from collections.abc import Mapping
from typing import Any

from bertcore.serving.errors import invalid, too_large

REQUIRED = object()


def text(body: Mapping[str, Any], name: str, default: Any = REQUIRED) -> Any:
    """A string; the default, if there is one, where it is absent or null. RequestError (422) for other values."""
    value = body.get(name, default)
    if value is REQUIRED:
        raise invalid(f"{name} is missing, expected a string")
    if value is None and default is not REQUIRED:
        return default
    if not isinstance(value, str):
        raise invalid(f"{name} is {_shown(value)}, expected a string")
    return value


def flag(body: Mapping[str, Any], name: str, default: bool) -> bool:
    """True or false; the default where the field is absent or null."""
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise invalid(f"{name} is {_shown(value)}, expected true or false")
    return default if value is None else value


def count(body: Mapping[str, Any], name: str) -> int | None:
    """A positive integer; None where the field is absent or null."""
    value = body.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise invalid(f"{name} is {_shown(value)}, expected a positive integer")
    return value


def texts(body: Mapping[str, Any], name: str, most: int, expected: str = "a list of strings") -> list[str]:
    """A list of strings; RequestError for anything else (422), and for more than `most` (413)."""
    values = body.get(name, REQUIRED)
    if values is REQUIRED:
        raise invalid(f"{name} is missing, expected {expected}")
    if not isinstance(values, list):
        raise invalid(f"{name} is {_shown(values)}, expected {expected}")
    if not values:
        raise invalid(f"{name} is empty, expected at least one string")
    if len(values) > most:
        raise too_large(f"{name} has {len(values)} texts, the limit is {most}")
    for index, value in enumerate(values):
        if not isinstance(value, str):
            raise invalid(f"{name}[{index}] is {_shown(value)}, expected a string")
    return values


def one_or_more(body: Mapping[str, Any], name: str, most: int) -> list[str]:
    """A string or a list of strings, as a list."""
    value = body.get(name)
    return [value] if isinstance(value, str) else texts(body, name, most, "a string or a list of strings")


def truncation(body: Mapping[str, Any], default: bool) -> bool:
    """Whether long texts are cut; they are cut on the right alone."""
    side = body.get("truncation_direction")
    if side is not None and (not isinstance(side, str) or side.lower() != "right"):
        raise invalid(f"truncation_direction is {_shown(side)}, supported is 'right'")
    return flag(body, "truncate", default)


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 40 else f"{shown[:40]}..."
