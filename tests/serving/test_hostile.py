"""Clients that are killed, slow, greedy or wrong: what a real server answers them, and that it goes on."""

import contextlib
import json
import re
import shutil
import signal
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
from safetensors.numpy import load_file

from bench.memory import resident
from tests.checkpoint.test_old_names import write_pickle
from tests.refusals import refuses
from tests.serving.conftest import JSON
from tests.serving.process import served

pytestmark = pytest.mark.slow

GOOD = {"inputs": "the cat"}
MOST_BYTES = 100_000
# For what is well-behaved: one client, as each takes 30 ms to begin; each request on a connection of its own, as one
# that is kept alive may be closed by the server just when it is used again.
CLIENT = httpx.Client(headers=JSON, timeout=300, verify=False, limits=httpx.Limits(max_keepalive_connections=0))


@pytest.fixture(scope="module")
def server(folders):
    with served(folders["encoder"], options=("--max-body-bytes", str(MOST_BYTES))) as found:
        yield found


def raw(port, *parts, pause=0.0):
    """A connection on which these bytes were sent."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    for part in parts:
        connection.sendall(part)
        time.sleep(pause)
    return connection


def head(length, path="/embed", more=""):
    lines = (f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", f"Content-Length: {length}")
    return ("\r\n".join(lines) + f"\r\n{more}\r\n").encode()


def kill(connection):
    """End it as the system does for a process that is killed with data unread: at once, with a reset."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def post(port, path="/embed", **body):
    return CLIENT.post(f"http://127.0.0.1:{port}{path}", json=body)


def killed_in_the_head(port):
    kill(raw(port, head(20)[:30]))


def killed_in_the_body(port):
    kill(raw(port, head(1000), b'{"inputs": "the'))


def killed_while_it_waits(port):
    body = json.dumps({"inputs": ["the cat"] * 30}).encode()
    kill(raw(port, head(len(body)), body))


def broken(port):
    """The number of requests that were not HTTP."""
    counters = CLIENT.get(f"http://127.0.0.1:{port}/metrics").text
    (count,) = re.findall(r'^bertcore_requests_total{path="other",status="400"} (.+)', counters, re.MULTILINE) or [0]
    return float(count)


def no_http(port):
    before = broken(port)
    with raw(port, b"\x16\x03\x01 this is no HTTP\r\n\r\n") as connection:
        assert connection.recv(1000).startswith(b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json")
    assert broken(port) > before  # others may send the same meanwhile


def wrong_headers(port):
    lengths = b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"
    for more in (lengths, b"X: " + b"x" * 200_000, b"X: " + b"x" * 40_000 + b"\r\n\r\n", b"a:b\r\n" * 100 + b"\r\n"):
        with raw(port, b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + more) as connection:
            assert connection.recv(1000).startswith(b"HTTP/1.1 400")


def length_beyond_the_limit(port):
    with raw(port, head(1 << 40)) as connection:
        assert connection.recv(1000).startswith(b"HTTP/1.1 413")


def body_beyond_the_limit(port):
    size = 50 * MOST_BYTES  # more than the system's buffers hold: it can be sent if the server reads it alone
    with raw(port, head(size), b"x" * size) as connection:
        assert connection.recv(1000).startswith(b"HTTP/1.1 413")


HOSTILE = (
    killed_in_the_head, killed_in_the_body, killed_while_it_waits, no_http, wrong_headers, length_beyond_the_limit,
    body_beyond_the_limit,
)  # fmt: skip


@pytest.mark.parametrize("client", HOSTILE, ids=lambda client: client.__name__)
def test_the_next_client_is_served(server, client):
    _, port = server
    expected = post(port, **GOOD).json()
    client(port)
    found = post(port, **GOOD).json()
    np.testing.assert_allclose(found, expected, atol=1e-6)  # NumPy's products have other bits in other batches


def test_slow_clients_are_served_and_hold_up_nobody(server):
    _, port = server
    body = json.dumps(GOOD).encode()
    sent = head(len(body)) + body
    with ThreadPoolExecutor(20) as pool:
        pieces = [sent[start : start + 8] for start in range(0, len(sent), 8)]
        slow = [pool.submit(raw, port, *pieces, pause=0.3) for _ in range(20)]
        times = []
        while not all(future.done() for future in slow):
            start = time.perf_counter()
            assert post(port, **GOOD).status_code == 200
            times.append(time.perf_counter() - start)
        assert len(times) > 5 and sorted(times)[len(times) // 2] < 0.3  # the pause of the slow ones
        for future in slow:
            with future.result() as connection:
                assert connection.recv(1000).startswith(b"HTTP/1.1 200")


def test_who_sends_a_byte_a_second_is_told_after_30_seconds(server):
    _, port = server
    start = time.monotonic()
    with raw(port, head(1000)) as connection:
        connection.settimeout(1)
        answer = b""
        while not answer and time.monotonic() - start < 60:
            with contextlib.suppress(TimeoutError):
                connection.sendall(b" ")
                answer = connection.recv(1000)
    assert answer.startswith(b"HTTP/1.1 408") and 25 < time.monotonic() - start < 40
    assert post(port, **GOOD).status_code == 200


def test_a_head_that_is_not_finished_ends_after_10_seconds(server):
    _, port = server
    start = time.monotonic()
    for sent in (b"", head(10)[:40]):
        with raw(port, sent) as connection:
            assert connection.recv(1000) == b""
    assert 15 < time.monotonic() - start < 30


def test_memory_is_flat_after_2000_of_them(server):
    process, port = server

    def storm(count):
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda number: HOSTILE[number % len(HOSTILE)](port), range(count)))
        assert post(port, **GOOD).status_code == 200
        return resident(process=process.pid)

    before = storm(300)
    assert storm(2000) < before + 10


def test_sigterm_under_load(folders):
    """Every answer that begins is whole; afterwards no request is served, and the command ends in time."""
    with served(folders["encoder"]) as (process, port):
        answers, stopped = [], threading.Event()

        def ask():
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
                while not stopped.is_set():
                    try:
                        answers.append(client.post("/embed", json={"inputs": ["the cat"] * 20}))
                    except (httpx.ConnectError, httpx.ReadError, httpx.RemoteProtocolError, httpx.WriteError):
                        return

        with ThreadPoolExecutor(8) as pool:
            asking = [pool.submit(ask) for _ in range(8)]
            while len(answers) < 40:
                time.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            code = process.wait(30)
            stopped.set()
            for future in asking:
                future.result()
        assert code == 128 + signal.SIGTERM
        assert all(answer.status_code == 200 and len(answer.json()) == 20 for answer in answers)
        refuses(httpx.ConnectError, None, post, port, **GOOD)


def test_a_large_body_without_the_key_is_answered(folders, monkeypatch):
    monkeypatch.setenv("BERTCORE_API_KEY", "secret")
    with served(folders["encoder"]) as (_, port):
        for _ in range(10):  # a reset would win by chance
            with raw(port, head(3_000_000, more="Connection: close\r\n"), b" " * 3_000_000) as connection:
                assert connection.recv(1000).startswith(b"HTTP/1.1 401")


def test_sigterm_beyond_the_grace_is_a_503(folders):
    """A request that still sends its body when the time is over gets JSON, not the text of a failed application."""
    with served(folders["encoder"], options=("--graceful-timeout", "1")) as (process, port):
        with raw(port, head(1000), b"{") as connection:
            process.send_signal(signal.SIGTERM)
            answer = b"".join(iter(lambda: connection.recv(10_000), b""))
        assert answer.startswith(b"HTTP/1.1 503") and b'"the server is stopping"' in answer
        process.wait(30)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_weights_that_change_on_disk_do_not_matter(folders, tmp_path, name):
    """A mapped file would end the server with SIGBUS."""
    folder = shutil.copytree(folders["encoder"], tmp_path / "encoder")
    if name == "pytorch_model.bin":
        tensors = load_file(folder / "model.safetensors")
        write_pickle(folder, tensors)
        (folder / "model.safetensors").unlink()
    with served(folder) as (process, port):
        expected = post(port, **GOOD).json()
        with (folder / name).open("r+b") as file:
            file.truncate(10)
        assert post(port, **GOOD).json() == expected and process.poll() is None
