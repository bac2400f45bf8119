"""Numba's thread pools, each for tests in a process of its own."""

import importlib

import pytest

_MODULES = {"tbb": "tbbpool", "omp": "omppool", "workqueue": "workqueue"}


def _loads(layer: str) -> bool:
    from bertcore.kernels import _numba  # noqa: F401 (which makes tbb loadable)

    try:
        importlib.import_module(f"numba.np.ufunc.{_MODULES[layer]}")
    except ImportError:
        return False
    return True


@pytest.fixture(params=["tbb", *(pytest.param(name, marks=pytest.mark.slow) for name in ("workqueue", "omp"))])
def layer(request) -> dict[str, str]:
    """Return the environment of a process that runs kernels on two threads of one pool; each loadable pool in turn."""
    if not _loads(request.param):
        pytest.skip(f"{request.param} cannot be loaded here")
    return {"NUMBA_THREADING_LAYER": request.param, "OMP_NUM_THREADS": "2"}
