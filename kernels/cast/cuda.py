"""Rounding many arrays on CUDA by one launch; the definition is in reference.py."""

import numpy as np

from .. import _cuda
from .._cuda.many import table_of

INSTANTIATIONS = "cast<__half>", "cast<__nv_bfloat16>"
KERNELS = _cuda.Module(__file__, "cast.cu", INSTANTIATIONS)


def cast(arrays, outputs):
    """Write the arrays into the outputs."""
    kernel = f"cast<{_cuda.c_type(outputs[0].dtype)}>"
    if arrays[0].dtype != np.float32 or kernel not in INSTANTIATIONS:
        raise TypeError(
            f"arrays[0] has dtype {arrays[0].dtype}, outputs[0] {outputs[0].dtype}, expected float32 and float16 or "
            "bfloat16: CUDA rounds to 16 bits"
        )
    xp = _cuda.array_module(arrays[0])
    arrays = [xp.ascontiguousarray(array) for array in arrays]
    table_of(list(zip(arrays, outputs, strict=True))).launch(KERNELS, kernel)
