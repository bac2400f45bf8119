"""Pages that need no API key: / to use the models in a browser, /docs and /openapi.json, made from the endpoints."""

import json
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any

from starlette.responses import Response

import bertcore
from bertcore.serving.guard import OPENAI_PATHS
from bertcore.serving.requests import BATCH, KINDS, TEXT, Endpoint, Schema, ServerSettings, choice, record

NONE = ("default-src", "base-uri", "form-action", "frame-ancestors")
SELF = ("connect-src", "script-src", "style-src")
POLICY = "; ".join([*(f"{name} 'none'" for name in NONE), *(f"{name} 'self'" for name in SELF), "img-src data:"])
FILES = {"/": "page.html", "/page.css": "page.css", "/page.js": "page.js"}
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
DOCS = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>bertcore: requests</title>
<meta name="viewport" content="width=device-width">
<link rel="icon" href="data:,">
<link rel="stylesheet" href="page.css">
<main class="docs">
<h1>Requests</h1>
<p><a href="./">Try them</a>. For programs: <a href="openapi.json">openapi.json</a></p>
{parts}
</main>
"""


def files() -> dict[str, Response]:
    folder = Path(__file__).parent / "static"
    return {path: _page((folder / name).read_bytes(), TYPES[Path(name).suffix]) for path, name in FILES.items()}


def docs_page(api: Mapping[str, Any]) -> Response:
    parts = []
    for path, operations in api["paths"].items():
        for method, operation in operations.items():
            parts.append(f"<h2>{method.upper()} {escape(path)}</h2>")
            parts.append(f"<p>{escape(operation['summary'])} {escape(operation.get('description', ''))}</p>")
            body = operation.get("requestBody", {}).get("content", {}).get("application/json")
            if body:
                rows = []
                for name, field in body["schema"]["properties"].items():
                    usual = f"default: {json.dumps(field['default'])}" if "default" in field else "required"
                    rows.append((name, field["description"], usual))
                cells = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
                parts.append(f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>")
                parts.append(f"<pre>{escape(json.dumps(body['example']))}</pre>")
    return _page(DOCS.format(parts="\n".join(parts)), "text/html")


def _page(content: str | bytes, media: str) -> Response:
    headers = {"Content-Security-Policy": POLICY, "X-Frame-Options": "DENY", "Cache-Control": "no-cache"}
    return Response(content, headers=headers, media_type=media)


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
