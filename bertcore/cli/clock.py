"""How long this process has been running."""

import os
import time
from pathlib import Path

_imported = time.perf_counter()


def process_age() -> float:
    """Seconds since this process was started; on systems without /proc, since this module was imported."""
    since_import = time.perf_counter() - _imported
    try:
        # Field 22, counted after the name in parentheses, which may itself hold spaces (man 5 proc).
        started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, IndexError, ValueError):
        return since_import
    return max(age, since_import)
