"""Matrix products by cuBLASLt, a library of the CUDA toolkit, through ctypes.

    cublaslt.multiply(output, input, weight, transpose_right=True, bias=bias)

CuPy's own products go through cuBLAS, which has no epilogue and no half-precision bias, and fails while a graph is
captured. Here the algorithm of a product is chosen once for each shape and kept, its workspace comes from the caller's
memory pool, and it runs on the caller's stream; nothing else is allocated, and nothing waits.

cuBLASLt stores matrices by columns, this package by rows, so cuBLASLt reads each as its transpose: output^T = right^T
left^T. The numbers below are from cublasLt.h, cublas_api.h and library_types.h of CUDA 13; a test calls the real
library with them if it is installed.
"""

import ctypes
import functools
import threading
import weakref
from ctypes import byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import NamedTuple

import numpy as np

from . import runtime

TYPES = {"float32": 0, "float16": 2, "bfloat16": 14}  # cudaDataType
COMPUTE_32F = 68  # sums in float32, and exact products of float32: TF32 is a separate compute type
EPILOGUES = {None: 0, "gelu_tanh": 32}  # cublasLtEpilogue_t; its GELU is the tanh form
NO_EPILOGUE, ADD_BIAS = 1, 4
TRANSPOSE_A, TRANSPOSE_B, EPILOGUE, BIAS_POINTER = 3, 4, 7, 8  # cublasLtMatmulDescAttributes_t
BATCH, BATCH_STRIDE = 5, 6  # cublasLtMatrixLayoutAttribute_t
WORKSPACE, REDUCTIONS, ALIGNMENTS = 1, 3, (5, 6, 7, 8)  # cublasLtMatmulPreferenceAttributes_t; alignments of A to D
# cublasLtReductionScheme_t: the library may split the sums of a product if few rows leave a GPU idle. With this
# scheme the parts are float32 in the workspace, added in a separate step and rounded once; others round each part.
REDUCED_IN_FLOAT32 = 2
MOST_WORKSPACE = 32 << 20  # bytes; NVIDIA's recommendation for Hopper
MOST_ALIGNMENT = 256  # bytes: algorithms do not distinguish greater alignments
KEPT_PLANS = 4096  # each takes about 1 KB

SIGNATURES = {  # of each function: the types of its arguments
    "cublasLtCreate": (c_void_p,),
    "cublasLtMatmulDescCreate": (c_void_p, c_int, c_int),
    "cublasLtMatrixLayoutCreate": (c_void_p, c_int, c_uint64, c_uint64, c_int64),
    "cublasLtMatmulPreferenceCreate": (c_void_p,),
    **{f"cublasLt{kind}Destroy": (c_void_p,) for kind in ("MatmulDesc", "MatrixLayout", "MatmulPreference")},
    **{
        f"cublasLt{kind}SetAttribute": (c_void_p, c_int, c_void_p, c_size_t)
        for kind in ("MatmulDesc", "MatrixLayout", "MatmulPreference")
    },
    "cublasLtMatmulAlgoGetHeuristic": (*[c_void_p] * 7, c_int, c_void_p, c_void_p),
    "cublasLtMatmul": (*[c_void_p] * 14, c_size_t, c_void_p),
}


class Choice(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", c_uint64 * 8),
        ("workspace_bytes", c_size_t),
        ("status", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


class Product(NamedTuple):
    """The properties of a product that its algorithm depends on, for matrices stored by rows.

    Strides are the elements from one matrix of a batch to the next (0 without a batch), and from one row to the next.
    """

    device: int
    batch: int  # number of products; 1 without a batch
    rows: int
    columns: int
    depth: int
    transpose_left: bool
    transpose_right: bool
    left_strides: tuple[int, int]
    right_strides: tuple[int, int]
    addend_strides: tuple[int, int]
    output_strides: tuple[int, int]
    dtype: np.dtype
    output_dtype: np.dtype
    epilogue: int
    alignments: tuple[int, int, int, int, int]  # bytes: of right, left, addend, output and bias


class Library:
    """cuBLASLt, loaded; a status other than success raises RuntimeError."""

    def __init__(self, path):
        self.functions = ctypes.CDLL(path)
        self.functions.cublasLtGetStatusString.restype = ctypes.c_char_p
        for name, types in SIGNATURES.items():
            getattr(self.functions, name).argtypes = types

    def call(self, name, *args):
        status = getattr(self.functions, name)(*args)
        if status:
            reason = self.functions.cublasLtGetStatusString(status).decode()
            raise RuntimeError(f"{name} fails with status {status}: {reason}")


class Descriptor:
    """One of cuBLASLt's descriptors (MatmulDesc, MatrixLayout, MatmulPreference), destroyed with this object."""

    def __init__(self, library, kind, *args):
        self._library, self._kind, self.handle = library, kind, c_void_p()
        library.call(f"cublasLt{kind}Create", byref(self.handle), *args)
        weakref.finalize(self, getattr(library.functions, f"cublasLt{kind}Destroy"), self.handle).atexit = False

    def set(self, attribute, value):
        """Set an attribute to a ctypes number."""
        name = f"cublasLt{self._kind}SetAttribute"
        self._library.call(name, self.handle, attribute, byref(value), ctypes.sizeof(value))


class Plan:
    """One product, ready to run with any addresses that have its alignments."""

    def __init__(self, path, product):
        library = load(path)
        self._library, self._handle = library, handle(path, product.device)
        self._operation = _operation(library, product)
        self._layouts = _layouts(library, product)
        self._lock = threading.Lock()  # the bias is set in the descriptor, then the product starts
        self._choice = choice = self._choose(product)
        self.workspace_bytes = choice.workspace_bytes
        self._bias = c_void_p()
        self._set_bias = self._operation.handle, BIAS_POINTER, byref(self._bias), ctypes.sizeof(self._bias)
        layouts = (layout.handle for layout in self._layouts)
        self._fixed = self._handle, self._operation.handle, *layouts, byref(choice.algorithm)

    def _choose(self, product):
        preference = Descriptor(self._library, "MatmulPreference")
        preference.set(WORKSPACE, c_uint64(MOST_WORKSPACE))
        preference.set(REDUCTIONS, c_uint32(REDUCED_IN_FLOAT32))
        for attribute, alignment in zip(ALIGNMENTS, product.alignments[:4], strict=True):
            preference.set(attribute, c_uint32(alignment))
        choice, count = Choice(), c_int()
        descriptors = (it.handle for it in (self._operation, *self._layouts, preference))
        found = byref(choice), byref(count)
        self._library.call("cublasLtMatmulAlgoGetHeuristic", self._handle, *descriptors, 1, *found)
        if count.value == 0 or choice.status:
            raise RuntimeError(f"cuBLASLt has no algorithm for {product}")
        return choice

    def run(self, addresses, bias, factors, workspace, stream):
        """Start the product; `addresses`: of right, left, addend and output; `factors`: alpha and beta."""
        right, left, addend, output = addresses
        handle, operation, right_layout, left_layout, addend_layout, output_layout, algorithm = self._fixed
        alpha, beta = factors
        with self._lock:
            if bias is not None:
                self._bias.value = bias
                self._library.call("cublasLtMatmulDescSetAttribute", *self._set_bias)
            self._library.call(
                "cublasLtMatmul", handle, operation, byref(alpha), right, right_layout, left, left_layout, byref(beta),
                addend, addend_layout, output, output_layout, algorithm, workspace, self.workspace_bytes, stream,
            )  # fmt: skip


def _operation(library, product):
    operation = Descriptor(library, "MatmulDesc", COMPUTE_32F, TYPES["float32"])  # alpha and beta are float32
    operation.set(TRANSPOSE_A, c_int32(product.transpose_right))
    operation.set(TRANSPOSE_B, c_int32(product.transpose_left))
    operation.set(EPILOGUE, c_uint32(product.epilogue))
    if product.epilogue & ADD_BIAS:  # the choice of an algorithm uses only the alignment of the address
        operation.set(BIAS_POINTER, c_void_p(product.alignments[-1]))
    return operation


def _layouts(library, product):
    """Return the layouts of right, left, addend and output: rows and columns as cuBLASLt reads them."""
    rows, columns, depth = product.rows, product.columns, product.depth
    right = (depth, columns) if product.transpose_right else (columns, depth)
    left = (rows, depth) if product.transpose_left else (depth, rows)
    layouts = []
    for dtype, shape, (batch_stride, stride) in (
        (product.dtype, right, product.right_strides),
        (product.dtype, left, product.left_strides),
        (product.output_dtype, (columns, rows), product.addend_strides),
        (product.output_dtype, (columns, rows), product.output_strides),
    ):
        layouts.append(layout := Descriptor(library, "MatrixLayout", TYPES[dtype.name], *shape, stride))
        if product.batch > 1:
            layout.set(BATCH, c_int32(product.batch))
            layout.set(BATCH_STRIDE, c_int64(batch_stride))
    return layouts


def multiply(
    output, left, right, *, transpose_left=False, transpose_right=False, bias=None, activation=None, addend=None,
    alpha=1.0, beta=1.0
):  # fmt: skip
    """Compute output = activation(alpha * left @ right + beta * addend + bias), summed in float32, rounded once.

    Arrays with three axes, (batch, rows, columns), are batches of products.

    Args:
        output: (rows, columns), written; float32, or the dtype of the factors. Its rows are contiguous and distinct.
        left: (rows, depth), or its transpose; no size is 0.
        right: (depth, columns), or its transpose, of the same dtype.
        transpose_left: whether `left` is the transpose of the factor.
        transpose_right: whether `right` is the transpose of the factor.
        bias: (columns,), contiguous, of the output's dtype; or None.
        activation: a name in EPILOGUES.
        addend: (rows, columns), of the output's dtype, may be `output` itself; or None.
        alpha: the product's factor.
        beta: the addend's factor.
    """
    here = runtime()
    factors = c_float(alpha), c_float(0.0 if addend is None else beta)
    addend = output if addend is None else addend
    left, right, addend = (_matrix(here, array) for array in (left, right, addend))
    *batch, rows, columns = output.shape
    addresses = tuple(here.address(array) for array in (right, left, addend, output))
    bias_address = None if bias is None else here.address(bias)
    product = Product(
        here.device_index(),
        batch[0] if batch else 1,
        rows,
        columns,
        left.shape[-2] if transpose_left else left.shape[-1],
        transpose_left,
        transpose_right,
        *(_strides(array) for array in (left, right, addend, output)),
        left.dtype,
        output.dtype,
        (EPILOGUES[activation] | (0 if bias is None else ADD_BIAS)) or NO_EPILOGUE,
        (*map(_alignment, addresses), MOST_ALIGNMENT if bias is None else _alignment(bias_address)),
    )
    chosen = plan(here.cublaslt_path(), product)
    workspace = None
    if chosen.workspace_bytes:  # from the stream's pool: no wait
        workspace = type(output)((chosen.workspace_bytes,), np.uint8)
    scratch = None if workspace is None else here.address(workspace)
    chosen.run(addresses, bias_address, factors, scratch, here.stream())


@functools.cache
def load(path):
    """Return the library in the file `path`."""
    return Library(path)


@functools.cache
def handle(path, device):
    """Return the library's handle of a device, which must be the current one."""
    made = c_void_p()
    load(path).call("cublasLtCreate", byref(made))
    return made


@functools.lru_cache(KEPT_PLANS)
def plan(path, product):
    """Return the library's plan for a product on the current device."""
    return Plan(path, product)


def _matrix(here, array):
    """Return the array if its rows are contiguous and do not overlap, else a copy."""
    (rows, columns), (step, step_in_row), itemsize = array.shape[-2:], array.strides[-2:], array.itemsize
    is_apart = rows == 1 or (step >= columns * itemsize and step % itemsize == 0)
    if is_apart and (columns == 1 or step_in_row == itemsize):
        return array
    return here.array_module(array).ascontiguousarray(array)


def _strides(array):
    """Return (elements from one matrix of a batch to the next, elements from one row to the next)."""
    rows, columns = array.shape[-2:]
    of_batch = array.strides[0] // array.itemsize if array.ndim == 3 else 0
    return of_batch, columns if rows == 1 else array.strides[-2] // array.itemsize


def _alignment(address):
    return min(address & -address, MOST_ALIGNMENT)
