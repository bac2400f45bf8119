"""bertcore info: sizes, parameters, FLOPs and memory of presets and folders."""

import json
import shutil

import pytest

from bertcore import AutoModel, AutoModelForSequenceClassification, checkpoint
from bertcore.cli import main
from bertcore.models import cost
from bertcore.presets import PRESETS
from tests.tiny_bert import CONFIG, write_json
from tests.tiny_families import runnable, tiny_config

TINY_XLNET = {"model_type": "xlnet", "d_model": 48, "n_head": 4, "n_layer": 3, "d_inner": 64, "vocab_size": 9}


def shown(capsys, *arguments):
    assert main(["info", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_a_preset(capsys):
    text = shown(capsys, "bert-base-uncased")
    assert "parameters  109,482,240, of them 23,835,648 in embeddings" in text
    assert "FLOPs       174.6 million per token at 128 tokens, 169.9 of them in linear maps" in text
    assert "heads       12 of 64" in text
    assert "paper       arXiv:1810.04805 (2018)" in text
    assert "AutoModelForNextSentencePrediction" in text
    assert "MNLI-m      84.6 (quoted, not measured here: arXiv:1810.04805, table 1: test set)" in text
    assert "GLUE" not in text
    assert "GLUE dev    86.4 (quoted, not measured here: github.com/" in shown(capsys, "roberta-base")


def test_json_has_the_same(capsys):
    found = json.loads(shown(capsys, "google-bert/bert-base-uncased", "--json", "--length", 512))
    assert (found["family"], found["layers"], found["positions"]) == ("bert", 12, 512)
    assert found["parameters"] == 109_482_240
    assert found["flops_per_token"] == 2 * 84_934_656 + 12 * 4 * 512 * 768
    assert found["megabytes"]["float32"] == pytest.approx(437.93, abs=0.01)
    assert found["objective"] == "MLM + NSP"


def test_a_folder(encoder_folder, capsys):
    found = json.loads(shown(capsys, encoder_folder, "--json"))
    assert (found["hidden_size"], found["vocabulary"]) == (CONFIG["hidden_size"], CONFIG["vocab_size"])
    assert found["length"] == 40  # all positions that it has
    assert "year" not in found
    assert "year" not in shown(capsys, encoder_folder)


def test_a_config_file(tmp_path, encoder_folder, capsys):
    file = tmp_path / "tiny.json"
    write_json(file, CONFIG)
    found, expected = (json.loads(shown(capsys, name, "--json")) for name in (file, encoder_folder))
    assert found | {"name": expected["name"]} == expected


@pytest.mark.parametrize("command", [["info"], ["compare"], ["compare", "--training"], ["compare", "--measure"]])
def test_a_wrong_config_is_named(command, tmp_path, encoder_folder, capsys):
    folder = shutil.copytree(encoder_folder, tmp_path / "broken")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_size": -1}))
    assert main([*command, str(folder)]) == 1
    said = f"bertcore {command[0]}: {folder}: config: hidden_size is -1, expected a positive integer\n"
    assert capsys.readouterr().err == said


def test_the_head_of_a_folder(tmp_path, encoder_folder, capsys):
    assert "its head    none\n" in shown(capsys, encoder_folder)
    config = {**CONFIG, "id2label": {"0": "good", "1": "bad"}, "architectures": ["BertForSequenceClassification"]}
    AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path / "classifier")
    text = shown(capsys, tmp_path / "classifier")
    assert "its head    AutoModelForSequenceClassification, of the labels good, bad" in text
    assert "stored as" not in text
    assert main(["quantize", str(tmp_path / "classifier"), str(tmp_path / "int8")]) == 0
    capsys.readouterr()
    assert "stored as   int8" in shown(capsys, tmp_path / "int8")
    found = json.loads(shown(capsys, tmp_path / "int8", "--json"))
    assert (found["head"], found["labels"]) == ("AutoModelForSequenceClassification", ["good", "bad"])
    write_json(tmp_path / "other" / "config.json", {**CONFIG, "architectures": ["BertForRiddles"]})
    assert "its head    BertForRiddles\n" in shown(capsys, tmp_path / "other") + "\n"


def test_without_a_name_the_presets_are_listed(capsys):
    lines = shown(capsys).splitlines()
    assert [line.split()[0] for line in lines[1 : 1 + len(PRESETS)]] == list(PRESETS)
    listed = json.loads(shown(capsys, "--json"))["presets"]
    assert {each["name"]: each["family"] for each in listed} == {
        name: preset.config["model_type"] for name, preset in PRESETS.items()
    }


def test_an_id_on_the_hub_is_looked_for(monkeypatch, encoder_folder, capsys):
    asked = []
    monkeypatch.setattr(checkpoint, "resolve", lambda *given: asked.append(given) or encoder_folder)
    assert "family      bert" in shown(capsys, "some/model")
    assert asked == [("some/model", "tokenizer")]  # which leaves the weights where they are


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "int8_weight_only"])
def test_memory_of_kept_arrays(dtype):
    config = CONFIG | {"hidden_size": 48, "intermediate_size": 64}
    model = AutoModel.from_config(config, dtype=dtype)
    kept = sum(array.nbytes for parameter in model.parameters() for _, array in parameter.tensors())
    assert cost.figures(config).megabytes[dtype] * 1e6 == kept


def test_defaults_of_a_config():
    config = {"model_type": "transfo-xl", "d_model": 48, "d_embed": 48, "n_head": 4, "vocab_size": 9, "cutoffs": []}
    assert cost.figures(config).attention_size == 4 * 64  # d_head's default, whatever d_model is
    two_ways, one_way = (cost.figures({**TINY_XLNET, "attn_type": kind}) for kind in ("bi", "uni"))
    products = 2 * TINY_XLNET["n_layer"] * TINY_XLNET["d_model"] * 3
    assert two_ways.flops_per_token - one_way.flops_per_token == products * (two_ways.length - 1) / 2


@pytest.mark.parity
@pytest.mark.parametrize("name", [*runnable(), *runnable("deberta-v2-xlarge", "electra-base-generator")])
def test_flops_equal_pytorch(name):
    """Poolers are left out of both, and what is `_beyond`."""
    import torch
    import transformers
    from torch.utils.flop_counter import FlopCounterMode

    config, length = tiny_config(name), 24
    if config["model_type"] not in transformers.CONFIG_MAPPING:
        pytest.skip(f"transformers has no {config['model_type']}")
    model = AutoModel(config)
    kind = transformers.AutoModelForTextEncoding if config["model_type"] == "t5" else transformers.AutoModel
    theirs = kind.from_config(transformers.AutoConfig.for_model(**config), attn_implementation="eager").eval()
    mask = torch.ones(1, length, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        theirs(input_ids=7 * mask, attention_mask=mask)
    pooler = 0 if model.encoder.pooler is None else 2 * model.spec.hidden_size**2
    counted = counter.get_total_flops() - pooler - _beyond(model, config, length)
    assert length * cost.flops_per_token(model, length) == counted


def _beyond(model, config, length):
    """FLOPs that only transformers computes.

    They are all rows of the position tables, projected and multiplied by every token, and the masked half of the
    scores of a causal model.
    """
    width, terms = model.spec.hidden_size, {"deberta": 2, "deberta-v2": 2, "xlnet": 1}.get(config["model_type"], 0)
    rows = 2 * config.get("position_buckets", length)
    beyond = 2 * width * terms * (rows * width + length * (rows - length))
    if config["model_type"] == "gpt2":
        beyond = 4 * width * length * (length - 1) // 2
    return model.spec.num_layers * beyond


def test_savings_of_albert(capsys):
    """Lan et al. 2019, table 1: one of twelve layers, and tables of 128 instead of 768 columns."""
    assert main(["info", "albert-base-v2"]) == 0
    savings = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("  savings"))
    assert "layers 1/12 of 85,054,464, if none were shared" in savings  # as many as BERT-base's
    assert "embeddings 1/6 of 23,434,752, if as wide as the layers" in savings
    assert main(["info", "bert-base-uncased"]) == 0
    assert "savings" not in capsys.readouterr().out
