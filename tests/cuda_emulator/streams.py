"""Replacements of CuPy's streams, events and graphs without a driver (driverless.py).

Work runs when a stream receives it, which is one of the orders that streams allow. While a stream is captured, its work
is noted instead, and runs at each launch of the graph. CaptureError is raised for operations that CUDA refuses then:
waiting for the device, allocating memory. So is a copy from the host, which CUDA would repeat with later contents.
"""

import time


class CaptureError(RuntimeError):
    """An operation that a captured stream cannot do; the capture is invalid then, and its end raises again."""


class Event:
    """cupy.cuda.Event."""

    def __init__(self, gpu, **options):
        self._gpu, self.time = gpu, None

    def record(self, stream=None):
        self.time = time.perf_counter()

    @property
    def done(self):
        """True once all earlier work is done, which a test may deny by `is_busy`."""
        return not self._gpu.is_busy

    def synchronize(self):
        self._gpu.wait("Event.synchronize")
        self._gpu.is_busy = False


class Graph:
    """cupy.cuda.Graph: the operations of a captured stream, in their order."""

    def __init__(self, stream):
        self.stream, self.operations, self.launches = stream, [], 0
        self.is_invalid = False

    def launch(self, stream=None):
        self.launches += 1
        for operation in self.operations:
            operation()


class Stream:
    """cupy.cuda.Stream of one `driverless` block; the first that is made is the default stream."""

    def __init__(self, non_blocking=False):
        is_default = not hasattr(self._gpu, "default_stream")
        self.ptr = 0 if is_default else id(self)
        self._device = None if is_default else self._gpu.current
        self._outer = []

    @classmethod
    def of(cls, gpu):
        """Return the class of the streams of a Driverless."""
        return type("Stream", (cls,), {"_gpu": gpu})

    @classmethod
    def from_external(cls, other):
        stream = cls()
        _, stream.ptr = other.__cuda_stream__()
        stream._device = None  # CuPy does not ask
        return stream

    def __enter__(self):
        """Make this the current stream of the current GPU; each GPU has its own."""
        device = self._gpu.current
        if self._device not in (None, device):
            raise RuntimeError(f"the stream is of GPU {self._device}, the current one is {device}")
        self._outer.append((device, self._gpu.stream))
        self._gpu.streams[device] = self
        return self

    def __exit__(self, *_):
        device, stream = self._outer.pop()
        self._gpu.streams[device] = stream

    def wait_event(self, event):
        if self._gpu.is_capturing and event.time is not None:
            self._gpu.refuse("an event of another stream is waited for within a capture")

    def record(self, event=None):
        event = Event(self._gpu) if event is None else event
        event.record(self)
        return event

    def synchronize(self):
        self._gpu.wait("Stream.synchronize")

    def begin_capture(self, mode=None):
        if self.ptr == 0:
            raise CaptureError("the default stream cannot be captured")
        self._gpu.capture = Graph(self)

    def end_capture(self):
        graph, self._gpu.capture = self._gpu.capture, None
        if graph.is_invalid:
            raise CaptureError("the capture was invalidated")
        return graph
