"""The runtime object that launches kernels on the CPU."""

import ctypes
import threading
from typing import NamedTuple

import numpy as np

from bertcore.kernels._cuda import DeviceProperties

from . import build

SCHEDULES = ("round_robin", "forward", "backward", "random")  # as in include/scheduler.h
GRID_LIMIT = (2**31 - 1, 65535, 65535)
BLOCK_LIMIT = (1024, 1024, 64)
THREADS_LIMIT = 1024

unavailable_reason = build.unavailable_reason


class EmulatorError(RuntimeError):
    """A kernel did something undefined, or could not be launched."""


class _Buffer(ctypes.Structure):
    _fields_ = (
        ("host", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
        ("label", ctypes.c_char_p),
        ("writable", ctypes.c_int),
    )


class _Request(ctypes.Structure):
    _fields_ = (
        ("kernel", ctypes.c_char_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("dynamic_shared", ctypes.c_size_t),
        ("schedule", ctypes.c_int),
        ("seed", ctypes.c_uint),
        ("argument_count", ctypes.c_int),
        ("buffer_count", ctypes.c_int),
        ("values", ctypes.POINTER(ctypes.c_void_p)),
        ("sizes", ctypes.POINTER(ctypes.c_size_t)),
        ("kinds", ctypes.c_char_p),
        ("buffer_of", ctypes.POINTER(ctypes.c_int)),
        ("offset_of", ctypes.POINTER(ctypes.c_size_t)),
        ("buffers", ctypes.POINTER(_Buffer)),
        ("message", ctypes.c_char_p),
        ("message_bytes", ctypes.c_size_t),
        ("fault_address", ctypes.c_size_t),
        ("other_address", ctypes.c_size_t),
    )


class Launch(NamedTuple):
    """A launch; Emulator.launches keeps them, so that a test can assert that a path ran."""

    kernel: str
    grid: tuple
    block: tuple
    shared_bytes: int


class Emulator:
    """Runs kernels over NumPy arrays; stands in for bertcore.kernels._cuda.CuPyRuntime."""

    _lock = threading.Lock()  # a built library runs one kernel at a time

    def __init__(self, schedule="round_robin", seed=0, arch=80, defines=(), races=False):
        """`schedule`: one of SCHEDULES; `seed`: of the random one; `arch`: capability compiled for (75, 80, ...).

        `defines`: macros for the compiler; EMULATOR_UCONTEXT switches threads as machines other than x86-64 do.
        `races`: check for races, whatever the schedule (include/races.h); takes several times as long.
        """
        if (reason := unavailable_reason()) is not None:
            import pytest  # here: bench.gpu's tests run this without pytest

            pytest.skip(f"the CUDA emulator cannot be built: {reason}")
        self.schedule = SCHEDULES.index(schedule)
        self.seed = seed
        self.arch = arch
        self.defines = (*defines, build.RACES) if races else tuple(defines)
        self.launches = []

    def array_module(self, array):
        return np

    def address(self, array):
        return array.__array_interface__["data"][0]

    def device_index(self):
        return 0

    def stream(self):
        return None

    def cublaslt_path(self):
        return build.build_cublaslt()

    def device(self):
        shared_bytes = (64 if self.arch < 80 else 99) * 1024  # what sm_75, and sm_86 and sm_120, have
        return DeviceProperties(compute_capability=self.arch, multiprocessors=4, shared_bytes=shared_bytes)

    def launch(self, module, kernel, grid, block, args, shared_bytes):
        self._check(kernel, grid, block, shared_bytes)
        library = build.build(module.text, module.instantiations, self.arch, self.defines)
        entry = f"emulator_launch_{module.instantiations.index(kernel)}"
        self.launches.append(Launch(kernel, grid, block, shared_bytes))
        with self._lock:
            self._run(library, entry, kernel, grid, block, args, shared_bytes)

    def _check(self, kernel, grid, block, shared_bytes):
        check_extents(kernel, grid, block)
        most = self.device().shared_bytes
        if shared_bytes > most:
            raise EmulatorError(f"kernel {kernel}: {shared_bytes} bytes of shared memory, there are {most}")

    def _run(self, library, entry, kernel, grid, block, args, shared_bytes):
        arguments = _Arguments(kernel, args)
        message = ctypes.create_string_buffer(2048)
        request = _Request(
            kernel=kernel.encode(),
            grid=grid,
            block=block,
            dynamic_shared=shared_bytes,
            schedule=self.schedule,
            seed=self.seed,
            message=ctypes.cast(message, ctypes.c_char_p),
            message_bytes=len(message),
            **arguments.fields(),
        )
        if getattr(build.load(library), entry)(ctypes.byref(request)):
            text = message.value.decode()
            if request.fault_address:
                text += f" (at {build.source_line(library, request.fault_address)})"
            if request.other_address:
                text += f" (the other at {build.source_line(library, request.other_address)})"
            raise EmulatorError(text)


def check_extents(kernel, grid, block):
    """Refuse launches that a driver refuses, and a size of 0, which CuPy would turn into one block."""
    for name, extent, limit in (("grid", grid, GRID_LIMIT), ("block", block, BLOCK_LIMIT)):
        if any(not 1 <= size <= most for size, most in zip(extent, limit, strict=True)):
            raise EmulatorError(f"kernel {kernel}: {name} {extent} is outside 1 to {limit}")
    if np.prod(block) > THREADS_LIMIT:
        raise EmulatorError(f"kernel {kernel}: block {block} has more than {THREADS_LIMIT} threads")


class _Arguments:
    """Kernel arguments as C sees them. Arrays whose memory overlaps share one buffer, and so overlap in it too."""

    def __init__(self, kernel, args):
        self.values, self.kinds, extents = [], "", {}
        for position, arg in enumerate(args):
            if isinstance(arg, np.ndarray):
                extents[position] = np.lib.array_utils.byte_bounds(arg) if arg.size else (0, 0)
            elif not isinstance(arg, np.generic | None):
                expected = "expected an array, a NumPy scalar or None"
                raise TypeError(f"kernel {kernel}: argument {position} is {type(arg)}, {expected}")
            pointer = arg is None or isinstance(arg, np.ndarray)
            self.values.append(np.zeros(1, np.uintp) if pointer else np.atleast_1d(arg))
            self.kinds += "p" if pointer else "f" if arg.dtype.kind == "f" else "i"
        self.buffer_of = [-1] * len(args)
        self.offset_of = [0] * len(args)
        self.buffers = []
        self._merge(args, extents)

    def _merge(self, args, extents):
        groups = []  # [begin, end, positions]
        for position, (begin, end) in sorted(extents.items(), key=lambda item: item[1]):
            if groups and begin < groups[-1][1]:
                groups[-1][1] = max(end, groups[-1][1])
                groups[-1][2].append(position)
            else:
                groups.append([begin, end, [position]])
        for index, (begin, end, positions) in enumerate(groups):
            label = f"argument {', '.join(map(str, sorted(positions)))}".encode()
            writable = any(args[position].flags.writeable for position in positions)
            self.buffers.append(_Buffer(begin, end - begin, label, writable))
            for position in positions:
                self.buffer_of[position] = index
                if args[position].size:
                    self.offset_of[position] = args[position].__array_interface__["data"][0] - begin

    def fields(self):
        count = len(self.values)
        return {
            "argument_count": count,
            "buffer_count": len(self.buffers),
            "values": (ctypes.c_void_p * count)(*(value.ctypes.data for value in self.values)),
            "sizes": (ctypes.c_size_t * count)(*(value.itemsize for value in self.values)),
            "kinds": self.kinds.encode(),
            "buffer_of": (ctypes.c_int * count)(*self.buffer_of),
            "offset_of": (ctypes.c_size_t * count)(*self.offset_of),
            "buffers": (_Buffer * len(self.buffers))(*self.buffers),
        }
