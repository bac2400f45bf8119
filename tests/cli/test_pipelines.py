"""The commands with pipelines print the answers of these, as lines and as JSON."""

import json

import pytest

from bertcore import pipeline
from bertcore.cli import main
from bertcore.tasks.attribution import attention_rollout, integrated_gradients
from bertcore.tasks.ensemble import Ensemble
from bertcore.tokenization.tokenizer import Tokenizer
from tests.tasks.pipelines.folders import LABELS, LONGEST, TEXTS, save_head

LONG = " ".join(TEXTS) * 5
MASKED = "[MASK] is the [MASK] of France."
pytestmark = pytest.mark.usefixtures("on_numpy")


@pytest.fixture
def run(capsys):
    """run(command, ...): the output, or with code=1 the error."""

    def run(*arguments, code=0):
        assert main([*map(str, arguments), "--backend", "numpy"]) == code
        captured = capsys.readouterr()
        return captured.err if code else captured.out

    return run


def literal(*texts):
    return [part for text in texts for part in ("--text", text)]


def test_classify(models, run, tmp_path):
    classifier = pipeline("text-classification", models / "classifier")
    lines = run("classify", models / "classifier", *literal(*TEXTS[:3])).splitlines()
    assert lines == [f"{best['label']} {best['score']:.4f}" for (best,) in classifier(TEXTS[:3], top_k=1)]
    found = [json.loads(line) for line in run("classify", models / "classifier", *literal(*TEXTS[:3]), "--json",
                                              "--top-k", 2).splitlines()]  # fmt: skip
    expected = classifier(TEXTS[:3], top_k=2)
    assert [[each["label"] for each in one] for one in found] == [[each["label"] for each in one] for one in expected]
    (tmp_path / "pairs").write_text("the cat\tsat on\n", encoding="utf-8")
    (best,) = classifier({"text": "the cat", "text_pair": "sat on"}, top_k=1)
    shown = run("classify", models / "classifier", "--pairs", tmp_path / "pairs")
    assert shown == f"{best['label']} {best['score']:.4f}\n"


def test_classify_by_given_labels(models, run):
    options = {"candidate_labels": "cat, mat", "multi_label": True, "truncation": "chunk"}
    expected = pipeline("zero-shot-classification", models / "classifier")(LONG, **options)
    arguments = ["--labels", "cat, mat", "--multi-label", "--truncation", "chunk", "--json"]
    found = json.loads(run("classify", models / "classifier", "--text", LONG, *arguments))
    assert found["labels"] == expected["labels"] and found["sequence"] == LONG
    assert found["scores"] == pytest.approx(expected["scores"], rel=1e-5)


@pytest.mark.parametrize("vote", ["soft", "hard"])
def test_an_ensemble(models, run, tmp_path, vote):
    first, others = models / "classifier", [tmp_path / "b", tmp_path / "c"]
    for seed, folder in enumerate(others):
        save_head(folder, "AutoModelForSequenceClassification", LABELS, seed=seed)
    expected = Ensemble.from_pretrained([first, *others], vote=vote)(TEXTS[:3])
    members = ["--ensemble", others[0], "--ensemble", others[1], *(["--vote", vote] if vote == "hard" else [])]
    shown = run("classify", first, *literal(*TEXTS[:3]), *members, "--json")
    assert [json.loads(line) for line in shown.splitlines()] == expected
    assert run("classify", first, *literal(*TEXTS[:3]), *members).splitlines() == [
        f"{each['label']} {each['score']:.4f}\tdisagreement {each['disagreement']:.2f}" for each in expected
    ]


def test_long_texts(models, run, capsys):
    for command, model in (("classify", "classifier"), ("explain", "classifier")):
        said = run(command, models / model, "--text", LONG, "--truncation", "error", code=1)
        assert f"has more than the {LONGEST} tokens that are read" in said
    run("classify", models / "classifier", "--text", LONG, "--truncation", "cut")
    assert main(["classify", str(models / "classifier"), *literal(LONG, "a"), "--backend", "numpy"]) == 0
    assert f"1 of 2 texts were cut to {LONGEST} tokens" in capsys.readouterr().err
    options = ["--truncation", "cut", "--max-length", 9, "--steps", 2, "--json"]
    assert len(json.loads(run("explain", models / "classifier", "--text", LONG, *options))["tokens"]) == 9


def test_tag(models, run):
    expected = pipeline("token-classification", models / "tagger")(TEXTS[:2], aggregation_strategy="max")
    blocks = run("tag", models / "tagger", *literal(*TEXTS[:2]), "--aggregation", "max").split("\n\n")
    for block, entities in zip(blocks, expected, strict=False):
        rows = [line.split(maxsplit=3) for line in block.splitlines()]
        assert [(row[0], row[2], row[3]) for row in rows] == [
            (each["entity_group"], f"{each['start']}-{each['end']}", each["word"]) for each in entities
        ]
    shown = run("tag", models / "tagger", "--text", TEXTS[0], "--aggregation", "none", "--json")
    assert all(set(each) == {"entity", "score", "index", "word", "start", "end"} for each in json.loads(shown))


def test_answer(models, run, stdin):
    question = "is paris the capital ?"
    expected = pipeline("question-answering", models / "reader")({"question": question, "context": LONG}, top_k=3)
    found = json.loads(run("answer", models / "reader", question, "--text", LONG, "--top-k", 3, "--json"))
    assert [each["answer"] for each in found] == [each["answer"] for each in expected]
    stdin(LONG.encode())
    lines = run("answer", models / "reader", question, "--top-k", 3).splitlines()
    assert [line.split(maxsplit=2)[2] for line in lines] == [each["answer"] for each in expected]
    stdin(b"\xff")
    assert "stdin is not UTF-8 at byte 1" in run("answer", models / "reader", question, code=1)


def test_fill_mask(models, run):
    fill = pipeline("fill-mask", models / "lm")
    expected = fill(MASKED, top_k=3)
    assert json.loads(run("fill-mask", models / "lm", "--text", MASKED, "--json", "--top-k", 3)) == expected
    blocks = run("fill-mask", models / "lm", "--text", MASKED, "--top-k", 3).strip().split("\n\n")
    for number, (block, words) in enumerate(zip(blocks, expected, strict=True), 1):
        title, *lines = block.splitlines()
        assert title == f"mask {number}"
        assert [line.split() for line in lines] == [[word["token_str"], f"{word['score']:.4f}"] for word in words]
    lines = run("fill-mask", models / "lm", "--text", "the [MASK] sat", "--top-k", 2).splitlines()
    assert [line.split()[0] for line in lines] == [word["token_str"] for word in fill("the [MASK] sat", top_k=2)]
    found = json.loads(run("fill-mask", models / "lm", "--text", "the [MASK]", "--targets", "cat,mat", "--json"))
    assert found == fill("the [MASK]", targets=["cat", "mat"])


def test_a_tokenizer_without_a_mask(models, monkeypatch, run):
    monkeypatch.setattr(Tokenizer, "mask_token", property(lambda self: None, lambda self, value: None), raising=False)
    assert "tokenizer has no mask token" in run("fill-mask", models / "lm", "--text", MASKED, code=1)


@pytest.mark.parametrize("label", [None, "neutral"])
def test_explain_by_gradients(models, run, label):
    classify = pipeline("text-classification", models / "classifier")
    expected = integrated_gradients(classify, TEXTS[0], label=label, steps=7)
    chosen = ["--label", label] if label else []
    command = ["explain", models / "classifier", "--text", TEXTS[0], "--steps", 7, *chosen]
    found = json.loads(run(*command, "--json"))
    assert (found["method"], found["label"], found["gap"]) == ("gradients", expected.label, expected.gap)
    assert found["classes"] == classify(TEXTS[0], top_k=None)
    scores = expected.scores.tolist()
    rows = zip(found["tokens"], expected.tokens, expected.offsets, scores, strict=True)
    for token, name, (start, end), score in rows:
        assert token == {"token": name, "start": start, "end": end, "score": pytest.approx(score)}
    classes, _, title, *lines, _, last = run(*command).splitlines()
    assert classes.split()[:2] == [found["classes"][0]["label"], f"{found['classes'][0]['score']:.4f}"]
    assert title.split() == ["token", "score"]
    for line, name, score in zip(lines, expected.tokens, scores, strict=True):
        length = round(24 * abs(score) / max(map(abs, scores)))
        assert line.split() == [name, f"{score:.4f}", *[("+" if score > 0 else "-") * length] * (length > 0)]
    added = f"together {sum(scores):.4f}, what the text adds to the score of {expected.label}"
    assert last == f"{added}; error {expected.gap:.4f}"


def test_explain_a_pair_by_rollout(models, run):
    pair = {"text": TEXTS[0], "text_pair": TEXTS[1]}
    expected = attention_rollout(pipeline("text-classification", models / "classifier"), pair)
    given = ["--text", TEXTS[0], "--text-pair", TEXTS[1], "--method", "rollout"]
    found = json.loads(run("explain", models / "classifier", *given, "--json"))
    assert set(found) == {"method", "classes", "tokens"}
    assert [each["token"] for each in found["tokens"]] == expected.tokens
    assert [each["score"] for each in found["tokens"]] == pytest.approx(expected.scores.tolist())
    assert run("explain", models / "classifier", *given).splitlines()[-1].startswith("[SEP]")
