"""What ends a command from outside: Ctrl-C and SIGTERM.

`bertcore.cli` imports this module first, to be safe from an interrupt while it imports the rest: nothing but the
standard library may be imported here.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# What a shell reports for a program that a signal ended: 128 and the signal's number.
INTERRUPTED, BROKEN_PIPE, TERMINATED = 130, 141, 143


@contextmanager
def interrupts_end_at_once() -> Iterator[None]:
    """A block, of imports, in which Ctrl-C ends the process with one line and not in a traceback."""
    with _handled(signal.SIGINT, signal.default_int_handler, _end):
        yield


@contextmanager
def termination_cleans_up() -> Iterator[None]:
    """A block in which SIGTERM ends the program as an exception does: what is left half-written is removed.

    After it the program is about to end: a second SIGTERM, which would change its exit code, is ignored.
    """
    with _handled(signal.SIGTERM, signal.SIG_DFL, _leave):
        try:
            yield
        except SystemExit as exit:
            if exit.code == TERMINATED:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            raise


def _end(number, frame) -> None:
    os.write(2, b"bertcore: interrupted\n")
    os._exit(INTERRUPTED)


def _leave(number, frame) -> None:
    raise SystemExit(TERMINATED)


@contextmanager
def _handled(number: int, usual, handler) -> Iterator[None]:
    """A block with another handler of a signal, unless somebody else has set one, or handlers cannot be set here."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(number) is not usual:
        yield
        return
    signal.signal(number, handler)
    try:
        yield
    finally:
        if signal.getsignal(number) is handler:
            signal.signal(number, usual)
