"""Pages that need no API key: / to use the models in a browser, /docs and /metrics."""

import json
from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.responses import Response

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
TOKENS = tuple(1 << power for power in range(3, 17))


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

    def text(self) -> bytes:
        return generate_latest(self._registry)


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


def counters(metrics: Metrics) -> Response:
    return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)
