"""Declarations of endpoints, which check requests, and the errors that answer requests."""

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

Schema = dict[str, Any]  # JSON Schema
BATCH = "x-batch"  # marks lists whose length the server's settings limit
LONGEST = 400
KINDS = ("Backend", "Empty", "Overloaded", "Tokenizer", "Unhealthy", "Validation")


@dataclass
class RequestError(Exception):
    """An error that answers a request.

    `kind` is text-embeddings-inference's error_type, `code` OpenAI's, `openai_status` the HTTP status on OpenAI's paths
    if it differs from `status`. The message, which may quote the request, is cut to LONGEST characters.
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


Make = Callable[[str], RequestError]  # takes the message
malformed: Make = _error(400, "Validation")  # a body that is not a JSON object
empty: Make = _error(400, "Empty")  # no text, or a text without characters
invalid: Make = _error(422, "Validation", openai_status=400)  # a missing or wrong field
unknown_token: Make = _error(422, "Tokenizer", openai_status=400)
encoded: Make = _error(415, "Validation")  # a compressed body, or content that is not JSON
unauthorized: Make = _error(401, "Validation", "invalid_api_key")
forbidden: Make = _error(403, "Validation")  # a host or an origin that is not allowed
too_large: Make = _error(413, "Validation")  # a body beyond the limit
too_many: Make = _error(413, "Validation", openai_status=400)  # more texts than the limit
too_long: Make = _error(413, "Validation", "context_length_exceeded", 400)  # a text beyond the limit
body_too_slow: Make = _error(408, "Validation")
overloaded: Make = _error(429, "Overloaded", "rate_limit_exceeded")  # more work than the queue holds
unsupported: Make = _error(424, "Backend")  # no served model can do this
no_model: Make = _error(404, "Validation", "model_not_found")  # no such model is served
timed_out: Make = _error(504, "Backend")  # work that took too long
failed: Make = _error(500, "Backend")  # an unexpected exception
stopped: Make = _error(503, "Unhealthy")  # the server stops


@dataclass(frozen=True, eq=False)
class Endpoint:
    """A request with an object as its body, declared once for checks, errors and /openapi.json.

    `answer` takes (body, models, settings), the body with every field, and returns a value for JSON; `kind` is the
    model's kind, a tuple of kinds, or None for any.
    """

    answer: Callable[[dict[str, Any], Any, Any], Awaitable[Any]]
    kind: str | tuple[str, ...] | None
    body: Schema
    result: Schema
    example: dict[str, Any]


def endpoint(kind: str | tuple[str, ...] | None, result: Schema, example: dict[str, Any], **fields: Schema) -> Any:
    """Return a decorator that makes an `Endpoint` of a function; a field without a default is required."""
    return partial(Endpoint, kind=kind, body=record(**fields), result=result, example=example)


def record(**fields: Schema) -> Schema:
    """Return the schema of an object with these fields; others are allowed."""
    required = [name for name, schema in fields.items() if "default" not in schema]
    description = f"an object of {', '.join(fields)}"
    return {"type": "object", "properties": fields, "required": required, "description": description}


def optional(schema: Schema, default: Any = None) -> Schema:
    """Return the schema of a field that may be absent or null, both meaning `default`."""
    made = {**schema, "type": [schema["type"], "null"], "default": default}
    return made | ({"enum": [*schema["enum"], None]} if "enum" in schema else {})


def options(**fields: Schema) -> Schema:
    """Return the schema of an object that may be absent."""
    return optional(record(**fields), {})


def many(items: Schema, description: str = "", **more: Any) -> Schema:
    """Return the schema of a list; with a `description` (in a request) it has at least one entry."""
    asked = {"minItems": 1, "description": description} if description else {}
    return {"type": "array", "items": items} | asked | more


def batch(items: Schema, description: str) -> Schema:
    """Return the schema of a list of at least one entry and at most `max_client_batch_size`."""
    return many(items, description) | {BATCH: True}


def choice(*names: str) -> Schema:
    return {"type": "string", "enum": list(names), "description": f"one of {', '.join(names)}"}


TEXT: Schema = {"type": "string", "description": "a string"}
FILLED: Schema = TEXT | {"minLength": 1}
FLAG: Schema = {"type": "boolean", "description": "true or false"}
SHARE: Schema = {"type": "number", "minimum": 0, "maximum": 1, "description": "a number from 0 to 1"}
COUNT: Schema = {"type": "integer", "minimum": 1, "description": "a positive integer"}
IDS = many({"type": "integer", "minimum": 0, "description": "a token id"}, "a list of token ids")
TEXTS = batch(TEXT, "a list of strings")
FILLED_TEXTS = batch(FILLED, "a list of strings")
INPUT: Schema = {
    "anyOf": [FILLED, batch({"anyOf": [FILLED, IDS], "description": "a string"}, "a list of strings"), IDS],
    "description": "a string, a list of token ids, or a list of these",
}
# Fields of text-embeddings-inference's requests; `model` is added, to choose among several.
MODEL = {"model": optional(TEXT)}
CUT = {"truncate": optional(FLAG), "truncation_direction": optional(choice("Right", "Left", "right", "left"), "right")}
PROMPT = {"prompt_name": optional(TEXT)}

TYPES: dict[str, Any] = {
    "string": str, "boolean": bool, "integer": int, "number": (int, float), "array": list, "object": dict,
    "null": type(None),
}  # fmt: skip


def checked(schema: Schema, value: Any, name: str, most: int) -> Any:
    """Return a value checked by its schema, with defaults for absent fields and without unknown fields.

    `name` names it in errors. Raises RequestError: 400 for an empty text or list, 413 for a
    batch beyond `most`, 422 for any other mismatch.
    """
    found = _option(schema, value)
    most_of = None if found is None else found.get("maxItems", found.get("maxLength"))
    if found is None or (most_of is not None and isinstance(value, list | str) and len(value) > most_of):
        raise invalid(f"{name} is {_shown(value)}, expected {(found or schema)['description']}")
    if value in ("", []) and ("minLength" in found or "minItems" in found):
        raise empty(f"{name} is empty, expected {'a text' if value == '' else 'at least one entry'}")
    if isinstance(value, list):
        if BATCH in found and len(value) > most:
            raise too_many(f"{name} has {len(value)} texts, the limit is {most}")
        first = 0
        if found is IDS:  # there may be a million
            if {*map(type, value)} == {int} and min(value) >= 0:
                return value
            first = next(index for index, each in enumerate(value) if type(each) is not int or each < 0)
        return [checked(found["items"], value[index], f"{name}[{index}]", most) for index in range(first, len(value))]
    if not isinstance(value, dict):
        return value
    result = {}
    for field, part in found["properties"].items():
        where, given = f"{name}.{field}" if name else field, value.get(field)
        if field not in value and "default" not in part:
            raise invalid(f"{where} is missing, expected {part['description']}")
        result[field] = checked(part, part.get("default") if given is None else given, where, most)
    return result


def _option(schema: Schema, value: Any) -> Schema | None:
    """Return the schema or alternative that the value fits best, or None if no type fits."""
    fitting = [option for option in schema.get("anyOf", [schema]) if _fits(option, value)]
    if len(fitting) > 1 and value:  # lists: their first entries decide
        fitting.sort(key=lambda option: _option(option["items"], value[0]) is None)
    return fitting[0] if fitting else None


def _fits(schema: Schema, value: Any) -> bool:
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    is_right = any(isinstance(value, TYPES[kind]) and (kind == "boolean") == isinstance(value, bool) for kind in kinds)
    if not is_right or value not in schema.get("enum", [value]):
        return False
    return value is None or "minimum" not in schema or schema["minimum"] <= value <= schema.get("maximum", value)


def _shown(value: Any) -> str:
    """Describe a value briefly; lists and objects only by type, as they may be huge or deeply nested."""
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return "an object"
    shown = repr(value[:40] if isinstance(value, str) else value)
    return f"{shown}..." if isinstance(value, str) and len(value) > 40 else shown


@dataclass
class MemoryBudget:
    """The bytes reserved by all requests of a server, and the most that they may reserve."""

    most: int
    held: int = 0

    @contextlib.contextmanager
    def of_request(self) -> Iterator[None]:
        """Release everything reserved in the context at its end."""
        request = _Reservation(self)
        token = _request.set(request)
        try:
            yield
        finally:
            _request.reset(token)
            self.held -= request.count


@dataclass
class _Reservation:
    memory: MemoryBudget
    count: int = 0


_request: ContextVar[_Reservation | None] = ContextVar("request", default=None)


def hold(count: int) -> None:
    """Reserve `count` bytes until the current request ends. Raises RequestError (429) if memory is full."""
    request = _request.get()
    if request is None:
        return
    memory = request.memory
    if memory.held + count > memory.most:
        raise overloaded(f"requests hold {memory.held} of {memory.most} bytes, too many for {count} more: try again")
    memory.held += count
    request.count += count
