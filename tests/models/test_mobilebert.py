"""MobileBERT: norms of its own, widths that have to fit."""

import pytest

from bertcore import AutoModel
from tests.models.family_table import FAMILIES

TINY = FAMILIES["mobilebert"].config
LAYER_NORM = {"normalization_type": "layer_norm"}


def test_two_norms_have_the_published_codes_own_epsilon():
    """At states of ordinary size the effect of this epsilon is below rounding."""
    encoder = AutoModel(TINY | LAYER_NORM | {"layer_norm_eps": 0.25}).encoder
    first, _, last = encoder.layers[0].feed_forwards
    assert encoder.embeddings.norm.eps == last.norm.eps == 1e-5
    assert first.norm.eps == encoder.layers[0].out.norm.eps == encoder.layers[0].attention.norm.eps == 0.25


def test_configs_that_are_refused():
    with pytest.raises(ValueError, match="intra_bottleneck_size is 26, expected hidden_size 39"):
        AutoModel.from_config(TINY | {"key_query_shared_bottleneck": False})
    with pytest.raises(ValueError, match="intra_bottleneck_size is 15, expected a multiple of num_attention_heads 2"):
        AutoModel.from_config(TINY | {"intra_bottleneck_size": 15})
