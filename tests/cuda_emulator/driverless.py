"""CuPy without a GPU: its arrays, devices and checks are the real ones, over host memory.

    with driverless() as gpu:                                   # the backend "cupy" is available within the block
        output = kernels.softmax(cupy.asarray(rows))            # a CuPy array, computed by the emulator
    gpu.launches                                                # launches that reached CuPy
    gpu.waits, gpu.uploads                                      # the host's waits, and its copies to the device

CuPy's wheel imports without a driver. Replaced are memory (an allocator), the answers about the device,
our kernels (RawModule, the emulator), cuBLASLt (cublaslt.cpp) and CuPy's own kernels and copies: a function that fails
for want of a driver is done again by NumPy over the same memory. CuPy's own checks before
a launch (types, attributes) run unchanged.
"""

import functools
import operator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import NamedTuple
from unittest import mock

import cupy
import numpy as np

from bertcore.kernels import _cuda, dispatch
from bertcore.kernels._cuda import cublaslt

from . import build
from .modules import module_with
from .runtime import Emulator, EmulatorError, check_extents
from .streams import CaptureError, Event, Stream

COMPUTE_CAPABILITY, SHARED_BYTES = 90, 227 << 10  # of a block that asks for it


def unavailable_reason():
    """Return why `driverless` cannot be used here, or None."""
    if dispatch.unavailable_reason("cupy") is None:
        return "there is a GPU, on which CuPy would work with memory of the host"
    return build.unavailable_reason()


class Launch(NamedTuple):
    """A kernel as it was started; Driverless.launches keeps them. `args` are CuPy's."""

    device: int
    kernel: str
    grid: tuple
    block: tuple
    args: tuple
    shared_bytes: int


class OtherDevice(RuntimeError):
    """A kernel, or a copy, on the current GPU of memory of another one."""


class Driverless:
    """The GPUs of a `driverless` block; launches go to the device `current`."""

    def __init__(self, emulator, multiprocessors):
        self.emulator = emulator
        self.runtime = _cuda.CuPyRuntime()  # one that has compiled nothing yet
        self.runtime.cublaslt_path = build.build_cublaslt
        self.current, self.memory_bytes = 0, 1 << 36
        names = (name.partition("cudaDevAttr")[2] for name in dir(cupy.cuda.runtime))
        self.attributes = dict.fromkeys(filter(None, names), 0)
        self.attributes |= {"MultiProcessorCount": multiprocessors, "MaxSharedMemoryPerBlockOptin": SHARED_BYTES}
        self.compiled = []  # (source, kernel, options)
        self.grants = []  # bytes of shared memory that kernels asked for
        self.launches = []
        self.waits = []  # names of the functions of CuPy for which the host would wait on a GPU
        self.uploads = []  # bytes of each copy from the host
        self.stream_class = Stream.of(self)
        self.default_stream = self.stream_class()
        self.streams = {}  # the current one of each GPU that has another than the default
        self.capture = None  # the Graph that is being captured
        self.is_busy = False  # whether events are pending

    @property
    def stream(self):
        """The current stream of the current GPU."""
        return self.streams.get(self.current, self.default_stream)

    @property
    def is_capturing(self):
        return self.capture is not None and self.capture.stream is self.stream

    def do(self, operation):
        """Run an operation of a stream: at once, or by the graph that is being captured."""
        if self.is_capturing:
            self.capture.operations.append(operation)
        else:
            operation()

    def refuse(self, reason):
        """End the capture with an error."""
        self.capture.is_invalid = True
        raise CaptureError(reason)

    def wait(self, name):
        """Note that the host waits for the device."""
        if self.capture is not None:
            self.refuse(f"{name} waits for the device while a stream is captured")
        self.waits.append(name)

    def check_library(self, name):
        """Refuse cuBLAS under capture, as CuPy does."""
        if self.is_capturing and name in BY_CUBLAS:
            self.refuse(f"{name} is cuBLAS's, which CuPy does not call while a stream is captured")

    def check_joined(self, name, args):
        """Refuse to join more than 8 arrays under capture.

        CuPy uploads a table from pinned memory, which a graph would read again at each launch.
        """
        if self.is_capturing and name in JOINING and len(args[0]) > MOST_JOINED:
            self.refuse(f"{name} of more than {MOST_JOINED} arrays takes memory of the host into a graph")

    def upload(self, name, arrays):
        """Note copies from the host, and refuse them under capture."""
        if self.is_capturing and arrays:
            self.refuse(f"{name} takes memory of the host into a graph, which would read it at every launch")
        self.uploads += [array.nbytes for array in arrays]

    @property
    def products(self):
        """The number of products that the replacement of cuBLASLt has computed in this process."""
        return build.load(build.build_cublaslt()).standin_products()

    def allocate(self, size):
        """Allocate memory of the host as if on the current device; it holds NaNs until it is written."""
        if self.is_capturing and size:
            self.refuse(f"{size} bytes are allocated while a stream is captured")
        room = np.full(size + 256, 0xFF, np.uint8)
        address = -(-room.ctypes.data // 256) * 256
        return cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(address, size, room, self.current), 0)

    def check_devices(self, name, values):
        """Refuse memory of other devices: kernels run, and copies are made, on the current one."""
        for value in values:
            if isinstance(value, tuple | list):
                self.check_devices(name, value)
            elif isinstance(value, cupy.ndarray) and value.size and value.data.device_id != self.current:
                raise OtherDevice(f"{name} on GPU {self.current}: memory of GPU {value.data.device_id}")

    def device(self, index=None):
        """The replacement of cupy.cuda.Device."""
        return _Device(self, self.current if index is None else index)

    def raw_module(self, *, code, options, name_expressions):
        """Replace cupy.RawModule."""
        self.compiled += [(code, name, options) for name in name_expressions]
        return SimpleNamespace(get_function=lambda name: _Kernel(self, code, name))


class _Device:
    """The replacement of cupy.cuda.Device."""

    def __init__(self, gpu, index):
        self._gpu, self.id, self._outer = gpu, index, []
        self.compute_capability, self.attributes = str(COMPUTE_CAPABILITY), gpu.attributes

    def __int__(self):
        return self.id

    def use(self):
        self._gpu.current = self.id

    def __enter__(self):
        self._outer.append(self._gpu.current)
        self._gpu.current = self.id

    def __exit__(self, *_):
        self._gpu.current = self._outer.pop()


class _Kernel:
    """The replacement of cupy.RawKernel."""

    def __init__(self, gpu, code, name):
        self._gpu, self._code, self._name = gpu, code, name
        self._granted = 0  # bytes of dynamic shared memory that were asked for

    @property
    def max_dynamic_shared_size_bytes(self):
        raise AssertionError("asks the driver, which takes time at every launch")

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, size):
        self._gpu.grants.append(size)
        self._granted = size

    def __call__(self, grid, block, args, shared_mem=0):
        self._check(grid, block, shared_mem)
        self._gpu.check_devices(self._name, args)
        self._gpu.launches.append(Launch(self._gpu.current, self._name, grid, block, args, shared_mem))
        passed = tuple(map(_as_kernel_gets_it, args))
        if self._gpu.emulator is not None:
            module = module_with(self._name, self._code)
            launch = self._gpu.emulator.launch
            self._gpu.do(lambda: launch(module, self._name, grid, block, passed, shared_mem))

    def _check(self, grid, block, shared_mem):
        check_extents(self._name, grid, block)
        if not shared_mem <= self._granted <= self._gpu.attributes["MaxSharedMemoryPerBlockOptin"]:
            raise EmulatorError(f"{self._name}: {shared_mem} bytes of shared memory, {self._granted} asked for")


def _as_kernel_gets_it(arg):
    """Convert an argument by CuPy's rules: the address of an array on the GPU, the bytes of a scalar or host array."""
    if isinstance(arg, cupy.ndarray):
        return host(arg)
    if isinstance(arg, np.ndarray) and arg.size == 1:
        return arg[(0,) * arg.ndim]
    if isinstance(arg, np.number | np.bool_):
        return None if isinstance(arg, np.uintp) and arg == 0 else arg
    raise TypeError(f"Unsupported type {type(arg)}")


def host(array):
    """Return the memory of a CuPy array as a NumPy array."""
    if array.size == 0:
        return np.empty(array.shape, array.dtype)
    interface = {"data": (array.data.ptr, False), "shape": (*array.shape, array.itemsize), "typestr": "|u1"}
    interface |= {"strides": (*array.strides, 1), "version": 3}
    return np.asarray(SimpleNamespace(__array_interface__=interface)).view(array.dtype)[..., 0]


def _to_host(value):
    if isinstance(value, cupy.ndarray):
        return host(value)
    if isinstance(value, tuple | list):
        return type(value)(map(_to_host, value))
    return value


def _to_device(value):
    if isinstance(value, np.ndarray | np.generic):
        array = cupy.empty(value.shape, value.dtype, order="F" if np.isfortran(value) else "C")
        host(array)[...] = value
        return array
    return type(value)(map(_to_device, value)) if isinstance(value, tuple | list) else value


# Functions and methods for which the host waits: they read values, or a number of elements.
READING = {
    *("__bool__", "__int__", "__float__", "item", "tolist", "tobytes"),
    *("nonzero", "flatnonzero", "argwhere", "unique", "bincount", "compress", "extract", "array_equal", "allclose"),
}
JOINING, MOST_JOINED = {"concatenate", "stack", "hstack", "vstack"}, 8
BY_CUBLAS = {"__matmul__", "__rmatmul__", "matmul", "dot", "vdot", "inner", "tensordot", "einsum"}


def _is_read(name, args):
    """Return whether this call makes the host wait: CuPy counts masks before it indexes by them."""
    if name in ("__getitem__", "__setitem__"):
        parts = args[1] if isinstance(args[1], tuple) else (args[1],)
        has_mask = any(isinstance(part, cupy.ndarray) and part.dtype == bool for part in parts)
        return has_mask and (name == "__getitem__" or isinstance(args[2], cupy.ndarray))
    return name in READING


def _through_numpy(gpu, real, substitute):
    """Return `real`, replaced by `substitute` over host memory when it fails without a driver or cuBLAS."""

    @functools.wraps(real)
    def call(*args, **options):
        try:
            return real(*args, **options)
        except (cupy.cuda.runtime.CUDARuntimeError, ImportError):
            gpu.check_library(real.__name__)
            if _is_read(real.__name__, args):
                gpu.wait(real.__name__)
            gpu.upload(real.__name__, [arg for arg in (*args, *options.values()) if isinstance(arg, np.ndarray)])
            gpu.check_devices(real.__name__, (*args, *options.values()))
            gpu.check_joined(real.__name__, args)
            given, named = [_to_host(arg) for arg in args], {name: _to_host(it) for name, it in options.items()}

            def compute():
                with np.errstate(all="ignore"):
                    return substitute(*given, **named)

            result = compute()
            # Done in place, or nothing to do.
            is_same = given and isinstance(args[0], cupy.ndarray) and result is given[0]
            made = options.get("out")
            if made is None:
                made = args[0] if is_same else _to_device(result)
            if gpu.is_capturing:
                target = _to_host(made)  # as it is now: CuPy's reshape gives the copy that it makes another shape
                gpu.do(lambda: _write(target, compute()))
            return made

    return call


def _write(target, result):
    """Write a result into the arrays that `_to_device` made for it."""
    if isinstance(target, np.ndarray):
        target[...] = result
    elif isinstance(target, tuple | list):
        for one, values in zip(target, result, strict=True):
            _write(one, values)


def _methods(gpu):
    """Yield the methods that arrays of CuPy and NumPy share: public methods, operators and conversions."""
    for name in dir(cupy.ndarray):
        plain = f"__{name[3:]}" if name.startswith("__r") else name
        is_operator = name.startswith("__") and plain in vars(operator)
        if is_operator or not name.startswith("_") or name in ("__bool__", "__int__", "__float__"):
            real, substitute = getattr(cupy.ndarray, name), getattr(np.ndarray, name, None)
            if callable(real) and callable(substitute):
                yield name, _through_numpy(gpu, real, substitute)


def _functions(gpu):
    """Yield the functions that cupy and numpy share."""
    for name in dir(cupy):
        real, substitute = getattr(cupy, name), getattr(np, name, None)
        if callable(real) and callable(substitute) and not isinstance(real, type) and not name.startswith("_"):
            yield name, _through_numpy(gpu, real, _matmul if name == "matmul" else substitute)


def _matmul(left, right):
    """Sum in float32, as cuBLAS does; NumPy would round each sum to the arrays' dtype."""
    return np.matmul(left.astype(np.float32), right.astype(np.float32)).astype(left.dtype)


def _to_numpy(gpu, array):
    gpu.wait("get")
    return host(array).copy()


def _products(gpu):
    """Return cuBLASLt's products as operations of a stream, which its replacement does not know."""
    run = cublaslt.Plan.run
    return lambda *given: gpu.do(functools.partial(run, *given))


def _replacements(gpu):
    """Yield (owner, name, replacement) of everything that needs a driver."""
    runtime = cupy.cuda.runtime
    yield runtime, "getDevice", lambda: gpu.current
    yield runtime, "getDeviceCount", lambda: 2
    yield runtime, "deviceSynchronize", lambda: gpu.wait("deviceSynchronize")
    yield runtime, "getDeviceProperties", lambda index: {"name": b"none, emulated"}
    yield runtime, "memGetInfo", lambda: (gpu.memory_bytes, gpu.memory_bytes)
    yield cupy.cuda, "Event", functools.partial(Event, gpu)
    yield cupy.cuda, "get_elapsed_time", lambda start, stop: 1e3 * (stop.time - start.time)
    yield cupy.cuda, "Stream", gpu.stream_class
    yield cupy.cuda, "get_current_stream", lambda: gpu.stream
    yield cupy.cuda, "Device", gpu.device
    yield cupy.ndarray, "device", property(lambda array: gpu.device(array.data.device_id))
    yield cupy, "get_default_memory_pool", lambda: SimpleNamespace(free_all_blocks=lambda: None)
    yield _cuda, "_CUPY", gpu.runtime
    yield cupy, "RawModule", gpu.raw_module
    yield cublaslt.Plan, "run", _products(gpu)
    yield from ((cupy.ndarray, name, method) for name, method in _methods(gpu))
    yield from ((cupy, name, function) for name, function in _functions(gpu))
    for owner, name in ((cupy.ndarray, "get"), (cupy, "asnumpy")):
        yield owner, name, lambda array, *_, **__: _to_numpy(gpu, array)


@contextmanager
def driverless(schedule="random", emulated=True, multiprocessors=132, races=False):
    """Within the block the backend "cupy" works; yields a Driverless. Without `emulated` kernels compute nothing.

    `races`: as the Emulator has it. For the whole process: one block at a time. Where it cannot be used, the test that
    enters it is skipped.
    """
    if (reason := unavailable_reason()) is not None:
        import pytest  # here: bench.gpu's tests run this without pytest

        pytest.skip(reason)
    emulator = Emulator(schedule, races=races) if emulated else None
    gpu = Driverless(emulator, multiprocessors)
    with ExitStack() as stack:
        for owner, name, replacement in _replacements(gpu):
            stack.enter_context(mock.patch.object(owner, name, replacement))
        previous = cupy.cuda.get_allocator()
        stack.callback(cupy.cuda.set_allocator, previous)
        cupy.cuda.set_allocator(gpu.allocate)
        stack.enter_context(_cuda.use_runtime(gpu.runtime))
        stack.callback(dispatch.startup_error.cache_clear)
        dispatch.startup_error.cache_clear()
        yield gpu
