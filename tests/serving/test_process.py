"""A real server process: started by the command, used over TCP, stopped by a signal."""

import json
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.serving.process import served

pytestmark = pytest.mark.slow


@pytest.fixture
def server(folders):
    with served(folders["encoder"], backend="numba") as (process, port):
        yield process, f"http://127.0.0.1:{port}"


def test_a_server(server):
    process, address = server
    texts = [f"the cat {n}" for n in range(40)]
    with ThreadPoolExecutor(8) as pool, httpx.Client(base_url=address, timeout=60) as client:
        answers = list(pool.map(lambda text: client.post("/embed", json={"inputs": text}).json()[0], texts))
        assert answers == [client.post("/embed", json={"inputs": text}).json()[0] for text in texts]
    host, port = address.removeprefix("http://").split(":")
    body = json.dumps({"inputs": texts}).encode()
    for sent in (body, body[:20]):  # clients that are killed: waiting for the answer, or in the middle of the body
        with socket.create_connection((host, int(port))) as killed:
            killed.sendall(b"POST /embed HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + sent)
    assert httpx.post(f"{address}/embed", json={"inputs": "the cat"}, timeout=60).status_code == 200
    with httpx.Client(base_url=address, timeout=60) as client, ThreadPoolExecutor(1) as pool:
        last = pool.submit(client.post, "/embed", json={"inputs": texts * 20})
        time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        assert len(last.result().json()) == 800  # it ends what it began
    assert process.wait(60) == 128 + signal.SIGTERM  # as of every command that is stopped
