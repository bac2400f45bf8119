"""Processes that hold the same encoder each; devices and their backends."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from typing import Any

from bertcore import kernels
from bertcore.arguments import check_count, check_strings


class EncoderPool:
    """Processes that hold the same encoder each: one for each of `devices`, "cpu" or "cuda"."""

    def __init__(self, kind: type[Any], arguments: dict[str, Any], devices: Sequence[str]):
        if not check_strings("target_devices", devices):
            raise ValueError("target_devices is empty, expected at least one")
        for device in devices:
            backend_of(device)
        context = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
        queue = context.SimpleQueue()
        for device in devices:
            queue.put(device)
        threads = max(1, kernels.get_num_threads() // len(devices))
        given = kind, arguments, queue, threads
        self.processes = len(devices)
        self._executor = ProcessPoolExecutor(len(devices), context, initializer=_begin_process, initargs=given)

    def run(self, method: str, inputs: Sequence[Any], chunk_size: int | None, options: dict[str, Any]) -> list[Any]:
        """Return the results of the encoders' `method` for each chunk of the inputs, in order."""
        size = -(-len(inputs) // (10 * self.processes)) if chunk_size is None else check_count("chunk_size", chunk_size)
        size, rest = min(max(size, 1), 5000), iter(inputs)
        chunks = iter(lambda: list(islice(rest, size)), [])
        jobs = [self._executor.submit(_of_chunk, method, chunk, options) for chunk in chunks]
        return [job.result() for job in jobs]

    def close(self) -> None:
        """End the processes."""
        self._executor.shutdown(cancel_futures=True)


_encoder: Any = None  # in a process of a pool


def _begin_process(kind: type[Any], arguments: dict[str, Any], devices: Any, threads: int) -> None:
    global _encoder
    kernels.set_num_threads(threads)
    _encoder = kind(**(arguments | {"device": devices.get()}))


def _of_chunk(method: str, chunk: list[Any], options: dict[str, Any]) -> Any:
    return getattr(_encoder, method)(chunk, **options)


def backend_of(device: object) -> str:
    """Return the backend for `device`: the active one for None, and for "cpu" unless it is a GPU's.

    A torch.device, and the numbers of transformers' pipelines, -1 for the CPU and 0 for the GPU, are devices, too.
    """
    current = kernels.get_backend()
    if device is None:
        return current
    name = str(device)
    if name not in ("cpu", "-1", "cuda", "cuda:0", "0"):
        raise ValueError(f"device is {device!r}, expected 'cpu', 'cuda' or None")
    if name in ("cpu", "-1"):
        return "numba" if current == "cupy" else current
    return "cupy"


class Device(str):
    """The name of a device, which equals torch.device of that name and has its `type`."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return str(self) == (other if isinstance(other, str) else getattr(other, "type", None))

    def __ne__(self, other: object) -> bool:
        return not self == other

    @property
    def type(self) -> str:
        """The name."""
        return str(self)
