"""The limits of a server."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from bertcore.arguments import check_strings

BODY = 9  # bytes of memory for a byte of a body: token ids of three digits and a comma take 36


@dataclass(frozen=True)
class ServerSettings:
    """Limits of a server.

    Attributes:
        max_batch_tokens: tokens computed at once (at most 1024 on a CPU); a longer text is computed alone.
        max_queue_tokens: tokens that may wait, for short and for long requests each; further ones are refused with 429.
        max_client_batch_size: texts of a request; one with more is refused with 413.
        max_concurrent_requests: requests that run at once; further ones are refused with 429.
        max_body_bytes: bytes of a request's body; a larger one is refused with 413.
        max_response_bytes: bytes of an answer; a request for a larger one is refused with 413. They are estimated from
            its numbers, words, labels or tokens before it is computed (after, for sparse embeddings).
        body_timeout: seconds in which a request's body must arrive; it is refused with 408 otherwise.
        timeout: seconds that a request may take; a longer one is answered with 504.
        auto_truncate: cut texts that are too long, instead of refusing them.
        api_key: the key that requests must send as `Authorization: Bearer KEY` (401 otherwise), printable ASCII without
            spaces; None for no key.
        allowed_hosts: names, in lower case and without ports, allowed as header Host (403 for others); None for any.
        cors_origins: origins whose pages may call the server from a browser, such as https://example.com, or "*".

    Raises:
        ValueError: for a limit that is not positive, and for a key or an origin that no request could have.
    """

    max_batch_tokens: int = 4096
    max_queue_tokens: int = 1 << 18
    max_client_batch_size: int = 32
    max_concurrent_requests: int = 512
    max_body_bytes: int = 4 << 20
    max_response_bytes: int = 32 << 20
    body_timeout: float = 30.0
    timeout: float = 60.0
    api_key: str | None = field(default=None, repr=False)
    auto_truncate: bool = False
    allowed_hosts: Collection[str] | None = None
    cors_origins: Collection[str] = ()

    @property
    def max_memory(self) -> int:
        """The bytes that all requests together may reserve (429 beyond): the largest answer and body, times four."""
        return 4 * (self.max_response_bytes + BODY * self.max_body_bytes)

    def __post_init__(self) -> None:
        for name in (entry.name for entry in fields(self) if entry.type in (int, float)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise ValueError(f"{name} is {value!r}, expected a positive number")
        check_strings("allowed_hosts", self.allowed_hosts or ())
        for origin in check_strings("cors_origins", self.cors_origins):
            if not re.fullmatch(r"\*|https?://[^/?#A-Z]+", origin):
                raise ValueError(f"cors_origins has {origin!r}, expected SCHEME://HOST in lower case, or *")
        if self.api_key is not None and not re.fullmatch("[!-~]+", self.api_key):
            wrong = "has other characters" if self.api_key else "is empty"
            raise ValueError(f"api_key {wrong}, expected printable ASCII without spaces, or None")

    def cutting(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return `ServedModel.read`'s options `truncate` and `side` for a request."""
        truncate = self.auto_truncate if body["truncate"] is None else body["truncate"]
        return {"truncate": truncate, "side": body["truncation_direction"].lower()}
