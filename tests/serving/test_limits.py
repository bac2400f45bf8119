"""Refusals of a server: bodies, keys, queues, time, clients that go away."""

import asyncio
import gzip
import json
import logging
import threading
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

import httpx
import numpy as np
import pytest
from starlette.testclient import TestClient

from bertcore.checkpoint import CheckpointError
from bertcore.cli.serve import PLAIN, JSONLines, allowed_hosts
from bertcore.serving import ServerSettings, create_app
from bertcore.serving.models import ServedModel
from tests.refusals import refuses
from tests.serving.conftest import JSON


@pytest.mark.parametrize(("content", "status", "message"), [
    (b"", 400, "the body is not valid JSON"),
    (b"{", 400, "the body is not valid JSON"),
    (b"\xff\xfe", 400, "the body is not valid JSON"),
    (b'{"inputs": "\\ud800"}', 400, "the body is not valid JSON"),
    (b'{"inputs": NaN}', 400, "the body is not valid JSON"),
    (b"[" * 50_000, 400, "the body is not valid JSON"),
    (b"[" * 100_000, 413, "the body has more than 65536 lists and objects"),
    (b'{"inputs": "' + b"[" * 100_000 + b'\\"[", "truncate": true}', 200, "["),
    (b'{"inputs": "' + b'a, \\"' * 400_000 + b'", "truncate": true}', 200, "["),
    (b'{"inputs": [' + b"5," * 400_000 + b"5]}", 413, "the body has more than 300000 values"),
    (b'["a"]', 422, "the body is a JSON list, expected an object"),
])  # fmt: skip
def test_malformed_bodies(client, content, status, message):
    answer = client.post("/embed", content=content)
    assert answer.status_code == status and message in answer.text


def test_a_compressed_body_is_told_of_as_such(client):
    answer = client.post("/embed", content=gzip.compress(b'{"inputs": "a"}'), headers={"Content-Encoding": "gzip"})
    assert answer.status_code == 415
    assert answer.json()["error"] == "content-encoding is 'gzip', expected an uncompressed body"
    assert client.post("/embed", json={"inputs": "a"}, headers={"Content-Encoding": "Identity"}).status_code == 200


@pytest.mark.parametrize(("kind", "status"), [
    ("application/json; charset=utf-8", 200),
    ("Application/JSON", 200),
    ("text/plain", 415),  # what a page of another site may send without asking
    ("application/x-www-form-urlencoded", 415),
    ("", 415),
])  # fmt: skip
def test_content_type(client, kind, status):
    answer = client.post("/embed", content=b'{"inputs": "a"}', headers={"Content-Type": kind})
    assert answer.status_code == status
    assert status == 200 or "expected application/json" in answer.json()["error"]


@pytest.mark.parametrize(("host", "status"), [
    ("localhost", 200),
    ("LOCALHOST:8080", 200),
    ("[::1]:8080", 200),
    ("models.example.com", 200),
    ("evil.example.com", 403),
    ("localhost.evil.example.com", 403),
    ("[", 403),
    ("evil.example.com@localhost", 403),
    ("localhost/evil.example.com", 403),
    ("", 403),
])  # fmt: skip
@pytest.mark.parametrize("path", ["/", "/metrics", "/v1/models", "/nothing"])
def test_hosts(server, path, host, status):
    client = server(allowed_hosts=allowed_hosts("127.0.0.1", ["models.example.com"]))
    answer = client.get(path, headers={"Host": host})
    assert answer.status_code == (404 if path == "/nothing" and status == 200 else status)
    assert status == 200 or ("the header Host is" in answer.text and "error" in answer.json())


def test_hosts_by_default():
    assert allowed_hosts("0.0.0.0", []) is None is allowed_hosts("localhost", ["*"])
    assert allowed_hosts("127.0.0.2", []) == {"localhost", "127.0.0.1", "::1", "127.0.0.2"}
    assert "10.0.0.1" in allowed_hosts("10.0.0.1", ["[2001:DB8::1]"])


def test_origins(server):
    own, other = {"Origin": "http://testserver"}, {"Origin": "https://example.com"}
    client = server()
    assert client.post("/embed", json={"inputs": "a"}, headers=own).status_code == 200
    assert client.get("/health", headers=other).status_code == 200
    for origin in (*other.values(), "null", "http://testserver:81", "http://testserver.example.com"):
        answer = client.post("/embed", json={"inputs": "a"}, headers={"Origin": origin})
        assert answer.status_code == 403 and "the header Origin is" in answer.json()["error"]
    for origins in (["https://example.com"], ["*"]):
        client = server(cors_origins=origins)
        answer = client.post("/embed", json={"inputs": "a"}, headers=other)
        assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] in ("*", *other.values())
        asked = {
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type",
        }
        assert client.options("/embed", headers=other | asked).status_code == 200
        refused = client.options("/embed", headers=other | asked | {"Access-Control-Request-Method": "TRACE"})
        assert refused.status_code == 400 and refused.json()["error"] == "Disallowed CORS method"
    assert server(cors_origins=["https://a.org"]).post("/embed", json={}, headers=other).status_code == 403


def test_headers_of_the_page(client):
    answer = client.get("/")
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == "'none'" and "unsafe" not in str(policy)
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert "<script>" not in answer.text and "style=" not in answer.text and "onclick" not in answer.text
    assert answer.headers["x-frame-options"] == "DENY"
    for each in (answer, client.get("/v1/models"), client.get("/nothing")):
        assert each.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("style", ["plain", "json"])
def test_access_log(server, caplog, style):
    caplog.set_level("INFO", "bertcore.access")
    client = server(api_key="a-key")
    client.post("/embed?private", json={"inputs": "private"}, headers={"Authorization": "Bearer a-key"})
    client.get("/private")
    formatter = JSONLines() if style == "json" else logging.Formatter(PLAIN)
    lines = [formatter.format(record) for record in caplog.records if record.name == "bertcore.access"]
    if style == "json":
        found = [json.loads(line) for line in lines]
        assert [(each["path"], each["status"]) for each in found] == [("/embed", 200), ("other", 404)]
        assert set(found[0]) == {"time", "level", "logger", "client", "method", "path", "status", "ms"}
    else:
        assert "INFO testclient POST /embed 200 " in lines[0] and "GET other 404 " in lines[1]
    assert not any(secret in line for secret in ("private", "a-key") for line in lines)


def nested(depth):
    return ("[" * depth + "]" * depth).encode()


@pytest.mark.parametrize(("path", "content", "message"), [
    ("/embed", b'{"inputs": [' + nested(900) + b"]}", "inputs[0][0] is a list of 1, expected a token id"),
    ("/embed", b'{"inputs": [{"a": [' + b"1," * 200_000 + b"1]}]}", "inputs[0] is an object, expected a string"),
    ("/embed", b'{"inputs": "a", "normalize": ' + nested(900) + b"}", "normalize is a list of 1, expected true"),
    ("/similarity", b'{"inputs": ' + nested(900) + b"}", "inputs is a list of 1, expected an object"),
    ("/embed", b'{"inputs": "a", "prompt_name": "' + b"x" * 3_000_000 + b'"}', "prompt_name is 'xxx"),
    ("/v1/embeddings", b'{"input": "a", "model": "' + b"x" * 3_000_000 + b'"}', "is called 'xxx"),
])  # fmt: skip
def test_nested_and_giant_bodies_are_described_briefly(client, path, content, message):
    answer = client.post(path, content=content)
    assert answer.status_code in (404, 422) and message in answer.text and len(answer.text) < 1000


def test_an_unexpected_error_is_json_and_counted(server, monkeypatch, caplog):
    async def fail(self, *given):
        raise TypeError("a private text")

    client = server()
    monkeypatch.setattr(ServedModel, "compute", fail)
    for path, name in (("/embed", "inputs"), ("/v1/embeddings", "input")):
        answer = client.post(path, json={name: "a"})
        assert answer.status_code == 500 and "TypeError" in answer.text and "error" in answer.json()
        assert f'requests_total{{path="{path}",status="500"}} 1.0' in client.get("/metrics").text
    logged = [record for record in caplog.records if record.name.startswith("bertcore")]
    assert len(logged) == 2 and not any(record.exc_info for record in logged)
    assert logged[0].getMessage().startswith("POST /embed: TypeError at ") and "private" not in caplog.text


def test_unknown_paths_and_methods(client):
    assert client.post("/embed/", json={"inputs": "a"}, follow_redirects=False).status_code == 404
    assert client.get("/nothing").json() == {"error": "Not Found", "error_type": "Validation"}
    error = client.post("/v1/chat/completions", json={}).json()["error"]
    assert error["message"] == "Not Found" and error["code"] is None
    answer = client.get("/embed")
    assert answer.status_code == 405 and answer.headers["allow"] == "POST"


def test_sizes(server):
    client = server(max_body_bytes=100, max_client_batch_size=2)
    assert client.post("/embed", json={"inputs": ["a", "b"]}).status_code == 200
    answer = client.post("/embed", json={"inputs": ["a", "b", "c"]})
    assert answer.status_code == 413 and answer.json()["error"] == "inputs has 3 texts, the limit is 2"
    answer = client.post("/embed", json={"inputs": "a" * 100})
    assert answer.status_code == 413 and "the limit is 100" in answer.json()["error"]
    parts = (b"x" * 30 for _ in range(1000))  # without a content-length
    answer = client.post("/embed", content=parts)
    assert answer.status_code == 413 and "more than 100 bytes" in answer.json()["error"]


@pytest.mark.parametrize(("path", "body", "most"), [
    ("/embed", {"inputs": ["a"] * 30}, 10_000),
    ("/embed_all", {"inputs": ["a b c d"] * 5}, 10_000),
    ("/embed_sparse", {"inputs": "the cat"}, 1_000),
    ("/predict", {"inputs": [["a"]] * 30}, 2_000),
    ("/tokenize", {"inputs": "a " * 5_000}, 1_000_000),
    ("/decode", {"ids": [5] * 500}, 1_000),
])  # fmt: skip
def test_answers_are_bounded(folders, monkeypatch, path, body, most):
    computed = []
    whole = ServedModel.on_backend
    monkeypatch.setattr(
        ServedModel, "on_backend", lambda self, call: whole(self, lambda rows: computed.append(1) or call(rows))
    )
    app = create_app(
        [folders[name] for name in ("encoder", "splade", "classifier")], ServerSettings(max_response_bytes=most)
    )
    with TestClient(app, headers=JSON) as client:
        warm = len(computed)
        answer = client.post(path, json=body)
        assert answer.status_code == 413 and f"the limit is {most}" in answer.json()["error"]
        assert len(computed) == warm + (path == "/embed_sparse")  # what is too long is not computed
        assert client.post("/embed", json={"inputs": "a"}).status_code == 200


@pytest.mark.parametrize(("path", "body", "message"), [
    ("/predict", {"inputs": "x" * 300_000}, "inputs[0] has 300000 characters, but few tokens in the first 262144"),
    ("/predict", {"inputs": [["a"], ["a", " " * 300_000]]}, "inputs[1] has 300000 characters, but few tokens in"),
    ("/embed", {"inputs": ["x" * 100_000] * 3}, "there are 300000 characters to read, the limit is 262144"),
    ("/embed", {"inputs": [5] * 280_000, "prompt_name": "query"}, "there are 280000 token ids to read, the limit"),
    ("/decode", {"ids": [[5] * 140_000] * 2, "model": "encoder"}, "there are 280000 token ids to read, the limit"),
])  # fmt: skip
def test_what_takes_long_to_read_is_refused(folders, path, body, message):
    with TestClient(create_app([folders[name] for name in ("encoder", "classifier")]), headers=JSON) as client:
        answer = client.post(path, json={"truncate": True, **body})
        assert answer.status_code == 413 and answer.json()["error"].startswith(message)


def test_long_answers_are_sent_in_parts(client, folders):
    inputs = ["the cat sat on an mat"] * 32
    answer = client.post("/embed_all", json={"inputs": inputs})
    assert "content-length" not in answer.headers and len(answer.content) > 1 << 16
    expected = client.post("/embed_all", json={"inputs": inputs[0]})
    assert "content-length" in expected.headers
    np.testing.assert_allclose(answer.json(), expected.json() * 32, atol=1e-5)


def test_the_memory_of_all_requests_is_bounded(server, monkeypatch):
    go_on = blocked(monkeypatch)
    client = server(max_response_bytes=1_000, max_body_bytes=1_000)  # 40 kB together, 9 for one of these bodies
    blocked.is_armed = True
    body = {"inputs": "a" + " " * 970}
    with ThreadPoolExecutor(5) as pool:
        asked = [pool.submit(client.post, "/embed", json=body) for _ in range(5)]
        wait(asked, return_when=FIRST_COMPLETED)
        go_on.set()
        answers = [each.result() for each in asked]
    assert sorted(answer.status_code for answer in answers) == [200] * 4 + [429]
    assert any("of 40000 bytes, too many for" in answer.text for answer in answers)
    assert client.post("/embed", json=body).status_code == 200


def test_requests_in_work_are_bounded(server, monkeypatch):
    go_on = blocked(monkeypatch)
    client, origin = server(max_concurrent_requests=1, cors_origins=["https://a.org"]), {"Origin": "https://a.org"}
    blocked.is_armed = True
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(client.post, "/embed", json={"inputs": "a"}, headers=origin) for _ in range(2)]
        wait(asked, return_when=FIRST_COMPLETED)
        go_on.set()
        served, refused = sorted((each.result() for each in asked), key=lambda answer: answer.status_code)
    assert served.status_code == 200 and refused.status_code == 429 and refused.headers["retry-after"] == "1"
    assert "1 requests are running" in refused.json()["error"]
    assert refused.headers["access-control-allow-origin"] == served.headers["access-control-allow-origin"]


def test_api_key(server):
    client = server(api_key="secret")
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}, {"Authorization": "Bearer é"}):
        answer = client.post("/embed", json={"inputs": "a"}, headers=[(k, v.encode()) for k, v in headers.items()])
        assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
        answer = client.get("/v1/models", headers=[(k, v.encode()) for k, v in headers.items()])
        assert answer.status_code == 401 and answer.json()["error"]["code"] == "invalid_api_key"
    for right in ("Bearer secret", "bearer secret", "BEARER  secret"):
        assert client.post("/embed", json={"inputs": "a"}, headers={"Authorization": right}).status_code == 200
    assert client.get("/health").status_code == 200


def test_auto_truncate(server):
    assert server(auto_truncate=True).post("/embed", json={"inputs": "the cat " * 60}).status_code == 200


def blocked(monkeypatch):
    """Computing waits until the event that is returned is set."""
    go_on, compute = threading.Event(), ServedModel.on_backend

    def slow(self, function):
        whole = compute(self, function)

        def call(rows):
            if blocked.is_armed:
                go_on.wait(20)
            return whole(rows)

        return call

    blocked.is_armed = False
    monkeypatch.setattr(ServedModel, "on_backend", slow)
    return go_on


def test_a_full_queue_is_told(server, monkeypatch):
    go_on = blocked(monkeypatch)
    client = server(max_queue_tokens=12, max_batch_tokens=5)
    blocked.is_armed = True
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(client.post, "/embed", json={"inputs": ["a b"] * 4})  # one row computes, three wait
        while "waiting_tokens 12.0" not in client.get("/metrics").text:
            pass
        answer = client.post("/embed", json={"inputs": ["a b"] * 2})
        go_on.set()
        assert first.result().status_code == 200
    assert answer.status_code == 429 and answer.headers["retry-after"] == "1"
    assert answer.json() == {"error": "12 tokens are waiting, the limit is 12: try again", "error_type": "Overloaded"}
    assert client.post("/embed", json={"inputs": "a b"}).status_code == 200


@pytest.mark.parametrize("name", ["encoder", "reranker"])
def test_long_texts_are_read_in_a_thread(folders, monkeypatch, name):
    model, threads = ServedModel(folders[name], name), []
    monkeypatch.setattr(model, "read", lambda texts, **options: threads.append(threading.get_ident()) or [options])
    for word in ("a", "a" * 1001):
        texts = [word, word] if name == "encoder" else [(word, word)]
        assert asyncio.run(model.tokens(texts, truncate=True)) == [{"truncate": True}]
    assert threads[0] == threading.get_ident() != threads[1]


@pytest.mark.parametrize("name", ["encoder", "reranker"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_only_the_end_of_a_giant_text_is_read(folders, monkeypatch, name, side):
    model, seen = ServedModel(folders[name], name), []
    giant = "paris is " * 100 + "the cat sat on an mat " * 2_000 + "is france " * 100
    texts = [(giant, "the cat"), ("the cat", giant)] if name == "reranker" else [giant]
    whole = model.readers[side, ""].token_rows
    expected = [list(getattr(row, "ids", row)) for row, _ in whole(texts)]
    monkeypatch.setattr(
        model.readers[side, ""], "token_rows", lambda texts, *more: seen.extend(texts) or whole(texts, *more)
    )
    found = model.read(texts, truncate=True, side=side)
    assert [list(getattr(row, "ids", row)) for row in found] == expected
    assert all(len("".join(text)) < 10_000 for text in seen)


def test_time_is_limited(server, monkeypatch):
    go_on = blocked(monkeypatch)
    client = server(timeout=0.2)
    blocked.is_armed = True
    answer = client.post("/embed", json={"inputs": "a"})
    go_on.set()
    assert answer.status_code == 504 and "did not finish within 0.2 s" in answer.json()["error"]
    blocked.is_armed = False
    assert 200 in {client.post("/embed", json={"inputs": "a"}).status_code for _ in range(20)}  # some may be late, too
    assert "waiting_tokens 0.0" in client.get("/metrics").text


def test_slow_bodies(folders):
    async def body():
        yield b'{"inputs"'
        await asyncio.sleep(30)

    async def call():
        app = create_app([folders["encoder"]], ServerSettings(body_timeout=0.1))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
            return await client.post("/embed", content=body(), headers=JSON)

    answer = asyncio.run(call())
    assert answer.status_code == 408 and "did not arrive within 0.1 s" in answer.json()["error"]


def test_settings_are_checked(folders):
    for wrong in ({"max_batch_tokens": 0}, {"timeout": -1}, {"max_body_bytes": True}, {"body_timeout": float("nan")}):
        refuses(ValueError, f"{next(iter(wrong))} is .*, expected a positive number", ServerSettings, **wrong)
    for key, wrong in (("", "is empty"), ("a\n", "has other"), ("a b", "has other"), ("clé", "has other")):
        refuses(ValueError, f"^api_key {wrong}.*, expected printable ASCII without spaces", ServerSettings, api_key=key)
    for origin in ("https://example.com/", "example.com", "https://Example.com"):
        refuses(ValueError, r"cors_origins has .*, expected SCHEME://HOST", ServerSettings, cors_origins=[origin])
    assert "secret" not in repr(ServerSettings(api_key="secret"))
    refuses(ValueError, "models is empty", create_app, [])
    refuses(CheckpointError, "two models are called 'encoder'", create_app, [folders["encoder"], folders["encoder"]])
