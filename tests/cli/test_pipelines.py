"""bertcore classify, tag and answer: what pipelines answer, as lines and as JSON."""

import json

import pytest

from bertcore import pipeline, use_backend
from bertcore.cli import main
from bertcore.tasks.ensemble import Ensemble
from tests.tasks.pipelines.folders import LABELS, TAGS, TEXTS, save_head

LONG = " ".join(TEXTS) * 5


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    heads = {
        "text-classification": ("SequenceClassification", LABELS),
        "token-classification": ("TokenClassification", TAGS),
        "question-answering": ("QuestionAnswering", None),
    }
    return {
        task: save_head(tmp_path_factory.mktemp(task), f"AutoModelFor{kind}", labels)
        for task, (kind, labels) in heads.items()
    } | {"zero-shot-classification": None}


def command(capsys, *arguments, code=0):
    assert main([*map(str, arguments), "--backend", "numpy"]) == code
    captured = capsys.readouterr()
    return captured.err if code else captured.out


def literal(texts):
    return [part for text in texts for part in ("--text", text)]


def answers(folders, task, inputs, **options):
    folder = folders[task] or folders["text-classification"]
    with use_backend("numpy"):
        return pipeline(task, folder)(inputs, **options)


def test_classify(folders, capsys, stdin, tmp_path):
    folder, texts = folders["text-classification"], TEXTS[:3]
    expected = answers(folders, "text-classification", texts, top_k=1)
    lines = command(capsys, "classify", folder, *literal(texts)).splitlines()
    assert lines == [f"{best['label']} {best['score']:.4f}" for (best,) in expected]
    stdin("\n".join(texts).encode())
    said = command(capsys, "classify", folder, "--json", "--top-k", 2)
    found = [json.loads(line) for line in said.splitlines()]
    assert [[each["label"] for each in one] for one in found] == [
        [each["label"] for each in one] for one in answers(folders, "text-classification", texts, top_k=2)
    ]
    (tmp_path / "pairs").write_text("the cat\tsat on\n", encoding="utf-8")
    pair = {"text": "the cat", "text_pair": "sat on"}
    (best,) = answers(folders, "text-classification", pair, top_k=1)
    said = command(capsys, "classify", folder, "--pairs", tmp_path / "pairs")
    assert said == f"{best['label']} {best['score']:.4f}\n"
    assert "expected two texts with a tab" in command(
        capsys, "classify", folder, "--pairs", "--text", "the cat", code=1
    )


def test_classify_with_given_labels(folders, capsys):
    options = {"candidate_labels": "cat, mat", "multi_label": True, "truncation": "chunk"}
    expected = answers(folders, "zero-shot-classification", LONG, **options)
    arguments = ["--labels", "cat, mat", "--multi-label", "--truncation", "chunk", "--json"]
    found = json.loads(command(capsys, "classify", folders["text-classification"], "--text", LONG, *arguments))
    assert found["labels"] == expected["labels"] and found["sequence"] == LONG
    assert found["scores"] == pytest.approx(expected["scores"], rel=1e-5)
    said = command(capsys, "classify", folders["text-classification"], "--text", "a", "--template", "x {}", code=2)
    assert "--template or --multi-label is given without --labels" in said


@pytest.mark.parametrize("vote", ["soft", "hard"])
def test_an_ensemble(folders, capsys, tmp_path, vote):
    first, others = folders["text-classification"], [tmp_path / "b", tmp_path / "c"]
    for seed, folder in enumerate(others):
        save_head(folder, "AutoModelForSequenceClassification", LABELS, seed=seed)
    with use_backend("numpy"):
        expected = Ensemble.from_pretrained([first, *others], vote=vote)(TEXTS[:3])
    members = ["--ensemble", others[0], "--ensemble", others[1], *(["--vote", vote] if vote == "hard" else [])]
    said = command(capsys, "classify", first, *literal(TEXTS[:3]), *members, "--json")
    assert [json.loads(line) for line in said.splitlines()] == expected
    assert command(capsys, "classify", first, *literal(TEXTS[:3]), *members).splitlines() == [
        f"{each['label']} {each['score']:.4f}\tdisagreement {each['disagreement']:.2f}" for each in expected
    ]


def test_cut_texts_are_reported(folders, capsys):
    assert (
        main(["classify", str(folders["text-classification"]), "--text", LONG, "--text", "a", "--backend", "numpy"])
        == 0
    )
    assert "1 of 2 texts were cut to 40 tokens" in capsys.readouterr().err
    said = command(capsys, "classify", folders["text-classification"], "--text", LONG, "--truncation", "error", code=1)
    assert "has more than the 40 tokens that are read" in said
    command(capsys, "classify", folders["text-classification"], "--text", LONG, "--truncation", "cut")


def test_tag(folders, capsys):
    expected = answers(folders, "token-classification", TEXTS[:2], aggregation_strategy="max")
    blocks = command(capsys, "tag", folders["token-classification"], *literal(TEXTS[:2]), "--aggregation", "max").split(
        "\n\n"
    )
    for block, entities in zip(blocks, expected, strict=False):
        rows = [line.split(maxsplit=3) for line in block.splitlines()]
        assert [(row[0], row[2], row[3]) for row in rows] == [
            (each["entity_group"], f"{each['start']}-{each['end']}", each["word"]) for each in entities
        ]
    said = command(
        capsys, "tag", folders["token-classification"], "--text", TEXTS[0], "--aggregation", "none", "--json"
    )
    assert all(set(each) == {"entity", "score", "index", "word", "start", "end"} for each in json.loads(said))


def test_answer(folders, capsys, stdin):
    folder, question = folders["question-answering"], "is paris the capital ?"
    expected = answers(folders, "question-answering", {"question": question, "context": LONG}, top_k=3)
    found = json.loads(command(capsys, "answer", folder, question, "--text", LONG, "--top-k", 3, "--json"))
    assert [each["answer"] for each in found] == [each["answer"] for each in expected]
    stdin(LONG.encode())
    lines = command(capsys, "answer", folder, question, "--top-k", 3).splitlines()
    assert [line.split(maxsplit=2)[2] for line in lines] == [each["answer"] for each in expected]
    stdin(b"\xff")
    assert "stdin is not UTF-8 at byte 1" in command(capsys, "answer", folder, question, code=1)
    assert "context" in command(capsys, "answer", folder, question, "--text", "", code=1)  # and not the input
