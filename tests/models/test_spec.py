"""A family's LayerSpec is checked when it is made."""

from dataclasses import replace

import pytest

from bertcore import AutoModel
from bertcore.families.mobilebert import NoNorm
from bertcore.nn.layers import RMSNorm
from bertcore.nn.spec import LayerSpec
from tests.refusals import refuses

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
