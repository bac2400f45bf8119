"""Cross entropy on CUDA: float32, float16 and bfloat16, computed in float32; the definition is in reference.py.

The targets stay on the GPU and are not checked here: an unknown class gives the loss NaN.
"""

import numpy as np

from .. import _cuda
from .._cuda import empty_rows, row_stride, unit_columns

GROUPS = (32, 512)  # threads per row
WARP_CLASSES = 1024  # a warp computes a row of at most this many classes
TARGETS = {"int32": "int", "int64": "long long"}
KERNELS = _cuda.Source(
    __file__,
    "cross_entropy.cu",
    (
        *_cuda.instantiations("cross_entropy_rows", GROUPS, TARGETS.values()),
        *_cuda.instantiations("cross_entropy_backward_rows", GROUPS, TARGETS.values()),
    ),
)


def cross_entropy(input, target, ignore_index):
    """Return losses (rows,) and lse (rows, 2), float32, from (rows, classes) logits and (rows,) integer targets."""
    xp = _cuda.array_module(input)
    losses, lse = xp.empty(len(input), np.float32), xp.empty((len(input), 2), np.float32)
    _launch("cross_entropy_rows", input, target, (losses, lse), ignore_index)
    return losses, lse


def cross_entropy_backward(grad_losses, input, target, lse, ignore_index, out):
    """Return the gradient of the (rows, classes) logits from that of the (rows,) losses and the forward's lse.

    `out`, which may be the input, receives it if given.
    """
    xp = _cuda.array_module(input)
    grad_input = empty_rows(xp, *input.shape, input.dtype) if out is None else out
    stride = np.int64(row_stride(grad_input))
    arrays = *_cuda.contiguous(grad_losses, lse), grad_input, stride
    _launch("cross_entropy_backward_rows", input, target, arrays, ignore_index)
    return grad_input


def _launch(kernel, input, target, others, ignore_index):
    xp, (rows, classes) = _cuda.array_module(input), input.shape
    if rows == 0:
        return
    input = unit_columns(xp, input)
    target = xp.ascontiguousarray(target if target.dtype.name in TARGETS else target.astype(np.int64))
    group, rows_per_block = (32, 4) if classes <= WARP_CLASSES else (512, 1)
    name = _cuda.template(kernel, _cuda.c_type(input.dtype), group, TARGETS[target.dtype.name])
    numbers = np.int64(row_stride(input)), np.int64(rows), np.int32(classes), np.int64(ignore_index)
    args = (input, target, *others, *numbers)
    KERNELS.launch(name, (-(-rows // rows_per_block),), (group * rows_per_block,), args)
