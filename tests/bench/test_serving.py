"""The benchmark of servers: clients, figures, and which servers are wrong."""

import contextlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest

from bench.serving import __main__ as command
from bench.serving.load import Client, Load, put_load
from bench.texts import short_texts
from tests.tiny_bert import save_tiny_encoder

NEEDED = ("starlette", "uvicorn", "fastapi", "sentence_transformers")


class Lengths(BaseHTTPRequestHandler):
    """A server whose embedding of a text is its length, after 10 ms."""

    protocol_version = "HTTP/1.1"
    asked, most_at_once, now, lock = [], 0, 0, threading.Lock()

    def do_POST(self):
        kind = type(self)
        texts = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["inputs"]
        with kind.lock:
            kind.asked.append(texts[0])
            kind.now += 1
            kind.most_at_once = max(kind.most_at_once, kind.now)
        time.sleep(0.01)
        with kind.lock:
            kind.now -= 1
        status = 200 if texts != ["fails"] else 500
        content = json.dumps([[len(text)] for text in texts]).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server():
    handler = type("Handler", (Lengths,), {"asked": [], "lock": threading.Lock()})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield SimpleNamespace(port=listening.server_port, handler=handler)
        listening.shutdown()
        thread.join()


def test_clients_ask_at_once_and_wait_for_their_answers(server):
    found = put_load(server.port, ["a", "bc", "def", "gh"], 3, 0.3)
    assert server.handler.most_at_once == 3
    assert len(found.seconds) == len(server.handler.asked) - 3  # the first of each connects
    assert found.seconds.min() >= 0.01 and found.duration >= 0.3
    assert set(server.handler.asked) == {"a", "bc", "def", "gh"}
    assert found.per_second == len(found.seconds) / found.duration <= 3 / 0.01


def test_an_answer_that_is_an_error_ends_the_load(server):
    with pytest.raises(RuntimeError, match="POST /embed: 500"):
        put_load(server.port, ["a", "fails"], 4, 5)


def test_embeddings_of_a_server_are_compared(server):
    texts, truth = ["a", "bc"], np.array([[1], [2]], np.float32)
    assert command.error_of(server, texts, truth) == 0
    assert command.error_of(server, texts, truth + np.array([[0], [0.5]])) == 0.5
    assert command.error_of(server, texts, truth * [[1], [np.nan]]) == np.inf
    with contextlib.closing(Client(server.port)) as client:
        assert client.embed("abc").tolist() == [3]


def test_figures_are_medians_over_the_rounds():
    ours = [Load(np.full(100, 0.01), 1.0), Load(np.full(50, 0.02), 1.0), Load(np.full(200, 0.005), 1.0)]
    other = [Load(np.full(50, 0.03), 1.0), Load(np.full(25, 0.06), 1.0), Load(np.full(100, 0.01), 1.0)]
    row = command.figures(other, ours)
    assert (row["p50_s"], row["p99_s"], row["texts_per_s"]) == (0.03, 0.03, 50)
    assert (row["p50_vs_ours"], row["texts_per_s_vs_ours"]) == (3, 0.5)
    assert (row["requests"], row["rounds"], row["spread"]) == (175, 3, 0.75)
    assert command.figures(ours, ours)["p99_vs_ours"] == 1
    assert set(row) <= set(command.COLUMNS)


def test_short_texts():
    texts = list(short_texts(2000))
    assert texts[:5] == list(short_texts(5)) != list(short_texts(5, seed=1))
    lengths = [len(text.split()) for text in texts]
    assert len(set(texts)) == 2000 and 3 <= min(lengths) < max(lengths) <= 20 and 8 < np.mean(lengths) < 10


@pytest.mark.slow
@pytest.mark.skipif(any(find_spec(name) is None for name in NEEDED), reason=f"needs {', '.join(NEEDED)}")
def test_both_servers_of_a_tiny_model(tmp_path, capsys):
    save_tiny_encoder(tmp_path / "tiny")
    options = ["--quick", "--threads", "1", "--clients", "1", "3", "--model", str(tmp_path / "tiny")]
    assert command.main([*options, "--csv", str(tmp_path / "serving.csv")]) == 0
    header, *rows = [line.split(",") for line in (tmp_path / "serving.csv").read_text().splitlines()]
    assert tuple(header[: len(command.COLUMNS)]) == command.COLUMNS and len(rows) == 4
    for row in rows:
        found = dict(zip(header, row, strict=True))
        assert found["status"] == "ok" and 0 < float(found["p50_s"]) <= float(found["p99_s"])
        assert float(found["error"]) < command.TOLERANCE and float(found["resident_mb"]) > 50
    assert "tiny" in capsys.readouterr().out
