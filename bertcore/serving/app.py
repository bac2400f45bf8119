"""The ASGI application: routes, limits, the API key, and errors as JSON."""

import asyncio
import contextlib
import hmac
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from bertcore.checkpoint import resolve
from bertcore.demo_model import demo_model_folder
from bertcore.serving import embeddings, page, scores
from bertcore.serving.metrics import Metrics
from bertcore.serving.models import Models, ServedModel, ServerSettings
from bertcore.serving.requests import (
    RequestError,
    body_too_large,
    body_too_slow,
    encoded,
    invalid,
    malformed,
    timed_out,
)

CLIENT_GONE = 499  # nginx's status for a client that closed the connection
LINGER = 2.0  # seconds for a client to finish sending a body that is not read
Answer = Callable[[dict[str, Any], Models, ServerSettings], Awaitable[Any]]
# POST: the request's object, the models and the settings give the answer as JSON.
ENDPOINTS: dict[str, Answer] = {
    "/embed": embeddings.embed,
    "/embed_all": embeddings.embed_all,
    "/embed_sparse": embeddings.embed_sparse,
    "/predict": scores.predict,
    "/rerank": scores.rerank,
    "/similarity": scores.similarity,
    "/v1/embeddings": embeddings.openai_embeddings,
}
# GET: likewise, with the named parts of the path as the object.
LISTS: dict[str, Answer] = {
    "/v1/models": embeddings.openai_models,
    "/v1/models/{model:path}": embeddings.openai_models,
}
# GET, without a key: the models and the metrics give the response.
PAGES = {"/": page.trial_page, "/health": page.health, "/metrics": page.counters}


def create_app(
    models: Sequence[str | os.PathLike], settings: ServerSettings | None = None, *, dtype: str | None = None
) -> Starlette:
    """Make a server of these models, an ASGI application.

    Args:
        models: folders, ids on the Hugging Face hub, or the word demo for all-MiniLM-L6-v2: sentence encoders, sparse
            encoders, classifiers. Requests call them by the last part of these names.
        settings: limits; see `ServerSettings`.
        dtype: of the weights, as for AutoModel.

    Raises:
        CheckpointError: if a model cannot be loaded, or two have the same name.
        ValueError: if there is no model.
    """
    settings = settings or ServerSettings()
    if not models:
        raise ValueError("models is empty, expected at least one folder or id")
    loaded = Models([_load(name, dtype) for name in models])
    metrics = Metrics(lambda: sum(model.waiting_tokens for model in loaded.all))
    routes = [
        Route(path, _handler(path, answer, loaded, settings, metrics), methods=[method])
        for method, answers in (("POST", ENDPOINTS), ("GET", LISTS))
        for path, answer in answers.items()
    ]
    routes += [Route(path, _page(make, loaded, metrics), methods=["GET"]) for path, make in PAGES.items()]

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> Any:
        # One batch at a time: its kernels use all the cores.
        with ThreadPoolExecutor(1, "bertcore-compute") as executor:
            for model in loaded.all:
                model.start(executor, settings, metrics.batch)
                await asyncio.get_running_loop().run_in_executor(executor, model.warm_up)
            yield

    handlers: Any = {HTTPException: _http_error}
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)
    app.router.redirect_slashes = False  # a redirect from "/embed/" would lead out of TLS behind a proxy that ends it
    return app


def _load(name: str | os.PathLike, dtype: str | None) -> ServedModel:
    folder = demo_model_folder() if name == "demo" else resolve(name, "sentence_encoder")
    return ServedModel(folder, Path(os.fspath(name)).name or Path(folder).resolve().name, dtype=dtype)


def _handler(path: str, answer: Answer, models: Models, settings: ServerSettings, metrics: Metrics) -> Any:
    """Make a route that reads the body of a POST within the limits, answers the request and counts it."""

    async def handle(request: Request) -> Response:
        start = time.perf_counter()
        try:
            _check_key(request, settings.api_key)
            body = await _read_body(request, settings) if request.method == "POST" else request.path_params
            response = _json(await _answered(request, answer(body, models, settings), settings.timeout))
        except RequestError as error:
            response = _error(error, is_openai=path.startswith("/v1/"))
        except ClientDisconnect:
            response = Response(status_code=CLIENT_GONE)
        metrics.request(path, response.status_code, time.perf_counter() - start)
        return response

    return handle


def _page(make: Callable[[Models, Metrics], Response], models: Models, metrics: Metrics) -> Any:
    async def handle(request: Request) -> Response:
        return make(models, metrics)

    return handle


def _check_key(request: Request, key: str | None) -> None:
    if key is None:
        return
    given = request.headers.get("authorization", "")
    if not hmac.compare_digest(given.encode(), f"Bearer {key}".encode()):
        raise RequestError(401, "unauthorized", "expected the header Authorization: Bearer KEY, with this server's key")


async def _read_body(request: Request, settings: ServerSettings) -> dict[str, Any]:
    """Return the JSON object of a request; no more than the limit is ever in memory."""
    most, stated = settings.max_body_bytes, request.headers.get("content-length", "")
    if stated.isdecimal() and int(stated) > most:
        raise body_too_large(f"the body has {stated} bytes, the limit is {most}")
    if (encoding := request.headers.get("content-encoding", "identity")) != "identity":
        raise encoded(f"content-encoding is {encoding!r:.60}, expected a body that is not compressed")
    parts, size = [], 0
    try:
        async with asyncio.timeout(settings.body_timeout):
            async for part in request.stream():
                parts.append(part)
                size += len(part)
                if size > most:
                    raise body_too_large(f"the body has more than {most} bytes, the limit")
    except TimeoutError as error:
        raise body_too_slow(f"the body did not arrive within {settings.body_timeout:g} s") from error
    try:
        body = orjson.loads(b"".join(parts))
    except orjson.JSONDecodeError as error:
        raise malformed(f"the body is not valid JSON: {error}") from error
    if not isinstance(body, dict):
        raise invalid(f"the body is a JSON {type(body).__name__}, expected an object")
    return body


async def _answered(request: Request, work: Any, timeout: float) -> Any:
    """Return the result of `work`, which is cancelled when its time is over or its client has gone."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if gone.done():
            raise ClientDisconnect
        raise timed_out(f"the request was not done within {timeout:g} s")
    finally:
        task.cancel()
        gone.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class LastResponse(Response):
    """A response to a client that may still be sending, after which the connection is closed.

    Bytes that arrive meanwhile are read and dropped: closing a connection with unread bytes resets it, and the client
    would lose the response.
    """

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Respond at once; close when the client has finished sending, or after LINGER."""
        self.headers["Connection"] = "close"
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        await send(start)
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER):
                while (await receive()).get("more_body"):
                    pass
        await send({"type": "http.response.body", "body": b""})


def _json(value: Any, status: int = 200, kind: type[Response] = Response) -> Response:
    options = orjson.OPT_SERIALIZE_NUMPY
    return kind(orjson.dumps(value, option=options), status, media_type="application/json")


def _error(error: RequestError, *, is_openai: bool) -> Response:
    """Return an error as OpenAI's clients read it, or those of text-embeddings-inference."""
    response_class = LastResponse if error.is_body_unread else Response
    if is_openai:
        kind = "invalid_request_error" if error.status < 500 else "server_error"
        value: Any = {"error": {"message": error.message, "type": kind, "param": None, "code": error.kind}}
    else:
        value = {"error": error.message, "error_type": error.kind}
    response = _json(value, error.status, response_class)
    if error.status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    if error.status == 429:
        response.headers["Retry-After"] = "1"
    return response


async def _http_error(request: Request, error: HTTPException) -> Response:
    kind = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "error")
    described = RequestError(error.status_code, kind, error.detail)
    response = _error(described, is_openai=request.url.path.startswith("/v1/"))
    response.headers.update(error.headers or {})
    return response
