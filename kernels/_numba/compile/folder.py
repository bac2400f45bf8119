"""Where on disk compiled kernels are kept, and what was found out about this machine."""

from functools import cache
from pathlib import Path

import numba
from numba.core import config

from ...cache_folder import usable_cache_folder
from ...own_name import PROJECT, setting


@cache
def cache_folder() -> Path:
    """The folder of compiled kernels, below BERTCORE_CACHE_DIR, else NUMBA_CACHE_DIR, else the user's cache folder."""
    name = f"numba-{numba.__version__}"
    if config.CACHE_DIR and not setting("CACHE_DIR"):
        return Path(config.CACHE_DIR) / PROJECT / name  # the user said where Numba's caches belong
    return usable_cache_folder(holding=name) / name
