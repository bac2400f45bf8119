"""Libraries that are imported at their first use: collecting all tests would import those of every plug-in."""

import importlib
from importlib.util import find_spec

import pytest


class lazy:
    """The module of this name; the tests of a file whose library is not installed are skipped."""

    def __init__(self, name):
        if find_spec(name.partition(".")[0]) is None:
            pytest.skip(f"{name} is not installed", allow_module_level=True)
        self.name = name

    def __getattr__(self, attribute):
        return getattr(importlib.import_module(self.name), attribute)
