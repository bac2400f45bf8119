"""NeoBERT, which transformers lacks: its oracle is EuroBERT, whose rotary positions turn halves and not neighbours."""

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


def as_eurobert(state, heads):
    """The same weights for EuroBERT: rows of a head's query and key so that neighbours become halves."""
    tensors = {"model.embed_tokens.weight": state["model.encoder.weight"], "lm_head.weight": state["decoder.weight"]}
    tensors["model.norm.weight"] = state["model.layer_norm.weight"]
    for name, array in state.items():
        _, kind, *rest = name.split(".")
        if kind != "transformer_encoder":
            continue
        layer, part = f"model.layers.{rest[0]}.", ".".join(rest[1:])
        if part == "qkv.weight":
            by_head = array.reshape(heads, 3, -1, array.shape[1])
            for index, kind in enumerate("qkv"):
                rows = by_head[:, index]
                if kind != "v":
                    rows = np.concatenate([rows[:, ::2], rows[:, 1::2]], axis=1)
                tensors[f"{layer}self_attn.{kind}_proj.weight"] = rows.reshape(-1, array.shape[1])
        elif part == "ffn.w12.weight":
            tensors[f"{layer}mlp.gate_proj.weight"], tensors[f"{layer}mlp.up_proj.weight"] = np.split(array, 2)
        else:
            own = {"wo": "self_attn.o_proj", "ffn.w3": "mlp.down_proj", "attention_norm": "input_layernorm"}
            own["ffn_norm"] = "post_attention_layernorm"
            tensors[f"{layer}{own[part.removesuffix('.weight')]}.weight"] = array
    return tensors


@pytest.mark.parity
@pytest.mark.parametrize(("changes", "lengths"), [
    ({}, (39, 1, 11)),
    ({"num_attention_heads": 1}, (1, 1)),
    ({"hidden_size": 320, "num_attention_heads": 2, "num_hidden_layers": 1}, (23, 64)),
])  # fmt: skip
def test_it_computes_what_eurobert_does(cpu_backend, changes, lengths):
    import torch
    import transformers

    model = drawn_anew(AutoModelForMaskedLM.from_config(CONFIG | changes))
    spec, state = model.spec, model.state_dict()
    config = transformers.EuroBertConfig(
        vocab_size=spec.vocab_size, hidden_size=spec.hidden_size, intermediate_size=spec.layers[0].intermediate_size,
        num_hidden_layers=spec.num_layers, num_attention_heads=spec.num_heads, rms_norm_eps=1e-3, pad_token_id=0,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
    )  # fmt: skip
    peer = transformers.EuroBertForMaskedLM._from_config(config, attn_implementation="eager").double().eval()
    tensors = {name: torch.from_numpy(np.array(part)) for name, part in as_eurobert(state, spec.num_heads).items()}
    peer.load_state_dict(tensors, strict=True)
    mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int64)
    ids = np.random.default_rng(1).integers(1, 60, mask.shape) * mask
    asked = {"output_hidden_states": True, "output_attentions": True}
    with torch.no_grad():
        expected = peer(input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(mask), **asked)
    bias = state["decoder.bias"]
    found = model(ids, mask, **asked)
    pairs = [(found.logits, expected.logits + torch.from_numpy(np.array(bias))),
             *zip(found.hidden_states, expected.hidden_states, strict=True)]  # fmt: skip
    for ours, theirs in pairs:
        theirs = theirs.numpy() * mask[..., None]
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-5 * np.abs(theirs).max())
    for ours, theirs in zip(found.attentions, expected.attentions, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy() * mask[:, None, :, None], rtol=0, atol=2e-5)


def test_published_configs_and_names(tmp_path):
    model = drawn_anew(AutoModelForMaskedLM.from_config(PUBLISHED))
    model.save_pretrained(tmp_path)
    again = load_model(tmp_path)
    assert type(again) is AutoModelForMaskedLM and again.config["architectures"] == ["NeoBERTLMHead"]
    with use_backend("numpy"):
        np.testing.assert_array_equal(again([[5, 9, 8]]).logits, model([[5, 9, 8]]).logits)
    AutoModel.from_pretrained(tmp_path).save_pretrained(tmp_path / "encoder")
    assert type(load_model(tmp_path / "encoder")) is AutoModel
    assert AutoModelForSequenceClassification.from_config(PUBLISHED)([[5, 9]]).logits.shape == (1, 3)
    other = PUBLISHED | {"model_type": "other"}
    refuses(ValueError, "config: model_type is 'other', supported is 'neobert'", AutoModel.from_config, other)


@pytest.mark.parametrize(("stated", "width"), [(3072, 2048), (1000, 672), (1, 8)])
def test_two_thirds_of_the_stated_width_in_eights(stated, width):
    assert AutoModel(CONFIG | {"intermediate_size": stated}).spec.layers[0].intermediate_size == width
