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
