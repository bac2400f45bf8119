"""Fixtures and settings of all tests."""

import gc
import os
import signal
from importlib.util import find_spec

import pytest
from hypothesis import settings

from bertcore.kernels import unavailable_reason, use_backend
from bertcore.kernels.threads import detect_threads

CPU_BACKENDS = ("numpy", "numba")
MOST_WORKERS = 8  # beyond, they compile more kernels twice and take more memory than they save time

# A machine at work is no error, and a run that fails, fails again.
settings.register_profile("bertcore", deadline=None, derandomize=True)
settings.load_profile("bertcore")


def pytest_xdist_auto_num_workers(config):
    """Return as many processes as the kernels would have threads; none for tests that are named one by one."""
    return 0 if any("::" in argument for argument in config.args) else min(detect_threads().count, MOST_WORKERS)


def pytest_configure(config):
    """Beside other workers NumPy's products run on one thread: with two, waiting takes 1.6 times the CPU time."""
    if getattr(config.option, "numprocesses", None):
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # which the workers inherit


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Freeze collected objects: a garbage collection over millions of them takes 0.7 s, now or in a test."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(params=CPU_BACKENDS)
def cpu_backend(request):
    """Runs the test once on each CPU backend, chosen explicitly."""
    with use_backend(request.param):
        yield request.param


@pytest.fixture
def cpu_dtype(cpu_backend):
    """The dtype in which each CPU backend is tried: Numba's kernels in float64 compile in the slow tests alone."""
    return {"numpy": "float64", "numba": "float32"}[cpu_backend]


@pytest.fixture
def on_numpy():
    """The definition computes: for models in float64, and for what no kernel decides."""
    with use_backend("numpy"):
        yield


@pytest.fixture
def emulated_gpu():
    """The backend is "cupy", whose kernels the emulator computes."""
    from tests.cuda_emulator.driverless import driverless

    with driverless() as gpu, use_backend("cupy"):
        yield gpu


@pytest.fixture
def ctrl_c():
    """Ctrl-C raises KeyboardInterrupt, as in a terminal; a shell's background jobs ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def pytest_collection_modifyitems(items):
    """Skip tests marked `gpu` where there is no GPU, and those marked `parity` where the peers are not installed."""
    no_gpu = unavailable_reason("cupy")
    no_peers = _missing_peers()
    for item in items:
        if no_gpu and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason=no_gpu))
        if no_peers and item.get_closest_marker("parity"):
            item.add_marker(pytest.mark.skip(reason=no_peers))


def _missing_peers() -> str | None:
    missing = [name for name in ("torch", "transformers") if find_spec(name) is None]
    return f'{" and ".join(missing)} not installed: pip install -e ".[parity]"' if missing else None
