"""Fixtures of the models' tests."""

from collections import deque

import pytest

from bertcore import use_backend


@pytest.fixture
def gpu(monkeypatch):
    """A GPU without a driver, in force; `graphs` are those that it launched, one after the other."""
    from tests.cuda_emulator.driverless import driverless, unavailable_reason
    from tests.cuda_emulator.streams import Graph

    if unavailable_reason() is not None:
        pytest.skip(unavailable_reason())
    launched = []
    launch = Graph.launch
    monkeypatch.setattr(Graph, "launch", lambda self, stream=None: (launched.append(self), launch(self, stream)))
    with driverless("round_robin") as gpu, use_backend("cupy"):
        gpu.graphs = launched
        gpu.launches = deque(maxlen=0)  # which would keep their arguments alive
        yield gpu
