"""The registry of families and the modules on disk say the same."""

import importlib
import pkgutil

import pytest

from bertcore import families
from bertcore.models import registry


def test_every_module_of_families_is_a_family():
    modules = {module.name for module in pkgutil.iter_modules(families.__path__)}
    assert {model_type.replace("-", "_") for model_type in registry.known_families()} == modules


@pytest.mark.parametrize("model_type", registry.known_families())
def test_a_family_registers_itself_under_the_name_of_its_module(model_type):
    family = registry.family_of({"model_type": model_type})
    assert family.model_type == model_type
    module = importlib.import_module(f"bertcore.families.{model_type.replace('-', '_')}")
    module = importlib.import_module(f"{module.__name__}.family") if hasattr(module, "__path__") else module
    assert family in vars(module).values()
