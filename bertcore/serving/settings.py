"""What a server is told when it is started."""

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class ServerSettings:
    """Limits of a server.

    Attributes:
        max_batch_tokens: tokens computed at once; a longer text is computed alone.
        max_queue_tokens: tokens that may wait; a request beyond is refused (429).
        max_client_batch_size: texts that a request may have (413 beyond).
        max_body_bytes: how long a request's body may be (413 beyond).
        body_timeout: seconds in which a request's body has to arrive (408 beyond).
        timeout: seconds that a request may wait and compute (504 beyond).
        api_key: what a request has to bring as `Authorization: Bearer KEY` (401 without); None for no key.
        auto_truncate: whether texts that are too long are cut where a request does not say so; otherwise they are
            refused (413).

    Raises ValueError for a limit that is not positive.
    """

    max_batch_tokens: int = 4096
    max_queue_tokens: int = 1 << 18
    max_client_batch_size: int = 1024
    max_body_bytes: int = 4 << 20
    body_timeout: float = 30.0
    timeout: float = 60.0
    api_key: str | None = None
    auto_truncate: bool = False

    def __post_init__(self) -> None:
        limits = [entry.name for entry in fields(self) if entry.name not in ("api_key", "auto_truncate")]
        for name in limits:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise ValueError(f"{name} is {value!r}, expected a positive number")
        if self.api_key == "":
            raise ValueError("api_key is empty, expected a key or None")
