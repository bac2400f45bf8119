"""Fixtures of CrossEncoder's tests."""

import pytest


@pytest.fixture(autouse=True)
def on_numpy(on_numpy):
    """The reference, unless a test chooses: what is tested here stands above the backends."""
