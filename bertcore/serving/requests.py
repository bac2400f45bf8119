"""Reading a request's JSON object, and the errors that answer it, as text-embeddings-inference and OpenAI have them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

REQUIRED = object()
LONGEST = 400
KINDS = ("Backend", "Empty", "Overloaded", "Tokenizer", "Unhealthy", "Validation")


@dataclass
class RequestError(Exception):
    """An error that answers a request.

    Attributes:
        status: of HTTP.
        kind: text-embeddings-inference's error_type: one of KINDS.
        message: what is wrong, and what was expected; cut to LONGEST characters, as it may quote the request.
        code: OpenAI's code, if it has one.
        openai_status: of HTTP on OpenAI's paths, if it is another.
    """

    status: int
    kind: str
    message: str
    code: str | None = None
    openai_status: int | None = None

    def __post_init__(self) -> None:
        if len(self.message) > LONGEST:
            self.message = f"{self.message[:LONGEST]}..."

    def __str__(self) -> str:
        return self.message


def _error(status: int, kind: str, code: str | None = None, openai_status: int | None = None) -> Any:
    return partial(RequestError, status, kind, code=code, openai_status=openai_status)


Make = Callable[[str], RequestError]  # of the message
malformed: Make = _error(400, "Validation")  # a body that is not a JSON object
empty: Make = _error(400, "Empty")  # no text, or a text without characters
invalid: Make = _error(422, "Validation", openai_status=400)  # a missing or wrong field
unknown_token: Make = _error(422, "Tokenizer", openai_status=400)
encoded: Make = _error(415, "Validation")  # a compressed body, or another type of content than JSON
unauthorized: Make = _error(401, "Validation", "invalid_api_key")
forbidden: Make = _error(403, "Validation")  # a host or an origin that is not allowed
too_large: Make = _error(413, "Validation")  # a body beyond the limit
too_many: Make = _error(413, "Validation", openai_status=400)  # more texts than the limit
too_long: Make = _error(413, "Validation", "context_length_exceeded", 400)  # a text beyond the limit
body_too_slow: Make = _error(408, "Validation")
overloaded: Make = _error(429, "Overloaded", "rate_limit_exceeded")  # more work than the queue holds
unsupported: Make = _error(424, "Backend")  # something that no served model can do
no_model: Make = _error(404, "Validation", "model_not_found")  # a model that is not served
timed_out: Make = _error(504, "Backend")  # work that took too long
failed: Make = _error(500, "Backend")  # an unexpected exception
stopped: Make = _error(503, "Unhealthy")  # the server stops


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
        raise empty(f"{name} is empty, expected at least one string")
    if len(values) > most:
        raise too_many(f"{name} has {len(values)} texts, the limit is {most}")
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
