"""Arrays rounded to another dtype, into arrays that are there."""

from typing import Any

from .. import checks
from ..lists import open_lists


def cast(arrays: list[Any], outputs: list[Any], *, backend: str | None = None) -> None:
    """Write each of `arrays` into the one of `outputs` in its place, converted to the dtype of that, to nearest even.

    What reads the outputs finds them where they were: on a GPU all of them are written by one launch.

    Args:
        arrays: of one dtype; float32 or float64 on Numba, float32 on CUDA, any floating dtype on NumPy; read only.
        outputs: as many, of the shapes of `arrays` and one floating dtype, float16 or bfloat16 on CUDA, C-contiguous,
            writable.
        backend: "numpy", "numba" or "cupy"; by default the one in force (see `use_backend`).

    Raises:
        TypeError, ValueError: for a wrong kind of array, dtype or shape; nothing is changed then.
        BackendUnavailable: if the backend cannot run here.
    """
    lists = {"arrays": arrays, "outputs": outputs}
    if not checks.of_one_length(**lists):
        return
    call, sets = open_lists(__package__, backend, lists, written=["outputs"], apart=["outputs"])
    call.compute("cast", sets)
