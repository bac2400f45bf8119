"""Data-parallel training: several processes train one model, each with its share of every step's batches.

MPI starts them (`mpirun -n 4 python train.py`), and each runs the same program. `Processes` exchanges Python objects
and adds up gradients, between GPUs by NCCL. Sums are taken in the order of the processes, so the result depends only on
the number of processes.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

from bertcore.kernels import array_module, set_num_threads
from bertcore.kernels.arrays import Array
from bertcore.kernels.threads import thread_count
from bertcore.system import is_bound_to_cpus

# Environment variables of launchers (Open MPI, MPICH and Slurm): the number of processes, in all and on this machine.
_COUNTS = "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"
_LOCAL_COUNTS = "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"
_LOCAL_INDICES = "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"
BUCKET = 1 << 20  # elements sent at once; with 2**18, 11 million took 1.3 times as long on two processes
FORWARDING = 0.5  # seconds for the launcher to read stderr before an abort; without, 1 report in 15 was lost

Result = TypeVar("Result")


class FirstProcessError(RuntimeError):
    """The first process failed at work that it does for all; the message repeats its error."""


class Processes:
    """The processes of a run, or this one alone. All call each method together, except the constructor and `end_all`.

    `comm` is the communicator (mpi4py) of the processes, None for this one alone; `index` is this one's number, from 0.
    """

    def __init__(self, comm: Any = None):
        self._comm = comm
        self.index, self.count = (0, 1) if comm is None else (comm.Get_rank(), comm.Get_size())
        self._buffers: dict[Any, tuple[Any, Any]] = {}
        self._device_exchange: DeviceExchange | None = None

    @property
    def is_first(self) -> bool:
        """True for the process that writes and reports for all."""
        return self.index == 0

    def use_own_gpu(self) -> None:
        """Give each process of this machine a GPU of its own."""
        if self.count > 1:
            local_index = max(int(os.environ.get(name, "0")) for name in _LOCAL_INDICES)
            cuda = importlib.import_module("cupy").cuda
            cuda.Device(local_index % cuda.runtime.getDeviceCount()).use()  # a launcher may show each process one

    def gathered(self, value: Result) -> list[Result]:
        """Return the values of all processes, in their order."""
        return [value] if self.count == 1 else self._comm.allgather(value)

    def from_first(self, make: Callable[[], Result]) -> Result:
        """Return the result of `make` in the first process, which alone calls it; the others get it by pickle.

        Raises FirstProcessError in the others if `make` raises in the first.
        """
        if self.count == 1:
            return make()
        if not self.is_first:
            value, problem = self._comm.bcast(None)
            if problem is not None:
                raise FirstProcessError(problem)
            return value
        try:
            value = make()
        except BaseException as error:
            self._comm.bcast((None, f"{type(error).__name__}: {error}"))
            raise
        self._comm.bcast((value, None))
        return value

    def check_same(self, what: str, fact: object) -> None:
        """Raise ValueError unless a fact is the same in all processes."""
        facts = self.gathered(fact)
        for index, other in enumerate(facts):
            if other != facts[0]:
                raise ValueError(f"{what} differs between processes: {facts[0]!r} in 0, {other!r} in {index}")

    def add_up(self, arrays: Sequence[Array]) -> None:
        """Replace each array by its sum over the processes, in place.

        All processes pass arrays of the same shapes and dtypes, in host memory or each on its own GPU.
        """
        if self.count == 1:
            return
        for dtype in dict.fromkeys(array.dtype for array in arrays):
            same = [array for array in arrays if array.dtype == dtype]
            for bucket in buckets_of(same, BUCKET):
                size, exchange = sum(part.size for part in bucket), self._exchange(bucket[0])
                width = -(-size // self.count)  # elements that a process adds up
                given, taken = (buffer[: width * self.count] for buffer in self._two_buffers(bucket[0]))
                for part, place in _views(given, bucket):
                    place[...] = part
                given[size:] = 0
                exchange.Alltoall(given, taken)
                parts = taken.reshape(self.count, width)
                total = parts[0]
                for part in parts[1:]:
                    total += part
                exchange.Allgather(total, given)
                for part, place in _views(given, bucket):
                    part[...] = place

    def _exchange(self, array: Array) -> Any:
        """Return the communicator for such arrays."""
        if array_module(array) is np:
            return self._comm
        if self._device_exchange is None:
            self._device_exchange = DeviceExchange(self)
        return self._device_exchange

    def _two_buffers(self, like: Array) -> tuple[Any, Any]:
        xp, dtype, size = array_module(like), like.dtype, BUCKET + self.count
        if (xp, dtype) not in self._buffers:
            self._buffers[xp, dtype] = xp.empty(size, dtype), xp.empty(size, dtype)
        return self._buffers[xp, dtype]

    def end_all(self) -> None:
        """Abort all processes as a failure: the others would wait forever for this one."""
        if self.count > 1:
            sys.stderr.flush()
            time.sleep(FORWARDING)
            self._comm.Abort(1)


@functools.cache
def started_together() -> Processes:
    """Return the processes that an MPI launcher started with this one, or this one alone.

    Processes on one machine share its CPUs: each gets an equal number of threads, unless the environment,
    `set_num_threads` or a CPU affinity sets it. An uncaught exception in one process ends them all. Raises ImportError
    if there are several processes and mpi4py is not installed.
    """
    count = max((int(os.environ.get(name, "1")) for name in _COUNTS), default=1)
    if count == 1:
        return Processes()
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise ImportError(f"{count} processes were started by MPI, which needs mpi4py: pip install mpi4py") from error
    processes = Processes(MPI.COMM_WORLD)
    threads, here = thread_count(), max(int(os.environ.get(name, "1")) for name in _LOCAL_COUNTS)
    if not threads.source.startswith(("environment", "set_num_threads")) and not is_bound_to_cpus():
        set_num_threads(max(1, threads.count // here))
    sys.excepthook = functools.partial(_end_all_after, sys.excepthook, processes)
    return processes


def _end_all_after(
    before: Callable[..., Any], processes: Processes, kind: type, error: BaseException, where: TracebackType | None
) -> None:
    if isinstance(error, FirstProcessError):  # the first process reports the error and ends this one
        return
    before(kind, error, where)
    print(f"process {processes.index} of {processes.count} failed; ending all processes", file=sys.stderr)
    processes.end_all()


def buckets_of(arrays: Sequence[Array], most: int) -> list[list[Array]]:
    """Return the arrays in groups of at most `most` elements; a larger array is cut into views."""
    buckets: list[list[Any]] = [[]]
    left = most
    for array in arrays:
        for piece in _pieces(array, most):
            if piece.size > left:
                buckets.append([])
                left = most
            buckets[-1].append(piece)
            left -= piece.size
    return [bucket for bucket in buckets if bucket]


def _pieces(array: Array, most: int) -> list[Any]:
    """Return views of an array, of at most `most` elements each."""
    if array.size <= most:
        return [array] if array.size else []
    if len(array) == 1:
        return _pieces(array[0], most)
    rows = max(1, most // (array.size // len(array)))
    return [piece for start in range(0, len(array), rows) for piece in _pieces(array[start : start + rows], most)]


def _views(buffer: Array, parts: Sequence[Array]) -> Iterator[tuple[Array, Array]]:
    """Yield each part with its place in the buffer, in its shape."""
    start = 0
    for part in parts:
        yield part, buffer[start : start + part.size].reshape(part.shape)
        start += part.size


TYPES = {name: f"NCCL_{name.upper()}" for name in ("float16", "bfloat16", "float32", "float64")}


class DeviceExchange:
    """Exchange of CuPy arrays between processes on their current streams, with mpi4py's method names.

    Raises ImportError if NCCL is not installed.
    """

    def __init__(self, processes: Processes):
        self._cuda = importlib.import_module("cupy").cuda
        self._nccl = importlib.import_module("cupy.cuda.nccl")
        if not self._nccl.available:
            raise ImportError("processes with a GPU each need NCCL: pip install nvidia-nccl-cu13 (or -cu12)")
        self._count = processes.count
        unique_id = processes.from_first(self._nccl.get_unique_id)
        self._comm = self._nccl.NcclCommunicator(processes.count, unique_id, processes.index)

    def Alltoall(self, given: Array, taken: Array) -> None:
        """Send each process its part of `given`, all of one size, and receive this process's parts into `taken`."""
        size, kind, stream = given.size // self._count, self._kind(given), self._stream()
        self._nccl.groupStart()
        for other in range(self._count):
            part = slice(other * size, (other + 1) * size)
            self._comm.send(given[part].data.ptr, size, kind, other, stream)
            self._comm.recv(taken[part].data.ptr, size, kind, other, stream)
        self._nccl.groupEnd()

    def Allgather(self, part: Array, whole: Array) -> None:
        """Send `part` to all, and receive the parts of all processes into `whole`, in their order."""
        self._comm.allGather(part.data.ptr, whole.data.ptr, part.size, self._kind(part), self._stream())

    def _kind(self, array: Array) -> int:
        return getattr(self._nccl, TYPES[array.dtype.name])

    def _stream(self) -> int:
        return self._cuda.get_current_stream().ptr
