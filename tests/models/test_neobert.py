"""NeoBERT, which transformers lacks: names, heads and sizes; test_family_definitions.py has its oracle."""

import numpy as np
import pytest

from bertcore import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification, load_model, use_backend
from tests.models.family_checks import drawn_anew
from tests.models.family_table import FAMILIES
from tests.refusals import refuses

CONFIG = FAMILIES["neobert"].config
PUBLISHED = CONFIG | {
    "auto_map": {"AutoConfig": "model.NeoBERTConfig", "AutoModel": "model.NeoBERT",
                 "AutoModelForMaskedLM": "model.NeoBERTLMHead"},
    "architectures": ["NeoBERTLMHead"], "dim_head": 12,
}  # fmt: skip


def test_published_configs_and_names(tmp_path):
    model = drawn_anew(AutoModelForMaskedLM.from_config(PUBLISHED))
    model.save_pretrained(tmp_path)
    again = load_model(tmp_path)
    assert type(again) is AutoModelForMaskedLM and again.config["architectures"] == ["NeoBERTLMHead"]
    with use_backend("numpy"):
        out, state = model([[5, 9, 8]], output_hidden_states=True), model.state_dict()
        np.testing.assert_array_equal(again([[5, 9, 8]]).logits, out.logits)
    expected = out.hidden_states[-1] @ state["decoder.weight"].T + state["decoder.bias"]
    np.testing.assert_allclose(out.logits, expected, rtol=1e-4, atol=1e-4)
    AutoModel.from_pretrained(tmp_path).save_pretrained(tmp_path / "encoder")
    assert type(load_model(tmp_path / "encoder")) is AutoModel
    assert AutoModelForSequenceClassification.from_config(PUBLISHED)([[5, 9]]).logits.shape == (1, 3)
    other = PUBLISHED | {"model_type": "other"}
    refuses(ValueError, "config: model_type is 'other', supported is 'neobert'", AutoModel.from_config, other)
    odd = CONFIG | {"hidden_size": 15, "num_attention_heads": 3}
    refuses(ValueError, "config: heads are 5 wide, expected an even width", AutoModel.from_config, odd)


@pytest.mark.parametrize(("stated", "width"), [(3072, 2048), (1000, 672), (1, 8)])
def test_two_thirds_of_the_stated_width_in_eights(stated, width):
    assert AutoModel(CONFIG | {"intermediate_size": stated}).spec.layers[0].intermediate_size == width
