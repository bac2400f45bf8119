"""Round arrays to another dtype, into existing arrays."""

from typing import Any

from .. import checks
from ..lists import open_lists


def cast(arrays: list[Any], outputs: list[Any], *, backend: str | None = None) -> None:
    """Convert each of `arrays` to the dtype of the output at the same index, to nearest even, and write it there.

    The outputs keep their addresses; on a GPU one launch writes all of them.

    Args:
        arrays: of one dtype; float32 or float64 on Numba, float32 on CUDA, any floating dtype on NumPy; only read.
        outputs: as many, of the shapes of `arrays` and one floating dtype, float16 or bfloat16 on CUDA, C-contiguous,
            writable.
        backend: "numpy", "numba" or "cupy"; by default the active one (see `use_backend`).

    Raises:
        TypeError, ValueError: for a wrong kind of array, dtype or shape; nothing is changed then.
        BackendUnavailable: if the backend cannot run here.
    """
    lists = {"arrays": arrays, "outputs": outputs}
    if not checks.of_one_length(**lists):
        return
    call, sets = open_lists(__package__, backend, lists, written=["outputs"], apart=["outputs"])
    call.compute("cast", sets)
