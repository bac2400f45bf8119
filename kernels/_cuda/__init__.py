"""Shared GPU machinery: the cuda.py of each operation launches the kernels of its .cu file through this package.

    # kernels/softmax/cuda.py
    from .. import _cuda

    KERNELS = _cuda.Source(__file__, "softmax.cu", instantiations=INSTANTIATIONS)

    def softmax(input, dim):
        xp = _cuda.array_module(input)              # cupy; numpy if the runtime is the tests' CPU emulator
        ...
        KERNELS.launch("softmax_rows<float, 32, 8>", grid, block, (input, output, np.int64(rows)), shared_bytes=0)

`grid` and `block` are tuples of one to three ints. `args` holds arrays (passed as the address of their first element,
whatever their strides), None (a null pointer) and NumPy scalars (passed by value with the size of their dtype: np.int32
for int, np.int64 for long long, np.float32 for float, np.bool_ for bool; a scalar of an aligned structured dtype for a
struct). `instantiations` must list every kernel that is launched, so that the tests compile all of them. A kernel is
compiled at its first launch, then kept. Launches go to CuPy's current device and stream: the caller makes the arrays'
device the current one. This package imports neither CuPy nor a compiler before the first launch.

In .cu files `#include "x.cuh"` is replaced, once each, by the text of x.cuh, found beside the including file (or from
there by a relative path) or in this folder: the key of CuPy's disk cache is the source text alone. The headers here:

    common.cuh       conversions to and from float, 16-byte vectors of a row, warp and block reductions, SHARED_ARRAY
                     and DYNAMIC_SHARED (which declare shared memory on the GPU and in the emulator alike)
    ptx.cuh          one PTX instruction per function: mma.sync, ldmatrix, cp.async, named barriers
    mma.cuh          matrix fragments over ptx.cuh, and replacements of those instructions below sm_80
    tile.cuh         tiles of a matrix in shared memory: copies into them, fragments taken from them
    activations.cuh  gelu (erf, tanh), relu, tanh, silu as functors over float
    philox.cuh       random bits of dropout
    rows.cuh         kernels over rows, a warp or a block to each; norms.cuh, column_sums.cuh (launchers: rows.py)
    pointwise.cuh    elementwise kernels; many.cuh over many arrays at once (launchers: elements.py)

cublaslt.py has the matrix products, capture.py the recording of CUDA graphs.
"""

import functools
import itertools
import re
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..errors import BackendUnavailable

HEADERS = Path(__file__).parent
OPTIONS = ("-std=c++17",)
NULL = np.uintp(0)  # a null pointer, as CuPy takes it

FLAGS = (False, True)
C_TYPES = {"float32": "float", "float16": "__half", "bfloat16": "__nv_bfloat16"}
TYPES = tuple(C_TYPES.values())

NO_CUBLASLT = (
    "backend 'cupy' multiplies by cuBLASLt, which is not installed: pip install \"cupy-cuda13x[ctk]\" (CUDA 13 driver; "
    '"cupy-cuda12x[ctk]" for CUDA 12). After set_batch_invariant(True) only gradients need it'
)


# ---- kernels ---------------------------------------------------------------------------------------------------------


@functools.cache  # NumPy makes the name of a dtype anew each time
def c_type(dtype):
    """Return CUDA's name of a floating dtype: "float", "__half" or "__nv_bfloat16"."""
    name = np.dtype(dtype).name
    if name not in C_TYPES:
        raise TypeError(f"dtype is {name}, expected {', '.join(C_TYPES)} on CUDA")
    return C_TYPES[name]


def template(name, *arguments):
    """Return the name expression of an instantiation, such as "rows<float, 32, true>"."""
    return f"{name}<{', '.join(str(it).lower() if isinstance(it, bool) else str(it) for it in arguments)}>"


def instantiations(name, *choices, types=TYPES):
    """Return the name expressions of a template for all `types` and all combinations of its other arguments."""
    return tuple(template(name, *arguments) for arguments in itertools.product(types, *choices))


class Source:
    """The kernels of one .cu file."""

    def __init__(self, beside, source, instantiations):
        """`beside`: __file__ of the cuda.py; `source`: file name; `instantiations`: every name expression launched."""
        self.path = Path(beside).with_name(source)
        self.instantiations = tuple(instantiations)
        self._known = frozenset(self.instantiations)
        self._text = None

    @property
    def text(self):
        """The source with our own headers inlined.

        Before Python 3.12 functools.cached_property has one lock for all instances, on which a forked child can hang.
        """
        if self._text is None:
            self._text = inline_includes(self.path)
        return self._text

    def launch(self, kernel, grid, block, args, shared_bytes=0):
        """Start `kernel` (a name expression) over `grid` blocks of `block` threads; see the package's docstring."""
        if kernel not in self._known:
            raise ValueError(f"kernel {kernel!r} is not among the instantiations of {self.path.name}")
        runtime().launch(self, kernel, (*grid, 1, 1)[:3], (*block, 1, 1)[:3], args, shared_bytes)


_INCLUDE = re.compile(r'^[ \t]*#include "([^"]+)"[ \t]*$')


def inline_includes(path, seen=None):
    """Return the file's text with each `#include "x"` replaced by the text of x at its first appearance, then removed.

    #line directives make the compiler's messages point at the files on disk.
    """
    seen = set() if seen is None else seen
    seen.add(path.resolve())
    lines = [f'#line 1 "{path.name}"']
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        include = _INCLUDE.match(line)
        if include is None:
            lines.append(line)
            continue
        found = (folder / include[1] for folder in (path.parent, HEADERS))
        header = next((file for file in found if file.is_file()), None)
        if header is None:
            raise FileNotFoundError(f'{path}: #include "{include[1]}" is neither beside it nor in {HEADERS}')
        if header.resolve() not in seen:
            lines.append(inline_includes(header, seen))
        lines.append(f'#line {number + 1} "{path.name}"')
    return "\n".join(lines) + "\n"


# ---- the runtime -----------------------------------------------------------------------------------------------------


class DeviceProperties(NamedTuple):
    """Properties of a device that launchers depend on."""

    compute_capability: int  # 75, 80, 90, ...
    multiprocessors: int
    shared_bytes: int  # the most dynamic shared memory one block may ask for


class CuPyRuntime:
    """Compiles with CuPy's NVRTC (disk cache included) and launches on the current device and stream."""

    def __init__(self):
        self._kernels = {}
        self._devices = {}
        self._cublaslt_path = self._cupy = None

    @property
    def cupy(self):
        if self._cupy is None:
            import cupy

            self._cupy = cupy
        return self._cupy

    def array_module(self, array):
        return self.cupy

    def address(self, array):
        return array.data.ptr

    def device_index(self):
        return self.cupy.cuda.runtime.getDevice()

    def stream(self):
        """Return the handle of the current stream."""
        return self.cupy.cuda.get_current_stream().ptr

    def cublaslt_path(self):
        """Return cuBLASLt's file, found as CuPy finds the toolkit's libraries: in wheels, CUDA_PATH, the system."""
        if self._cublaslt_path is None:
            from cuda import pathfinder

            try:
                self._cublaslt_path = pathfinder.load_nvidia_dynamic_lib("cublasLt").abs_path
            except pathfinder.DynamicLibNotFoundError as error:
                raise BackendUnavailable(NO_CUBLASLT) from error
        return self._cublaslt_path

    def device(self):
        index = self.device_index()
        if index not in self._devices:
            device = self.cupy.cuda.Device(index)
            self._devices[index] = DeviceProperties(
                compute_capability=int(device.compute_capability),  # not among the attributes
                multiprocessors=device.attributes["MultiProcessorCount"],
                shared_bytes=device.attributes["MaxSharedMemoryPerBlockOptin"],
            )
        return self._devices[index]

    def loaded(self, module, kernel):
        """Return the kernel on the current device, compiled if necessary; threads may call this at once."""
        key = module, kernel, self.device_index()
        loaded = self._kernels.get(key)
        if loaded is None:
            compiled = self.cupy.RawModule(code=module.text, options=OPTIONS, name_expressions=(kernel,))
            loaded = self._kernels[key] = _Loaded(compiled.get_function(kernel))
        return loaded

    def launch(self, module, kernel, grid, block, args, shared_bytes):
        loaded = self.loaded(module, kernel)
        if shared_bytes > loaded.shared_bytes:
            loaded.reserve(shared_bytes)
        ndarray = self.cupy.ndarray
        given = tuple([arg if isinstance(arg, ndarray) else _by_value(arg) for arg in args])
        loaded.kernel(grid, block, given, shared_mem=shared_bytes)


def _by_value(arg):
    """Return a number as CuPy takes it; CuPy passes structs by value from host arrays, not from scalars."""
    return NULL if arg is None else np.atleast_1d(arg) if type(arg) is np.void else arg


class _Loaded:
    """A kernel on one device, with the dynamic shared memory it has been granted so far."""

    def __init__(self, kernel):
        self.kernel = kernel
        self.shared_bytes = 0  # CUDA grants 48 KB unasked, but less what the kernel itself declares

    def reserve(self, shared_bytes):
        """Ask for more dynamic shared memory."""
        self.kernel.max_dynamic_shared_size_bytes = shared_bytes
        self.shared_bytes = shared_bytes


_CUPY = CuPyRuntime()
_RUNTIME = ContextVar("bertcore_cuda_runtime", default=_CUPY)


def runtime():
    """Return the object that launches kernels in this context: CuPy's runtime, or that of `use_runtime`."""
    return _RUNTIME.get()


@contextmanager
def use_runtime(replacement):
    """Within the block, launches of this context go to `replacement` (an object with the methods of CuPyRuntime)."""
    token = _RUNTIME.set(replacement)
    try:
        yield replacement
    finally:
        _RUNTIME.reset(token)


def is_emulated():
    """Return whether `use_runtime` has replaced CuPy: by the tests' emulator, which computes on NumPy arrays."""
    return runtime() is not _CUPY


def array_module(array):
    """Return the array module (cupy) that the launcher of `array` allocates with."""
    return runtime().array_module(array)


def device():
    """Return the current device, as `DeviceProperties`."""
    return runtime().device()


# ---- arrays as kernels take them -------------------------------------------------------------------------------------


def contiguous(*arrays):
    """Return each array C-contiguous, copied if necessary; None stays None."""
    return tuple(None if it is None else array_module(it).ascontiguousarray(it) for it in arrays)


def is_aligned(array, alignment=16):
    """Return whether the address of the first element is a multiple of `alignment` bytes."""
    return runtime().address(array) % alignment == 0


def is_whole(width, *arrays):
    """Return whether rows of `width` elements begin and end on 16-byte boundaries in contiguous arrays of one dtype.

    None entries are skipped.
    """
    whole = width * arrays[0].itemsize % 16 == 0
    return whole and all(array is None or is_aligned(array) for array in arrays)


def vector_rows(array):
    """Return `array` if its rows (last axis) are whole, aligned 16-byte vectors, else a copy padded with zeros."""
    return array if has_vector_rows(array, runtime().address(array)) else pad_rows(array_module(array), array)


VECTOR_BYTES = 16
WIDE = 4096  # columns (a vocabulary's) from which padding between rows costs less than unaligned rows
COLUMNS, ROWS = 32, 8  # threads of a block with a vector each: across, VECTOR_COLUMNS in common.cuh, and down


def padded_width(width, dtype):
    """Return `width` elements rounded up to whole vectors."""
    per_vector = VECTOR_BYTES // dtype.itemsize
    return -(-width // per_vector) * per_vector


def pad_rows(xp, array):
    """Return a C-contiguous copy of `array` whose last axis is padded with zeros to whole vectors."""
    width = array.shape[-1]
    padded = xp.zeros((*array.shape[:-1], padded_width(width, array.dtype)), dtype=array.dtype)
    padded[..., :width] = array
    return padded


def empty_rows(xp, rows, width, dtype):
    """Return an uninitialised (rows, width) array; WIDE rows begin on vector boundaries, so they may lie apart.

    cuBLASLt's fast products and copies of 16 bytes need that.
    """
    if width < WIDE:
        return xp.empty((rows, width), dtype)
    return xp.empty((rows, padded_width(width, dtype)), dtype)[:, :width]


def unit_columns(xp, array):
    """Return the array if neighbours in a row are neighbours in memory, else a contiguous copy."""
    itemsize = array.dtype.itemsize
    if (array.shape[1] <= 1 or array.strides[1] == itemsize) and array.strides[0] % itemsize == 0:
        return array
    return xp.ascontiguousarray(array)


def row_stride(array):
    """Return the number of elements from row to row."""
    return array.strides[0] // array.dtype.itemsize


def has_vector_rows(array, address):
    """Return whether the last axis is contiguous, fills whole vectors, and always starts on a vector boundary."""
    itemsize = array.dtype.itemsize
    steps = [stride for stride, size in zip(array.strides[:-1], array.shape[:-1], strict=True) if size > 1]
    contiguous = array.strides[-1] == itemsize or array.shape[-1] <= 1
    whole = array.shape[-1] * itemsize % VECTOR_BYTES == 0
    return contiguous and whole and all(offset % VECTOR_BYTES == 0 for offset in (address, *steps))


def vector_grid(rows, width, itemsize):
    """Return (grid, block) of a kernel with a thread for each vector of each row (VectorOfRow in common.cuh)."""
    return (-(-rows // ROWS), -(-width * itemsize // (COLUMNS * VECTOR_BYTES))), (COLUMNS, ROWS)
