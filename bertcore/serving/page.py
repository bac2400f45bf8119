"""Pages that need no key: / to try the server, /docs and /metrics."""

import base64
import hashlib
import json
from collections.abc import Mapping
from html import escape
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import HTMLResponse, Response

from bertcore.serving.metrics import Metrics
from bertcore.serving.models import WHAT, Models
from bertcore.serving.requests import Endpoint

NONE = ("default-src", "base-uri", "form-action", "frame-ancestors")
POLICY = "; ".join([*(f"{name} 'none'" for name in NONE), "connect-src 'self'", "img-src data:"])
PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>bertcore</title>
<meta name="viewport" content="width=device-width">
<link rel="icon" href="data:,">
<style>
:root {{ color-scheme: light dark }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem }}
label {{ display: block; margin-bottom: 1rem }}
select, input, textarea, button {{ font: inherit; padding: .3rem .5rem; box-sizing: border-box }}
textarea, pre {{ width: 100%; box-sizing: border-box; font: 14px/1.4 ui-monospace, monospace }}
pre {{ background: #8882; padding: .5rem; overflow: auto; max-height: 24rem; white-space: pre-wrap }}
pre {{ overflow-wrap: anywhere }}
pre:empty {{ display: none }}
.row {{ display: flex; flex-wrap: wrap; gap: 0 2rem }}
.wrong {{ color: #d33 }}
</style>
<h1>bertcore</h1>
<ul>{models}</ul>
<p><a href="docs">All requests and their fields</a></p>
<div class="row"><label>Request <select id="path">{options}</select></label>
<label>API key, if it asks for one <input id="key" type="password" autocomplete="off"></label></div>
<label>Body<textarea id="body" rows="10" spellcheck="false"></textarea></label>
<p><button id="send">Send</button> <span id="status" role="status"></span></p>
<pre id="answer"></pre>
<script>
const examples = {examples};
const at = id => document.getElementById(id);
const show = () => {{ at("body").value = JSON.stringify(examples[at("path").value], null, 2); }};
const report = (status, isWrong) => {{
  at("status").textContent = status;
  at("status").className = isWrong ? "wrong" : "";
}};
const messageOf = text => {{
  try {{ const error = JSON.parse(text).error; return ": " + (error.message || error); }} catch {{ return ""; }}
}};
const lines = text => text.replaceAll("],[", "],\\n[").replaceAll("}},{{", "}},\\n{{");
at("path").onchange = show;
at("send").onclick = async () => {{
  const start = performance.now(), headers = {{"Content-Type": "application/json"}};
  if (at("key").value) headers.Authorization = "Bearer " + at("key").value;
  at("send").disabled = true;
  at("answer").textContent = "";
  report("...", false);
  try {{
    const answer = await fetch(at("path").value, {{method: "POST", headers, body: at("body").value}});
    const text = await answer.text(), taken = " in " + Math.round(performance.now() - start) + " ms";
    report(answer.status + taken + (answer.ok ? "" : messageOf(text)), !answer.ok);
    if (answer.ok) at("answer").textContent = lines(text.length > 20000 ? text.slice(0, 20000) + " ..." : text);
  }} catch (error) {{ report("no answer: " + error.message, true); }}
  at("send").disabled = false;
}};
show();
</script>
"""


DOCS = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>bertcore: requests</title>
<meta name="viewport" content="width=device-width">
<link rel="icon" href="data:,">
<style>
:root {{ color-scheme: light dark }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }}
h2 {{ font: bold 16px/1.5 ui-monospace, monospace; margin-top: 2rem }}
td {{ padding-right: 1.5rem; vertical-align: top }}
td:first-child, pre {{ font-family: ui-monospace, monospace }}
pre {{ background: #8882; padding: .5rem; white-space: pre-wrap }}
</style>
<h1>Requests</h1>
<p>As a document for programs: <a href="openapi.json">openapi.json</a></p>
{parts}
"""


def trial_page(models: Models, endpoints: dict[str, Endpoint]) -> Response:
    """Return a page with an example of each request that a served model answers."""
    kinds = {model.kind for model in models.all}
    paths = {endpoint: path for path, endpoint in reversed(endpoints.items())}  # the first of several
    shown = {path: endpoint for path, endpoint in endpoints.items() if endpoint.kind in (None, *kinds)}
    examples = {path: endpoint.example for path, endpoint in shown.items() if paths[endpoint] == path}
    listed = "".join(f"<li>{escape(model.name)} {WHAT[model.kind]}</li>" for model in models.all)
    options = "".join(f"<option>{escape(path)}</option>" for path in examples)
    return _page(PAGE.format(models=listed, options=options, examples=json.dumps(examples)))


def docs_page(api: Mapping[str, Any]) -> Response:
    """Return a page that lists the requests of an OpenAPI document."""
    parts = []
    for path, operations in api["paths"].items():
        for method, operation in operations.items():
            parts.append(f"<h2>{method.upper()} {escape(path)}</h2>")
            parts.append(f"<p>{escape(operation['summary'])} {escape(operation.get('description', ''))}</p>")
            body = operation.get("requestBody", {}).get("content", {}).get("application/json")
            if body:
                fields = body["schema"]["properties"].items()
                rows = [(name, field["description"], _default(field)) for name, field in fields]
                cells = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
                parts.append(f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>")
                parts.append(f"<pre>{escape(json.dumps(body['example']))}</pre>")
    return _page(DOCS.format(parts="\n".join(parts)))


def _default(field: Mapping[str, Any]) -> str:
    return f"default: {json.dumps(field['default'])}" if "default" in field else "required"


def _page(made: str) -> Response:
    headers = {"Content-Security-Policy": f"{POLICY}; {_allowed(made)}", "X-Frame-Options": "DENY"}
    return HTMLResponse(made, headers=headers)


def _allowed(made: str) -> str:
    """Return the part of the policy that allows the page's own style and script, by their hashes."""
    parts = []
    for name in ("style", "script"):
        digest = hashlib.sha256(made.partition(f"<{name}>")[2].partition(f"</{name}>")[0].encode()).digest()
        parts.append(f"{name}-src 'sha256-{base64.b64encode(digest).decode()}'")
    return "; ".join(parts)


def counters(metrics: Metrics) -> Response:
    """Return the server's counters in Prometheus' format."""
    return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)
