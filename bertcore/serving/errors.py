"""What goes wrong with a request: a status, a kind and a message, as text-embeddings-inference names them."""

from dataclasses import dataclass


@dataclass
class RequestError(Exception):
    """An answer that is an error.

    Attributes:
        status: of HTTP.
        kind: "validation", "overloaded", ...
        message: what is wrong, and what was expected.
        is_body_unread: whether the client may still be sending.
    """

    status: int
    kind: str
    message: str
    is_body_unread: bool = False

    def __str__(self) -> str:
        return self.message


def malformed(message: str) -> RequestError:
    """A body that is no JSON object."""
    return RequestError(400, "malformed", message)


def invalid(message: str) -> RequestError:
    """A field that is missing or of another type."""
    return RequestError(422, "validation", message)


def encoded(message: str) -> RequestError:
    """A body that is compressed."""
    return RequestError(415, "malformed", message, is_body_unread=True)


def too_large(message: str) -> RequestError:
    """A batch or a text beyond the limits."""
    return RequestError(413, "validation", message)


def body_too_large(message: str) -> RequestError:
    """A body beyond the limit."""
    return RequestError(413, "validation", message, is_body_unread=True)


def body_too_slow(message: str) -> RequestError:
    """A body that did not arrive in time."""
    return RequestError(408, "timeout", message, is_body_unread=True)


def overloaded(message: str) -> RequestError:
    """More work than the queue holds."""
    return RequestError(429, "overloaded", message)


def unsupported(message: str) -> RequestError:
    """Something that no model here can do."""
    return RequestError(424, "backend", message)


def no_model(message: str) -> RequestError:
    """A model that is not served here."""
    return RequestError(404, "model_not_found", message)


def timed_out(message: str) -> RequestError:
    """Work that took too long."""
    return RequestError(504, "timeout", message)
