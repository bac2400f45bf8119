"""The choice of a backend for a call, and the conversion of arrays on the way in and out.

A backend is a name: "numpy" (reference.py, the definition), "numba" (cpu.py) or "cupy" (cuda.py). It is chosen, in this
order, by the call (`backend=`), by the block (`use_backend`), by the process (`set_backend`, or the environment
variable BERTCORE_BACKEND, see settings.py); "auto", the default, depends on the arrays: "cupy" for arrays on a GPU,
"numba" for arrays in host memory. There is no fallback: a backend that cannot run, or arrays that it cannot read, are
an error.

NumPy, CuPy and PyTorch arrays are accepted; PyTorch tensors are converted through DLPack without a copy, and the result
is of the same kind as the arguments.
"""

import functools
import importlib
import importlib.util
import os
from collections.abc import Collection
from contextlib import AbstractContextManager, ContextDecorator, nullcontext
from contextvars import ContextVar
from types import ModuleType
from typing import Any, Literal, TypeAlias

import numpy as np

from . import _cuda, checks
from .arrays import NativeArray
from .errors import BackendUnavailable
from .settings import PACKAGE, PROJECT, setting, variable
from .threads import detect_threads

NUMBA_MEGABYTES, THREAD_MEGABYTES = 512, 72  # of address space: for libraries; for a stack and the allocator's arena
IMPLEMENTATIONS = {"numpy": "reference", "numba": "cpu", "cupy": "cuda"}
AUTO = "auto"
Backend: TypeAlias = Literal["numpy", "numba", "cupy", "auto"]

_ALREADY = nullcontext()  # for a device that is already the current one

_block_backend: ContextVar[str | None] = ContextVar(f"{PROJECT}_backend", default=None)
_process_backend = setting("BACKEND") or AUTO
_process_backend_from = variable("BACKEND")


def set_backend(name: Backend) -> None:
    """Set the backend of this process: "numpy", "numba", "cupy", or "auto".

    Raises ValueError for an unknown name and BackendUnavailable for a backend that cannot run here.
    """
    global _process_backend, _process_backend_from
    _process_backend, _process_backend_from = _usable(name), "backend"


class use_backend(ContextDecorator):  # a function of contextlib takes three times as long, once for each batch
    """Set the backend within a `with` block, only for this thread or asynchronous task.

    Raises ValueError for an unknown name and BackendUnavailable for a backend that cannot run here.
    """

    def __init__(self, name: Backend):
        self._name = _usable(name)

    def __enter__(self) -> None:
        self._token = _block_backend.set(self._name)

    def __exit__(self, *error: object) -> None:
        _block_backend.reset(self._token)

    def _recreate_cm(self) -> AbstractContextManager:  # for each call of a decorated function
        return use_backend(self._name)


def get_backend() -> str:
    """Return the active backend: "numpy", "numba", "cupy" or "auto"."""
    return _block_backend.get() or _process_backend


def current_gpu() -> int:
    """Return the number of the current GPU."""
    return _cuda.runtime().device_index()


def unavailable_reason(name: str) -> str | None:
    """Return why the backend `name` cannot run here and what to do about it, or None if it can."""
    if name == "cupy" and _cuda.is_emulated():
        return None
    return startup_error(name)


@functools.cache
def startup_error(name: str) -> str | None:
    if name == "numba":
        return _numba_unavailable_reason()
    if name == "cupy":
        return _cupy_unavailable_reason()
    return None


def array_module(array: object) -> ModuleType:
    """Return the module of a NumPy or CuPy array: numpy or cupy."""
    return _module_of(type(array))


def uses_gpu(backend: str | None = None) -> bool:
    """Return whether a backend, by default the active one, computes in the memory of a GPU."""
    return (backend or get_backend()) == "cupy" and not _cuda.is_emulated()


@functools.cache
def _module_of(kind: type) -> ModuleType:
    return importlib.import_module("cupy") if _library(kind) == "cupy" else np


@functools.cache
def _library(kind: type) -> str:
    """Return the name of the library that defines a class."""
    return kind.__module__.partition(".")[0]


def to_backend(array: np.ndarray, backend: str | None = None) -> NativeArray:
    """Return `array` in the memory of a backend, by default the active one: on the GPU for "cupy".

    The host does not wait for the copy, which CuPy makes from its own pinned memory.
    """
    return importlib.import_module("cupy").asarray(array) if uses_gpu(backend) else array


def to_host(array: Any) -> np.ndarray:
    """Return an array, or lists, in host memory; wait for the GPU if it still computes the array."""
    return array.get() if _library(type(array)) == "cupy" else np.asarray(array)


def _numba_unavailable_reason() -> str | None:
    if importlib.util.find_spec("numba") is None:
        return "Numba is not installed: pip install numba"
    if os.environ.get("NUMBA_DISABLE_JIT", "0") != "0":
        return "the environment variable NUMBA_DISABLE_JIT switches Numba's compiler off: unset it"
    if importlib.util.find_spec("resource") is not None:
        resource = importlib.import_module("resource")
        limit, threads = resource.getrlimit(resource.RLIMIT_AS)[0], detect_threads().count
        needed = NUMBA_MEGABYTES + threads * THREAD_MEGABYTES
        if limit != resource.RLIM_INFINITY and limit >> 20 < needed:  # its thread pool would abort the process
            return (
                f"the limit of address space (ulimit -v) is {limit >> 20} MiB, expected at least {needed} MiB for "
                f"Numba and {threads} threads: raise it, or set OMP_NUM_THREADS to fewer"
            )
    try:
        importlib.import_module("numba")
    except ImportError as error:  # such as for a NumPy that is too new for it
        return f"Numba is installed but does not import: {error}"
    return None


def _cupy_unavailable_reason() -> str | None:
    if importlib.util.find_spec("cupy") is None:
        return (
            'CuPy is not installed: pip install "cupy-cuda13x[ctk]" ml_dtypes (CUDA 13 driver; '
            '"cupy-cuda12x[ctk]" for CUDA 12)'
        )
    try:
        import cupy
    except (ImportError, OSError) as error:  # OSError: it creates a folder in the user's home
        return f"CuPy is installed but does not import: {error}"
    try:
        cupy.cuda.runtime.getDeviceCount()  # raises without a GPU
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return _cuda_start_error(cupy.cuda.runtime, error)
    return None


def _cuda_start_error(runtime: ModuleType, error: Any) -> str:
    """Return why CUDA's first call failed, and how to fix it."""
    insufficient_driver, no_device = 35, 100  # of cudaError_t; CuPy does not name them
    if error.status == insufficient_driver and runtime.driverGetVersion() == 0:
        return "no NVIDIA GPU is visible to CUDA: there is no NVIDIA driver (check nvidia-smi)"
    if error.status == no_device:
        return "no NVIDIA GPU is visible to CUDA (check nvidia-smi and CUDA_VISIBLE_DEVICES)"
    return f"CUDA does not start: {error}"


def _usable(name: str, argument: str = "backend") -> str:
    """Return `name` if it is a backend that can run here (or "auto"); `argument` is its name in errors."""
    if not isinstance(name, str):
        raise TypeError(f"{argument} is {name!r}, expected the name of a backend")
    if name == AUTO:
        return name
    if name not in IMPLEMENTATIONS:
        known = ", ".join(repr(known) for known in [*IMPLEMENTATIONS, AUTO])
        raise ValueError(f"{argument} is {name!r}, expected one of {known}")
    reason = unavailable_reason(name)
    if reason is not None:
        raise BackendUnavailable(f"backend {name!r} cannot run here: {reason}")
    return name


def resolve_backend(backend: str | None, on_gpu: bool) -> str:
    """Return the backend for a call with arrays on the GPU or in host memory; `backend` is the call's own choice.

    Raises TypeError or ValueError for an unknown name, BackendUnavailable for a backend that cannot run here.
    """
    if backend is None:
        backend = _block_backend.get()
        if backend is not None and backend != AUTO:
            return backend  # `use_backend` has checked it
        if backend is None and _process_backend != AUTO:
            return _usable(_process_backend, _process_backend_from)
    elif _usable(backend) != AUTO:
        return backend
    return _usable("cupy" if on_gpu else "numba")


@functools.cache
def implementation(package: str, backend: str) -> ModuleType:
    """Return the module that implements the operation folder `package` on `backend`, imported at first use."""
    module = f"{package}.{IMPLEMENTATIONS[backend]}"
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        name = package.rpartition(".")[2]
        raise NotImplementedError(f"{name} has no implementation on backend {backend!r}") from error


def on_device_of(array: Any) -> AbstractContextManager:
    """Make the GPU that holds `array` the current one; do nothing for other arrays."""
    return _ALREADY if array_module(array) is np else _on_device(array.data.device_id)


def _on_device(index: int) -> AbstractContextManager:
    cuda = _cuda.runtime()
    return _ALREADY if cuda.device_index() == index else cuda.cupy.cuda.Device(index)


class ArrayCall:
    """A call with arrays converted to NumPy or CuPy, on the chosen backend; tensors get tensors back."""

    __slots__ = ("are_tensors", "arrays", "backend", "package")

    def __init__(self, package: str, backend: str | None, arrays: dict[str, Any], optional: Collection[str]):
        self.package, self.are_tensors = package, False
        kinds = {type(array) for name, array in arrays.items() if array is not None or name not in optional}
        if kinds <= {np.ndarray}:  # by far most calls: nothing to convert, all in one memory
            self.arrays = tuple(arrays.values())
            self.backend = resolve_backend(backend, on_gpu=False)
            if self.backend != "cupy":
                return
        elif all(_library(kind) == "cupy" for kind in kinds):
            self.arrays = tuple(arrays.values())
            self.backend = resolve_backend(backend, on_gpu=True)
            if self.backend == "cupy" and not _cuda.is_emulated():
                checks.aligned(**arrays)
                return
        natives, homes = {}, {}
        for name, array in arrays.items():
            absent = array is None and name in optional
            natives[name], homes[name] = (None, None) if absent else self.native(name, array)
        self.arrays = tuple(natives.values())
        self.backend = resolve_backend(backend, on_gpu=self._one_home(homes) == "GPU")
        self._check_reach(homes)
        if "GPU" in homes.values():
            checks.aligned(**natives)

    def run(self, function: str, *args: Any) -> Any:
        """Call `function` of the implementation and return its one array as the kind of the arguments."""
        result = self.compute(function, *args)
        return tensor_of(result) if self.are_tensors else result

    def compute(self, function: str, *args: Any) -> Any:
        """Call `function` of the implementation; its results are NumPy or CuPy arrays."""
        module = implementation(self.package, self.backend)
        if not hasattr(module, function):
            raise NotImplementedError(f"{function} has no implementation on backend {self.backend!r} yet")
        with self.on_device():
            return getattr(module, function)(*args)

    def on_device(self) -> AbstractContextManager:
        """Return a context in which the arrays' GPU, if any, is the current one: CuPy computes and allocates there.

        `compute` enters it; a function that itself computes with the arrays must enter it, too.
        """
        if self.backend != "cupy" or _cuda.is_emulated():
            return _ALREADY
        devices = {array.data.device_id for array in self.arrays if array is not None}
        if len(devices) != 1:
            raise ValueError(f"the arrays are on {len(devices)} GPUs, expected all of them on one")
        return _on_device(*devices)

    def native(self, name: str, array: object) -> tuple[Any, str]:
        """Return `array` as a NumPy or CuPy array, and the place of its memory: "host" or "GPU"."""
        if type(array) is np.ndarray:
            return array, "host"
        if isinstance(array, np.ndarray) and not isinstance(array, np.ma.MaskedArray | np.matrix):
            return np.asarray(array), "host"
        library = _library(type(array))
        if library == "cupy":
            return array, "GPU"
        if library == "torch" and hasattr(array, "__dlpack__"):
            self.are_tensors = True
            return array_of(name, array)
        raise TypeError(f"{name} is {type(array).__qualname__}, expected a NumPy, CuPy or PyTorch array")

    def _one_home(self, homes: dict[str, str | None]) -> str | None:
        """Return the one place of all arrays; TypeError if they are in several places."""
        found = {home: name for name, home in homes.items() if home is not None}
        if len(found) > 1:
            raise TypeError(
                f"{found['host']} is in host memory but {found['GPU']} is on the GPU: all arrays of one call must be "
                "in the same place (cupy.asarray and cupy.asnumpy move them)"
            )
        return next(iter(found), None)

    def _check_reach(self, homes: dict[str, str | None]) -> None:
        reach = "GPU" if self.backend == "cupy" and not _cuda.is_emulated() else "host"
        for name, home in homes.items():
            if home is not None and home != reach:
                wanted = "CuPy arrays or CUDA tensors" if reach == "GPU" else "arrays in host memory"
                place = "on the GPU" if home == "GPU" else "in host memory"
                raise TypeError(f"backend {self.backend!r} expects {wanted}, but {name} is {place}")


def open_call(package: str, backend: str | None, *, optional: Collection[str] = (), **arrays: Any) -> ArrayCall:
    """Open a call of the operation folder `package` with its array arguments by name; `optional` ones may be None."""
    return ArrayCall(package, backend, arrays, optional)


def array_of(name: str, tensor: Any) -> tuple[Any, str]:
    """Return the NumPy or CuPy array of a tensor's memory, and its home: "host" or "GPU".

    Raises TypeError, with the tensor's `name`, if it needs autograd, or if its memory does not hold its values.
    """
    torch = importlib.import_module("torch")
    if tensor.requires_grad and torch.is_grad_enabled():
        raise TypeError(
            f"{name} requires grad, but PyTorch's autograd cannot differentiate {PACKAGE}: "
            f"pass {name}.detach(), or call under torch.no_grad()"
        )
    kinds = {
        "meta": tensor.is_meta,
        "sparse": tensor.layout != torch.strided,
        "quantized": tensor.is_quantized,
        "conjugated or negated": tensor.is_conj() or tensor.is_neg(),
    }
    for kind, is_it in kinds.items():
        if is_it:
            raise TypeError(f"{name} is a {kind} tensor, expected a dense one with memory of its own values")
    tensor = tensor.detach()
    if tensor.is_cuda:
        return importlib.import_module("cupy").from_dlpack(tensor), "GPU"
    if tensor.dtype == torch.bfloat16:
        raise TypeError(f"{name} is a bfloat16 tensor in host memory, which NumPy cannot hold: pass {name}.float()")
    return np.from_dlpack(tensor), "host"


def tensor_of(array: NativeArray | None) -> Any:
    """Return a tensor of the memory of an array; None for None."""
    return None if array is None else importlib.import_module("torch").from_dlpack(array)
