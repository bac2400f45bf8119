"""The outermost layer of a server: every request ends in one counted answer, and every error is JSON."""

import asyncio
import contextlib
import logging
import time
import traceback
from collections.abc import Mapping
from typing import Any

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from bertcore.serving.metrics import Metrics
from bertcore.serving.requests import RequestError, failed, stopped

CLIENT_GONE = 499  # nginx's status for a client that closed the connection
LINGER = 2.0  # seconds for a client to finish sending a body that is not read
log = logging.getLogger(__name__)


class Guard:
    """ASGI middleware that answers what the application raises, and counts each request once.

    An unexpected exception becomes a 500, a request that is cancelled because the server stops a 503. The log names the
    exception's type and place but not its message, which may quote a text.

    An answer to a client that is still sending closes the connection, once the rest of the body has been read and
    dropped or LINGER is over: closing a connection with unread bytes resets it, and the client would lose the answer.

    Args:
        app: the application inside.
        metrics: counts the requests.
        paths: endpoint -> path of its route; other requests are counted as "other", which bounds the counters.
    """

    def __init__(self, app: Any, metrics: Metrics, paths: Mapping[Any, str]):
        self._app, self._metrics, self._paths = app, metrics, paths

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass one request on to the application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange, start = Exchange(scope, receive, send), time.perf_counter()
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except asyncio.CancelledError:  # uvicorn's, when the time to end is over
            await exchange.answer(stopped("the server is stopping"))
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            described = f"{type(error).__name__} at {place.filename}:{place.lineno}"
            log.error("%s %s: %s", scope["method"], self._path(scope), described)
            await exchange.answer(failed(f"the server failed ({type(error).__name__}), which its log describes"))
        finally:
            self._metrics.request(self._path(scope), exchange.status, time.perf_counter() - start)

    def _path(self, scope: Any) -> str:
        return self._paths.get(scope.get("endpoint"), "other")


class Exchange:
    """One request and its answer.

    Attributes:
        status: of the answer; CLIENT_GONE until it begins.
    """

    def __init__(self, scope: Any, receive: Any, send: Any):
        self._scope, self._receive, self._send = scope, receive, send
        names = dict(scope["headers"])
        self._is_sending = b"transfer-encoding" in names or names.get(b"content-length", b"0") != b"0"
        self.status = CLIENT_GONE

    async def receive(self) -> Any:
        """Return the next part of the body."""
        message = await self._receive()
        self._is_sending = self._is_sending and message.get("more_body", False)
        return message

    async def send(self, message: Any) -> None:
        """Send a part of the answer."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self._is_sending:
                message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
        elif self._is_sending and not message.get("more_body", False):
            await self._send({**message, "more_body": True})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LINGER):
                    while self._is_sending:
                        await self.receive()
            message = {"type": "http.response.body", "body": b""}
        await self._send(message)

    async def answer(self, error: RequestError) -> None:
        """Send an error, unless an answer has begun: then the connection is closed in the middle of it."""
        if self.status == CLIENT_GONE:
            await error_response(error, self._scope["path"])(self._scope, self.receive, self.send)


def json_response(value: Any, status: int = 200) -> Response:
    """Return a value, which may have arrays in it, as JSON."""
    return Response(orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY), status, media_type="application/json")


def error_response(error: RequestError, path: str) -> Response:
    """Return an error as OpenAI's clients read it, or those of text-embeddings-inference."""
    if path.startswith("/v1/"):
        kind = "invalid_request_error" if error.status < 500 else "server_error"
        value: Any = {"error": {"message": error.message, "type": kind, "param": None, "code": error.kind}}
    else:
        value = {"error": error.message, "error_type": error.kind}
    response = json_response(value, error.status)
    if error.status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    if error.status == 429:
        response.headers["Retry-After"] = "1"
    return response


async def _request_error(request: Request, error: RequestError) -> Response:
    return error_response(error, request.url.path)


async def _http_error(request: Request, error: HTTPException) -> Response:
    kind = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "error")
    response = error_response(RequestError(error.status_code, kind, error.detail), request.url.path)
    response.headers.update(error.headers or {})
    return response


async def _client_gone(request: Request, error: ClientDisconnect) -> Response:
    return Response(status_code=CLIENT_GONE)


HANDLERS: Any = {RequestError: _request_error, HTTPException: _http_error, ClientDisconnect: _client_gone}
