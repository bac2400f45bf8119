"""The formats of the peers: openai-python reads every answer and error, JSON Schemas text-embeddings-inference's."""

import base64
import sys
from subprocess import run

import jsonschema
import numpy as np
import pytest
from starlette.testclient import TestClient

from bertcore import CrossEncoder, SentenceEncoder
from bertcore.serving import create_app
from bertcore.serving.models import ServedModel
from bertcore.serving.requests import overloaded, stopped, timed_out
from tests.lazy import lazy
from tests.serving.process import served
from tests.serving.test_endpoints import LONG, TEXTS, close, post

openai = lazy("openai")

# text-embeddings-inference's answers, by the facts of its docs/openapi.json.
NUMBER, COUNT, TEXT = {"type": "number"}, {"type": "integer", "minimum": 0}, {"type": "string"}


def each(items, least=1):
    return {"type": "array", "items": items, "minItems": least}


def record(*optional, **fields):
    required = [name for name in fields if name not in optional]
    return {"type": "object", "properties": fields, "required": required, "additionalProperties": False}


def null(schema):
    return {"anyOf": [schema, {"type": "null"}]}


ERROR_TYPES = ("Unhealthy", "Backend", "Overloaded", "Validation", "Tokenizer", "Empty")
ERROR = record(error=TEXT, error_type={"enum": list(ERROR_TYPES)})
OPENAI_ERROR = {
    "type": "object",
    "properties": {"message": TEXT, "code": COUNT, "error_type": {"enum": list(ERROR_TYPES)}},
    "required": ["message", "code", "error_type"],
}
LABELS = each(record(score=NUMBER, label=TEXT))
NAMES = record(
    id2label={"type": "object", "additionalProperties": TEXT},
    label2id={"type": "object", "additionalProperties": COUNT},
)
INFO = record(
    **dict.fromkeys(("model_id", "model_dtype", "served_model_name", "version"), TEXT),
    **dict.fromkeys(("model_sha", "sha", "docker_label"), null(TEXT)),
    **dict.fromkeys(("max_concurrent_requests", "max_input_length", "max_batch_tokens"), COUNT),
    **dict.fromkeys(("max_client_batch_size", "tokenization_workers"), COUNT),
    max_batch_requests=null(COUNT),
    auto_truncate={"type": "boolean"},
    model_type={"oneOf": [record(embedding=record(pooling=TEXT)), record(classifier=NAMES), record(reranker=NAMES)]},
)
TOKEN = record(id=COUNT, text=TEXT, special={"type": "boolean"}, start=null(COUNT), stop=null(COUNT))
OPENAI_ANSWER = record(
    object={"const": "list"},
    data=each(record(object={"const": "embedding"}, index=COUNT, embedding={"oneOf": [each(NUMBER), TEXT]})),
    model=TEXT,
    usage=record(prompt_tokens=COUNT, total_tokens=COUNT),
)
ANSWERS = [
    ("/embed", {"inputs": "a"}, each(each(NUMBER))),
    ("/", {"inputs": ["a", [5, 6]]}, each(each(NUMBER))),
    ("/embed_all", {"inputs": "a", "truncation_direction": "Left"}, each(each(each(NUMBER)))),
    ("/embed_sparse", {"inputs": "a"}, each(each(record(index=COUNT, value=NUMBER), 0))),
    ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b"]}, "parameters": None}, each(NUMBER)),
    ("/rerank", {"query": "a", "texts": ["b"]}, each(record(index=COUNT, score=NUMBER))),
    (
        "/rerank",
        {"query": "a", "texts": ["b"], "return_text": True},
        each(record(index=COUNT, score=NUMBER, text=TEXT)),
    ),
    ("/predict", {"inputs": "a"}, LABELS),
    ("/predict", {"inputs": [["a"], ["a", "b"]]}, each(LABELS)),
    ("/tokenize", {"inputs": ["a", "ä 3"]}, each(each(TOKEN))),
    ("/decode", {"ids": [[5, 6], [7]]}, each(TEXT)),
    ("/embeddings", {"input": "a"}, OPENAI_ANSWER),
    ("/v1/embeddings", {"input": ["a", [5, 6]], "encoding_format": "base64"}, OPENAI_ANSWER),
]


def failing(make):
    async def compute(model, *given):
        raise make("wrong")

    return compute


@pytest.mark.parametrize(("path", "body", "shape"), ANSWERS)
def test_answers_of_text_embeddings_inference(client, path, body, shape):
    jsonschema.validate(post(client, path, **body), shape)


@pytest.mark.parametrize("path", sorted({path for path, _, _ in ANSWERS}))
def test_errors_of_text_embeddings_inference(client, path, monkeypatch):
    is_openai, body = path.endswith("embeddings"), next(body for name, body, _ in ANSWERS if name == path)

    def check(status, error_type, **options):
        answer = client.post(path, **options)
        found = answer.json()
        jsonschema.validate(found, OPENAI_ERROR if is_openai else ERROR)
        expected = 400 if is_openai and status in (413, 422) else status
        assert (answer.status_code, found["error_type"]) == (expected, error_type)
        assert not is_openai or found["code"] == expected

    check(400, "Validation", content=b"{")
    check(422, "Validation", content=b"3")
    check(415, "Validation", content=b"{}", headers={"Content-Type": "text/plain"})
    check(422, "Validation", json={})
    texts = "input" if is_openai else {"/rerank": "texts", "/decode": "ids"}.get(path, "inputs")
    if path != "/similarity":
        check(400, "Empty", json=body | {texts: []})
        many = [[5]] if path == "/decode" else [["a"]] if path == "/predict" else ["a"]
        check(413, "Validation", json=body | {texts: many * 2000})
    if path in ("/", "/embed_all", "/embed_sparse", "/embeddings", "/v1/embeddings", "/decode"):
        check(422, "Tokenizer", json=body | {texts: [5, 1 << 40]})
    for status, error_type, make in ((429, "Overloaded", overloaded), (503, "Unhealthy", stopped)):
        monkeypatch.setattr(ServedModel, "compute", failing(make))
        if path not in ("/tokenize", "/decode"):
            check(status, error_type, json=body)


@pytest.mark.parametrize(("model", "kind"), [
    ("encoder", {"embedding": {"pooling": "mean"}}),
    ("splade", {"embedding": {"pooling": "splade"}}),
    ("reranker", {"reranker": {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}}),
    ("classifier", None),
])  # fmt: skip
def test_info(server, model, kind):
    client = server(model, auto_truncate=True)
    found = client.get("/info").json()
    jsonschema.validate(found, INFO)
    assert kind is None or found["model_type"] == kind
    assert (found["model_id"], found["auto_truncate"], found["max_input_length"]) == (model, True, 40)
    root = {"query": "a", "texts": ["b"]} if model == "reranker" else {"inputs": "a"}
    assert client.post("/", json=root).status_code == client.get("/ping").status_code == 200
    assert client.get("/").headers["content-type"].startswith("text/html")
    assert set(client.put("/").headers["allow"].split(", ")) == {"GET", "HEAD", "POST"}


def test_tokens(client, folders):
    """Offsets count bytes; the ids of a text give its embedding; decoding gives it back."""
    tokenizer = SentenceEncoder(folders["encoder"]).tokenizer
    text = "the cat sät ü paris"
    (found,) = post(client, "/tokenize", inputs=text)
    ids = [token["id"] for token in found]
    assert ids == tokenizer(text)["input_ids"]
    assert [token["special"] for token in found] == [True, *[False] * (len(found) - 2), True]
    for token in found[1:-1]:
        assert text.encode()[token["start"] : token["stop"]].decode() == token["text"]
    assert found[0] == {"id": ids[0], "text": "[CLS]", "special": True, "start": None, "stop": None}
    (bare,) = post(client, "/tokenize", inputs=text, add_special_tokens=False)
    assert bare == found[1:-1]
    (prompted,) = post(client, "/tokenize", inputs=text, prompt_name="query")
    assert [token["id"] for token in prompted] == tokenizer("paris is " + text)["input_ids"]
    assert post(client, "/decode", ids=ids) == [tokenizer.decode(ids, skip_special_tokens=True)]
    assert post(client, "/decode", ids=[ids], skip_special_tokens=False) == [tokenizer.decode(ids)]
    close(post(client, "/embed", inputs=[ids, text]), post(client, "/embed", inputs=[text] * 2))
    close(post(client, "/embed", inputs=ids), post(client, "/embed", inputs=text))
    plain = post(client, "/embed", inputs="the cat", prompt_name="query")
    close(post(client, "/embed", inputs=tokenizer("the cat")["input_ids"], prompt_name="query"), plain)
    assert (
        "reranker takes no prompts"
        in post(client, "/tokenize", 422, inputs="a", model="reranker", prompt_name="query")["error"]
    )


def test_truncation_direction(client):
    """From the left the last tokens are kept, between the special ones; of ids as they are."""
    ids = [token["id"] for token in post(client, "/tokenize", inputs=LONG)[0]]
    kept = {"left": [ids[0], *ids[-39:]], "right": [*ids[:39], ids[-1]]}
    for side, expected in kept.items():
        for name in (side, side.capitalize()):
            found = post(client, "/embed", inputs=LONG, truncate=True, truncation_direction=name)
            close(found, post(client, "/embed", inputs=expected))
    for side, expected in {"left": ids[-40:], "right": ids[:40]}.items():
        found = post(client, "/embed", inputs=ids, truncate=True, truncation_direction=side)
        close(found, post(client, "/embed", inputs=expected))
    body = {"query": "the cat", "texts": ["paris " + LONG, LONG + " paris"], "truncate": True}
    left, right = (post(client, "/rerank", **body, truncation_direction=side) for side in ("left", "right"))
    assert left != right


def test_the_model_is_chosen_by_name(folders):
    with TestClient(create_app([folders["classifier"], folders["reranker"]])) as client:
        assert len(post(client, "/predict", inputs="a")) == 3
        assert len(post(client, "/predict", inputs="a", model="reranker")) == 1
        kinds = {"": "classifier", "?model=reranker": "reranker", "?model=reranker&other=1": "reranker"}
        for query, kind in kinds.items():
            assert [*client.get(f"/info{query}").json()["model_type"]] == [kind]
        assert client.get("/info?model=other").status_code == 404
        assert "there is classifier, reranker" in post(client, "/decode", 404, ids=[5], model="other")["error"]


@pytest.mark.parametrize(("path", "returns"), [("/v1/rerank", True), ("/v2/rerank", False)])
def test_rerank_as_jina_and_cohere(client, folders, path, returns):
    expected = CrossEncoder(folders["reranker"]).rank("the cat", TEXTS)
    documents = [TEXTS[0], {"text": TEXTS[1]}, TEXTS[2]]
    found = post(client, path, model="reranker", query="the cat", documents=documents)
    shape = record(
        id=TEXT,
        model={"const": "reranker"},
        results=each(record("document", index=COUNT, relevance_score=NUMBER, document=record(text=TEXT))),
        usage=record(prompt_tokens=COUNT, total_tokens=COUNT),
        meta=record(tokens=record(input_tokens=COUNT)),
    )
    jsonschema.validate(found, shape)
    assert [entry["index"] for entry in found["results"]] == [entry["corpus_id"] for entry in expected]
    close([entry["relevance_score"] for entry in found["results"]], [entry["score"] for entry in expected])
    assert found["usage"]["total_tokens"] == found["meta"]["tokens"]["input_tokens"] > 3
    assert all(("document" in entry) == returns for entry in found["results"])
    options = {"top_n": 2, "return_documents": not returns}
    best = post(client, path, query="the cat", documents=[*TEXTS, "cat " + LONG], **options)["results"]
    assert len(best) == 2 and all(("document" in entry) != returns for entry in best)
    error = post(client, path, 400, query="a", documents=[{"title": "a"}])
    assert error["error"]["message"] == error["message"] == "documents[0].text is missing, expected a string"


def test_openai_python_reads_answers(client, folders):
    peer = openai.OpenAI(api_key="any", base_url="http://testserver/v1", http_client=client, max_retries=0)
    expected = SentenceEncoder(folders["encoder"]).encode(TEXTS, normalize_embeddings=True)
    for form in ("float", "base64", openai.NOT_GIVEN):  # by default it asks for base64 and decodes it
        found = peer.embeddings.create(model="encoder", input=TEXTS, encoding_format=form, user="me")
        rows = [entry.embedding for entry in found.data]
        if form == "base64":
            rows = [np.frombuffer(base64.b64decode(row), "<f4") for row in rows]
        close(rows, expected)
        assert found.usage.prompt_tokens == found.usage.total_tokens > 3 and found.model == "encoder"
    ids = SentenceEncoder(folders["encoder"]).tokenizer(TEXTS)["input_ids"]
    found = peer.embeddings.create(model="encoder", input=ids, dimensions=5)
    close(
        [row.embedding for row in found.data],
        SentenceEncoder(folders["encoder"]).encode(TEXTS, normalize_embeddings=True, truncate_dim=5),
    )
    assert [model.id for model in peer.models.list()] == ["encoder", "splade", "reranker"]
    assert peer.models.retrieve("splade").owned_by == "bertcore"


@pytest.mark.parametrize(("options", "message", "code"), [
    ({"input": []}, "input is empty", None),
    ({"dimensions": 0}, "dimensions is 0, expected a positive integer", None),
    ({"input": [5, 10**9]}, "input[0] has the token id 1000000000, the model has 70 tokens", None),
    ({"input": ["a"] * 2000}, "input has 2000 texts, the limit is 32", None),
    ({"input": ["a", LONG]}, "input[1] has more than 40 tokens, the limit", "context_length_exceeded"),
])  # fmt: skip
def test_openai_python_reads_wrong_requests(client, options, message, code):
    peer = openai.OpenAI(api_key="any", base_url="http://testserver/v1", http_client=client, max_retries=0)
    with pytest.raises(openai.BadRequestError) as caught:
        peer.embeddings.create(**{"model": "encoder", "input": "a"} | options)
    assert caught.value.body["message"] == message or caught.value.body["message"].startswith(message + ",")
    assert (caught.value.code, caught.value.type) == (code, "invalid_request_error")


def test_openai_python_reads_errors(server, monkeypatch):
    def peer(key="right", **settings):
        client = server(api_key="right", **settings)
        return openai.OpenAI(api_key=key, base_url="http://testserver/v1", http_client=client, max_retries=0)

    def raised(kind, peer, model="encoder"):
        with pytest.raises(kind) as caught:
            peer.embeddings.create(model=model, input="a")
        assert type(caught.value) is kind
        return caught.value

    assert raised(openai.AuthenticationError, peer("wrong")).code == "invalid_api_key"
    assert raised(openai.PermissionDeniedError, peer(allowed_hosts={"localhost"})).status_code == 403
    assert raised(openai.NotFoundError, peer(), "other").code == "model_not_found"
    assert raised(openai.APIStatusError, peer(model="splade")).status_code == 424
    for make, kind in (
        (overloaded, openai.RateLimitError),
        (stopped, openai.InternalServerError),
        (timed_out, openai.InternalServerError),
        (TypeError, openai.InternalServerError),
    ):
        monkeypatch.setattr(ServedModel, "compute", failing(make))
        error = raised(kind, peer())
        assert error.type == ("invalid_request_error" if kind is openai.RateLimitError else "server_error")


def test_docs(client, server):
    """The document and the page name every path; security is stated where a key is asked for."""
    api = client.get("/openapi.json").json()
    page = client.get("/docs")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "style-src 'self'" in policy and "<script" not in page.text
    assert api["openapi"] == "3.1.0" and "securitySchemes" not in api["components"]
    for path, operations in api["paths"].items():
        for method, operation in operations.items():
            assert f"<h2>{method.upper()} {path}</h2>" in page.text and operation["summary"]

    def body(paths):
        return paths["/embed"]["post"]["requestBody"]["content"]["application/json"]["schema"]

    assert body(api["paths"])["required"] == ["inputs"]
    assert body(api["paths"])["properties"]["normalize"]["default"] is True
    paths = server(api_key="key", max_client_batch_size=7).get("/openapi.json").json()["paths"]
    assert body(paths)["properties"]["inputs"]["anyOf"][1]["maxItems"] == 7
    assert paths["/embed"]["post"]["security"] == [{"key": []}] and "security" not in paths["/health"]["get"]


FUZZED = """
[checks.positive_data_acceptance]
enabled = false  # which prompts and token ids a model has stands elsewhere
[checks.negative_data_rejection]
expected-statuses = ["400", "404", "405", "413", "415", "422"]
"""


@pytest.mark.slow
def test_a_fuzzer_finds_nothing(folders, tmp_path):
    """Schemathesis finds no server error, nothing undocumented, and no wrong body that is accepted."""
    (tmp_path / "schemathesis.toml").write_text(FUZZED)
    models = (folders[name] for name in ("encoder", "splade", "reranker", "tagger", "masked"))
    with served(*models, options=("--log-level", "warning")) as (_, port):
        url = f"http://127.0.0.1:{port}/openapi.json"
        command = [sys.executable, "-m", "schemathesis.cli", "run", url, "--max-examples=50", "--seed=1", "--no-color"]
        done = run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
