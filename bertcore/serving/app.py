"""The ASGI application: routes, limits and the API key."""

import asyncio
import contextlib
import hmac
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from bertcore.checkpoint import copied, resolve
from bertcore.demo_model import demo_model_folder
from bertcore.serving import embeddings, information, page
from bertcore.serving import requests as rq
from bertcore.serving.batcher import NICER, Lanes
from bertcore.serving.guard import HANDLERS, Guard, Metrics, disconnected, json_response, long_json_response
from bertcore.serving.models import Models, ServedModel
from bertcore.serving.requests import BODY, ServerSettings
from bertcore.system import step_back

# Limits of a body: parsing a million of either blocks the event loop for 0.2 s, and lists take 70 MB.
MOST = {"lists and objects": (b"[{", 1 << 16), "values": (b",", 300_000)}

# POST, with an object as body. "/" is added for the first model's kind.
ENDPOINTS: dict[str, rq.Endpoint] = {
    "/embed": embeddings.embed,
    "/similarity": embeddings.similarity,
    "/v1/embeddings": embeddings.openai_embeddings,
    "/embeddings": embeddings.openai_embeddings,
    "/embed_all": embeddings.embed_all,
    "/embed_sparse": embeddings.embed_sparse,
    "/rerank": embeddings.rerank,
    "/v1/rerank": embeddings.jina_rerank,
    "/v2/rerank": embeddings.cohere_rerank,
    "/predict": embeddings.predict,
    "/token_classification": information.token_classification,
    "/predict_entities": information.predict_entities,
    "/extract": information.extract,
    "/fill_mask": information.fill_mask,
    "/entity_classification": information.entity_classification,
    "/attention": information.attention,
    "/tokenize": information.tokenize,
    "/decode": information.decode,
}
ROOTS: dict[str, rq.Endpoint] = {
    "embedding": embeddings.embed,
    "late-interaction": embeddings.embed_all,
    "sparse": embeddings.embed_sparse,
    "classifier": embeddings.predict,
    "reranker": embeddings.rerank,
    "token-classification": information.token_classification,
    "zero-shot-ner": information.predict_entities,
    "fill-mask": information.fill_mask,
    "entity-classification": information.entity_classification,
    "relation-extraction": information.entity_classification,
}
# GET: the body is made of the query's fields and the path's named parts, all strings.
LISTS: dict[str, rq.Endpoint] = {
    "/info": information.info,
    "/v1/models": information.openai_models,
    "/v1/models/{model:path}": information.openai_model,
}


def create_app(
    models: Sequence[str | os.PathLike[str]], settings: ServerSettings | None = None, *, dtype: str | None = None
) -> Starlette:
    """Make an ASGI application that serves these models, with weights of this dtype.

    `models` are folders, ids on the Hugging Face hub, or "demo" for all-MiniLM-L6-v2: sentence encoders,
    late-interaction and sparse encoders, classifiers of texts, tokens or marked entities, GLiNER, masked language
    models. Requests name a model by the last part of its path or id.

    Raises:
        CheckpointError: if a model cannot be loaded, or two have the same name.
        ValueError: if `models` is empty, or a token classifier lacks its head.
    """
    settings = settings or ServerSettings()
    if not models:
        raise ValueError("models is empty, expected at least one folder or id")
    loaded = Models([_load(name, dtype) for name in models])
    metrics = Metrics(lambda: sum(model.waiting_tokens for model in loaded.all))
    endpoints = ENDPOINTS | {"/": ROOTS[information.task_of(loaded.all[0])]}
    api = json_response(document := page.openapi(endpoints, LISTS, settings))
    docs, files = page.docs_page(document), page.files()
    pages: dict[str, Callable[[], Response]] = {  # GET, without a key
        **{path: partial(dict.__getitem__, files, path) for path in files},
        "/docs": lambda: docs,
        "/openapi.json": lambda: api,
        "/health": Response,  # 200, as text-embeddings-inference
        "/ping": Response,
        "/metrics": metrics.response,
    }
    answers = endpoints | LISTS
    routes = []
    for path in answers | pages:
        methods = ["POST"] * (path in endpoints) + ["GET"] * (path in pages or path in LISTS)
        routes.append(Route(path, _handler(loaded, settings, answers.get(path), pages.get(path)), methods=methods))

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        short = ThreadPoolExecutor(1, "bertcore-short")
        nicer: dict[str, Any] = {"initializer": step_back, "initargs": (NICER,)}
        long = ThreadPoolExecutor(1, "bertcore-long", **nicer)
        read = ThreadPoolExecutor(2, "bertcore-read", **nicer)  # reading a long text may take 50 MB
        with short, long:
            lanes = Lanes(short, long)
            asyncio.get_running_loop().set_default_executor(read)
            for model in loaded.all:
                model.start(lanes, settings, metrics.batch)
                await asyncio.get_running_loop().run_in_executor(short, model.warm_up)  # starts the kernels' threads
            yield

    paths = {route.endpoint: route.path for route in routes}
    middleware = [Middleware(Guard, settings=settings, metrics=metrics, paths=paths)]
    if settings.cors_origins:
        allowed: dict[str, Any] = {"allow_origins": settings.cors_origins, "allow_methods": "*", "allow_headers": "*"}
        middleware.append(Middleware(Origins, **allowed))
    app = Starlette(routes=routes, lifespan=lifespan, middleware=middleware, exception_handlers=HANDLERS)
    app.state.metrics = metrics  # for requests answered before they reach the application
    app.router.redirect_slashes = False  # behind a proxy that ends TLS, a redirect from "/embed/" would leave TLS
    return app


class Origins(CORSMiddleware):
    """Starlette's, with its errors in JSON."""

    def preflight_response(self, request_headers: Any) -> Response:
        response = super().preflight_response(request_headers)
        if response.status_code >= 400:
            raise rq.malformed(bytes(response.body).decode())
        return response


def _load(name: str | os.PathLike[str], dtype: str | None) -> ServedModel:
    folder = demo_model_folder() if name == "demo" else resolve(name, "sentence_encoder")
    with copied():
        return ServedModel(folder, Path(os.fspath(name)).name or Path(folder).resolve().name, dtype=dtype)


def _handler(
    models: Models, settings: ServerSettings, endpoint: rq.Endpoint | None, page: Callable[[], Response] | None
) -> Callable[[Request], Awaitable[Response]]:
    """Make a handler that answers GET with `page`, without a key, and other requests by the endpoint."""

    async def handle(request: Request) -> Response:
        is_post = request.method == "POST"
        if page is not None and not is_post:
            return page()
        assert endpoint is not None
        if settings.api_key is not None:
            scheme, _, key = request.headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not hmac.compare_digest(key.strip().encode(), settings.api_key.encode()):
                raise rq.unauthorized("expected the header Authorization: Bearer KEY, with this server's key")
        if is_post:
            body = rq.checked(endpoint.body, await _read_body(request, settings), "", settings.max_client_batch_size)
        else:
            query = {name: request.query_params.get(name) for name in endpoint.body["properties"]}
            body = query | request.path_params
        model = endpoint.choose(models, body.get("model"))
        return long_json_response(await _answered(request, endpoint.answer(body, model, settings), settings.timeout))

    return handle


async def _read_body(request: Request, settings: ServerSettings) -> dict[str, Any]:
    """Return the JSON object of a request; no more than the limit is ever in memory."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise rq.encoded("the header Content-Type is missing or not JSON, expected application/json")
    most, stated = settings.max_body_bytes, request.headers.get("content-length", "")
    if stated.isdecimal() and int(stated) > most:
        raise rq.too_large(f"the body has {stated} bytes, the limit is {most}")
    if (encoding := request.headers.get("content-encoding", "identity")).lower() != "identity":
        raise rq.encoded(f"content-encoding is {encoding!r:.60}, expected an uncompressed body")
    parts, size = [], 0
    try:
        async with asyncio.timeout(settings.body_timeout):
            async for part in request.stream():
                parts.append(part)
                size += len(part)
                if size > most:
                    raise rq.too_large(f"the body has more than {most} bytes, the limit")
                rq.hold(BODY * len(part))
    except TimeoutError as error:
        raise rq.body_too_slow(f"the body did not arrive within {settings.body_timeout:g} s") from error
    content = b"".join(parts)
    _check_values(content)
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise rq.malformed(f"the body is not valid JSON: {error}") from error
    if not isinstance(body, dict):
        raise rq.invalid(f"the body is a JSON {type(body).__name__}, expected an object")
    return body


def _check_values(content: bytes) -> None:
    """Raise RequestError (413) if a body has too many values to be parsed at once."""

    def too_many(text: bytes) -> str | None:
        return next((what for what, (signs, most) in MOST.items() if sum(map(text.count, signs)) > most), None)

    if too_many(content) is None:
        return
    parts = content.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"', 4 * MOST["values"][1])[::2]  # not in strings
    if what := too_many(b"".join(parts)):
        raise rq.too_large(f"the body has more than {MOST[what][1]} {what}, the limit")


async def _answered(request: Request, work: Awaitable[Any], timeout: float) -> Any:
    """Return the result of `work`, which is cancelled after `timeout` seconds or when the client disconnects."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(disconnected(request.receive))
    try:
        await asyncio.wait({task, gone}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if gone.done():
            raise ClientDisconnect
        raise rq.timed_out(f"the request did not finish within {timeout:g} s")
    finally:
        task.cancel()
        gone.cancel()
