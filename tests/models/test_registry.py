"""The registry of families and the modules on disk say the same."""

import dataclasses
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


JINA = "jinaai/a-bert-of-its-own--modeling_bert"


@pytest.mark.parametrize(
    "auto_map",
    [
        {"AutoModel": f"{JINA}.JinaBertModel", "AutoConfig": "configuration_bert.JinaBertConfig"},
        {"AutoModelForMaskedLM": "modeling.Other"},
        {"AutoConfig": "configuration.Config"},
        {"AutoModel": "known--modeling.A", "AutoModelForMaskedLM": "unknown--modeling.B"},
    ],
)
def test_custom_code_is_refused_whatever_the_model_type(monkeypatch, auto_map):
    stands = dataclasses.replace(registry.family_of({"model_type": "bert"}), code=("known--modeling",))
    monkeypatch.setitem(registry._families, "bert", stands)
    with pytest.raises(ValueError, match=r"auto_map names code of its own, .*, which is never run; .* known--modeling"):
        registry.family_of({"model_type": "bert", "auto_map": auto_map})


def test_a_family_stands_for_the_code_that_it_names(monkeypatch):
    bert = registry.family_of({"model_type": "bert"})
    ours = dataclasses.replace(bert, model_type="jina", code=(JINA, "modeling_bert"))
    monkeypatch.setitem(registry._families, "jina", ours)
    for module in ours.code:
        names = {"AutoModel": f"{module}.JinaBertModel", "AutoModelForMaskedLM": f"{module}.JinaBertForMaskedLM"}
        assert registry.family_of({"model_type": "bert", "auto_map": names}) is ours
    for nothing in ({}, None, {"AutoTokenizer": ["a.B", None]}):
        assert registry.family_of({"model_type": "bert", "auto_map": nothing}) is bert


@pytest.mark.parametrize("auto_map", [["a"], {"AutoModel": 3}, "code"])
def test_auto_map_of_another_shape(auto_map):
    with pytest.raises(ValueError, match=r"config: auto_map is .*, expected an object of names of classes"):
        registry.family_of({"model_type": "bert", "auto_map": auto_map})
