"""The name of this package in messages, in environment variables and as a folder of the user's cache.

Copied into another project it uses that project's name: imported as `numerics` (or from within a package `numerics`)
it reads the variables NUMERICS_BACKEND (dispatch.py), NUMERICS_BATCH_INVARIANT (batch_invariance.py),
NUMERICS_CACHE_DIR (cache_folder.py) and NUMERICS_ISA (_numba/compile) and keeps compiled kernels in ~/.cache/numerics.
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
