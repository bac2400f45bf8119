"""What all tests share."""

import warnings

import pytest

from bertcore.kernels import unavailable_reason, use_backend

CPU_BACKENDS = ("numpy", "numba")


@pytest.fixture(params=CPU_BACKENDS)
def cpu_backend(request):
    """Runs the test once on each CPU backend, chosen explicitly."""
    with use_backend(request.param):
        yield request.param


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
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import torch  # noqa: F401
            import transformers  # noqa: F401
    except ImportError as error:
        return f'{error}: pip install -e ".[parity]"'
    return None
