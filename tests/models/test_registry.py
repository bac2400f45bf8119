"""The registry of families and the modules on disk say the same."""

import importlib
from pathlib import Path

import pytest

from bertcore import models
from bertcore.models import registry

MODULES = {path.stem for path in Path(models.__file__).parent.glob("*.py")} - {"__init__"}


def test_every_module_is_a_family_or_shared():
    families = set(registry.known_families())
    assert registry._SHARED < MODULES
    assert {family.replace("-", "_") for family in families} == MODULES - registry._SHARED


@pytest.mark.parametrize("model_type", registry.known_families())
def test_a_family_registers_itself_under_the_name_of_its_module(model_type):
    family = registry.family_of({"model_type": model_type})
    assert family.model_type == model_type
    module = importlib.import_module(f"bertcore.models.{model_type.replace('-', '_')}")
    assert family in vars(module).values()
