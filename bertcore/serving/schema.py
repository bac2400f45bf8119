"""The OpenAPI document of a server, made from the declarations of its endpoints."""

from collections.abc import Iterable, Mapping
from typing import Any

import bertcore
from bertcore.serving.guard import OPENAI_PATHS
from bertcore.serving.requests import BATCH, KINDS, TEXT, Endpoint, Schema, choice, record
from bertcore.serving.settings import ServerSettings

STATUSES = {
    400: "The body is not JSON or has no text; on OpenAI's paths, a field is wrong or a text is too long",
    401: "The key is missing or wrong",
    403: "The host or the origin is not allowed",
    404: "No such model is served",
    408: "The body arrived too slowly",
    413: "The body, the batch, a text or the answer is too large",
    415: "The body is not declared as JSON, or is compressed",
    422: "A field is wrong",
    424: "No served model can do this",
    429: "The server is busy",
    500: "The server failed",
    503: "The server is stopping",
    504: "The request timed out",
}
OF_LISTS = (401, 403, 404, 429, 500, 503, 504)
OF_PAGES = (403, 429, 500, 503)
NULL_OR_TEXT = TEXT | {"type": ["string", "null"]}
ERROR = record(error=TEXT, error_type=choice(*KINDS))
OPENAI_ERROR = record(
    error=record(message=TEXT, type=TEXT, param=NULL_OR_TEXT, code=NULL_OR_TEXT),
    message=TEXT,
    code={"type": "integer"},
    type=choice(*KINDS),
    error_type=choice(*KINDS),
)
PAGES = {
    "/": ("A page to use the models in a browser", "text/html"),
    "/page.css": ("The pages' style sheet", "text/css"),
    "/page.js": ("The page's script", "text/javascript"),
    "/docs": ("A page about all requests", "text/html"),
    "/health": ("Answer 200 while the server accepts requests", None),
    "/ping": ("Answer 200 while the server accepts requests", None),
    "/metrics": ("The counters, for Prometheus", "text/plain"),
    "/openapi.json": ("This document", "application/json"),
}


def openapi(endpoints: Mapping[str, Endpoint], lists: Mapping[str, Endpoint], settings: ServerSettings) -> Schema:
    """Return the OpenAPI 3.1 document of these POST and GET endpoints, and of the pages."""
    has_key = settings.api_key is not None
    paths: dict[str, dict[str, Any]] = {}
    for group, method in ((endpoints, "post"), (lists, "get")):
        for path, endpoint in group.items():
            summary, _, more = (endpoint.answer.__doc__ or "").partition("\n")
            statuses = [status for status in (STATUSES if method == "post" else OF_LISTS) if has_key or status != 401]
            path = path.replace(":path}", "}")
            operation = {"summary": summary, "description": " ".join(more.split())}
            operation |= _responses(path, "application/json", endpoint.result, statuses)
            if method == "post":
                body = _bounded(endpoint.body, settings.max_client_batch_size)
                content = {"schema": body, "example": endpoint.example}
                operation["requestBody"] = {"required": True, "content": {"application/json": content}}
            elif endpoint.body["properties"]:
                fields = endpoint.body["properties"].items()
                operation["parameters"] = [{"name": name, "in": "query", "schema": field} for name, field in fields]
            if "{model}" in path:
                operation["parameters"] = [{"name": "model", "in": "path", "required": True, "schema": TEXT}]
            if has_key:
                operation["security"] = [{"key": []}]
            paths.setdefault(path, {})[method] = operation
    for path, (summary, media) in PAGES.items():
        paths.setdefault(path, {})["get"] = {"summary": summary} | _responses(path, media, {}, OF_PAGES)
    schemas = {"Error": ERROR, "OpenAIError": OPENAI_ERROR}
    keys = {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}} if has_key else {}
    return {
        "openapi": "3.1.0",
        "info": {"title": "bertcore", "version": bertcore.__version__},
        "paths": paths,
        "components": {"schemas": schemas} | keys,
    }


def _bounded(schema: Any, most: int) -> Any:
    """Return a schema whose batches state the limit `most`."""
    if isinstance(schema, list):
        return [_bounded(part, most) for part in schema]
    if not isinstance(schema, dict):
        return schema
    bounded = {name: _bounded(part, most) for name, part in schema.items() if name != BATCH}
    return bounded | ({"maxItems": most} if BATCH in schema else {})


def _responses(path: str, media: str | None, result: Schema, statuses: Iterable[int]) -> dict[str, Any]:
    right = {"description": "OK"} | ({"content": {media: {"schema": result}}} if media else {})
    is_openai = path.startswith(OPENAI_PATHS)
    name = "OpenAIError" if is_openai else "Error"
    wrong = {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
    found = {str(status): {"description": STATUSES[status], "content": wrong} for status in statuses}
    if is_openai:
        found.pop("422", None)
    return {"responses": {"200": right} | found}
