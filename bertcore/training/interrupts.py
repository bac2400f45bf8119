"""Signals that ask a run to end: held back until its work is safe."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

ENDING = signal.SIGINT, signal.SIGTERM


@contextmanager
def held_back() -> Iterator[list[int]]:
    """A block in which the first Ctrl-C or SIGTERM is only noted, in the list that it yields.

    The signal acts where the block ends, as it would have without it; a second one acts at once. Elsewhere than in the
    main thread, where no handlers can be set, signals act as ever.
    """
    noted: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield noted
        return
    before = {number: signal.getsignal(number) for number in ENDING}

    def note(number: int, frame: object) -> None:
        noted.append(number)
        restore()

    def restore() -> None:
        for number, handler in before.items():
            if handler is not None:  # None: it was set by other code than Python's
                signal.signal(number, handler)

    for number, handler in before.items():
        if handler not in (None, signal.SIG_IGN):
            signal.signal(number, note)
    try:
        yield noted
    finally:
        restore()
    if noted:
        signal.raise_signal(noted[0])
