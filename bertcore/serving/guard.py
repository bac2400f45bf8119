"""The outermost layer of a server: it checks hosts and origins, and counts one answer for each request."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
import traceback
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from bertcore.serving.requests import MemoryBudget, RequestError, ServerSettings, failed, forbidden, overloaded, stopped

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

CLIENT_GONE = 499  # nginx's status for a client that closed the connection
PART = 1 << 16  # bytes of an answer that are encoded and sent at once
LINGER = 2.0  # seconds for a client to finish sending a body that is not read
OPENAI_PATHS = ("/v1/", "/v2/", "/embeddings")
HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\[\]:/@?#]+))(?::\d*)?")  # a name or an address, and a port
NO_SNIFFING = (b"x-content-type-options", b"nosniff")
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
TOKENS = tuple(1 << power for power in range(3, 17))
log = logging.getLogger(__name__)
access_log = logging.getLogger("bertcore.access")


class Metrics:
    """The counters of one server, in a registry of its own."""

    def __init__(self, waiting_tokens: Callable[[], float]):
        self._registry = CollectorRegistry()
        place = {"registry": self._registry}
        self._requests = Counter("bertcore_requests", "Requests by path and status", ["path", "status"], **place)
        self._seconds = Histogram("bertcore_request_seconds", "Time of a request", ["path"], buckets=SECONDS, **place)
        self._batch_tokens = Histogram("bertcore_batch_tokens", "Tokens of a batch", buckets=TOKENS, **place)
        self._batch_rows = Histogram("bertcore_batch_rows", "Texts of a batch", buckets=TOKENS[:8], **place)
        waiting = Gauge("bertcore_waiting_tokens", "Tokens that wait to be computed", **place)
        waiting.set_function(waiting_tokens)

    def request(self, path: str, status: int, seconds: float) -> None:
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def batch(self, rows: int, tokens: int) -> None:
        self._batch_rows.observe(rows)
        self._batch_tokens.observe(tokens)

    def response(self) -> Response:
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)


class Guard:
    """ASGI middleware that checks hosts and origins, answers exceptions, and counts and logs requests.

    The Host of a request must be allowed: otherwise a web page whose name resolves to this machine (DNS rebinding)
    could read answers. So must the Origin, which browsers add to requests from other sites' pages.

    An unexpected exception becomes a 500; a request cancelled because the server stops, a 503. The log names the
    exception's type and place but not its message, which may quote a text.

    An answer to a client that is still sending closes the connection, after the rest of the body was read and dropped
    or LINGER has passed: closing a connection with unread bytes resets it, and the client would lose the answer.

    `paths` maps each route's endpoint to its path. Other requests are counted and logged as "other", which bounds the
    number of counters and keeps clients' paths out of the log.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings, metrics: Metrics, paths: Mapping[Any, str]):
        self._app, self._settings, self._metrics, self._paths = app, settings, metrics, paths
        self._memory, self._in_work = MemoryBudget(settings.max_memory), 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange, start = Exchange(scope, receive, send, self._settings.cors_origins), time.perf_counter()
        self._in_work += 1
        try:
            self._check_sender(scope)
            if self._in_work > self._settings.max_concurrent_requests:
                raise overloaded(f"{self._in_work - 1} requests are running, the limit: try again")
            with self._memory.of_request():
                await self._app(scope, exchange.receive, exchange.send)
        except RequestError as error:
            await exchange.answer(error)
        except ClientDisconnect:
            pass
        except asyncio.CancelledError:  # raised by uvicorn when its shutdown timeout ends
            await exchange.answer(stopped("the server is stopping"))
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            described = f"{type(error).__name__} at {place.filename}:{place.lineno}"
            log.error("%.20s %s: %s", scope["method"], self._path(scope), described)
            await exchange.answer(failed(f"the server failed ({type(error).__name__}), see its log"))
        finally:
            self._in_work -= 1
            seconds = time.perf_counter() - start
            self._metrics.request(self._path(scope), exchange.status, seconds)
            fields = {"client": (scope.get("client") or ("-",))[0], "method": scope["method"][:20]}
            fields |= {"path": self._path(scope), "status": exchange.status, "ms": round(1000 * seconds, 1)}
            access_log.info("%(client)s %(method)s %(path)s %(status)d %(ms).1f ms", fields)

    def _check_sender(self, scope: Scope) -> None:
        headers = {name: value.decode("latin-1").lower() for name, value in scope["headers"]}
        host, origin = headers.get(b"host", ""), headers.get(b"origin")
        hosts, origins = self._settings.allowed_hosts, self._settings.cors_origins
        if hosts is not None and ((named := HOST.fullmatch(host)) is None or (named[1] or named[2]) not in hosts):
            raise forbidden(f"the header Host is {host!r:.100}, expected an allowed name (--allowed-host)")
        if origin is None or scope["method"] in ("GET", "HEAD") or not {"*", origin}.isdisjoint(origins):
            return
        if origin.partition("://")[2] != host:
            raise forbidden(f"the header Origin is {origin!r:.100}, expected this server's or one of --cors-origin")

    def _path(self, scope: Scope) -> str:
        return self._paths.get(scope.get("endpoint"), "other")


class Exchange:
    """One request and its answer; the status is CLIENT_GONE until the answer begins."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, origins: Collection[str]):
        self._scope, self._receive, self._send, self._origins = scope, receive, send, origins
        names = dict(scope["headers"])
        self._is_sending = b"transfer-encoding" in names or names.get(b"content-length", b"0") != b"0"
        self.status = CLIENT_GONE

    async def receive(self) -> Message:
        message = await self._receive()
        self._is_sending = self._is_sending and message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            close = [(b"connection", b"close")] if self._is_sending else []
            message = {**message, "headers": [*message["headers"], NO_SNIFFING, *close]}
        elif self._is_sending and not message.get("more_body", False):
            await self._send({**message, "more_body": True})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LINGER):
                    while self._is_sending:
                        await self.receive()
            message = {"type": "http.response.body", "body": b""}
        await self._send(message)

    async def answer(self, error: RequestError) -> None:
        """Send an error, unless an answer has begun: the connection then closes before the answer ends."""
        if self.status == CLIENT_GONE:
            response: ASGIApp = error_response(error, self._scope["path"])
            if self._origins and self._scope["method"] != "OPTIONS":  # so that an allowed page can read the error
                response = CORSMiddleware(response, allow_origins=self._origins)
            await response(self._scope, self.receive, self.send)


def json_response(value: object, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status, media_type="application/json")


def long_json_response(value: object) -> Response:
    """Return a value, which may contain arrays, as JSON; one of more than PART bytes is encoded while it is sent."""
    parts = _in_parts(value)
    first, second = next(parts), next(parts, None)
    if second is None:
        return Response(first, media_type="application/json")

    async def encoded() -> AsyncIterator[bytes]:  # neither fills memory nor blocks the event loop
        yield first + second
        for part in parts:
            await asyncio.sleep(0)  # sending itself yields only for a slow client
            yield part

    return StreamingResponse(encoded(), media_type="application/json")


async def disconnected(receive: Receive) -> None:
    """Return when the client has closed the connection; nothing else may call `receive` meanwhile."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _in_parts(value: object) -> Iterator[bytes]:
    """Yield a value as JSON, in parts of PART bytes or a little more, at least one."""
    part = bytearray()
    for piece in _pieces(value, 0):
        part += piece
        if len(part) >= PART:
            yield bytes(part)
            part.clear()
    yield bytes(part)


def _pieces(value: object, depth: int) -> Iterator[bytes]:
    """Yield a value as JSON in pieces: the numbers of a row, the fields of an entry."""
    if isinstance(value, dict) and depth == 0:
        for index, (name, each) in enumerate(value.items()):
            yield (b"," if index else b"{") + orjson.dumps(name) + b":"
            yield from _pieces(each, 1)
        yield b"}" if value else b"{}"
    elif (isinstance(value, list) and depth < 2) or (isinstance(value, np.ndarray) and value.ndim > 1):
        for index, each in enumerate(value):
            yield b"," if index else b"["
            yield from _pieces(each, depth + 1)
        yield b"]" if len(value) else b"[]"
    else:
        yield orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


def error_response(error: RequestError, path: str) -> Response:
    """Return an error in text-embeddings-inference's form; on OpenAI's paths in OpenAI's, with members of both."""
    status = error.status
    if path.startswith(OPENAI_PATHS):
        status = error.openai_status or status
        kind = "invalid_request_error" if status < 500 else "server_error"
        described = {"message": error.message, "type": kind, "param": None, "code": error.code}
        value: dict[str, Any] = {"error": described, "message": error.message, "code": status}
        value |= {"type": error.kind, "error_type": error.kind}  # the server has the one, its schema the other
    else:
        value = {"error": error.message, "error_type": error.kind}
    response = json_response(value, status)
    if error.status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    if error.status == 429:
        response.headers["Retry-After"] = "1"
    return response


async def _http_error(request: Request, error: HTTPException) -> Response:
    response = error_response(RequestError(error.status_code, "Validation", error.detail), request.url.path)
    response.headers.update(error.headers or {})
    return response


HANDLERS: Any = {HTTPException: _http_error}
