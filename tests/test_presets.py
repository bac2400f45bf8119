"""The presets: sizes that the counts of parameters hold, names that are found."""

import pytest

from bertcore import AutoModel
from bertcore.presets import PRESETS, preset, preset_config

# Parameters of the base model, pooler included where it has one, as transformers counts them.
PARAMETERS = {
    "mini-bert": 2_957_568,
    "bert-base-uncased": 109_482_240,
    "bert-large-uncased": 335_141_888,
    "bert-base-multilingual-cased": 177_853_440,
    "scibert": 109_918_464,
    "biobert": 108_310_272,
    "clinicalbert": 108_310_272,
    "finbert": 109_482_240,
    "legalbert": 109_482_240,
    "spanbert": 108_310_272,
    "minilm-l6-h384": 22_713_216,
    "minilm-l12-h384": 33_360_000,
    "tinybert-4l-312": 14_350_248,
    "tinybert-6l-768": 66_955_008,
    "roberta-base": 124_645_632,
    "roberta-large": 355_359_744,
    "codebert": 124_645_632,
    "camembert-base": 110_621_952,
    "xlm-roberta-base": 278_043_648,
    "xlm-roberta-large": 559_890_432,
    "albert-base-v2": 11_683_584,
    "albert-large-v2": 17_683_968,
    "albert-xlarge-v2": 58_724_864,
    "albert-xxlarge-v2": 222_595_584,
    "distilbert-base-uncased": 66_362_880,
    "electra-small-discriminator": 13_483_008,
    "electra-base-discriminator": 108_891_648,
    "electra-large-discriminator": 334_092_288,
    "electra-small-generator": 13_483_008,
    "electra-base-generator": 33_511_168,
    "electra-large-generator": 50_999_552,
    "deberta-base": 138_601_728,
    "deberta-large": 405_163_008,
    "deberta-v3-small": 141_304_320,
    "deberta-v3-base": 183_831_552,
    "deberta-v3-large": 434_012_160,
    "deberta-v2-xlarge": 884_593_152,
    "xlnet-base-cased": 116_718_336,
    "xlnet-large-cased": 360_268_800,
    "luke-base": 274_502_144,
    "luke-large": 559_724_544,
    "mobilebert-uncased": 24_844_544,
    "gpt2": 124_439_808,
}
# Not in transformers any more. Tables of 20000, 20000, 160000 and 67735 words in 1024, 256, 64 and 16 dimensions, each
# projected to 1024; in each of 18 layers five maps of 1024 x 1024, two biases of queries, a feed-forward, two norms.
BY_HAND = {"transfo-xl-wt103": 36_923_760 + 1024 * 1360 + 18 * (5 * 1024**2 + 2048 + 8 * 1024**2 + 5120 + 4096)}


@pytest.mark.parametrize("name", [*PARAMETERS, *BY_HAND])
def test_a_preset_has_the_published_number_of_parameters(name):
    assert AutoModel(preset_config(name)).num_parameters() == (PARAMETERS | BY_HAND)[name]


def test_every_preset_is_counted():
    assert set(PRESETS) == {*PARAMETERS, *BY_HAND}


@pytest.mark.parity
@pytest.mark.parametrize("name", PARAMETERS)
def test_transformers_makes_the_same_model_of_the_config(name):
    import torch
    import transformers

    config = transformers.AutoConfig.for_model(**preset_config(name))
    with torch.device("meta"):  # shapes alone
        model = transformers.AutoModel.from_config(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS[name]


@pytest.mark.parity
@pytest.mark.parametrize("name", PARAMETERS)
def test_transformers_knows_every_key(name):
    import transformers

    config = preset_config(name)
    known = type(transformers.AutoConfig.for_model(config["model_type"]))().to_dict()
    optional = {"position_buckets", "norm_rel_ebd", "share_att_key", "pos_att_type", "conv_kernel_size", "conv_act"}
    assert set(config) - set(known) <= optional | {"attention_head_size", "untie_r"}


@pytest.mark.parametrize("name", PRESETS)
def test_facts_are_told(name):
    known = PRESETS[name]
    assert known.name == name
    assert 2018 <= known.year <= 2021
    assert known.paper and known.objective and known.tokenizer and known.own
    assert known.glue is None or 80 < known.glue < 92
    if known.paper.startswith("arXiv:"):  # whose numbers begin with year and month
        assert known.year % 100 == int(known.paper[6:8])


def test_glue_is_of_the_model_that_it_was_measured_with():
    quoted = {name: known.glue for name, known in PRESETS.items() if known.glue is not None}
    assert quoted == {
        "bert-base-uncased": 84.6,
        "bert-large-uncased": 86.7,
        "distilbert-base-uncased": 81.3,
        "roberta-base": 87.6,
        "roberta-large": 88.9,
        "deberta-base": 88.8,
        "deberta-large": 90.3,
        "deberta-v3-large": 91.1,
        "electra-base-discriminator": 88.8,
        "electra-large-discriminator": 90.0,
        "albert-xxlarge-v2": 89.4,
        "xlnet-large-cased": 90.2,
    }


def test_models_are_made_of_a_preset_by_name():
    model = AutoModel.from_config("mini-bert")
    assert model([[2, 100, 3]]).last_hidden_state.shape == (1, 3, 192)


def test_ids_on_the_hub_are_names_too():
    assert preset("google-bert/bert-base-uncased") is PRESETS["bert-base-uncased"]
    ids = [known.hub_id for known in PRESETS.values() if known.hub_id]
    assert len(ids) == len(set(ids))


def test_a_config_is_a_copy():
    preset_config("deberta-base")["pos_att_type"].append("c2c")
    assert preset_config("deberta-base")["pos_att_type"] == ["c2p", "p2c"]


@pytest.mark.parametrize(
    ("name", "close"),
    [("bert-base", "bert-base-uncased"), ("robert-large", "roberta-large"), ("ELECTRA-small", "electra-small-gen")],
)
def test_an_unknown_name_is_told_with_what_is_close(name, close):
    with pytest.raises(ValueError, match=rf"no preset is named '{name}'; close to it are .*{close}"):
        AutoModel.from_config(name)


def test_a_name_like_none():
    with pytest.raises(ValueError, match=rf"no preset is named 'qqq' \(`bertcore info` lists all {len(PRESETS)}\)"):
        preset_config("qqq")
