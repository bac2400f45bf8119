"""How processes that have a GPU each exchange arrays: by NCCL, through CuPy, not by way of the host."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

TYPES = {name: f"NCCL_{name.upper()}" for name in ("float16", "bfloat16", "float32", "float64")}


class DeviceExchange:
    """The exchange of CuPy's arrays between processes, on the current stream of each; it has the names of mpi4py's.

    Args:
        index, count: the number of this process, and how many there are.
        from_first: gives all processes what the first makes (`Processes.from_first`).

    Raises:
        ImportError: if NCCL is not installed.
    """

    def __init__(self, index: int, count: int, from_first: Callable[[Callable[[], Any]], Any]):
        self._cuda = importlib.import_module("cupy").cuda
        self._nccl = importlib.import_module("cupy.cuda.nccl")
        if not self._nccl.available:
            raise ImportError("processes with a GPU each need NCCL: pip install nvidia-nccl-cu13 (or -cu12)")
        self._count = count
        self._comm = self._nccl.NcclCommunicator(count, from_first(self._nccl.get_unique_id), index)

    def Alltoall(self, given: Any, taken: Any) -> None:
        """Give each process its part of `given`, all of one size; `taken` has those that are ours, in their order."""
        size, kind, stream = given.size // self._count, self._kind(given), self._stream()
        self._nccl.groupStart()
        for other in range(self._count):
            part = slice(other * size, (other + 1) * size)
            self._comm.send(given[part].data.ptr, size, kind, other, stream)
            self._comm.recv(taken[part].data.ptr, size, kind, other, stream)
        self._nccl.groupEnd()

    def Allgather(self, part: Any, whole: Any) -> None:
        """Give `part` to all; `whole` has those of all processes, in their order."""
        self._comm.allGather(part.data.ptr, whole.data.ptr, part.size, self._kind(part), self._stream())

    def _kind(self, array: Any) -> int:
        return getattr(self._nccl, TYPES[array.dtype.name])

    def _stream(self) -> int:
        return self._cuda.get_current_stream().ptr


def use_own_gpu(local_index: int) -> None:
    """Make the GPU of this number the current one: each of the processes of a machine has its own.

    Where there are fewer, as where a launcher shows each process one, they are counted round.
    """
    cuda = importlib.import_module("cupy").cuda
    cuda.Device(local_index % cuda.runtime.getDeviceCount()).use()
