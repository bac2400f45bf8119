"""Clients that misuse a server, and ordinary ones beside them, in a process of their own."""

import contextlib
import http.client
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event

NEVER_READING, HALF_OPEN, REOPENED = 8, 200, 5  # REOPENED: half-open heads in a tenth of a second
HELD = 12.0  # seconds for which a connection that is not read is kept: the server ends it after 10
JSON = {"Content-Type": "application/json"}
GIANT = json.dumps({"inputs": ["the cat sat on an mat " * 6] * 32}).encode()
BODIES = (
    b'{"inputs": ' + b"[" * 900 + b"]" * 900 + b"}",
    b'{"inputs": [' + b"[]," * 300_000 + b"[]]}",
    b'{"inputs": [[' + b"1," * 900_000 + b"1]]}",
    b'{"inputs": "' + b"x" * 4_100_000 + b'"}',
    b'{"inputs": "' + b"the cat " * 500_000 + b'", "truncate": true}',
    b'{"inputs": "' + b"x" * 4_300_000 + b'"}',
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
ORDINARY = (
    ("/embed", b'{"inputs": ["the cat", "a mat"]}'),
    ("/v1/embeddings", b'{"input": "paris is in france", "encoding_format": "base64"}'),
    ("/similarity", b'{"inputs": {"source_sentence": "a cat", "sentences": ["a mat", "paris"]}}'),
    ("/tokenize", b'{"inputs": "the cat sat on the mat"}'),
    ("/decode", b'{"ids": [5, 6, 7]}'),
    ("/embed_all", b'{"inputs": "the cat"}'),
)
DECODED = b'{"ids": [' + b"5," * 1_900_000 + b"5]}"


def head(length: int, path: str = "/embed") -> bytes:
    """Return the head of a request with a body of that length."""
    lines = (f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", f"Content-Length: {length}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


class Asking:
    """A client that asks for one thing after the other, and reads the answers but for what is in them.

    Attributes:
        seen: number of answers by status; "closed" for a connection that ended without one, "not JSON" for an answer
            that is something else.
    """

    def __init__(self, port: int):
        self._port, self.seen = port, Counter[str]()
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=90)

    def ask(self, path: str, body: bytes) -> bool:
        """Return whether there was an answer."""
        try:
            self._connection.request("POST", path, body, JSON)
            answer = self._connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException):
            self._connection.close()
            self.seen["closed"] += 1
            return False
        is_json = answer.headers.get_content_type() == "application/json" and content[:1] in (b"{", b"[")
        self.seen[str(answer.status) if is_json else "not JSON"] += 1
        return True


def attack(port: int, stop: Event, results: "Queue[Counter[str]]") -> None:
    """Use the server wrongly in every way at once, until `stop` is set; then put the counts of the answers."""
    askers: list[Asking] = []
    refused = Counter[str]()

    def asking(*asked: tuple[str, bytes], pause: float = 0.0) -> Callable[[], None]:
        client = Asking(port)
        askers.append(client)

        def loop() -> None:
            while not stop.is_set():
                for path, body in asked:
                    client.ask(path, body)
                    stop.wait(pause)

        return loop

    loops = [
        *(lambda: _never_read(port, stop) for _ in range(NEVER_READING)),
        lambda: _half_open(port, stop),
        *(asking(("/embed", GIANT)) for _ in range(2)),
        asking(*(("/embed", body) for body in BODIES), ("/decode", DECODED), pause=0.05),
        *(asking(*ORDINARY, pause=0.05) for _ in range(2)),
        lambda: _broken(port, stop, refused),
    ]
    threads = [threading.Thread(target=loop) for loop in loops]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results.put(sum((client.seen for client in askers), refused))


def _never_read(port: int, stop: Event) -> None:
    """Ask for much, and read none of it."""
    while not stop.is_set():
        with contextlib.suppress(OSError), socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.settimeout(5)
            connection.connect(("127.0.0.1", port))
            end = time.monotonic() + HELD
            with contextlib.suppress(OSError):
                connection.sendall((head(len(GIANT), "/embed_all") + GIANT) * 40)
            stop.wait(max(0.0, end - time.monotonic()))


def _half_open(port: int, stop: Event) -> None:
    """Keep connections open that send half a head."""
    half: list[socket.socket] = []
    while not stop.wait(0.1):
        for connection in half[:]:
            with contextlib.suppress(BlockingIOError):
                with contextlib.suppress(ConnectionError):
                    connection.recv(1)
                half.remove(connection)
                connection.close()
        for _ in range(min(REOPENED, HALF_OPEN - len(half))):
            with contextlib.suppress(OSError):
                connection = socket.create_connection(("127.0.0.1", port), timeout=5)
                connection.sendall(head(10)[:40])
                connection.setblocking(False)
                half.append(connection)
    for connection in half:
        connection.close()


def _broken(port: int, stop: Event, seen: Counter[str]) -> None:
    """Send what is not HTTP, and count the statuses of the answers."""
    while not stop.wait(1):
        for sent in BROKEN:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
                connection.sendall(sent)
                if answer := connection.recv(1000):
                    seen[answer[9:12].decode()] += 1
