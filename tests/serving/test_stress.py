"""All at once, with few files: clients that never read, half heads, nested and giant bodies, long requests."""

import contextlib
import json
import os
import socket
import statistics
import threading
import time

import httpx
import pytest

from bench.memory import resident
from tests.serving.conftest import JSON
from tests.serving.process import served
from tests.serving.test_hostile import head, raw

pytestmark = pytest.mark.slow

SECONDS = 15
SMALL = b'{"inputs": "the cat"}'
GIANT = json.dumps({"inputs": ["the cat sat on an mat " * 6] * 32}).encode()
BODIES = (
    b'{"inputs": ' + b"[" * 900 + b"]" * 900 + b"}",
    b'{"inputs": [' + b"[]," * 300_000 + b"[]]}",
    b'{"inputs": [[' + b"1," * 900_000 + b"1]]}",
    b'{"inputs": "' + b"x" * 4_100_000 + b'"}',
    b'{"inputs": "a", "junk": [' + b"{}," * 900_000 + b"{}]}",
    b'{"inputs": "a", "normalize": "' + b"x" * 1_000_000 + b'"}',
    b"[" * 1_000_000,
    b"",
)
BROKEN = (
    b"\x16\x03\x01 no HTTP\r\n\r\n",
    b"GET /\xff HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
)
MOST_BYTES = 4 << 20


class Clients:
    """Clients of a server, which check that every answer is JSON."""

    def __init__(self, port):
        self.url, self.statuses, self._stop = f"http://127.0.0.1:{port}", [], threading.Event()
        self._client = httpx.Client(base_url=self.url, headers=JSON, timeout=60)

    def seconds(self, body):
        """The time of a request; None if its connection was refused."""
        start = time.perf_counter()
        try:
            answer = self._client.post("/embed", content=body)
        except httpx.TransportError:
            return None
        self.statuses.append(answer.status_code)
        assert answer.headers["content-type"] == "application/json" and answer.json()
        return time.perf_counter() - start

    @contextlib.contextmanager
    def beside(self, *groups):
        """Ask for the bodies of each group, one after the other, in a thread of its own."""

        def ask(bodies):
            while not self._stop.is_set():
                for body in bodies:
                    self.seconds(body)

        threads = [threading.Thread(target=ask, args=[bodies]) for bodies in groups]
        self._stop.clear()
        for thread in threads:
            thread.start()
        yield
        self._stop.set()
        for thread in threads:
            thread.join()


def never_read(port):
    """A connection that asks for 25 MB and reads none of it."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", port))
    connection.settimeout(5)
    with contextlib.suppress(OSError):
        connection.sendall((head(len(GIANT), "/embed_all") + GIANT) * 40)
    return connection


def open_files(process):
    return len(os.listdir(f"/proc/{process.pid}/fd"))


def test_a_small_request_beside_a_giant_takes_at_most_three_times_its_time_alone(folders):
    with served(folders["encoder"]) as (_, port):
        clients = Clients(port)
        clients.seconds(SMALL)
        for _ in range(5):  # others may use the machine, too
            alone = statistics.median(clients.seconds(SMALL) for _ in range(50))
            with clients.beside([GIANT]):
                beside = statistics.median(clients.seconds(SMALL) for _ in range(50))
            if beside < 3 * alone + 0.003:  # the client shares the machine with the giant's
                return
        raise AssertionError(f"{beside:.4f} s beside a giant, {alone:.4f} s alone")


def test_a_server_with_64_files_under_everything_at_once(folders, tmp_path):
    log = tmp_path / "log"
    options = ("--max-response-bytes", str(MOST_BYTES), "--log-level", "warning")
    with served(folders["encoder"], options=options, files=64, log=log) as (process, port):
        clients, half, most = Clients(port), [], 0.0
        for body in (SMALL, GIANT, *BODIES):
            clients.seconds(body)
        before, files = resident(process=process.pid), open_files(process)
        deaf = [never_read(port) for _ in range(8)]
        with clients.beside([GIANT], [GIANT], BODIES):
            times, start = [], time.monotonic()
            while time.monotonic() < start + SECONDS:
                half += [raw(port, head(10)[:40]) for _ in range(10)] if len(half) < 200 else []
                times.append(clients.seconds(SMALL))
                most = max(most, resident(process=process.pid))
        answered = [seconds for seconds in times if seconds is not None]
        assert len(answered) > 0.9 * len(times) and statistics.median(answered) < 1
        for sent in BROKEN:
            with raw(port, sent) as connection:
                answer = b"".join(iter(lambda connection=connection: connection.recv(1000), b""))
            assert answer.startswith(b"HTTP/1.1 400") and b'\r\n\r\n{"error":' in answer
        files += 3  # the connections that the other threads keep
        while open_files(process) > files and time.monotonic() < start + SECONDS + 30:
            time.sleep(0.5)  # heads and answers have 10 s
        assert open_files(process) <= files
        assert set(clients.statuses) <= {200, 400, 413, 422, 429} and {200, 400, 413, 422} <= set(clients.statuses)
        assert clients.seconds(SMALL) is not None and clients.statuses[-1] == 200
        assert 'status="500"' not in httpx.get(f"{clients.url}/metrics").text and "Traceback" not in log.read_text()
        assert most < before + (4 * (MOST_BYTES + 9 * (4 << 20)) >> 20)
        for connection in (*deaf, *half):
            connection.close()
