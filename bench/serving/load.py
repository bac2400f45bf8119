"""The compared servers, each a process of its own, and clients that each ask for one text after the other."""

import contextlib
import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertcore import SentenceEncoder

LONGEST_WAIT = 60  # seconds for an answer


class Client:
    """One connection to a server of this machine. Its own work for a request is 0.1 ms, where httpx takes 0.6."""

    def __init__(self, port: int):
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LONGEST_WAIT)

    def get(self, path: str) -> bytes:
        """Return the body of the answer; raises RuntimeError unless its status is 200."""
        return self._answer("GET", path)

    def post(self, body: bytes) -> bytes:
        """Return the body of the answer to POST /embed; raises RuntimeError unless its status is 200."""
        return self._answer("POST", "/embed", body)

    def embed(self, text: str) -> np.ndarray:
        """Return the embedding of one text, (dim,) float32."""
        return np.array(json.loads(self.post(request_of(text)))[0], np.float32)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _answer(self, method: str, path: str, body: bytes | None = None) -> bytes:
        self._connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{method} {path}: {answer.status} {content[:200]!r}")
        return content


def request_of(text: str) -> bytes:
    """Return the body that asks for the embedding of one text."""
    return json.dumps({"inputs": [text]}).encode()


class Load(NamedTuple):
    """The result of a load: seconds of each answer, and of the whole."""

    seconds: np.ndarray
    duration: float

    @property
    def per_second(self) -> float:
        """Answers a second."""
        return len(self.seconds) / self.duration

    def quantile(self, share: float) -> float:
        """Return the time within which that share of the answers came."""
        return float(np.quantile(self.seconds, share))


def put_load(port: int, texts: Sequence[str], clients: int, seconds: float) -> Load:
    """Ask with `clients` at once for some seconds, each from another text on. The first failure is raised."""
    bodies = [request_of(text) for text in texts]
    times: list[list[float]] = [[] for _ in range(clients)]
    failures: list[BaseException] = []
    begin: list[float] = []
    ready = threading.Barrier(clients + 1, action=lambda: begin.append(time.perf_counter()))

    def ask(own: list[float], first: int) -> None:
        try:
            with contextlib.closing(Client(port)) as client:
                client.post(bodies[first])  # connects
                ready.wait()
                for body in islice(cycle(bodies), first, None):
                    start = time.perf_counter()
                    if start >= begin[0] + seconds:
                        return
                    client.post(body)
                    own.append(time.perf_counter() - start)
        except Exception as error:
            failures.append(error)
            ready.abort()

    threads = [
        threading.Thread(target=ask, args=(own, number * len(bodies) // clients)) for number, own in enumerate(times)
    ]
    for thread in threads:
        thread.start()
    with contextlib.suppress(threading.BrokenBarrierError):
        ready.wait()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return Load(np.concatenate(times), time.perf_counter() - begin[0])


OURS, PEER = "bertcore", "sentence-transformers"
START = 300  # seconds: with an empty cache, kernels are compiled first


class Server(NamedTuple):
    """A process, and the port on which it listens."""

    process: subprocess.Popen
    port: int


def _ours(folder: Path, port: int, threads: int) -> list[str]:
    # The peer truncates long texts, too. OMP_NUM_THREADS sets the threads.
    return ["-m", "bertcore", "serve", str(folder), "--port", str(port), "--auto-truncate"]


def _peer(folder: Path, port: int, threads: int) -> list[str]:
    return ["-m", "bench.serving.peer", str(folder), str(port), str(threads)]


SERVERS: dict[str, Callable[[Path, int, int], list[str]]] = {OURS: _ours, PEER: _peer}


@contextlib.contextmanager
def running(
    name: str, folder: Path, threads: int, options: Sequence[str] = (), files: int | None = None, log: Any = None
) -> Iterator[Server]:
    """Yield a server of that name in SERVERS once it answers; it is stopped afterwards.

    `options` are added to its command; `files` is the number of files that it may open; errors go to the file `log`.
    """
    port = _free_port()
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, *SERVERS[name](folder, port, threads), *options]
    if files is not None:
        command = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", *command]
    process = subprocess.Popen(command, env=environment, stderr=log)
    try:
        _wait(process, port)
        yield Server(process, port)
    finally:
        process.terminate()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait(process: subprocess.Popen, port: int) -> None:
    """Wait until the server answers. Raises RuntimeError if it ends before, or takes too long."""
    end = time.monotonic() + START
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}: {' '.join(process.args)}")
        try:
            with contextlib.closing(Client(port)) as client:
                client.get("/health")
            return
        except ConnectionError:
            time.sleep(0.1)
    raise RuntimeError(f"no answer in {START} s: {' '.join(process.args)}")


WARM_UP = 20


def overhead(port: int, encoder: SentenceEncoder, texts: Sequence[str], rounds: int) -> tuple[float, float]:
    """Return the medians, in seconds, of a request for one text and of `encode` in this process, in turns."""
    with contextlib.closing(Client(port)) as client:
        asked = [(text, request_of(text)) for text in texts]
        times = [
            (_seconds(client.post, body), _seconds(encoder.encode, text))
            for text, body in islice(cycle(asked), WARM_UP + rounds)
        ]
    served, alone = zip(*times[WARM_UP:], strict=True)
    return statistics.median(served), statistics.median(alone)


def _seconds(call: Callable[[Any], Any], argument: Any) -> float:
    start = time.perf_counter()
    call(argument)
    return time.perf_counter() - start
