"""EuroBERT: published configs and code that it stands for."""

import pytest

from bertcore import AutoModel
from tests.models.family_parity import check_saved_config
from tests.models.family_table import FAMILIES

TINY = FAMILIES["eurobert"].config


def test_published_configs():
    """Published configs write rotary positions as before transformers 5."""
    old = AutoModel(TINY | {"rope_theta": 250000, "rope_scaling": None, "clf_pooling": "late", "pretraining_tp": 1})
    new = AutoModel(TINY | {"rope_parameters": {"rope_theta": 250000.0, "rope_type": "default"}})
    assert old.spec == new.spec and old.spec.layers[0].rotary.theta == 250000


def test_configs_that_are_refused():
    with pytest.raises(ValueError, match="num_attention_heads is 4, expected a multiple of num_key_value_heads 3"):
        AutoModel(TINY | {"num_key_value_heads": 3})
    with pytest.raises(ValueError, match=r"rope_scaling\.rope_type is 'yarn'"):
        AutoModel(TINY | {"rope_scaling": {"rope_type": "yarn"}})


@pytest.mark.parity
def test_transformers_loads_what_a_published_config_is_saved_as(tmp_path):
    check_saved_config(TINY | {"rope_theta": 250000, "rope_scaling": None}, tmp_path)
