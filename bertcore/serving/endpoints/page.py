"""/: a page to try the server."""

import json
from html import escape

from starlette.responses import HTMLResponse, Response

from bertcore.serving.metrics import Metrics
from bertcore.serving.models import Models

EXAMPLES = {
    "dense": {
        "/embed": {"inputs": ["the cat sat on the mat"]},
        "/similarity": {"inputs": {"source_sentence": "a cat", "sentences": ["a kitten", "a train"]}},
        "/v1/embeddings": {"input": "the cat sat on the mat"},
        "/embed_all": {"inputs": "the cat"},
    },
    "sparse": {"/embed_sparse": {"inputs": ["the cat sat on the mat"]}},
    "classifier": {
        "/rerank": {"query": "what is a cat", "texts": ["an animal", "a train"], "return_text": True},
        "/predict": {"inputs": "the cat sat on the mat"},
    },
}

PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>bertcore</title>
<meta name="viewport" content="width=device-width">
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem }}
textarea, pre {{ width: 100%; box-sizing: border-box; font: 14px/1.4 ui-monospace, monospace }}
pre {{ background: #f4f4f4; padding: .5rem; overflow: auto; max-height: 24rem; white-space: pre-wrap }}
</style>
<h1>bertcore</h1>
<ul>{models}</ul>
<p><label>Request <select id="path">{options}</select></label>
<label>API key <input id="key" type="password" autocomplete="off"></label></p>
<p><label>Body<textarea id="body" rows="8"></textarea></label></p>
<p><button id="send">Send</button> <span id="status" role="status"></span></p>
<pre id="answer"></pre>
<script>
const examples = {examples};
const at = id => document.getElementById(id);
const show = () => {{ at("body").value = JSON.stringify(examples[at("path").value], null, 2); }};
at("path").onchange = show;
at("send").onclick = async () => {{
  const start = performance.now(), headers = {{"Content-Type": "application/json"}};
  if (at("key").value) headers.Authorization = "Bearer " + at("key").value;
  at("status").textContent = "...";
  try {{
    const answer = await fetch(at("path").value, {{method: "POST", headers, body: at("body").value}});
    const text = await answer.text();
    at("status").textContent = answer.status + " in " + Math.round(performance.now() - start) + " ms";
    at("answer").textContent = text.length > 20000 ? text.slice(0, 20000) + " ..." : text;
  }} catch (error) {{ at("status").textContent = String(error); }}
}};
show();
</script>
"""


def response(models: Models, metrics: Metrics) -> Response:
    """The page, with an example of each request that a model here answers."""
    kinds = {model.kind for model in models.all}
    examples = {path: body for kind in EXAMPLES if kind in kinds for path, body in EXAMPLES[kind].items()}
    listed = "".join(f"<li>{escape(model.name)}: {model.kind}</li>" for model in models.all)
    options = "".join(f"<option>{escape(path)}</option>" for path in examples)
    return HTMLResponse(PAGE.format(models=listed, options=options, examples=json.dumps(examples)))
