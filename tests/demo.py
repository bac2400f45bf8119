"""Fixtures about the demonstration model, a real published checkpoint."""

from pathlib import Path

import pytest

from bertcore.demo_model import DemoModelError, demo_model_folder


@pytest.fixture(scope="session")
def demo_folder() -> Path:
    """The folder of all-MiniLM-L6-v2; the test is skipped where it is neither here nor to be had."""
    try:
        return demo_model_folder()
    except DemoModelError as error:
        pytest.skip(f"no demonstration model: {error}")
