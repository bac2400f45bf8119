"""The registry of families, specs, and sizes that are refused."""

import dataclasses
import importlib
import pickle
import pkgutil
from dataclasses import replace

import numpy as np
import pytest

from bertcore import AutoModel, AutoModelForSequenceClassification, families
from bertcore.families.mobilebert import NoNorm
from bertcore.models import registry
from bertcore.nn.layers import RMSNorm
from bertcore.nn.spec import LayerSpec
from tests import tiny_families
from tests.refusals import refuses
from tests.tiny_families import tiny_config


def families_by_module():
    """Return the families of each module on disk, by model_type."""
    found = {}
    for entry in pkgutil.iter_modules(families.__path__):
        module = importlib.import_module(f"bertcore.families.{entry.name}")
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
    monkeypatch.setitem(registry.families_by_type, "bert", stands)
    with pytest.raises(ValueError, match=r"auto_map names custom code, .*, which is never run; .* known--modeling"):
        registry.family_of({"model_type": "bert", "auto_map": auto_map})


def test_a_family_stands_for_the_code_that_it_names(monkeypatch):
    bert = registry.family_of({"model_type": "bert"})
    ours = dataclasses.replace(bert, model_type="jina", code=(JINA, "modeling_bert"))
    monkeypatch.setitem(registry.families_by_type, "jina", ours)
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


WORDS, POSITIONS = 2**24, 2**20


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("bert-base-uncased", {"vocab_size": 10**9}, f"vocab_size is 1000000000, expected at most {WORDS}"),
        ("bert-base-uncased", {"hidden_size": 2**31}, f"hidden_size is 2147483648, expected at most {WORDS}"),
        ("bert-base-uncased", {"num_hidden_layers": 10**6}, "num_hidden_layers is 1000000, expected at most 10000"),
        ("bert-base-uncased", {"num_labels": 5 * 10**7}, f"num_labels is 50000000, expected at most {POSITIONS}"),
        ("gpt2", {"n_positions": 10**8}, f"n_positions is 100000000, expected at most {POSITIONS}"),
        ("deberta-base", {"max_relative_positions": 10**8}, "max_relative_positions is 1.*, expected at most 1048"),
        ("deberta-v3-base", {"max_relative_positions": 10**8}, "max_relative_positions is 1.*, expected at most 1048"),
        ("mobilebert-uncased", {"num_feedforward_networks": 10**5}, "num_feedforward_networks is 1.*, expected at m"),
        ("mobilebert-uncased", {"type_vocab_size": 0}, "type_vocab_size is 0, expected a positive integer"),
        ("luke-base", {"entity_vocab_size": 10**9}, f"entity_vocab_size is 1000000000, expected at most {WORDS}"),
        ("distilbert-base-uncased", {"dim": 25, "n_heads": 2}, "dim is 25, expected a multiple of n_heads 2"),
        ("xlnet-base-cased", {"d_model": 25, "n_head": 2}, "d_model is 25, expected a multiple of n_head 2"),
        ("gpt2", {"n_inner": 0}, "n_inner is 0, expected a positive integer"),
        ("bert-base-uncased", {"id2label": dict.fromkeys(range(POSITIONS + 1), "x")},
         f"id2label has {POSITIONS + 1} entries, expected at most {POSITIONS}"),
    ],
)  # fmt: skip
def test_a_size_beyond_all_measure(name, changes, message):
    refuses(ValueError, f"config: {message}", AutoModelForSequenceClassification, tiny_config(name) | changes)


LAYER = LayerSpec(hidden_size=12, intermediate_size=20, num_heads=4)


@pytest.mark.parametrize(("attribute", "value", "error"), [
    ("activation", "gelo", "activation is 'gelo', expected one of 'relu'"),
    ("gate", "frist", "gate is 'frist', expected one of None, 'first', 'second'"),
    ("absent", {"atention_norm"}, "absent has atention_norm, known parts are attention_norm,"),
    ("without_bias", {"qvk", "qkv"}, "without_bias has qvk, known parts are"),
    ("window", 5, "window is 5, expected two numbers of tokens, or None"),
    ("window", (5, -1), "window is -1, expected an integer of at least 0"),
    ("num_heads", 5, "hidden_size is 12, expected a multiple of num_heads 5"),
    ("num_key_value_heads", 3, "num_heads is 4, expected a multiple of num_key_value_heads 3"),
])  # fmt: skip
def test_a_layer_that_cannot_be(attribute, value, error):
    value = frozenset(value) if isinstance(value, set) else value
    refuses(ValueError, error, replace, LAYER, **{attribute: value})


@pytest.mark.parametrize(("attribute", "value", "error"), [
    ("without_bias", frozenset({"embedings_norm"}), "without_bias has embedings_norm, known parts are embeddings_"),
    ("shared_layers", (0,), "shared_layers has 1 entries for 2 layers"),
])  # fmt: skip
def test_an_encoder_that_cannot_be(attribute, value, error):
    spec = AutoModel.from_config({"model_type": "bert", "hidden_size": 12, "num_hidden_layers": 2}).spec
    refuses(ValueError, error, replace, spec, **{attribute: value})


@pytest.mark.parametrize(("norm", "bias"), [(RMSNorm, True), (NoNorm, False)])
def test_a_norm_does_not_ignore_what_is_said_of_its_bias(norm, bias):
    with pytest.raises(ValueError, match=f"last.norm has bias {bias}, expected {not bias}"):
        norm("last.norm", features=3, eps=1e-5, bias=bias)
