"""Connections of `bertcore serve`: their number, and time limits for sending a request's head and for reading."""

from typing import Any

import h11
import orjson
from uvicorn.protocols.http.h11_impl import H11Protocol

from bertcore.system import open_files

BACKLOG = 128  # connections that wait to be accepted
MOST_CONNECTIONS = 1024
SPARE_FILES = 12  # descriptors that the process opens later, for the event loop and files
SPARE_CONNECTIONS = 8  # beyond the running requests: for refusals and new clients
HEAD_SECONDS = 10.0  # for the head of a request
READ_SECONDS = 10.0  # for a client to read a part of an answer, 64 kB
MOST_HEADERS = 100  # each takes 300 bytes of memory, however short
MOST_HEAD = 1 << 14  # bytes
LENGTHS = frozenset((b"content-length", b"transfer-encoding"))


class Heads(h11.Connection):
    """h11's, which refuses a request with too many headers or with two lengths (RFC 9112, section 6.3)."""

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request) and len(event.headers) > MOST_HEADERS:
            raise h11.RemoteProtocolError(f"more than {MOST_HEADERS} headers")
        if isinstance(event, h11.Request) and LENGTHS.issubset(name for name, _ in event.headers):
            raise h11.RemoteProtocolError("a body of two lengths")  # a proxy may have read it by the other one
        return event


class Connection(H11Protocol):
    """An HTTP/1.1 connection that an inactive client cannot keep open.

    It is closed if a head is not complete within HEAD_SECONDS, and if a part of an answer is not sent within
    READ_SECONDS. A new connection beyond uvicorn's `limit_concurrency` closes the one that has been idle the longest.
    Bytes that are not HTTP are also answered with JSON.
    """

    def __init__(self, *given: Any, **options: Any):
        super().__init__(*given, **options)
        self.conn = Heads(h11.SERVER, MOST_HEAD)
        self._most, self.limit_concurrency = self.limit_concurrency, None  # uvicorn's own answer would be plain text
        self._head_ends: float | None = None
        self._reading_ends: Any = None
        self.idle_since = 0.0

    @property
    def is_idle(self) -> bool:
        """True while no request is running."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: Any) -> None:
        """Set the limits of a new connection, and close an idle one if there are too many."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # so that `pause_writing` is called for every byte that waits
        self._expect_head()
        alive: list[Any] = [each for each in self.connections if not each.transport.is_closing()]
        if self._most is not None and len(alive) > self._most:
            idle = [each for each in alive if each is not self and each.is_idle]
            min(idle, key=lambda each: each.idle_since, default=self).transport.abort()

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), MOST_HEAD):  # h11 compares incomplete heads with the limit
            if not self.transport.is_closing():
                super().data_received(data[start : start + MOST_HEAD])
        if self.is_idle:
            self._expect_head()
        else:
            self._head_ends = None

    def _expect_head(self) -> None:
        now = self.loop.time()
        if self._head_ends is None:
            self._head_ends, self.idle_since = now + HEAD_SECONDS, now
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_at(self._head_ends, self.timeout_keep_alive_handler)

    def on_response_complete(self) -> None:
        self.idle_since = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reading_ends = self.loop.call_later(READ_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._reading_ends.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        if self._reading_ends is not None:
            self._reading_ends.cancel()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are not HTTP, unless an answer has begun; count the request and close the connection."""
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            wrong = "the request is not valid HTTP/1.1, has both Content-Length and Transfer-Encoding, "
            wrong += f"or has over {MOST_HEADERS} headers or {MOST_HEAD} bytes of them"
            body = orjson.dumps({"error": wrong, "error_type": "Validation"})
            headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), "Connection": "close"}
            head = h11.Response(status_code=400, reason="Bad Request", headers=list(headers.items()))
            for event in (head, h11.Data(body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event))
            self.config.app.state.metrics.request("other", 400, 0.0)  # type: ignore[union-attr]
        self.transport.close()


def connection_limits() -> tuple[int, int]:
    """Return how many connections may wait and how many may be open, within the limit of open files.

    The event loop accepts as many connections at once as may wait, and closes excess ones three iterations later.
    """
    if (limit := open_files()) is None:
        return BACKLOG, MOST_CONNECTIONS
    files, used = limit
    waiting = max(1, min(BACKLOG, files // 16))
    return waiting, min(MOST_CONNECTIONS, files - used - SPARE_FILES - 4 * waiting)
