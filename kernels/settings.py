"""This package's name, its environment variables, and the setting that makes products on the GPU batch-invariant.

Copied into another project, the package uses that project's name in messages, variables and the user's cache: imported
as `numerics` (or from within a package `numerics`) it reads NUMERICS_BACKEND (dispatch.py), NUMERICS_BATCH_INVARIANT
(below), NUMERICS_CACHE_DIR (cache_folder.py) and NUMERICS_ISA (_numba/compile), and keeps compiled kernels in
~/.cache/numerics.
"""

import os

PACKAGE = __package__
PROJECT = PACKAGE.partition(".")[0]


def variable(name: str) -> str:
    """Return the name of the environment variable for `name`."""
    return f"{PROJECT.upper()}_{name}"


def setting(name: str) -> str | None:
    """Return the value of the environment variable for `name`; None if it is unset or empty."""
    return os.environ.get(variable(name)) or None


def set_batch_invariant(wanted: bool) -> None:
    """Compute matrix products on the GPU batch-invariantly from now on, or as fast as possible (the default).

    With the same versions of the libraries and the same type of GPU:

    - False: the same call gives the same bits, each time. A text's result may differ in its last bits with the rest of
      the batch: cuBLASLt computes the products, and sums in an order chosen for the number of rows.
    - True: the same text gives the same bits, whatever its neighbours, its padding and its place in the batch. A kernel
      of this package computes the products, and sums each row in one order. Gradients, which are sums over the batch in
      any case, are still computed by cuBLASLt.

    On the CPU both guarantees always hold. The environment variable BERTCORE_BATCH_INVARIANT, 1 or 0, decides until
    this function is called; with any other value the import fails, with or without a GPU.

    Raises TypeError for anything but a bool.
    """
    global _wanted
    if not isinstance(wanted, bool):
        raise TypeError(f"wanted is {wanted!r}, expected True or False")
    _wanted = wanted


def is_batch_invariant() -> bool:
    """Return whether products on the GPU are batch-invariant; see `set_batch_invariant`."""
    return _wanted


def _from_environment() -> bool:
    found = setting("BATCH_INVARIANT") or "0"
    if found not in ("0", "1"):
        raise ValueError(f"the environment variable {variable('BATCH_INVARIANT')} is {found!r}, expected 1 or 0")
    return found == "1"


_wanted = _from_environment()
