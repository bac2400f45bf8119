"""ModernBERT, GTE and Nomic BERT: keys, files and code of their own."""

import dataclasses

import numpy as np
import pytest

from bench.experts import multiplications
from bertcore import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification, load_model, use_backend
from bertcore.families.nomic_bert import MixtureOfExperts, MixtureSpec
from bertcore.lora import LoraConfig, get_peft_model
from bertcore.models.cost import weights_passed
from bertcore.nn.spec import LayerSpec
from bertcore.passes import Pass
from tests.kernels.oracles import gelu
from tests.models.family_checks import check_loads, check_recorded, check_refused, drawn_anew
from tests.models.family_parity import check, check_saved_config, random_batch
from tests.models.family_table import FAMILIES
from tests.models.test_task_adapters import TINY as JINA_TINY
from tests.refusals import refuses
from tests.tiny_families import tiny_config

TINY = FAMILIES["modernbert"].config


def test_the_decoder_may_stand_beside_the_words(tmp_path):
    model = drawn_anew(AutoModelForMaskedLM.from_config(TINY))
    words = model.state_dict()["model.embeddings.tok_embeddings.weight"]
    check_loads(model, tmp_path, model.state_dict() | {"decoder.weight": words})


def test_old_keys_say_the_same_as_new_ones():
    rope = {"full_attention": {"rope_theta": 30.0, "rope_type": "default"}, "sliding_attention": {"rope_theta": 20.0}}
    kinds = ["full_attention", "sliding_attention"] * 2
    new = AutoModel(TINY | {"rope_parameters": rope, "layer_types": kinds})
    old = {"global_rope_theta": 30.0, "local_rope_theta": 20, "global_attn_every_n_layers": 2}
    assert AutoModel(TINY | old).spec == new.spec
    assert {layer.rotary.theta for layer in AutoModel(TINY | {"local_rope_theta": None}).spec.layers} == {160_000}
    assert [layer.window for layer in new.spec.layers] == [None, (5, 5)] * 2
    assert [layer.rotary.theta for layer in AutoModel(TINY).spec.layers] == [160_000, 10_000, 10_000, 160_000]


def test_configs_that_are_refused():
    check_refused(AutoModel, TINY, {"layer_types": ["full_attention", "chunked", "full_attention", {}]})
    for section, message in (
        ({"rope_type": "yarn"}, r"rope_parameters\.full_attention\.rope_type is 'yarn'"),
        ({"rope_theta": 0}, r"rope_parameters\.full_attention\.rope_theta is 0"),
        ({"rope_type": "linear", "factor": 0.5}, r"rope_parameters\.full_attention\.factor is 0\.5"),
    ):
        refuses(ValueError, message, AutoModel, TINY | {"rope_parameters": {"full_attention": section}})
    refuses(ValueError, "heads are 3 wide, expected an even width", AutoModel, TINY | {"num_attention_heads": 12})
    for key, scaling in (("type", {"type": "yarn"}), ("mixed_b", {"type": "ntk", "mixed_b": 1.0})):
        scaled = GTE_TINY | {"rope_scaling": {"factor": 2.0} | scaling}
        refuses(ValueError, rf"config: rope_scaling.{key} is", AutoModel, scaled)


GTE_TINY = {
    "model_type": "new", "vocab_size": 40, "hidden_size": 24, "num_attention_heads": 2, "num_hidden_layers": 2,
    "intermediate_size": 32, "max_position_embeddings": 24, "rope_theta": 20000.0,
    "rope_scaling": {"type": "ntk", "factor": 8.0}, "position_embedding_type": "rope", "layer_norm_type": "layer_norm",
    "logn_attention_scale": False, "logn_attention_clip1": False, "pack_qkv": True,
    "auto_map": {"AutoModel": "Alibaba-NLP/new-impl--modeling.NewModel"},
}  # fmt: skip


def test_static_scaling_is_a_larger_theta_and_a_divided_angle():
    """theta * f, and every angle divided by f^(2 / head_dim), at all lengths: transformers spells that "linear"."""
    linear = {"rope_type": "linear", "factor": 8.0 ** (2 / 12), "rope_theta": 8 * 20000.0}
    same = {key: value for key, value in GTE_TINY.items() if key not in ("rope_scaling", "rope_theta", "auto_map")}
    same |= {"model_type": "gte", "rope_parameters": linear, "pad_token_id": None}
    del same["position_embedding_type"]
    model, other = drawn_anew(AutoModel.from_config(GTE_TINY)), AutoModel.from_config(same)
    rotary = {"layers": ()}
    assert dataclasses.replace(model.spec, **rotary) == dataclasses.replace(other.spec, **rotary)
    other.load_state_dict(model.state_dict())
    words = np.random.default_rng(0).integers(1, 40, (2, 24))
    with use_backend("numpy"):
        found, expected = (each(words).last_hidden_state for each in (model, other))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("prefix", ["gte.", "new."])
def test_published_files_load(tmp_path, prefix):
    model = drawn_anew(AutoModelForSequenceClassification.from_config(GTE_TINY))
    names = {name: name.replace("gte.", prefix) for name in model.expected_tensors()}
    check_loads(model, tmp_path, {names[name]: array for name, array in model.state_dict().items()})


@pytest.mark.parametrize("model_type", ["new", "gte", "xlm-roberta-flash", "jina_embeddings_v3"])
def test_dynamic_positions_and_absent_sizes_are_saved(tmp_path, model_type):
    scaling = {"rope_type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 8}
    config = tiny_config("gte-base-en-v1.5" if model_type in ("new", "gte") else "jina-embeddings-v3")
    config |= {"model_type": model_type, "max_position_embeddings": 64, "initializer_range": 0.5}
    config = {key: value for key, value in config.items() if key not in ("rope_parameters", "auto_map")}
    config |= {"rope_scaling": scaling} | ({"vocab_size": None} if model_type == "new" else {})
    model = AutoModel.from_config(config)
    model.save_pretrained(tmp_path / "saved")
    ids = np.arange(6, 46)[None]
    np.testing.assert_array_equal(load_model(tmp_path / "saved")(ids)[0], model(ids)[0])


NOMIC_TINY = {
    "model_type": "nomic_bert", "vocab_size": 40, "n_embd": 24, "n_head": 2, "n_layer": 2, "n_inner": 32,
    "n_positions": 24, "activation_function": "swiglu", "max_trained_positions": 8, "type_vocab_size": 2,
}  # fmt: skip
AS_TRANSFORMERS = {
    "model_type": "nomic_bert", "vocab_size": 40, "hidden_size": 24, "num_attention_heads": 2, "num_hidden_layers": 2,
    "intermediate_size": 32, "hidden_act": "silu", "max_position_embeddings": 24, "head_dim": 12,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
}  # fmt: skip

MIXTURE = {
    "model_type": "nomic_bert", "vocab_size": 40, "n_embd": 24, "n_head": 2, "n_layer": 4, "n_inner": 16,
    "n_positions": 24, "activation_function": "gelu", "type_vocab_size": 1, "qkv_proj_bias": True,
    "mlp_fc1_bias": True, "mlp_fc2_bias": True, "moe_every_n_layers": 2, "num_experts": 5, "moe_top_k": 2,
    "moe_normalize_expert_weights": False, "expert_choice_router": False, "num_shared_experts": 0,
}  # fmt: skip


def test_a_long_text_does_not_change_with_its_neighbours(cpu_backend):
    model = drawn_anew(AutoModel.from_config(NOMIC_TINY | {"rotary_scaling_factor": 2.0}))
    words = np.random.default_rng(0).integers(1, 40, (2, 23))
    mask = np.arange(23) < np.array([[11], [23]])
    alone = model(words[:1, :11]).last_hidden_state[0]
    beside = model(words, mask).last_hidden_state[0, :11]
    np.testing.assert_allclose(beside, alone, rtol=0, atol=1e-6 * np.abs(alone).max())
    plain = AutoModel.from_config(NOMIC_TINY)
    plain.load_state_dict(model.state_dict())
    assert np.abs(plain(words[:1, :11]).last_hidden_state[0] - alone).max() > 0.1  # scaled, that is


def test_published_keys_and_those_of_transformers_say_the_same():
    published, ours = AutoModel.from_config(NOMIC_TINY), AutoModel.from_config(AS_TRANSFORMERS)
    assert published.expected_tensors() == ours.expected_tensors()
    assert published.spec.longest_sequence == ours.spec.longest_sequence == 24
    drawn_anew(published), ours.load_state_dict(published.state_dict())
    batch = [[3, 9, 8, 7], [4, 4, 2, 1]]
    with use_backend("numpy"):
        np.testing.assert_array_equal(published(batch).last_hidden_state, ours(batch).last_hidden_state)


@pytest.mark.parametrize("prefix", ["nomic_bert.", "bert.", "", "module.bert."])
def test_published_nomic_files_load(tmp_path, prefix):
    config = NOMIC_TINY | {"auto_map": {"AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel"}}
    model = drawn_anew(AutoModelForMaskedLM.from_config(config))
    tensors = {name.replace("nomic_bert.", prefix): array for name, array in model.state_dict().items()}
    tensors["cls.predictions.decoder.weight"] = tensors[f"{prefix}embeddings.word_embeddings.weight"]
    tensors["cls.predictions.decoder.bias"] = tensors.pop("cls.predictions.bias")
    tensors[f"{prefix}encoder.layers.0.attn.rotary_emb.inv_freq"] = np.ones(6, np.float32)
    check_loads(model, tmp_path, tensors)


@pytest.mark.parity
def test_positions_beyond_the_trained_ones():
    import transformers

    config = transformers.AutoConfig.for_model(**AS_TRANSFORMERS | {"max_position_embeddings": 7})
    config.rope_parameters = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1000.0}
    batch = random_batch(config, [5], np.random.default_rng(0))
    check(config, "MaskedLM", batch | {"position_ids": 3 * np.arange(5)[None]})


def test_positions_have_a_bound():
    with pytest.raises(ValueError, match=r"position_ids\[0, 1\] is 1073741824, expected 0 to 1048575"):
        AutoModel.from_config(NOMIC_TINY)([[3, 4]], position_ids=[[0, 2**30]])


PUBLISHED = {
    "gte": GTE_TINY,
    "nomic_bert": NOMIC_TINY | {"rotary_scaling_factor": 2.0},
    "jina_embeddings_v3": JINA_TINY,
    "eurobert": FAMILIES["eurobert"].config | {"rope_theta": 250000, "rope_scaling": None},
}


@pytest.mark.parity
@pytest.mark.parametrize("name", PUBLISHED)
def test_transformers_loads_what_a_published_config_is_saved_as(tmp_path, name):
    check_saved_config(PUBLISHED[name], tmp_path)


def mixture_by_definition(hidden, arrays, chosen):
    """Token by token and expert by expert, before the norm."""
    router, expand, contract, bias = (arrays[name] for name in ("router.weight", "w1", "w2", "bias"))
    experts = len(router)
    width = len(expand) // experts
    total = np.zeros_like(hidden)
    for token, vector in enumerate(hidden):
        scores = np.exp(router @ vector)
        probabilities = scores / scores.sum()
        for expert in np.argsort(-probabilities)[:chosen]:
            rows = slice(expert * width, (expert + 1) * width)
            total[token] += probabilities[expert] * gelu(expand[rows] @ vector, "none") @ contract[rows]
    return total + bias + hidden


def filled_mixture(experts, chosen, dtype, features=12, width=7):
    """Return a random mixture without a norm, and its arrays by name."""
    names = {"router": "router", "experts_expand": "w1", "experts_contract": "w2", "experts_bias": "bias"}
    absent = frozenset({"feed_forward_norm"})
    layer = LayerSpec(hidden_size=features, intermediate_size=width, num_heads=1, absent=absent)
    mixture, rng = MixtureOfExperts(names, layer, MixtureSpec(2, experts, chosen)), np.random.default_rng(experts)
    arrays = {
        name: rng.normal(size=shape) for parameter in mixture.parameters() for name, shape in parameter.expected.items()
    }
    for parameter in mixture.parameters():
        parameter.fill(arrays, dtype)
    return mixture, arrays


@pytest.mark.parametrize("experts, chosen", [(8, 2), (5, 1), (3, 3), (1, 1)])
@pytest.mark.parametrize("tokens", [1, 7, 0])
def test_a_mixture_is_its_definition(cpu_dtype, experts, chosen, tokens):
    mixture, arrays = filled_mixture(experts, chosen, cpu_dtype)
    hidden = np.random.default_rng(0).normal(size=(tokens, 12)).astype(cpu_dtype)
    found, tolerance = mixture(Pass.begin(), hidden, None), {"float64": 1e-10, "float32": 1e-4}[cpu_dtype]
    np.testing.assert_allclose(found, mixture_by_definition(hidden, arrays, chosen), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "int8_weight_only"])
@pytest.mark.parametrize("width", [7, 192])  # 192: experts whose panels are views of the whole weight's
def test_a_mixture_in_low_precision_is_near_its_definition(cpu_backend, dtype, width):
    mixture, arrays = filled_mixture(3, 2, dtype, features=192, width=width)
    hidden = np.random.default_rng(0).normal(size=(9, 192)).astype(np.float32) / 14
    truth = mixture_by_definition(hidden, arrays, 2)
    found = mixture(Pass.begin(), hidden, None)
    assert np.linalg.norm(found - truth) < 0.03 * np.linalg.norm(truth - hidden)
    weight = mixture.contract.weight(Pass.begin())
    shares_memory = cpu_backend == "numba" and np.shares_memory(weight.parts(3)[1].panels, weight.panels)
    assert shares_memory == (cpu_backend == "numba")  # 192 and 576 rows of features
    parts = [part.to_array() for part in weight.parts(3)]
    np.testing.assert_array_equal(np.concatenate(parts), weight.to_array())


def test_experts_compute_the_tokens_alone_that_chose_them(cpu_backend):
    mixture, _ = filled_mixture(8, 2, "float32")
    hidden = np.random.default_rng(0).normal(size=(40, 12)).astype(np.float32)
    few = multiplications(lambda: mixture(Pass.begin(), hidden, None))
    assert few == 40 * (8 * 12 + 2 * 2 * 7 * 12)  # the router, and two maps of two experts


def test_a_token_has_the_same_bits_whatever_its_neighbours_chose():
    mixture, _ = filled_mixture(8, 2, "float32")
    hidden = np.random.default_rng(0).normal(size=(40, 12)).astype(np.float32)
    with use_backend("numba"):
        whole = mixture(Pass.begin(), hidden, None)
        alone = np.concatenate([mixture(Pass.begin(), row[None], None) for row in hidden])
    np.testing.assert_array_equal(whole, alone)


def test_experts_have_no_adapters():
    """In peft, too: the layers of "all-linear" are modules, and the experts of a checkpoint bare tensors."""
    model = get_peft_model(AutoModel.from_config(MIXTURE), LoraConfig(target_modules="all-linear"))
    assert not any("experts" in name for name in model.state_dict() if "lora" in name)
    with pytest.raises(ValueError, match="w1 is not the weight of a linear layer, which LoRA requires"):
        get_peft_model(AutoModel.from_config(MIXTURE), LoraConfig(target_modules=["w1"]))


def test_flops_are_those_of_the_chosen_experts():
    model, one = (AutoModel.from_config(MIXTURE | changes) for changes in ({}, {"moe_top_k": 1}))
    assert weights_passed(model) - weights_passed(one) == 2 * 2 * 16 * 24  # layers, maps of an expert


def test_mixtures_stand_in_every_second_layer_under_published_names(tmp_path):
    config = MIXTURE | {"auto_map": {"AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel"}}
    model = drawn_anew(AutoModel.from_config(config))
    shapes = {name: shape for name, shape in model.expected_tensors().items() if "layers.1.mlp" in name}
    assert shapes == {
        "encoder.layers.1.mlp.router.layer.weight": (5, 24),
        "encoder.layers.1.mlp.experts.mlp.w1": (80, 24),
        "encoder.layers.1.mlp.experts.mlp.w2": (80, 24),
        "encoder.layers.1.mlp.experts.bias": (24,),
    }
    assert model.expected_tensors()["encoder.layers.2.mlp.fc1.weight"] == (16, 24)
    check_recorded(model, is_recorded=False)
    model.save_pretrained(tmp_path)
    again = AutoModel.from_pretrained(tmp_path)
    np.testing.assert_array_equal(again([[3, 9]]).last_hidden_state, model([[3, 9]]).last_hidden_state)


@pytest.mark.parametrize(
    "changes",
    [{"moe_top_k": 6}, {"moe_normalize_expert_weights": True}, {"num_shared_experts": 1}, {"num_experts": 2**20},
     {"expert_choice_router": True}, {"activation_function": "swiglu"}],
)  # fmt: skip
def test_other_mixtures_are_refused(changes):
    refuses(ValueError, rf"config: {next(iter(changes))} is", AutoModel, MIXTURE | changes)
