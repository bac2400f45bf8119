"""Arrays rounded to another dtype, into arrays that are there."""

from typing import Any

from .. import checks, dispatch


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
    named = checks.numbered(arrays=arrays, outputs=outputs)
    if not named:
        return
    call = dispatch.open_call(__package__, backend, **named)
    given = list(zip(named, call.arrays, strict=True))
    read, written = given[: len(arrays)], given[len(arrays) :]
    checks.floating(call.backend, **dict(read))
    checks.floating("numpy", **dict(written))
    sets = checks.in_sets(2, dict(given))
    for name, output in written:
        checks.updatable(name, output)
    call.compute("cast", sets)
