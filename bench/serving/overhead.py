"""What the server adds to an embedding: a request for one text, in turns with `encode` in this process."""

import contextlib
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from typing import Any

from bench.serving.load import Client, request_of
from bertcore import SentenceEncoder

WARM_UP = 20


def overhead(port: int, encoder: SentenceEncoder, texts: Sequence[str], rounds: int) -> tuple[float, float]:
    """Medians of (a request, encode alone), seconds."""
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
