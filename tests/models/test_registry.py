"""The registry of families and the modules on disk say the same."""

import dataclasses
import importlib
import pickle
import pkgutil

import numpy as np
import pytest

from bertcore import AutoModel, families
from bertcore.models import registry
from tests import tiny_families
from tests.refusals import refuses


def families_by_module():
    """Return the families of each module on disk, by model_type."""
    found = {}
    for entry in pkgutil.iter_modules(families.__path__):
        module = importlib.import_module(f"bertcore.families.{entry.name}{'.family' if entry.ispkg else ''}")
        records = [value for value in vars(module).values() if isinstance(value, registry.Family)]
        found[entry.name] = {family.model_type.replace("-", "_"): family for family in records}
    return found


def test_every_module_of_families_registers_the_family_of_its_name():
    assert all(module in found for module, found in families_by_module().items())


@pytest.mark.parametrize("model_type", registry.known_families())
def test_every_known_family_stands_in_a_module_on_disk(model_type):
    family = registry.family_of({"model_type": model_type})
    assert family.model_type == model_type
    assert any(family in found.values() for found in families_by_module().values())


@pytest.mark.parametrize("model_type", [["bert"], {}, 3, None, "", "bart"])
def test_an_unknown_model_type_is_named(model_type):
    refuses(ValueError, r"config: model_type is .*known are: albert", registry.family_of, {"model_type": model_type})


JINA = "jinaai/a-bert-of-its-own--modeling_bert"


@pytest.mark.parametrize("auto_map", [
    {"AutoModel": f"{JINA}.JinaBertModel", "AutoConfig": "configuration_bert.JinaBertConfig"},
    {"AutoModelForMaskedLM": "modeling.Other"},
    {"AutoConfig": "configuration.Config"},
    {"AutoModel": "someone/a-copy--modeling_eurobert.EuroBertModel"},
    {"AutoModel": "known--modeling.A", "AutoModelForMaskedLM": "unknown--modeling.B"},
])  # fmt: skip
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


@pytest.mark.parametrize(("module", "model_type"), [
    ("EuroBERT/EuroBERT-610m--modeling_eurobert", "eurobert"),
    ("nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert", "nomic_bert"),
    ("Alibaba-NLP/new-impl--modeling", "gte"),
    ("modeling_hf_alibaba_nlp_gte", "gte"),
    ("jinaai/xlm-roberta-flash-implementation--modeling_lora", "jina_embeddings_v3"),
    ("jinaai/jina-bert-implementation--modeling_bert", "jina_bert"),
    ("jinaai/jina-bert-v2-qk-post-norm--modeling_bert", "jina_bert_code"),
])  # fmt: skip
def test_published_code(module, model_type):
    found = registry.family_of({"model_type": "bert", "auto_map": {"AutoModel": f"{module}.Model"}})
    assert found.model_type == model_type


@pytest.mark.parametrize("auto_map", [["a"], {"AutoModel": 3}, "code"])
def test_auto_map_of_another_shape(auto_map):
    with pytest.raises(ValueError, match=r"config: auto_map is .*, expected an object of names of classes"):
        registry.family_of({"model_type": "bert", "auto_map": auto_map})


@pytest.mark.parametrize("name", tiny_families.runnable())
def test_models_can_be_pickled(name):
    model = AutoModel.from_config(tiny_families.tiny_config(name))
    again = pickle.loads(pickle.dumps(model))
    ids = np.random.default_rng(0).integers(6, 97, (2, 7))
    for _ in range(2):  # noted as a program, then run as one
        np.testing.assert_array_equal(again(ids)[0], model(ids)[0])
