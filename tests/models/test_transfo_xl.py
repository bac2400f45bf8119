"""Transformer-XL against its definition in float64 (transformers 5 has it no more)."""

import functools
import json

import numpy as np
import pytest

import bertcore
from bertcore import use_backend, value_and_grad
from tests.checkpoint.files import write_tensors
from tests.models import transformer_xl_oracle as oracle
from tests.models.family_checks import check_backends, dtypes_with_tables
from tests.refusals import refuses

CONFIG = {
    "model_type": "transfo-xl", "vocab_size": 23, "cutoffs": [5, 11], "d_model": 12, "d_embed": 12, "n_head": 3,
    "d_head": 5, "d_inner": 7, "n_layer": 2, "div_val": 2, "mem_len": 4, "clamp_len": 3, "same_length": False,
    "pre_lnorm": False, "untie_r": True, "proj_share_all_but_first": True, "tie_word_embeddings": True,
    "layer_norm_epsilon": 1e-5, "init_std": 0.3, "attn_type": 0, "adaptive": True, "eos_token_id": 0,
}  # fmt: skip
VARIATIONS = {
    "as published": {"same_length": True},
    "no clamping": {"clamp_len": -1},
    "norms first": {"pre_lnorm": True},
    "biases of all layers": {"untie_r": False},
    "one width": {"div_val": 1},
    "one width, projected": {"div_val": 1, "d_embed": 8},
    "projections of its own": {"proj_share_all_but_first": False, "d_embed": 20},
    "untied words": {"tie_word_embeddings": False},
    "no groups": {"cutoffs": []},
    "no groups, one width": {"cutoffs": [], "div_val": 1},
    "one head of 13": {"n_head": 1, "d_head": 13},
}
IDS = np.array([[3, 12, 7, 22, 0], [4, 5, 11, 1, 16]])
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
LABELS = np.array([[3, 12, -100, 22, 0], [4, 5, 11, -100, -100]])


def model_of(config, task="CausalLM", dtype="float64", seed=0):
    """A model whose biases and norms are drawn, too."""
    model = getattr(bertcore, f"AutoModelFor{task}").from_config(config, dtype=dtype, seed=seed)
    rng = np.random.default_rng(seed)
    state = {name: array + rng.normal(0, 0.2, array.shape) for name, array in model.state_dict().items()}
    model.load_state_dict(state)
    return model, {name: np.array(array, np.float64) for name, array in model.state_dict().items()}


def memories_of(config, length):
    return np.random.default_rng(1).normal(size=(config["n_layer"], length, len(IDS), config["d_model"]))


@pytest.mark.parametrize("memory", [None, 3])
@pytest.mark.parametrize("name", VARIATIONS)
def test_outputs(cpu_dtype, name, memory):
    config, atol = CONFIG | VARIATIONS[name], {"float64": 1e-10, "float32": 2e-5}[cpu_dtype]
    model, parameters = model_of(config, dtype=cpu_dtype)
    mems = None if memory is None else memories_of(config, memory).astype(cpu_dtype)
    asked = {"output_hidden_states": True, "output_attentions": True}
    out = model(IDS, MASK, mems=mems, **asked)
    for index, length in enumerate(MASK.sum(axis=1)):
        memories = None if mems is None else mems[:, :, index]
        states, probabilities, following = oracle.encode(IDS[index, :length], memories, parameters, config)
        for found, expected in zip(out.hidden_states, states, strict=True):
            np.testing.assert_allclose(found[index, :length], expected, atol=atol)
            assert not found[index, length:].any()
        for found, expected in zip(out.attentions, probabilities, strict=True):
            np.testing.assert_allclose(found[index, :, :length, : expected.shape[2]], expected, atol=atol)
        for found, expected in zip(out.mems, following, strict=True):
            if length == IDS.shape[1]:  # else padding is remembered, too
                np.testing.assert_allclose(found[:, index], expected, atol=atol)
        words = [oracle.log_probabilities(row, parameters, config) for row in states[-1]]
        np.testing.assert_allclose(out.logits[index, :length], words, atol=10 * atol)
    np.testing.assert_allclose(np.exp(out.logits[0]).sum(axis=-1), 1, atol=atol)


@pytest.mark.parametrize("name", VARIATIONS)
def test_loss_and_gradients(name):
    config = CONFIG | VARIATIONS[name]
    model, parameters = model_of(config)
    mems, rng = memories_of(config, 2), np.random.default_rng(2)

    def true_loss(values):
        parts = [
            oracle.loss(IDS[index, :length], LABELS[index, :length], mems[:, :, index], values, config)
            for index, length in enumerate(MASK.sum(axis=1))
        ]
        return np.mean(np.concatenate(parts))

    with use_backend("numpy"):
        out, grads = value_and_grad(model)(IDS, MASK, mems=mems, labels=LABELS)
    assert out.logits is None and len(out.mems) == 2
    np.testing.assert_allclose(out.loss, true_loss(parameters), rtol=1e-12)
    assert grads.keys() == parameters.keys()
    for key, values in parameters.items():
        direction = rng.normal(size=values.shape)
        ahead, behind = (true_loss(parameters | {key: values + step * direction}) for step in (1e-6, -1e-6))
        expected = (ahead - behind) / 2e-6
        np.testing.assert_allclose((grads[key] * direction).sum(), expected, rtol=2e-6, atol=1e-9, err_msg=key)


def test_segments_carry_on_as_one_text(cpu_backend):
    config = CONFIG | {"mem_len": 50, "clamp_len": 4}
    model, _ = model_of(config, dtype="float32")
    whole, mems = model(IDS), None
    for first, last in ((0, 2), (2, 3), (3, 5)):
        out = model(IDS[:, first:last], mems=mems)
        mems = out.mems
        np.testing.assert_allclose(out.logits, whole.logits[:, first:last], atol=2e-5)
    for found, expected in zip(mems, whole.mems, strict=True):
        np.testing.assert_allclose(found, expected, atol=2e-5)


def test_a_checkpoint_of_old_transformers_loads(tmp_path):
    """Tied tensors under both names, shared biases under every layer's, an encoding's buffer."""
    for name in ("biases of all layers", "as published", "one width, projected"):
        config = CONFIG | VARIATIONS[name]
        model, parameters = model_of(config, dtype="float32")
        tensors = {key: array.astype(np.float32) for key, array in parameters.items()}
        for group in range(3 if config["div_val"] > 1 else 1):
            tensors[f"crit.out_layers.{group}.weight"] = tensors[f"transformer.word_emb.emb_layers.{group}.weight"]
        for group in (1, 2):
            own = group if config["div_val"] > 1 else 0
            tensors[f"crit.out_projs.{group}"] = tensors[f"transformer.word_emb.emb_projs.{own}"]
        if not config["untie_r"]:
            tensors |= {
                f"transformer.layers.{layer}.dec_attn.{bias}": tensors[f"transformer.{bias}"]
                for layer in range(2)
                for bias in ("r_w_bias", "r_r_bias")
            }
        tensors["transformer.pos_emb.inv_freq"] = np.ones(6, np.float32)
        write_tensors(tmp_path / "model.safetensors", tensors)
        (tmp_path / "config.json").write_text(json.dumps(config))
        again = bertcore.AutoModelForCausalLM.from_pretrained(tmp_path)
        np.testing.assert_array_equal(again(IDS).logits, model(IDS).logits)
        again.save_pretrained(tmp_path / "again")
        once_more = bertcore.AutoModelForCausalLM.from_pretrained(tmp_path / "again")
        np.testing.assert_array_equal(once_more(IDS).logits, model(IDS).logits)
        written = json.loads((tmp_path / "again" / "config.json").read_text())
        assert written["architectures"] == ["TransfoXLLMHeadModel"]


def test_sequence_classification_reads_the_last_token():
    model, parameters = model_of(CONFIG, "SequenceClassification")
    with use_backend("numpy"):
        out = model(IDS, MASK, labels=[0, 1])
    for index, length in enumerate(MASK.sum(axis=1)):
        last = oracle.encode(IDS[index, :length], None, parameters, CONFIG)[0][-1][-1]
        np.testing.assert_allclose(out.logits[index], parameters["score.weight"] @ last)


@dtypes_with_tables
@pytest.mark.parametrize("memory", [0, 5])
def test_backends_and_dtypes_agree(memory, dtypes):
    config = CONFIG | {"d_model": 48, "d_embed": 48, "d_head": 16, "d_inner": 65}
    mems = np.random.default_rng(0).normal(size=(2, memory, 3, 48)).astype(np.float32)
    check_backends(functools.partial(bertcore.AutoModelForCausalLM.from_config, config), dtypes=dtypes, mems=mems)


@pytest.mark.parametrize(("changes", "key"), [
    ({"cutoffs": [5, 5]}, "cutoffs"), ({"cutoffs": [30]}, "cutoffs"), ({"cutoffs": "all"}, "cutoffs"),
    ({"attn_type": 2}, "attn_type"), ({"d_model": 9}, "d_model"), ({"div_val": 0}, "div_val"),
    ({"d_embed": 3}, "d_embed"), ({"same_length": True, "mem_len": 0}, "same_length"),
    ({"sample_softmax": 10}, "sample_softmax"), ({"adaptive": False}, "adaptive"),
])  # fmt: skip
def test_config_errors_name_the_key(changes, key):
    refuses(ValueError, key, bertcore.AutoModelForCausalLM.from_config, CONFIG | changes)
