"""Reading a request's JSON object, and the errors that answer it, named as text-embeddings-inference names them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

REQUIRED = object()
LONGEST = 500


@dataclass
class RequestError(Exception):
    """An error that answers a request.

    Attributes:
        status: of HTTP.
        kind: "validation", "overloaded", ...
        message: what is wrong, and what was expected; cut to LONGEST characters, as it may quote the request.
    """

    status: int
    kind: str
    message: str

    def __post_init__(self) -> None:
        if len(self.message) > LONGEST:
            self.message = f"{self.message[:LONGEST]}..."

    def __str__(self) -> str:
        return self.message


def _kind(status: int, kind: str) -> Callable[[str], RequestError]:
    return partial(RequestError, status, kind)


malformed = _kind(400, "malformed")  # a body that is not a JSON object
invalid = _kind(422, "validation")  # a missing or wrong field
encoded = _kind(415, "malformed")  # a compressed body, or another type of content than JSON
forbidden = _kind(403, "forbidden")  # a host or an origin that is not allowed
too_large = _kind(413, "validation")  # a batch or a text beyond the limits
body_too_slow = _kind(408, "timeout")
overloaded = _kind(429, "overloaded")  # more work than the queue holds
unsupported = _kind(424, "backend")  # something that no served model can do
no_model = _kind(404, "model_not_found")  # a model that is not served
timed_out = _kind(504, "timeout")  # work that took too long
failed = _kind(500, "backend")  # an unexpected exception
stopped = _kind(503, "unhealthy")  # the server stops


def text(body: Mapping[str, Any], name: str, default: Any = REQUIRED) -> Any:
    """Return a string, or the default if the field is absent or null. Raises RequestError (422) for other values."""
    value = body.get(name, default)
    if value is REQUIRED:
        raise invalid(f"{name} is missing, expected a string")
    if value is None and default is not REQUIRED:
        return default
    if not isinstance(value, str):
        raise invalid(f"{name} is {_shown(value)}, expected a string")
    return value


def flag(body: Mapping[str, Any], name: str, default: bool) -> bool:
    """Return a boolean, or the default if the field is absent or null."""
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise invalid(f"{name} is {_shown(value)}, expected true or false")
    return default if value is None else value


def count(body: Mapping[str, Any], name: str) -> int | None:
    """Return a positive integer, or None if the field is absent or null."""
    value = body.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise invalid(f"{name} is {_shown(value)}, expected a positive integer")
    return value


def texts(body: Mapping[str, Any], name: str, most: int, expected: str = "a list of strings") -> list[str]:
    """Return a list of strings. Raises RequestError for anything else (422) and for more than `most` (413)."""
    values = body.get(name)
    if not isinstance(values, list):
        raise invalid(f"{name} is {_shown(values) if name in body else 'missing'}, expected {expected}")
    if not values:
        raise invalid(f"{name} is empty, expected at least one string")
    if len(values) > most:
        raise too_large(f"{name} has {len(values)} texts, the limit is {most}")
    for index, value in enumerate(values):
        if not isinstance(value, str):
            raise invalid(f"{name}[{index}] is {_shown(value)}, expected a string")
    return values


def one_or_more(body: Mapping[str, Any], name: str, most: int) -> list[str]:
    """Return a string or a list of strings as a list."""
    value = body.get(name)
    return [value] if isinstance(value, str) else texts(body, name, most, "a string or a list of strings")


def truncation(body: Mapping[str, Any], default: bool) -> bool:
    """Return whether long texts are cut, which happens on the right only."""
    side = body.get("truncation_direction")
    if side is not None and (not isinstance(side, str) or side.lower() != "right"):
        raise invalid(f"truncation_direction is {_shown(side)}, supported is 'right'")
    return flag(body, "truncate", default)


def _shown(value: Any) -> str:
    """Describe a value briefly: lists and objects by type, as they may be huge or deeply nested."""
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return "an object"
    shown = repr(value[:40] if isinstance(value, str) else value)
    return f"{shown}..." if isinstance(value, str) and len(value) > 40 else shown
