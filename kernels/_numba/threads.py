"""Numba's thread pool: which one runs the kernels, its size, calls from several Python threads, and forks.

A parallel region of two tasks costs 3.2 us in tbb, 5.5 us in omp and 350 us in workqueue; a Python ThreadPoolExecutor
takes about 200 us, but a small model has regions of 30 us. So kernels use Numba's pool, and tbb if it is installed.

Several Python threads: tbb and omp may be entered by any number of threads at once. workqueue would abort the process,
so a caller that finds it busy runs its kernel with one task, which does not enter the pool.

Forks: a child keeps workqueue's pool, and tbb's if only the forking thread has ever used it; omp ends every child that
enters it. A child whose pool is lost computes in one thread. A fork waits for compilations in other threads, because
the child would never get their lock. Known to hang at times, in Numba's own fork handler: a further os.fork in such a
child of tbb.
"""

import ctypes
import functools
import importlib
import os
import site
import sys
import threading
from contextlib import suppress
from pathlib import Path
from threading import get_ident

from numba.core import config
from numba.core.compiler_lock import global_compiler_lock
from numba.np.ufunc import parallel

from ..threads import detect_threads, thread_count, use_only_one

_TBB_LIBRARIES = {"linux": "lib/libtbb.so.12", "darwin": "lib/libtbb.12.dylib", "win32": "Library/bin/tbb12.dll"}


def _load_tbb():
    """Load libtbb, which pip installs in a folder that Numba does not search."""
    for prefix in (sys.prefix, site.getuserbase()):
        library = Path(prefix) / _TBB_LIBRARIES.get(sys.platform, "none")
        if library.exists():
            with suppress(OSError):  # of another architecture
                ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
                return


def _available_layer() -> str:
    """Return the pool that Numba will choose: the first of its preferences that can be loaded."""
    modules = {"tbb": "tbbpool", "omp": "omppool", "workqueue": "workqueue"}
    wanted = config.THREADING_LAYER
    for layer in (wanted,) if wanted in modules else config.THREADING_LAYER_PRIORITY:
        try:
            importlib.import_module(f"numba.np.ufunc.{modules[layer]}")
            return layer
        except ImportError:
            continue
    return "workqueue"


def size_pool() -> None:
    """Set how many threads Numba starts; at its import it counted the CPUs.

    Call it before a kernel is loaded: the first kernel starts the pool, whatever its number of tasks.
    """
    if not parallel._is_initialized:
        _callers[get_ident()] = None
        config.NUMBA_NUM_THREADS = parallel.NUM_THREADS = max(thread_count().count, detect_threads().count)
        parallel.snt_check = parallel.gen_snt_check()  # numba.set_num_threads must not exceed it


def _keep_pool():
    """Keep tbb's pool from being unloaded when the process ends: after a fork, or on one CPU, that can wait forever."""
    if THREADING_LAYER == "tbb":
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(importlib.import_module("numba.np.ufunc.tbbpool")))


_load_tbb()
THREADING_LAYER = _available_layer()
_keep_pool()

# The Python threads that have called kernels; the first one started the pool.
_callers: dict[int, None] = {}


def num_threads() -> int:
    """Return the number of threads that kernels use now, which is also their number of tasks."""
    _callers[get_ident()] = None
    return thread_count().count


# --- several Python threads ---------------------------------------------------------------------------------------

_workqueue = threading.RLock()


def one_at_a_time(compiled):
    """Wrap a kernel, whose last argument is its number of tasks, for a pool that one caller at a time may enter."""

    @functools.wraps(compiled.py_func)
    def call(*args):
        if not _workqueue.acquire(blocking=False):
            return compiled(*args[:-1], 1)
        try:
            return compiled(*args)
        finally:
            _workqueue.release()

    return call


# --- forks --------------------------------------------------------------------------------------------------------

_LOCKS = (_workqueue, global_compiler_lock, parallel._backend_init_thread_lock)
_lost: list[str] = []


def _pool_lost_in_fork() -> str | None:
    """Return why a child forked now could not use the pool, or None."""
    if not parallel._is_initialized or THREADING_LAYER == "workqueue":
        return None
    if THREADING_LAYER == "omp":
        return "forked after kernels had run on OpenMP threads, which do not survive a fork; tbb's do: pip install tbb"
    here, starter = get_ident(), next(iter(_callers), None)
    if here != starter or len(_callers) > 1:
        return "forked after other Python threads than the forking one had run kernels"
    return None


def _before_fork():
    for lock in _LOCKS:
        lock.acquire()
    _lost[:] = filter(None, [_pool_lost_in_fork()])


def _after_fork():
    for lock in reversed(_LOCKS):
        lock.release()


def _after_fork_in_child():
    _callers.clear()
    if parallel._is_initialized:
        _callers[get_ident()] = None
    if _lost:
        use_only_one(_lost[0])
    _after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
