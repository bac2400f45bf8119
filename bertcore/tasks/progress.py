"""A progress bar for long work."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bertcore.kernels import checks

# On a terminal, the bar appears once the work has taken this many seconds.
PATIENCE = 2.0


@contextmanager
def progress_bar(total: int | None, wanted: bool | None) -> Iterator[Callable[[int], object]]:
    """Yields a function to call with the number of texts just done.

    Args:
        total: the number of texts, None where it is not known.
        wanted: True for a bar at once, False for none, None for one on a terminal if the work takes long. TypeError for
            anything else.
    """
    if wanted is not None:
        wanted = checks.boolean("show_progress", wanted)
    on_terminal = sys.stderr is not None and sys.stderr.isatty()
    if wanted is False or (wanted is None and not on_terminal):
        yield lambda count: None
        return
    from tqdm import tqdm

    with tqdm(total=total, unit=" texts", delay=0.0 if wanted else PATIENCE) as bar:
        yield bar.update
