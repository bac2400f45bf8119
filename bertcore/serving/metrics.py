"""The counters of a server, for Prometheus."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
TOKENS = tuple(1 << power for power in range(3, 17))


class Metrics:
    """The counters of one server, in a registry of its own."""

    def __init__(self, waiting_tokens: Callable[[], float]):
        self._registry = CollectorRegistry()
        place = {"registry": self._registry}
        self._requests = Counter("bertcore_requests", "Requests by path and status", ["path", "status"], **place)
        self._seconds = Histogram("bertcore_request_seconds", "Time of a request", ["path"], buckets=SECONDS, **place)
        self._batch_tokens = Histogram("bertcore_batch_tokens", "Tokens of a batch", buckets=TOKENS, **place)
        self._batch_rows = Histogram("bertcore_batch_rows", "Texts of a batch", buckets=TOKENS[:8], **place)
        waiting = Gauge("bertcore_waiting_tokens", "Tokens that wait to be computed", **place)
        waiting.set_function(waiting_tokens)

    def request(self, path: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def batch(self, rows: int, tokens: int) -> None:
        """Count a batch."""
        self._batch_rows.observe(rows)
        self._batch_tokens.observe(tokens)

    def text(self) -> bytes:
        """Return all counters in Prometheus' format."""
        return generate_latest(self._registry)
