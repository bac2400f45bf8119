"""Each endpoint's answer, beside what the encoders themselves return."""

import base64
import time

import numpy as np
import pytest
from starlette.testclient import TestClient

from bertcore import CrossEncoder, MultiVectorEncoder, SentenceEncoder, SparseEncoder
from bertcore.serving import create_app
from tests.serving.conftest import JSON
from tests.tasks.cross_encoder.tiny import save_tiny_classifier
from tests.tasks.sparse_encoder.tiny import save_tiny_router

TEXTS = ["the cat sat on a mat.", "a", "paris is the capital of france."]
LONG = "the cat " * 60


@pytest.fixture(scope="module")
def encoder(folders):
    return SentenceEncoder(folders["encoder"])


def post(client, path, status=200, **body):
    answer = client.post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def close(found, expected):
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_embed(client, encoder):
    close(post(client, "/embed", inputs=TEXTS), encoder.encode(TEXTS, normalize_embeddings=True))
    close(post(client, "/embed", inputs=TEXTS[0]), encoder.encode(TEXTS[:1], normalize_embeddings=True))
    close(post(client, "/embed", inputs=TEXTS, normalize=False), encoder.encode(TEXTS))
    found = post(client, "/embed", inputs=TEXTS, prompt_name="query", dimensions=7, truncate=None)
    close(found, encoder.encode_query(TEXTS, normalize_embeddings=True, truncate_dim=7))
    close(post(client, "/embed", inputs=[LONG], truncate=True, normalize=False), encoder.encode([LONG]))
    error = post(client, "/embed", 413, inputs=["a", LONG])
    assert error == {
        "error": "inputs[1] has more than 40 tokens, the limit; truncate cuts it",
        "error_type": "Validation",
    }


def test_embed_all(client, encoder):
    found = post(client, "/embed_all", inputs=TEXTS)
    for states, expected in zip(found, encoder.encode(TEXTS, output_value="token_embeddings"), strict=True):
        close(states, expected)
    assert len({len(states) for states in found}) > 1


def test_late_interaction(server, folders):
    client, encoder = server("late"), MultiVectorEncoder(folders["late"])
    sides = {"query": encoder.encode_query, "document": encoder.encode_document, None: encoder.encode_document}
    for name, encode in sides.items():
        for path in ("/embed_all", "/"):
            for found, expected in zip(post(client, path, inputs=TEXTS, prompt_name=name), encode(TEXTS), strict=True):
                close(found, expected)
    row = encoder.token_rows(TEXTS[:1], "", "document")[0][0]
    close(post(client, "/embed_all", inputs=row.ids.tolist())[0], encoder.encode_document(TEXTS[0]))
    expected = encoder.rank("the cat", TEXTS)
    found = post(client, "/rerank", query="the cat", texts=TEXTS)
    assert [entry["index"] for entry in found] == [entry["corpus_id"] for entry in expected]
    close([entry["score"] for entry in found], [entry["score"] for entry in expected])
    ranked = post(client, "/v1/rerank", query="the cat", documents=TEXTS, top_n=2)["results"]
    close([entry["relevance_score"] for entry in ranked], [entry["score"] for entry in expected[:2]])
    assert post(client, "/embed_all", 413, inputs=LONG)["error"].startswith(
        "inputs[0] has more than 30 tokens, the limit"
    )
    assert post(client, "/rerank", 413, query=LONG, texts=TEXTS)["error"].startswith("query has more than 17 tokens")
    assert post(client, "/embed", 424, inputs="a")["error"] == "no model here embeds texts"
    unknown = post(client, "/rerank", 404, query="a", texts=["b"], model="x")["error"]
    assert unknown == "no model here that classifies texts or embeds the tokens of texts is called 'x': there is late"
    assert client.get("/info").json()["model_type"] == {"embedding": {"pooling": "maxsim"}}
    assert client.get("/v1/models").json()["data"][0]["task"] == "late-interaction"


def test_queries_and_documents_of_a_router(tmp_path):
    encoder = SparseEncoder(save_tiny_router(tmp_path / "router", default_route=None, allow_empty_key=False))
    with TestClient(create_app([tmp_path / "router"]), headers=JSON) as client:
        for name, expected in (("query", encoder.encode_query(TEXTS)), ("document", encoder.encode_document(TEXTS))):
            found = post(client, "/embed_sparse", inputs=TEXTS, prompt_name=name)
            for words, row in zip(found, expected.toarray(), strict=True):
                assert {word["index"]: word["value"] for word in words} == pytest.approx(
                    {int(index): float(row[index]) for index in np.flatnonzero(row)}, rel=1e-4
                )
        answer = client.post("/embed_sparse", json={"inputs": TEXTS})
        assert answer.status_code == 422 and "expected one of query, document" in answer.text


def test_embed_sparse(client, folders):
    expected = SparseEncoder(folders["splade"]).encode(TEXTS).toarray()
    for words, row in zip(post(client, "/embed_sparse", inputs=TEXTS), expected, strict=True):
        assert [entry["index"] for entry in words] == np.flatnonzero(row).tolist()
        close([entry["value"] for entry in words], row[row > 0])


def test_rerank(client, folders):
    expected = CrossEncoder(folders["reranker"]).rank("the cat", TEXTS)
    found = post(client, "/rerank", query="the cat", texts=TEXTS)
    assert [entry["index"] for entry in found] == [entry["corpus_id"] for entry in expected]
    close([entry["score"] for entry in found], [entry["score"] for entry in expected])
    raw = post(client, "/rerank", query="the cat", texts=TEXTS, raw_scores=True, return_text=True)
    logits = CrossEncoder(folders["reranker"], activation_fn="identity").predict([("the cat", text) for text in TEXTS])
    close([entry["score"] for entry in raw], np.sort(logits)[::-1])
    assert all(entry["text"] == TEXTS[entry["index"]] for entry in raw)


def test_the_first_model_that_ranks_ranks(folders):
    with TestClient(create_app([folders["classifier"], folders["reranker"]])) as client:
        assert len(post(client, "/rerank", query="the cat", texts=TEXTS)) == len(TEXTS)


def test_predict(folders):
    with TestClient(create_app([folders["classifier"]])) as client:
        scores = CrossEncoder(folders["classifier"], activation_fn="softmax").predict(("the cat", "sat"))
        (found,) = post(client, "/predict", inputs=[["the cat", "sat"]])
        assert len(post(client, "/predict", inputs=["the cat", "sat"])) == 3  # a pair, and not two texts
        order = np.argsort(-scores)
        assert [entry["label"] for entry in found] == [f"LABEL_{index}" for index in order]
        close([entry["score"] for entry in found], scores[order])
        one, several = post(client, "/predict", inputs="paris"), post(client, "/predict", inputs=[["a"], ["paris"]])
        assert [entry["label"] for entry in several[1]] == [entry["label"] for entry in one]
        close([entry["score"] for entry in several[1]], [entry["score"] for entry in one])
        assert abs(sum(entry["score"] for entry in one) - 1) < 1e-5
        raw = post(client, "/predict", inputs="paris", raw_scores=True)
        assert [entry["label"] for entry in raw] == [entry["label"] for entry in one] and raw != one
        assert "has 3 labels; a reranker has one" in post(client, "/rerank", 424, query="a", texts=["b"])["error"]
        assert post(client, "/embed", 424, inputs="a")["error"] == "no model here embeds texts"


@pytest.mark.parametrize(
    ("sentences", "name"), [(["a", LONG], "inputs.sentences[1]"), (["a"], "inputs.source_sentence")]
)
def test_similarity_names_the_text_that_is_too_long(client, sentences, name):
    source = LONG if name.endswith("source_sentence") else "a"
    error = post(client, "/similarity", 413, inputs={"source_sentence": source, "sentences": sentences})
    assert error["error"].startswith(f"{name} has more than 40 tokens")


def test_similarity(client, encoder):
    inputs = {"source_sentence": "the cat", "sentences": TEXTS}
    found = post(client, "/similarity", inputs=inputs, parameters={"prompt_name": None})
    close(found, encoder.similarity(encoder.encode(["the cat"]), encoder.encode(TEXTS))[0])


def test_openai(client, encoder):
    expected = encoder.encode(TEXTS, normalize_embeddings=True)
    found = post(client, "/v1/embeddings", input=TEXTS, model="encoder", user="me")
    assert found["object"] == "list" and found["model"] == "encoder"
    assert [(entry["object"], entry["index"]) for entry in found["data"]] == [("embedding", n) for n in range(3)]
    close([entry["embedding"] for entry in found["data"]], expected)
    found_floats = found["data"]
    tokens = sum(len(ids) for ids in encoder.tokenizer(TEXTS)["input_ids"])
    assert found["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    found = post(client, "/v1/embeddings", input=TEXTS[0], model=None, encoding_format="base64", dimensions=5)
    row = np.frombuffer(base64.b64decode(found["data"][0]["embedding"]), "<f4")
    close(row, encoder.encode(TEXTS[0], normalize_embeddings=True, truncate_dim=5))
    error = post(client, "/v1/embeddings", 400, input=TEXTS, encoding_format="hex")["error"]
    assert error["code"] is None and error["type"] == "invalid_request_error"
    assert "encoding_format is 'hex', expected one of float, base64" in error["message"]
    null = {"encoding_format": None, "dimensions": None, "user": None}
    assert post(client, "/v1/embeddings", input=TEXTS, model="encoder", **null)["data"] == found_floats


@pytest.mark.parametrize("name", ["other", "splade", ""])
def test_openai_model_that_is_not_served(client, name):
    error = post(client, "/v1/embeddings", 404, input="a", model=name)["error"]
    assert error == {
        "message": f"no model here that embeds texts is called {name!r}: there is encoder",
        "type": "invalid_request_error",
        "param": None,
        "code": "model_not_found",
    }


def test_openai_models(client):
    found = client.get("/v1/models").json()
    assert found["object"] == "list" and [model["id"] for model in found["data"]] == ["encoder", "splade", "reranker"]
    for model in found["data"]:
        assert model["object"] == "model" and model["owned_by"] == "bertcore"
        assert abs(model["created"] - time.time()) < 1000 and isinstance(model["created"], int)
        assert client.get(f"/v1/models/{model['id']}").json() == model
    answer = client.get("/v1/models/an/other")
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "model_not_found"
    assert "is called 'an/other': there is encoder, splade, reranker" in answer.json()["error"]["message"]
    assert client.post("/v1/models", json={}).status_code == 405
    counted = 'bertcore_requests_total{path="/v1/models/{model:path}",status="404"} 1.0'
    assert counted in client.get("/metrics").text


def test_the_demonstration_model_goes_by_the_word_that_it_was_asked_by(folders, monkeypatch):
    monkeypatch.setattr("bertcore.serving.app.demo_model_folder", lambda: folders["encoder"])
    with TestClient(create_app(["demo"])) as client:
        assert post(client, "/v1/embeddings", input="a", model="demo")["model"] == "demo"


@pytest.mark.parametrize(
    ("problem_type", "function"),
    [("multi_label_classification", "sigmoid"), ("regression", "identity"), (None, "softmax")],
)
def test_predict_by_the_problem_of_the_config(tmp_path, problem_type, function):
    folder = save_tiny_classifier(tmp_path, labels=3, config={"problem_type": problem_type})
    expected = CrossEncoder(folder, activation_fn=function).predict(("the cat", "sat"))
    with TestClient(create_app([folder])) as client:
        found = post(client, "/predict", inputs=["the cat", "sat"])
    assert [entry["label"] for entry in found] == [f"LABEL_{index}" for index in np.argsort(-expected)]
    close([entry["score"] for entry in found], np.sort(expected)[::-1])


def test_health_metrics_and_page(client):
    assert client.get("/health").status_code == 200
    before = client.get("/metrics").text
    post(client, "/embed", inputs="the cat")
    text = client.get("/metrics").text
    assert 'bertcore_requests_total{path="/embed",status="200"}' in text and text != before
    assert "bertcore_waiting_tokens 0.0" in text and "bertcore_batch_tokens_bucket" in text
    types = {"/": "text/html", "/page.css": "text/css", "/page.js": "text/javascript", "/docs": "text/html"}
    for path, media in types.items():
        answer = client.get(path)
        assert answer.headers["content-type"] == f"{media}; charset=utf-8" and len(answer.text) > 1000


@pytest.mark.parametrize(("path", "body", "message"), [
    ("/embed", {}, "inputs is missing, expected a string, a list of token ids, or a list of these"),
    ("/embed", {"inputs": 3}, "inputs is 3, expected a string, a list of token ids, or a list of these"),
    ("/embed", {"inputs": ["a", None]}, "inputs[1] is None, expected a string"),
    ("/embed", {"inputs": "a", "normalize": "yes"}, "normalize is 'yes', expected true or false"),
    ("/embed", {"inputs": "a", "dimensions": 0}, "dimensions is 0, expected a positive integer"),
    ("/embed", {"inputs": "a", "dimensions": 40}, "dimensions is 40, the model has 39"),
    ("/embed", {"inputs": "a", "prompt_name": "none"}, "prompt_name is 'none', this model has query"),
    ("/embed", {"inputs": "a", "truncation_direction": "up"}, "truncation_direction is 'up', expected one of Right"),
    ("/embed", {"inputs": [3, "a"]}, "inputs[1] is 'a', expected a token id"),
    ("/embed", {"inputs": [3, -1]}, "inputs[1] is -1, expected a token id"),
    ("/embed", {"inputs": [True]}, "inputs[0] is True, expected a string"),
    ("/embed_sparse", {"inputs": {}}, "inputs is an object, expected"),
    ("/rerank", {"texts": ["a"]}, "query is missing, expected a string"),
    ("/rerank", {"query": "a", "texts": "b"}, "texts is 'b', expected a list of strings"),
    ("/predict", {"inputs": [["a", "b", "c"]]}, "inputs[0] is a list of 3, expected one or two strings"),
    ("/predict", {"inputs": ["a", "b", "c"]}, "inputs is a list of 3, expected one or two strings"),
    ("/similarity", {"inputs": "a"}, "inputs is 'a', expected an object of source_sentence, sentences"),
    ("/similarity", {"inputs": {"source_sentence": 1, "sentences": ["a"]}}, "inputs.source_sentence is 1, expected a"),
])  # fmt: skip
def test_wrong_fields(client, path, body, message):
    found = post(client, path, 422, **body)
    assert message in found["error"] and found["error_type"] == "Validation"


@pytest.mark.parametrize(("path", "body", "message"), [
    ("/embed", {"inputs": []}, "inputs is empty, expected at least one entry"),
    ("/embed", {"inputs": ["a", ""]}, "inputs[1] is empty, expected a text"),
    ("/embed_all", {"inputs": [[]]}, "inputs[0] is empty, expected at least one entry"),
    ("/tokenize", {"inputs": ""}, "inputs is empty, expected a text"),
    ("/decode", {"ids": []}, "ids is empty, expected at least one entry"),
    ("/predict", {"inputs": [["a"], [""]]}, "inputs[1] is empty, expected a text"),
    ("/rerank", {"query": "", "texts": [""]}, "texts[0] is empty, expected a text"),
    ("/similarity", {"inputs": {"source_sentence": "a", "sentences": [""]}}, "inputs.sentences[0] is empty, expected"),
])  # fmt: skip
def test_no_text_is_an_error_of_its_own(client, path, body, message):
    error = post(client, path, 400, **body)
    assert message in error["error"] and error["error_type"] == "Empty"
