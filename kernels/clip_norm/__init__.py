"""The joint norm of arrays, and scaling them to limit it."""

from typing import Any

import numpy as np

from .. import checks
from ..arrays import ArrayT
from ..lists import open_lists


def clip_norm(arrays: list[Any], max_norm: float, *, backend: str | None = None) -> float:
    """Scale all arrays in place by one number, so that the root of the sum of all squares is at most `max_norm`.

    The squares are summed in runs of fixed length, so that the bits do not depend on the number of threads. Squares
    that overflow or underflow in the arrays' dtype still count. Source: Pascanu, Mikolov and Bengio 2013,
    arXiv:1211.5063.

    Args:
        arrays: of any shapes and strides and one dtype, writable; float32 or float64 on Numba, float32, float16 or
            bfloat16 on CUDA, any floating dtype on NumPy.
        max_norm: greater than 0; inf to compute only the norm.
        backend: "numpy", "numba" or "cupy"; by default the active one (see `use_backend`).

    Returns:
        The norm before scaling. If it is inf or NaN, nothing is changed.

    Raises:
        TypeError, ValueError: for a wrong kind of array or dtype, a read-only array, and a limit that is not a positive
            number; nothing is changed then.
        BackendUnavailable: if the backend cannot run here.
    """
    if not (isinstance(max_norm, float | np.floating) and max_norm == np.inf):
        max_norm = checks.finite_number("max_norm", max_norm, minimum=0)
        if max_norm == 0:
            raise ValueError("max_norm is 0, expected a positive number")
    if not checks.of_one_length(arrays=arrays):
        return 0.0
    call, _ = open_lists(__package__, backend, {"arrays": arrays}, passing=["arrays"])
    for index, array in enumerate(call.arrays):
        if not getattr(array.flags, "writeable", True):  # CuPy's arrays always are
            raise ValueError(f"arrays[{index}] is read-only, expected an array that can be updated in place")
    return call.compute("clip_norm", call.arrays, max_norm)


def joint_norm(arrays: list[ArrayT], *, backend: str | None = None) -> ArrayT:
    """Return the root of the sum of the squares of all arrays, which `clip_norm` compares with its limit.

    On a GPU the host does not wait for it: the result can be used there (`grad_scale` of `adam_update`). Its bits
    depend only on the arrays.

    Args:
        arrays: at least one, as for `clip_norm`; they may be read-only.
        backend: as for `clip_norm`; errors are the same.

    Returns:
        A 0-d float64 array of the kind of `arrays`.
    """
    if not checks.of_one_length(arrays=arrays):
        raise ValueError("arrays is empty, expected at least one array")
    call, _ = open_lists(__package__, backend, {"arrays": arrays}, passing=["arrays"])
    return call.run("joint_norm", call.arrays)
