"""The commands with a checkpoint of each family."""

import json

import pytest

from bertcore import load_model, use_backend
from bertcore.checkpoint import open_checkpoint
from bertcore.cli import main
from bertcore.models.architectures import models_of
from bertcore.tokenization.families import CLASS_OF_MODEL_TYPE
from tests.tiny_families import runnable, tiny_config
from tests.tokenization.family_folders import write_family
from tests.tolerances import assert_same_arrays

IDS = [[2, 15, 6, 7, 40, 3], [2, 9, 9, 8, 5, 3]]
NAMES = [*runnable(), "jina-embeddings-v2-small-en"]
TOKENIZERS = CLASS_OF_MODEL_TYPE | dict.fromkeys(("eurobert", "jina_embeddings_v5", "luke"), "RobertaTokenizer")
TOKENIZERS["modernbert"] = "DebertaTokenizer"
WITH_ANGLES = ("RobertaTokenizer", "CamembertTokenizer", "XLMRobertaTokenizer", "MPNetTokenizer")
NO_MASK = ("gpt2", "t5", "xlnet")  # families that predict the next word, none, or those at chosen places


def folder_of(name, folder):
    """A random checkpoint of the family with the head that it was pretrained with."""
    config = tiny_config(name) | {"initializer_range": 0.2}
    models = models_of(config)
    kinds = "AutoModelForCausalLM", "AutoModelForPreTraining", "AutoModelForTokenClassification"
    best = next(kind for kind in kinds if kind in models)
    type(models[best]).from_config(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, "int8") for name in NAMES] + [(name, "bfloat16") for name in runnable("gpt2", "roberta-base")],
)
def test_quantized_weights_equal_loading_in_that_dtype(name, dtype, tmp_path):
    folder = folder_of(name, tmp_path / "full")
    assert main(["quantize", str(folder), str(tmp_path / "low"), "--dtype", dtype, "--backend", "numpy"]) == 0
    with use_backend("numpy"):
        expected, found = load_model(folder, dtype=dtype), load_model(tmp_path / "low")
        assert type(found) is type(expected) and found.dtype == dtype
        assert not found.newly_initialised
        ours, theirs = found(IDS), expected(IDS)
    assert_same_arrays(ours, theirs)
    info = open_checkpoint(tmp_path / "low").info
    weights = {name for name in info if name.endswith(".weight") and not name.endswith("bias.weight")}  # MPNet's table
    large = {name for name in weights if info[name].dtype == "F32" and len(info[name].shape) > 1}
    assert not large  # of heads, too


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_warmup_with_gradients(name, tmp_path, capsys):
    assert main(["warmup", str(folder_of(name, tmp_path)), "--gradients", "--backend", "numba"]) == 0
    assert capsys.readouterr().out.startswith("compiled ")


def with_tokenizer(name, folder):
    """A random checkpoint with its tokenizer's files, of a masked language model where the family has one."""
    config = tiny_config(name) | {"initializer_range": 0.2}
    models = models_of(config)
    type(models.get("AutoModelForMaskedLM", models["AutoModel"])).from_config(config).save_pretrained(folder)
    write_family(folder, TOKENIZERS[config["model_type"]])
    return folder


def run(capsys, *arguments):
    assert main([*map(str, arguments), "--backend", "numpy"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", [name for name in NAMES if tiny_config(name)["model_type"] in TOKENIZERS])
def test_embed_precision_and_fill_mask(name, tmp_path, capsys):
    folder = with_tokenizer(name, tmp_path)
    (tmp_path / "texts").write_text("the value\nthe\nvalue the the value\n", encoding="utf-8")
    lines = run(capsys, "embed", folder, tmp_path / "texts").splitlines()
    assert [len(json.loads(line)) for line in lines] == [48] * 3
    found = json.loads(run(capsys, "precision", folder, tmp_path / "texts", "--dtype", "int8", "--json"))
    assert 0.9 < found["int8"]["cosine_worst"] <= 1
    has_masks = tiny_config(name)["model_type"] not in NO_MASK
    assert (found["int8"]["word_agreement"] is not None) == has_masks
    if has_masks:
        mask = "<mask>" if TOKENIZERS[tiny_config(name)["model_type"]] in WITH_ANGLES else "[MASK]"
        assert len(run(capsys, "fill-mask", folder, "--text", f"the {mask}", "--top-k", 3).splitlines()) == 3
    else:
        assert main(["fill-mask", str(folder), "--text", "the value"]) == 1
        assert "have no head for masked_lm" in capsys.readouterr().err
