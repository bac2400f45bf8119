"""CUDA backend of linear: cuBLASLt, or our own batch-invariant kernel; reference.py defines it.

Our kernel computes activation(input @ weight.T + bias) + residual at once and rounds once. Every tile sums in the same
order, so that a row's bits depend on that row alone. It also computes an activation before a residual, which no model
needs. cuBLASLt adds bias and residual; activations that it lacks take a kernel of their own, after the result has been
rounded to the output's dtype.
"""

import numpy as np

from ... import _cuda
from ..._cuda import cublaslt, empty_rows, row_stride, rows, unit_columns
from ...activation import cuda as _activation
from ...activation_names import activation_code
from ...dispatch import on_device_of
from ...settings import is_batch_invariant
from ..prepared import PreparedWeight

# Tiles of the output, rows x columns, for tensor cores. The large tile does the most arithmetic per byte; the others
# make more blocks of a small problem: 64 x 64 where the large tile would leave multiprocessors idle, 16 x 16 for few
# rows, where only the time to read the weight counts: 48 blocks read 768 x 768 numbers at once. Few rows are not split
# along in_features (as cuBLASLt may do): for the same bits every tile would have to cut its sums at the same places,
# and the large tile has no registers for a second sum.
LARGE, SMALL, FEW_ROWS = (128, 128), (64, 64), (16, 16)
LAUNCH = {LARGE: (128, 64 << 10), SMALL: (128, 48 << 10), FEW_ROWS: (32, 64 << 10)}  # threads, bytes of shared memory

INSTANTIATIONS = [
    *(_cuda.template("linear_mma", dtype, *tile) for dtype in ("__half", "__nv_bfloat16") for tile in LAUNCH),
    *(_cuda.template("linear_fp32", tile[0]) for tile in (LARGE, SMALL)),
    *rows.COLUMN_SUMS,
]
KERNELS = _cuda.Source(__file__, "linear.cu", instantiations=INSTANTIATIONS)


class CudaWeight(PreparedWeight):
    """A weight on the device with rows of whole 16-byte vectors: the array itself, or a copy padded with zeros."""

    backend = "cupy"

    def __init__(self, weight):
        super().__init__(weight)
        self.array = _cuda.vector_rows(weight)

    def _stored(self):
        with on_device_of(self.array):
            return self.array[:, : self.in_features].copy()


def prepare_weight(weight, scale, input_scale):
    """Return the prepared form of an (out_features, in_features) weight; both scales are None (they belong to int8)."""
    return CudaWeight(weight)


def linear(input, weight, bias, activation, residual):
    """Return (rows, out_features) of (rows, in_features); bias and residual may be None."""
    xp = _cuda.array_module(input)
    weight = weight.array if isinstance(weight, CudaWeight) else _cuda.vector_rows(weight)
    input = _cuda.vector_rows(input)
    output = empty_rows(xp, len(input), len(weight), input.dtype)
    if output.size == 0:
        return output
    bias = None if bias is None else xp.ascontiguousarray(bias)
    is_empty_sum = input.shape[1] == 0  # cuBLASLt refuses it
    if is_batch_invariant() or is_empty_sum or (activation is not None and residual is not None):
        _by_one_kernel(output, input, weight, bias, activation, residual)
        return output
    in_epilogue = activation if activation in cublaslt.EPILOGUES else None
    epilogue = {"bias": bias, "activation": in_epilogue, "addend": residual}
    cublaslt.multiply(output, input, weight, transpose_right=True, **epilogue)
    return output if activation == in_epilogue else _activation.activation(output, activation, None)


def linear_backward(grad_output, input, weight, bias, needs_weight, dtype):
    """Return (grad_input, grad_weight or None, grad_bias or None), the last two in `dtype`; products by cuBLASLt."""
    xp = _cuda.array_module(input)
    weight = weight.array[:, : weight.in_features] if isinstance(weight, CudaWeight) else weight
    grad_bias = None if bias is None else rows.sum_columns(KERNELS, grad_output, dtype)
    grad_input = xp.empty(input.shape, input.dtype)
    _multiply(grad_input, grad_output, weight)
    grad_weight = linear_weight_gradient(grad_output, input, dtype, None) if needs_weight else None
    return grad_input, grad_weight, grad_bias


def linear_weight_gradient(grad_output, input, dtype, add_to):
    """Return grad_output.T @ input in `dtype`, or added to the array `add_to` of that dtype if that is not None."""
    shape = grad_output.shape[1], input.shape[1]
    output = _cuda.array_module(input).empty(shape, dtype) if add_to is None else add_to
    _multiply(output, grad_output, input, transpose_left=True, addend=add_to)
    return output


def _multiply(output, left, right, transpose_left=False, addend=None):
    """Write left @ right, or left.T @ right, + addend to output; addend is `output` or None."""
    if output.size and right.size:
        cublaslt.multiply(output, left, right, transpose_left=transpose_left, addend=addend)
    elif addend is None:
        output.fill(0)


def _by_one_kernel(output, input, weight, bias, activation, residual):
    count, out_features = output.shape
    residual = None if residual is None else unit_columns(_cuda.array_module(output), residual)
    strides = [np.int64(0 if array is None else row_stride(array)) for array in (output, input, weight, residual)]
    sizes = [np.int32(size) for size in (count, out_features, input.shape[1])]
    args = (output, input, weight, bias, residual, *strides, *sizes, np.int32(activation_code(activation)))
    if input.dtype == np.float32:
        _launch_fp32(args, count, out_features)
    else:
        _launch_mma(args, input.dtype, count, out_features)


def _launch_mma(args, dtype, count, out_features):
    tile = FEW_ROWS if count <= FEW_ROWS[0] else _large_or_small(count, out_features)
    threads, shared_bytes = LAUNCH[tile]
    kernel = _cuda.template("linear_mma", _cuda.c_type(dtype), *tile)
    KERNELS.launch(kernel, (_blocks(tile, count, out_features),), (threads,), args, shared_bytes)


def _launch_fp32(args, count, out_features):
    tile = _large_or_small(count, out_features)
    block = (tile[0] * tile[1] // 64,)  # each thread computes 8 x 8 outputs
    KERNELS.launch(_cuda.template("linear_fp32", tile[0]), (_blocks(tile, count, out_features),), block, args)


def _large_or_small(count, out_features):
    return LARGE if _blocks(LARGE, count, out_features) >= _cuda.device().multiprocessors else SMALL


def _blocks(tile, count, out_features):
    return -(-count // tile[0]) * -(-out_features // tile[1])
