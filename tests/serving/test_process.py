"""A real server process: started by the command, used over TCP, stopped by a signal."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

pytestmark = pytest.mark.slow


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def server(folders):
    """A server's process and address."""
    port = free_port()
    command = [sys.executable, "-m", "bertcore", "serve", str(folders["encoder"]), "--port", str(port)]
    process = subprocess.Popen(command, env={**os.environ, "BERTCORE_BACKEND": "numba"})
    address = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + 300  # kernels may have to be compiled
    while time.monotonic() < deadline:
        try:
            httpx.get(f"{address}/health")
            break
        except httpx.TransportError:
            assert process.poll() is None
            time.sleep(0.1)
    yield process, address
    process.kill()
    process.wait()


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
