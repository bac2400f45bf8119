"""Linux's permission to use AMX's tiles, which a process requests once.

Linux saves the 8 KB of tiles only for processes that requested them (Documentation/arch/x86/xstate.rst); in others the
first tile instruction raises SIGILL. The permission covers existing threads and forked children, but not programs
started by exec.
"""

import ctypes
import errno
import os
import sys
from collections.abc import Callable

_ARCH_PRCTL = 158  # of x86-64
_ARCH_REQ_XCOMP_PERM, _XTILEDATA = 0x1023, 18

_REASONS = {
    errno.ENOSPC: "a thread's signal stack (sigaltstack) is too small for the tiles",
    errno.EINVAL: "Linux is too old for them (5.16 or later is needed)",
    errno.EOPNOTSUPP: "this machine does not support them",
    errno.EPERM: "a sandbox forbids the request",
}


def _system_call(*arguments: int) -> int:
    """Return 0 or the error number."""
    library = ctypes.CDLL(None, use_errno=True)
    return 0 if library.syscall(*map(ctypes.c_long, arguments)) == 0 else ctypes.get_errno()


def request_tiles(system_call: Callable[..., int] = _system_call) -> str | None:
    """Request the tiles for this process; return None if granted, else the reason.

    From then on Linux rejects signal stacks that are too small for the tiles (ENOMEM from sigaltstack).
    """
    if sys.platform != "linux":
        return f"permission for the tiles can be requested on Linux only, not on {sys.platform}"
    error = system_call(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA)
    if error == 0:
        return None
    return f"Linux refused the tiles: {_REASONS.get(error, os.strerror(error))}"
