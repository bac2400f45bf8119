"""A stand-in for cupy.cuda.nccl between processes without GPUs, whose arrays are in host memory: MPI carries them."""

import sys
from contextlib import contextmanager
from types import SimpleNamespace
from unittest import mock

import numpy as np
from mpi4py import MPI

from tests.cuda_emulator.driverless import driverless

KINDS = {7: np.float32, 8: np.float64}  # as nccl.h numbers them


def _host(address, count, kind):
    size = count * np.dtype(KINDS[kind]).itemsize
    interface = {"data": (address, False), "shape": (size,), "typestr": "|u1", "version": 3}
    return np.asarray(SimpleNamespace(__array_interface__=interface))


class _Communicator:
    def __init__(self, count, unique_id, index):
        assert (count, index) == (MPI.COMM_WORLD.size, MPI.COMM_WORLD.rank)
        assert unique_id == (1, 2, 3)
        self.begun = None  # requests of a group

    def send(self, address, count, kind, peer, stream):
        self.begun.append(MPI.COMM_WORLD.Isend(_host(address, count, kind), peer))

    def recv(self, address, count, kind, peer, stream):
        self.begun.append(MPI.COMM_WORLD.Irecv(_host(address, count, kind), peer))

    def allGather(self, address, room, count, kind, stream):
        assert self.begun is None
        MPI.COMM_WORLD.Allgather(_host(address, count, kind), _host(room, count * MPI.COMM_WORLD.size, kind))


class _Module:
    """The names of cupy.cuda.nccl that are used."""

    available, NCCL_FLOAT32, NCCL_FLOAT64 = True, 7, 8

    def __init__(self):
        self.communicator = None

    def get_unique_id(self):
        assert MPI.COMM_WORLD.rank == 0, "all processes need the id of one"
        return 1, 2, 3

    def NcclCommunicator(self, *given):
        self.communicator = _Communicator(*given)
        return self.communicator

    def groupStart(self):
        self.communicator.begun = []

    def groupEnd(self):
        MPI.Request.Waitall(self.communicator.begun)
        self.communicator.begun = None


@contextmanager
def gpus():
    """A GPU for each process, without a driver; yields the Driverless of this one."""
    with mock.patch.dict(sys.modules, {"cupy.cuda.nccl": _Module()}), driverless() as gpu:
        yield gpu
