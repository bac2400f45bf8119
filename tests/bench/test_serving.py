"""bench.serving and bench.footprint: clients, figures, wrong servers; installed sizes and memory."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

from bench import footprint
from bench.report import read_csv
from bench.serving import __main__ as command
from bench.serving.load import put_load
from tests.refusals import refuses
from tests.tiny_bert import save_tiny_encoder

NEEDED = ("starlette", "uvicorn", "fastapi", "sentence_transformers")


@pytest.fixture
def server():
    """A server whose embedding of a text is its length, after 10 ms."""
    seen, lock = SimpleNamespace(asked=[], most_at_once=0, now=0), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            texts = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["inputs"]
            with lock:
                seen.asked.append(texts[0])
                seen.now += 1
                seen.most_at_once = max(seen.most_at_once, seen.now)
            time.sleep(0.01)
            with lock:
                seen.now -= 1
            content = json.dumps([[len(text)] for text in texts]).encode()
            self.send_response(500 if texts == ["fails"] else 200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        seen.port = listening.server_port
        yield seen
        listening.shutdown()
        thread.join()


def test_clients_ask_at_once_and_wait_for_their_answers(server):
    found = put_load(server.port, ["a", "bc", "def", "gh"], 3, 0.3)
    assert server.most_at_once == 3 and set(server.asked) == {"a", "bc", "def", "gh"}
    assert len(found.seconds) == len(server.asked) - 3  # the first of each connects
    assert found.seconds.min() >= 0.01 and found.duration >= 0.3
    assert found.per_second == len(found.seconds) / found.duration <= 3 / 0.01
    refuses(RuntimeError, "POST /embed: 500", put_load, server.port, ["a", "fails"], 4, 5)


@pytest.mark.slow
@pytest.mark.skipif(any(find_spec(name) is None for name in NEEDED), reason=f"needs {', '.join(NEEDED)}")
def test_both_servers_of_a_tiny_model(tmp_path, capsys):
    folder, path = save_tiny_encoder(tmp_path / "tiny"), tmp_path / "serving.csv"
    options = ["--quick", "--threads", "1", "--clients", "1", "3", "--model", str(folder)]
    assert command.main([*options, "--csv", str(path)]) == 0 and "tiny" in capsys.readouterr().out
    rows = read_csv(path)
    assert tuple(rows[0])[: len(command.COLUMNS)] == command.COLUMNS and len(rows) == 4
    for row in rows:
        assert row["status"] == "ok" and 0 < float(row["p50_s"]) <= float(row["p99_s"])
        assert float(row["error"]) < command.TOLERANCE and float(row["resident_mb"]) > 50


def test_installed_sizes_are_of_the_requirements_without_extras():
    sizes = footprint.installed()
    assert {"bertcore", "numpy", "numba", "llvmlite", "tokenizers", "safetensors"} <= set(sizes)
    assert not {"torch", "cupy-cuda13x", "starlette", "pytest"} & set(sizes)
    assert sizes["llvmlite"][0] > 50 and 1 < sizes["bertcore"][0] < 10
    on_disk = sum(file.locate().stat().st_size for file in metadata.files("safetensors")) / 1e6
    assert sum(sizes["safetensors"]) == pytest.approx(on_disk)
