"""The presets: their numbers of parameters, facts and names."""

import pytest

from bertcore import AutoModel, AutoModelForPreTraining
from bertcore.models.model import Model
from bertcore.presets import PRESETS, preset, preset_config
from bertcore.presets.preset import CATEGORIES, PUBLISHED
from tests.refusals import refuses

# Parameters of the base model, including its pooler, as transformers counts them.
PARAMETERS = {
    "mini-bert": 2_957_568, "bert-base-uncased": 109_482_240, "bert-large-uncased": 335_141_888,
    "bert-base-multilingual-cased": 177_853_440, "scibert": 109_918_464, "biobert": 108_310_272,
    "clinicalbert": 108_310_272, "finbert": 109_482_240, "legalbert": 109_482_240, "spanbert": 108_310_272,
    "minilm-l6-h384": 22_713_216, "minilm-l12-h384": 33_360_000, "tinybert-4l-312": 14_350_248,
    "tinybert-6l-768": 66_955_008, "roberta-base": 124_645_632, "roberta-large": 355_359_744, "codebert": 124_645_632,
    "camembert-base": 110_621_952, "xlm-roberta-base": 278_043_648, "xlm-roberta-large": 559_890_432,
    "albert-base-v2": 11_683_584, "albert-large-v2": 17_683_968, "albert-xlarge-v2": 58_724_864,
    "albert-xxlarge-v2": 222_595_584, "distilbert-base-uncased": 66_362_880,
    "electra-small-discriminator": 13_483_008, "electra-base-discriminator": 108_891_648,
    "electra-large-discriminator": 334_092_288, "electra-small-generator": 13_483_008,
    "electra-base-generator": 33_511_168, "electra-large-generator": 50_999_552, "deberta-base": 138_601_728,
    "deberta-large": 405_163_008, "deberta-v3-small": 141_304_320, "deberta-v3-base": 183_831_552,
    "deberta-v3-large": 434_012_160, "deberta-v2-xlarge": 884_593_152, "xlnet-base-cased": 116_718_336,
    "xlnet-large-cased": 360_268_800, "luke-base": 274_502_144, "luke-large": 559_724_544,
    "mobilebert-uncased": 24_844_544, "mpnet-base": 109_486_464, "gpt2": 124_439_808, "modernbert-base": 149_014_272,
    "modernbert-large": 394_781_696, "ettin-17m": 16_797_440, "ettin-32m": 31_883_136, "ettin-68m": 68_144_640,
    "ettin-1b": 1_028_050_688, "mmbert-small": 140_493_696, "mmbert-base": 306_939_648, "eurobert-210m": 211_766_016,
    "eurobert-610m": 607_874_688, "eurobert-2.1b": 2_107_590_912, "nomic-embed-text-v1": 136_731_648,
    "nomic-embed-text-v1.5": 136_731_648, "gte-multilingual-base": 305_368_320, "gte-base-en-v1.5": 136_776_192,
    "gte-large-en-v1.5": 434_139_136, "snowflake-arctic-embed-m-v2.0": 305_368_320, "jina-embeddings-v3": 559_364_096,
    "embeddinggemma-300m": 302_863_104,
}  # fmt: skip


def transformer_xl() -> int:
    # Tables of 20000, 20000, 160000 and 67735 words in 1024, 256, 64 and 16 dimensions, each projected to 1024; in
    # each of 18 layers five matrices of 1024 x 1024, two query biases, a feed-forward, two norms.
    return 36_923_760 + 1024 * 1360 + 18 * (5 * 1024**2 + 2048 + 8 * 1024**2 + 5120 + 4096)


def jina_bert(layers: int, width: int) -> int:
    # BERT without position embeddings; the feed-forward's first matrix has two halves and no bias.
    inner = 4 * width
    attention = 4 * (width * width + width) + 2 * width
    feed_forward = 2 * inner * width + inner * width + width + 2 * width
    return (30528 + 2 + 2) * width + layers * (attention + feed_forward) + width * width + width


def sentence_t5() -> int:
    # Words, biases of relative position, in each layer four maps of attention, two of the feed-forward and two norms.
    return 32128 * 768 + 32 * 12 + 12 * (4 * 768**2 + 2 * 768 * 3072 + 2 * 768) + 768


def neobert() -> int:
    # Two thirds of 3072 in a gated feed-forward, whose first map has two halves; two norms; no biases.
    return 30522 * 768 + 28 * (4 * 768**2 + 3 * 768 * 2048 + 2 * 768) + 768


def bert_hash() -> int:
    # BERT's tiny shape, its table of words 16 wide with a map to 128.
    words = 30522 * 16 + 16 * 128 + 128
    return words + (512 + 2 + 2) * 128 + 2 * 198_272 + 128**2 + 128


# Missing in transformers, or there with a decoder.
BY_HAND = {
    "sentence-t5-base": sentence_t5(),
    "neobert": neobert(),
    "bert-hash-nano": bert_hash(),
    "jina-embeddings-v5-text-nano": PARAMETERS["eurobert-210m"],
    "transfo-xl-wt103": transformer_xl(),
    "jina-embeddings-v2-base-en": jina_bert(12, 768),
    "jina-embeddings-v2-small-en": jina_bert(4, 512),
}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_has_the_published_number_of_parameters(name):
    assert AutoModel(preset_config(name)).num_parameters() == (PARAMETERS | BY_HAND)[name]


def test_sizes_of_jina_bert():
    model = AutoModel(preset_config("jina-embeddings-v2-base-en"))
    assert (model.num_parameters(), model.spec.longest_sequence) == (137_368_320, 8192)


@pytest.mark.parity
@pytest.mark.parametrize("name", PARAMETERS)
def test_transformers_knows_every_key_and_makes_the_same_model(name):
    import torch
    import transformers

    given = preset_config(name)
    config = transformers.AutoConfig.for_model(**given)
    optional = {"position_buckets", "norm_rel_ebd", "share_att_key", "pos_att_type", "conv_kernel_size", "conv_act"}
    assert set(given) - set(type(config)().to_dict()) <= optional | {"attention_head_size", "untie_r"}
    with torch.device("meta"):  # shapes alone
        model = transformers.AutoModel.from_config(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS[name]


@pytest.mark.parametrize("name", PRESETS)
def test_facts_are_complete(name):
    known = PRESETS[name]
    assert known.name == name
    assert 2018 <= known.year <= 2026
    assert known.paper and known.objective and known.pretraining_heads and known.tokenizer and known.own
    assert known.category in CATEGORIES and known.languages
    assert 0 < len(known.use) <= 60 and not known.use.endswith(".")
    if known.paper.startswith("arXiv:"):  # whose numbers begin with year and month
        assert known.year % 100 == int(known.paper[6:8])


# Scores in the sources, where all eight tasks are reported: of the development sets in MNLI-m, QNLI, QQP, RTE, SST-2,
# MRPC, CoLA, STS-B.
SCORES = {
    "facebookresearch/fairseq": {
        "roberta-base": (87.6, 92.8, 91.9, 78.7, 94.8, 90.2, 63.6, 91.2),
        "roberta-large": (90.2, 94.7, 92.2, 86.6, 96.4, 90.9, 68.0, 92.4),
    },
    "google-research/electra": {
        "electra-small-discriminator": (81.3, 88.4, 89.0, 66.7, 91.2, 88.0, 57.0, 87.5),
        "electra-base-discriminator": (88.8, 93.2, 91.5, 82.7, 95.1, 89.5, 67.7, 91.2),
        "electra-large-discriminator": (90.9, 95.0, 92.4, 88.0, 96.9, 90.8, 69.1, 92.6),
    },
    "microsoft/DeBERTa": {
        "deberta-large": (91.3, 95.3, 92.3, 86.6, 96.7, 91.9, 70.5, 92.5),
        "deberta-v3-large": (91.8, 96.0, 93.0, 92.7, 96.9, 92.2, 75.3, 93.0),
    },
    "zihangdai/xlnet": {"xlnet-large-cased": (89.8, 93.9, 91.8, 83.8, 95.6, 89.2, 63.6, 91.8)},
    "huggingface/transformers": {"distilbert-base-uncased": (82.1, 89.2, 88.5, 59.9, 91.3, 87.5, 51.3, 86.9)},
    "arXiv:2412.13663": {
        "modernbert-base": (89.1, 93.9, 92.1, 87.4, 96.0, 92.2, 65.1, 91.8),
        "modernbert-large": (90.8, 95.2, 92.7, 92.1, 97.1, 91.7, 71.4, 92.8),
    },
}


def test_quoted_figures_match_their_sources():
    assert set(PUBLISHED) <= set(PRESETS)
    quoted = {name: known.on_glue for name, known in PRESETS.items() if any(known.on_glue)}
    of_all_tasks = {name for name, (_, glue_dev) in quoted.items() if glue_dev is not None}
    assert of_all_tasks == {name for models in SCORES.values() for name in models}
    for source, models in SCORES.items():
        for name, scores in models.items():
            mnli_m, glue_dev = quoted[name]
            assert mnli_m.value == scores[0] and source in mnli_m.source
            assert glue_dev.value == pytest.approx(sum(scores) / 8, abs=0.051)
            assert source in glue_dev.source and glue_dev.source.endswith("mean of its eight tasks")


OTHER_HEADS = {
    *("mini-bert", "minilm-l6-h384", "minilm-l12-h384", "tinybert-4l-312", "tinybert-6l-768"),
    *("electra-small-generator", "electra-base-generator", "electra-large-generator"),
    *("jina-embeddings-v2-base-en", "jina-embeddings-v2-small-en", "sentence-t5-base"),
}


@pytest.mark.parametrize("name", PRESETS)
def test_pretraining_has_the_heads_of_the_objective_or_none(name, monkeypatch):
    made = []
    monkeypatch.setattr(Model, "from_config", classmethod(lambda cls, config, **options: made.append(cls)))
    monkeypatch.setattr(Model, "from_pretrained", classmethod(lambda cls, folder, **options: made.append(cls)))
    calls = [(AutoModelForPreTraining.from_config, name)]
    if PRESETS[name].hub_id:
        calls.append((AutoModelForPreTraining.from_pretrained, PRESETS[name].hub_id))
    for call, argument in calls:
        if name in OTHER_HEADS:
            refuses(ValueError, f"{name} was pretrained with .* use AutoModel", call, argument)
        else:
            call(argument)
    assert len(made) == (0 if name in OTHER_HEADS else len(calls))
    if name not in OTHER_HEADS:
        for kind in made:
            tasks = set(kind.class_for_config(preset_config(name)).tasks)
            assert tasks == set(PRESETS[name].pretraining_heads) - ({"masked_lm"} if name == "codebert" else set())


def test_models_are_made_of_a_preset_by_name():
    model = AutoModel.from_config("mini-bert")
    assert model([[2, 100, 3]]).last_hidden_state.shape == (1, 3, 192)


def test_names_and_configs():
    assert preset("google-bert/bert-base-uncased") is PRESETS["bert-base-uncased"]
    ids = [known.hub_id for known in PRESETS.values() if known.hub_id]
    assert len(ids) == len(set(ids))
    preset_config("deberta-base")["pos_att_type"].append("c2c")  # a copy
    assert preset_config("deberta-base")["pos_att_type"] == ["c2p", "p2c"]


@pytest.mark.parametrize(("name", "hint"), [
    ("bert-base", "; close to it are .*bert-base-uncased"),
    ("robert-large", "; close to it are .*roberta-large"),
    ("ELECTRA-small", "; close to it are .*electra-small-gen"),
    ("qqq", rf" \(`bertcore info` lists all {len(PRESETS)}\)"),
])  # fmt: skip
def test_unknown_names(name, hint):
    for call in (AutoModel.from_config, preset_config):
        refuses(ValueError, f"no preset is named '{name}'{hint}", call, name)
    refuses(TypeError, "name is NoneType", preset_config, None)
