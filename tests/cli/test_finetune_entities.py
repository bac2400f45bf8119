"""`bertcore finetune` for relations, types of entities and spans: a rule is learned, and the folder is used again."""

import json

import pytest

from bertcore import load_model, pipeline, use_backend
from bertcore.cli import main
from bertcore.models.architectures import class_for
from tests.tiny_entities import FAMILIES, records, save_family

STEPS = ["--max-steps", "80", "--batch", "16", "--lr", "0.005", "--backend", "numba"]
TASKS = {
    "relation-extraction": "AutoModelForEntityPairClassification",
    "entity-classification": "AutoModelForEntityClassification",
    "span-ner": "AutoModelForEntitySpanClassification",
}


@pytest.fixture(scope="module", params=FAMILIES)
def model(request, tmp_path_factory):
    return save_family(tmp_path_factory.mktemp(request.param), request.param)


def write(file, rows):
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(file)


def finetune(model, out, data, task, *options):
    return main(["finetune", data, "--model", str(model), "--task", task, "--out", str(out), *STEPS, *options])


def expected(task, row):
    if task == "span-ner":
        return [(start, end, label, row["text"][start:end]) for start, end, label in row["spans"]]
    return set(row["label"]) if isinstance(row["label"], list) else row["label"]


def of_answer(task, answer):
    if task == "span-ner":
        return [(each["start"], each["end"], each["entity_group"], each["word"]) for each in answer]
    return {each["label"] for each in answer} if isinstance(answer, list) else answer["label"]


@pytest.mark.parametrize("task", TASKS)
def test_a_rule_is_learned_saved_and_applied(model, task, tmp_path, capsys):
    rows, held_out = records(task, 400), records(task, 20, seed=1)
    data, measured = write(tmp_path / "a.jsonl", rows), write(tmp_path / "b.jsonl", held_out)
    assert finetune(model, tmp_path / "out", data, task, "--eval", measured) == 0
    shown = capsys.readouterr().out
    assert "400 examples, 20 held out" in shown
    for name in ("precision", "recall", "f1"):
        assert f"held out  {name} 1.0000" in shown
    scores = json.loads((tmp_path / "out" / "all_results.json").read_text())
    assert scores["eval_loss"] < 0.2 and scores["eval_f1"] == 1
    assert f'pipeline("{task}", "out")' in (tmp_path / "out" / "README.md").read_text()

    with use_backend("numba"):
        answers = pipeline(task, tmp_path / "out")(held_out, batch_size=3)
    assert [of_answer(task, answer) for answer in answers] == [expected(task, row) for row in held_out]
    command = "tag" if task == "span-ner" else "classify"
    assert main([command, str(tmp_path / "out"), measured, "--json", "--backend", "numba"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [of_answer(task, answer) for answer in lines] == [of_answer(task, answer) for answer in answers]
    assert main([command, str(tmp_path / "out"), measured, "--backend", "numba"]) == 0
    assert "0." in capsys.readouterr().out

    loaded = load_model(tmp_path / "out")
    assert class_for(loaded.config).__name__.endswith(TASKS[task].removeprefix("AutoModel"))
    assert not loaded.newly_initialised


GOOD = {"text": "paris is the capital", "spans": [[0, 5], [13, 20]], "label": "x"}
WRONG = {  # records; what data are refused for is in tests/training/data/test_spans.py
    "spans": ("relation-extraction", GOOD | {"spans": [[0, 5], [13, 21]]}, [], "a.jsonl:2: spans[1] is [13, 21]"),
    "no label": ("entity-classification", {"text": "a", "spans": [[0, 1]]}, [], "a.jsonl:2: has no 'label'"),
    "one label": ("relation-extraction", GOOD, [], "has the label x alone, expected two or more"),
    "flat spans": ("span-ner", GOOD, [], "spans[0] is [0, 5], expected [[first, last + 1, label], ...]"),
    "no entities": ("span-ner", {"text": "a", "spans": []}, [], "there are no records with entities in 'spans'"),
    "negative": ("relation-extraction", GOOD | {"label": "y"}, ["--negative-label", "z"], "(--negative-label) is 'z'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_records_and_options_are_named(bert, tmp_path, capsys, name):
    task, row, options, message = WRONG[name]
    other = GOOD if name == "one label" else GOOD | {"label": "w"}
    first = {"span-ner": row, "entity-classification": other | {"spans": [[0, 5]]}}.get(task, other)
    data = write(tmp_path / "a.jsonl", [first, row])
    assert finetune(bert, tmp_path / "out", data, task, "--held-out", "0", *options) == 1
    assert message in capsys.readouterr().err


def test_adapters_weights_of_classes_and_spans_of_other_widths(bert, tmp_path, capsys):
    data = write(tmp_path / "a.jsonl", records("relation-extraction", 20))
    options = ["--held-out", "0.2", "--max-steps", "2", "--class-weights", "balanced", "--lora", "2"]
    assert finetune(bert, tmp_path / "out", data, "relation-extraction", *options) == 0
    assert "weights   before " in capsys.readouterr().out
    assert not load_model(tmp_path / "out").newly_initialised
    data = write(tmp_path / "b.jsonl", records("span-ner", 20))
    assert finetune(bert, tmp_path / "ner", data, "span-ner", "--max-steps", "1", "--max-span-width", "2") == 0
    assert load_model(tmp_path / "ner").config["max_span_width"] == 2


def test_wrong_lines_and_options_of_classify_and_tag(trained, tmp_path, capsys):
    for command, task, given, message in (
        ("classify", "relation-extraction", ["--text", "paris"], "line 1: not JSON, expected an object in each line"),
        ("classify", "relation-extraction", ["--text", json.dumps(GOOD | {"spans": []})], "text 1: spans has 0 spans"),
        (
            "classify",
            "relation-extraction",
            ["--text", "{}", "--merge", "max"],
            "--merge is given, expected JSON lines",
        ),
        ("classify", "span-ner", ["--text", "paris"], "has no classifier of texts"),
        ("tag", "span-ner", ["--text", "paris", "--aggregation", "max"], "--aggregation is given, and"),
        ("tag", "relation-extraction", ["--text", "paris"], "has no classifier of tokens"),
    ):
        assert main([command, str(trained[task]), *given, "--backend", "numpy"]) in (1, 2)
        assert message in capsys.readouterr().err, (command, task, given)


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return save_family(tmp_path_factory.mktemp("bert"), "bert")


@pytest.fixture(scope="module")
def trained(bert, tmp_path_factory):
    """task -> the folder of a model after one step."""
    folder = tmp_path_factory.mktemp("trained")
    for task in ("relation-extraction", "span-ner"):
        data = write(folder / "a.jsonl", records(task, 20))
        assert finetune(bert, folder / task, data, task, "--max-steps", "1") == 0
    return {task: folder / task for task in ("relation-extraction", "span-ner")}


def test_entities_that_cannot_be_found_are_counted(bert, tmp_path, capsys):
    rows = [{"text": "paris is the capital", "spans": [[0, 20, "LONG"]]}, {"text": "cat", "spans": [[0, 3, "CAT"]]}] * 5
    data, options = write(tmp_path / "a.jsonl", rows), ["--held-out", "0", "--max-steps", "1"]
    assert finetune(bert, tmp_path / "a", data, "span-ner", "--max-span-width", "3", *options) == 0
    assert "entities  5 cannot be found: too wide, beyond the tokens" in capsys.readouterr().out
    assert finetune(bert, tmp_path / "b", data, "span-ner", "--max-span-width", "4", *options) == 0
    assert "cannot be found" not in capsys.readouterr().out
