"""Cross entropy on CUDA: float32, float16 and bfloat16, computed in float32; the definition is in reference.py.

The targets stay on the GPU, so that they cannot be checked here: a target that is no class gives the loss NaN.
"""

import numpy as np

from .. import _cuda

GROUPS = (32, 512)  # threads to a row
WARP_CLASSES = 1024  # up to which a warp takes a row
TARGETS = {"int32": "int", "int64": "long long"}
KERNELS = _cuda.Module(
    __file__,
    "cross_entropy.cu",
    tuple(
        f"cross_entropy_rows<{c_name}, {group}, {target}>"
        for c_name in _cuda.C_TYPES.values()
        for group in GROUPS
        for target in TARGETS.values()
    ),
)


def cross_entropy(input, target, ignore_index):
    """(losses, lse), (rows,) and (rows, 2) of float32, from (rows, classes) logits and (rows,) integer targets."""
    xp = _cuda.array_module(input)
    input = xp.ascontiguousarray(input)
    target = xp.ascontiguousarray(target if target.dtype.name in TARGETS else target.astype(np.int64))
    rows, classes = input.shape
    losses, lse = xp.empty(rows, np.float32), xp.empty((rows, 2), np.float32)
    if rows == 0:
        return losses, lse
    group, rows_per_block = (32, 4) if classes <= WARP_CLASSES else (512, 1)
    kernel = f"cross_entropy_rows<{_cuda.c_type(input.dtype)}, {group}, {TARGETS[target.dtype.name]}>"
    args = (input, target, losses, lse, np.int64(rows), np.int32(classes), np.int64(ignore_index))
    KERNELS.launch(kernel, (-(-rows // rows_per_block),), (group * rows_per_block,), args)
    return losses, lse
