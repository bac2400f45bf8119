"""Clients that each ask for one text after the other, over a connection of their own."""

import contextlib
import http.client
import json
import threading
import time
from collections.abc import Sequence
from itertools import cycle, islice
from typing import NamedTuple

import numpy as np

LONGEST_WAIT = 60  # seconds for an answer


class Client:
    """One connection to a server of this machine. Its own work for a request is 0.1 ms, where httpx takes 0.6."""

    def __init__(self, port: int):
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LONGEST_WAIT)

    def get(self, path: str) -> bytes:
        """The body of the answer; RuntimeError if it is not 200."""
        return self._answer("GET", path)

    def post(self, body: bytes) -> bytes:
        """The body of the answer to POST /embed; RuntimeError if it is not 200."""
        return self._answer("POST", "/embed", body)

    def embed(self, text: str) -> np.ndarray:
        """The embedding of one text, (dim,) float32."""
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
    """The body that asks for the embedding of one text."""
    return json.dumps({"inputs": [text]}).encode()


class Load(NamedTuple):
    """What came of a load: the seconds of each answer, and the seconds that it lasted."""

    seconds: np.ndarray
    duration: float

    @property
    def per_second(self) -> float:
        """Answers a second."""
        return len(self.seconds) / self.duration

    def quantile(self, share: float) -> float:
        """The time within which that share of the answers came."""
        return float(np.quantile(self.seconds, share))


def put_load(port: int, texts: Sequence[str], clients: int, seconds: float) -> Load:
    """Ask with so many clients at once for so long; each begins at another text. The first that fails raises."""
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
