"""`bertcore finetune` for GLiNER and for late interaction: what is learned, saved and refused."""

import itertools
import json

import pytest

from bertcore import GLiNER, GLiNER2, MultiVectorEncoder
from bertcore.cli import main
from tests.tasks.multi_vector.tiny import save_tiny_late
from tests.tiny_bert import save_tiny_encoder
from tests.tiny_gliner import tiny_gliner
from tests.tiny_gliner2 import tiny_gliner2

KINDS = "person", "city"
QUERIES = [
    {"text": f"cat {word}", "text_pair": f"the {word}", "negatives": ["an mat"]} for word in ("on", "sat", "paris")
]


def entity_records():
    for before_it, between in itertools.product(("a", "in", "big"), ("x", "of", "in big")):
        text = f"{before_it} the person {between} of the city"
        yield {"text": text, "spans": [[text.index(name), text.index(name) + len(name), name] for name in KINDS]}


def finetune(folder, rows, model, task, *options):
    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    arguments = ["finetune", str(data), "--model", str(model), "--task", task, "--out", str(folder / "out")]
    return main([*arguments, "--eval", str(data), *options])


@pytest.mark.parametrize("kind", ["span", pytest.param("token", marks=pytest.mark.slow)])
def test_a_gliner_model_learns_entities(kind, tmp_path, capsys):
    (tmp_path / "model").mkdir()
    model, rows = tiny_gliner(tmp_path / "model", kind, dropout=0.1), list(entity_records())
    assert main(["tag", str(model), "--text", "Ada"]) == 1
    assert "expected --labels or --schema" in capsys.readouterr().err
    options = "--epochs", "160", "--batch", "9", "--lr", "0.002", "--backend", "numba", "--save-strategy", "no"
    assert finetune(tmp_path, rows, model, "zero-shot-ner", *options) == 0
    shown = capsys.readouterr().out
    assert "9 texts, 9 held out; 2 labels (person, city)" in shown and "held out  f1 1.0000" in shown
    found = GLiNER.from_pretrained(tmp_path / "out").predict_entities(rows[0]["text"], KINDS)
    assert [[each["start"], each["end"], each["label"]] for each in found] == rows[0]["spans"]
    assert 'pipeline("zero-shot-ner", "out")' in (tmp_path / "out" / "README.md").read_text()


def test_a_gliner2_model_learns_schemas(tmp_path, capsys):
    (tmp_path / "model").mkdir()
    answers = {
        "entities": {name: [name] for name in KINDS},
        "relations": [{"of": {"head": "person", "tail": "city"}}],
        "json_structures": [{"the": {"x": "person", "y": {"value": "big", "choices": ["big", "in"]}}}],
        "classifications": [{"task": "a", "labels": ["big", "in"], "true_label": "in"}],
    }
    rows = [{"input": record["text"], "output": answers} for record in entity_records()]
    options = "--epochs", "120", "--batch", "9", "--lr", "0.005", "--backend", "numba"
    assert finetune(tmp_path, rows, tiny_gliner2(tmp_path / "model"), "schema", *options) == 0
    shown = capsys.readouterr().out
    assert "9 texts, 9 held out" in shown and "held out  f1 1.0000" in shown
    found = GLiNER2.from_pretrained(tmp_path / "out").extract_entities(rows[0]["input"], KINDS)
    assert found == {"entities": {"person": ["person"], "city": ["city"]}}
    assert 'GLiNER2.from_pretrained("out")' in (tmp_path / "out" / "README.md").read_text()
    assert (tmp_path / "out" / "encoder_config" / "config.json").is_file()


@pytest.mark.parametrize("task", ["late-interaction", "late-distillation"])
def test_a_late_encoder_learns_to_rank(task, tmp_path, capsys):
    rows = [row | ({"label": [3.0, 0]} if task == "late-distillation" else {}) for row in QUERIES]
    save_tiny_encoder(tmp_path / "model")
    options = "--epochs", "60", "--batch", "3", "--lr", "0.01", "--backend", "numba", "--save-strategy", "no"
    assert finetune(tmp_path, rows, tmp_path / "model", task, *options) == 0
    shown = capsys.readouterr().out
    assert "3 queries, 3 held out" in shown and "held out  first_of_all" in shown
    encoder = MultiVectorEncoder(tmp_path / "out")
    assert encoder.embedding_dimension == 128
    ranked = encoder.rank(QUERIES[0]["text"], [QUERIES[0]["text_pair"], *QUERIES[0]["negatives"]])
    assert ranked[0]["corpus_id"] == 0
    assert 'MultiVectorEncoder("out")' in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize(
    ("task", "row", "options", "message"),
    [
        ("zero-shot-ner", {"text": "a", "spans": []}, [], "has no entities in 'spans'"),
        ("zero-shot-ner", {"text": "a", "spans": [[0, 9, "x"]]}, [], "spans[0] is [0, 9]"),
        ("zero-shot-ner", {"text": "a", "spans": [[0, 1, "<<SEP>>"]]}, [], "its marker tokens"),
        ("zero-shot-ner", {"text": "a", "spans": [[0, 1, "x " * 99]]}, [], "labels have more than the 64 tokens"),
        ("zero-shot-ner", {"text": "a", "spans": [[0, 1, "x"]]}, ["--lora", "2"], "--max-length or --lora is given"),
        ("zero-shot-ner", {"text": "a", "spans": []}, ["--text", "x"], "--text is for --task sequence, "),
        ("schema", {"input": "a", "output": {}}, [], "data.jsonl:1: output has nothing to learn"),
        ("schema", {"input": "a", "output": {}}, ["--max-length", "9"], "--max-length or --lora is given"),
        ("late-interaction", {"text": "a"}, [], "no 'text_pair'"),
        ("late-interaction", {"text": "a", "text_pair": "b", "negatives": [None]}, [], "expected a list of strings"),
        ("late-distillation", {"text": "a", "text_pair": "b", "label": [1.0]}, [], "expected 1 numbers, one for each"),
        ("late-distillation", QUERIES[0] | {"label": [1.0, "x"]}, [], "expected 2 numbers, one for each document"),
    ],
)  # fmt: skip
def test_wrong_data_are_refused(task, row, options, message, tmp_path, capsys):
    (tmp_path / "model").mkdir()
    save = {"zero-shot-ner": tiny_gliner, "schema": tiny_gliner2}.get(task, save_tiny_late)
    save(tmp_path / "model")
    assert finetune(tmp_path, [row], tmp_path / "model", task, *options) != 0
    assert message in capsys.readouterr().err


def test_numbers_of_negatives_agree(tmp_path, capsys):
    save_tiny_late(tmp_path / "model")
    rows = [QUERIES[0], {"text": "a", "text_pair": "b"}]
    assert finetune(tmp_path, rows, tmp_path / "model", "late-interaction") != 0
    assert "records have different numbers of negatives" in capsys.readouterr().err
