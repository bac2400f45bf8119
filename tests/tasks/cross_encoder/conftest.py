"""Fixtures of CrossEncoder's tests."""

import pytest

from bertcore import use_backend


@pytest.fixture(autouse=True)
def on_numpy():
    """The reference, unless a test chooses: what is tested here stands above the backends."""
    with use_backend("numpy"):
        yield
