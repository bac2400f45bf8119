"""Reading a request's JSON object, and the errors that answer it, named as text-embeddings-inference names them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

REQUIRED = object()


@dataclass
class RequestError(Exception):
    """An error that answers a request.

    Attributes:
        status: of HTTP.
        kind: "validation", "overloaded", ...
        message: what is wrong, and what was expected.
        is_body_unread: whether the client may still be sending.
    """

    status: int
    kind: str
    message: str
    is_body_unread: bool = False

    def __str__(self) -> str:
        return self.message


def malformed(message: str) -> RequestError:
    """Return the error for a body that is not a JSON object."""
    return RequestError(400, "malformed", message)


def invalid(message: str) -> RequestError:
    """Return the error for a missing or wrong field."""
    return RequestError(422, "validation", message)


def encoded(message: str) -> RequestError:
    """Return the error for a compressed body."""
    return RequestError(415, "malformed", message, is_body_unread=True)


def too_large(message: str) -> RequestError:
    """Return the error for a batch or a text beyond the limits."""
    return RequestError(413, "validation", message)


def body_too_large(message: str) -> RequestError:
    """Return the error for a body beyond the limit."""
    return RequestError(413, "validation", message, is_body_unread=True)


def body_too_slow(message: str) -> RequestError:
    """Return the error for a body that did not arrive in time."""
    return RequestError(408, "timeout", message, is_body_unread=True)


def overloaded(message: str) -> RequestError:
    """Return the error for more work than the queue holds."""
    return RequestError(429, "overloaded", message)


def unsupported(message: str) -> RequestError:
    """Return the error for something that no served model can do."""
    return RequestError(424, "backend", message)


def no_model(message: str) -> RequestError:
    """Return the error for a model that is not served."""
    return RequestError(404, "model_not_found", message)


def timed_out(message: str) -> RequestError:
    """Return the error for work that took too long."""
    return RequestError(504, "timeout", message)


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
    shown = repr(value)
    return shown if len(shown) <= 40 else f"{shown[:40]}..."
