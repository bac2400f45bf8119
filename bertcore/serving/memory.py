"""The memory that requests may hold together: the bytes of their bodies and answers."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

from bertcore.serving.requests import overloaded


@dataclass
class Memory:
    """The bytes that the requests of a server hold.

    Attributes:
        most: the bytes that they may hold together.
        held: the bytes that they hold.
    """

    most: int
    held: int = 0

    @contextlib.contextmanager
    def of_request(self) -> Iterator[None]:
        """Let go of all that is held in the context, at its end."""
        request = _Held(self)
        token = _request.set(request)
        try:
            yield
        finally:
            _request.reset(token)
            self.held -= request.count


@dataclass
class _Held:
    memory: Memory
    count: int = 0


_request: ContextVar[_Held | None] = ContextVar("request", default=None)


def hold(count: int) -> None:
    """Hold so many bytes until the current request has ended. Raises RequestError (429) if there is no room."""
    request = _request.get()
    if request is None:
        return
    memory = request.memory
    if memory.held + count > memory.most:
        raise overloaded(f"requests hold {memory.held} of {memory.most} bytes, no room for {count} more: try again")
    memory.held += count
    request.count += count
