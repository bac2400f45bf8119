"""Rounding of many arrays on CUDA in one launch; the definition is in reference.py."""

import numpy as np

from .. import _cuda
from .._cuda.elements import table_of

INSTANTIATIONS = _cuda.instantiations("cast", types=("__half", "__nv_bfloat16"))
KERNELS = _cuda.Source(__file__, "cast.cu", INSTANTIATIONS)


def cast(sets):
    """Round arrays into outputs; `sets` has (array, output) of each."""
    (dtype, target), xp = (array.dtype for array in sets[0]), _cuda.array_module(sets[0][0])
    kernel = _cuda.template("cast", _cuda.c_type(target))
    if dtype != np.float32 or kernel not in INSTANTIATIONS:
        raise TypeError(
            f"arrays[0] has dtype {dtype}, outputs[0] {target}, expected float32 and float16 or bfloat16: CUDA rounds "
            "to 16 bits"
        )
    sets = [(xp.ascontiguousarray(array), output) for array, output in sets]
    table_of(sets).launch(KERNELS, kernel)
