"""Linux's permission to use AMX's tiles, which a process asks for once.

The state of the tiles is 8 KB that the kernel saves for a thread only if its process has asked for it
(Documentation/arch/x86/xstate.rst of Linux); without that, the first tile instruction ends the process (SIGILL). The
permission covers threads that exist already and forked children; a program started by exec asks for itself.
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
    errno.EINVAL: "this Linux does not know them (5.16 or later does)",
    errno.EOPNOTSUPP: "this machine does not offer them",
    errno.EPERM: "a sandbox forbids the request",
}


def _system_call(*arguments: int) -> int:
    """0, or the number of the error."""
    library = ctypes.CDLL(None, use_errno=True)
    return 0 if library.syscall(*map(ctypes.c_long, arguments)) == 0 else ctypes.get_errno()


def request_tiles(system_call: Callable[..., int] = _system_call) -> str | None:
    """Ask for the tiles' state on behalf of the process; None if it is granted, else why it is not.

    Once it is granted, Linux refuses signal stacks that are too small for it (ENOMEM from sigaltstack).
    """
    if sys.platform != "linux":
        return f"the tiles have to be asked for, and how is known of Linux alone, not of {sys.platform}"
    error = system_call(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA)
    if error == 0:
        return None
    return f"Linux refused the tiles: {_REASONS.get(error, os.strerror(error))}"
