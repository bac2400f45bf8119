"""The limits of a server, declarations of endpoints, which check requests, and the errors that answer requests."""

import contextlib
import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

from bertcore.arguments import check_strings

Schema = dict[str, Any]  # JSON Schema
BATCH = "x-batch"  # marks lists whose length the server's settings limit
LONGEST = 400
Kinds = str | tuple[str, ...] | None  # of models for a request: one, several, or any
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


def _error(status: int, kind: str, code: str | None = None, openai_status: int | None = None) -> "Make":
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

    `answer` takes (body, model, settings), the body with every field, and returns a value for JSON; `choose` takes
    the server's models and the name in the request, and returns the model, or the models, for `answer`.
    """

    answer: Callable[[dict[str, Any], Any, Any], Awaitable[Any]]
    choose: Callable[[Any, str | None], Any]
    body: Schema
    result: Schema
    example: dict[str, Any]


def endpoint(kind: Kinds | Callable[..., Any], result: Schema, example: dict[str, Any], **fields: Schema) -> Any:
    """Return a decorator that makes an `Endpoint` of a function, for models of a kind or chosen by a function.

    A field without a default is required; "model" is added.
    """
    choose = kind if callable(kind) else lambda models, name: models.of_kind(kind, name)
    body = record(**fields, model=optional(TEXT))
    return partial(Endpoint, choose=choose, body=body, result=result, example=example)


def record(**fields: Schema) -> Schema:
    """Return the schema of an object with these fields; others are allowed."""
    required = [name for name, schema in fields.items() if "default" not in schema]
    description = f"an object of {', '.join(fields)}"
    return {"type": "object", "properties": fields, "required": required, "description": description}


def optional(schema: Schema, default: object = None) -> Schema:
    """Return the schema of a field that may be absent or null, both meaning `default`."""
    made = {**schema, "type": [schema["type"], "null"], "default": default}
    return made | ({"enum": [*schema["enum"], None]} if "enum" in schema else {})


def options(**fields: Schema) -> Schema:
    """Return the schema of an object that may be absent."""
    return optional(record(**fields), {})


def many(items: Schema, description: str = "", **more: object) -> Schema:
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
# Fields of text-embeddings-inference's requests.
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
    if not isinstance(value, dict) or "properties" not in found:  # an object that the endpoint checks
        return value
    result = {}
    for member, part in found["properties"].items():
        where, given = f"{name}.{member}" if name else member, value.get(member)
        if member not in value and "default" not in part:
            raise invalid(f"{where} is missing, expected {part['description']}")
        result[member] = checked(part, part.get("default") if given is None else given, where, most)
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


def _shown(value: object) -> str:
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


BODY = 9  # bytes of memory for a byte of a body: token ids of three digits and a comma take 36


@dataclass(frozen=True)
class ServerSettings:
    """Limits of a server.

    Attributes:
        max_batch_tokens: tokens computed at once (at most 1024 on a CPU); a longer text is computed alone.
        max_queue_tokens: tokens that may wait, for short and for long requests each; further ones are refused with 429.
        max_client_batch_size: texts of a request; one with more is refused with 413.
        max_concurrent_requests: requests that run at once; further ones are refused with 429.
        max_body_bytes: bytes of a request's body; a larger one is refused with 413.
        max_response_bytes: bytes of an answer; a request for a larger one is refused with 413. They are estimated from
            its numbers, words, labels or tokens before it is computed (after, for sparse embeddings).
        body_timeout: seconds in which a request's body must arrive; it is refused with 408 otherwise.
        timeout: seconds that a request may take; a longer one is answered with 504.
        auto_truncate: cut texts that are too long, instead of refusing them.
        api_key: the key that requests must send as `Authorization: Bearer KEY` (401 otherwise), printable ASCII without
            spaces; None for no key.
        allowed_hosts: names, in lower case and without ports, allowed as header Host (403 for others); None for any.
        cors_origins: origins whose pages may call the server from a browser, such as https://example.com, or "*".

    Raises:
        ValueError: for a limit that is not positive, and for a key or an origin that no request could have.
    """

    max_batch_tokens: int = 4096
    max_queue_tokens: int = 1 << 18
    max_client_batch_size: int = 32
    max_concurrent_requests: int = 512
    max_body_bytes: int = 4 << 20
    max_response_bytes: int = 32 << 20
    body_timeout: float = 30.0
    timeout: float = 60.0
    api_key: str | None = field(default=None, repr=False)
    auto_truncate: bool = False
    allowed_hosts: Collection[str] | None = None
    cors_origins: Collection[str] = ()

    @property
    def max_memory(self) -> int:
        """The bytes that all requests together may reserve (429 beyond): the largest answer and body, times four."""
        return 4 * (self.max_response_bytes + BODY * self.max_body_bytes)

    def __post_init__(self) -> None:
        for name in (entry.name for entry in fields(self) if entry.type in (int, float)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise ValueError(f"{name} is {value!r}, expected a positive number")
        check_strings("allowed_hosts", self.allowed_hosts or ())
        for origin in check_strings("cors_origins", self.cors_origins):
            if not re.fullmatch(r"\*|https?://[^/?#A-Z]+", origin):
                raise ValueError(f"cors_origins has {origin!r}, expected SCHEME://HOST in lower case, or *")
        if self.api_key is not None and not re.fullmatch("[!-~]+", self.api_key):
            wrong = "has other characters" if self.api_key else "is empty"
            raise ValueError(f"api_key {wrong}, expected printable ASCII without spaces, or None")

    def cutting(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return `ServedModel.read`'s options `truncate` and `side` for a request."""
        truncate = self.auto_truncate if body["truncate"] is None else body["truncate"]
        return {"truncate": truncate, "side": body["truncation_direction"].lower()}
