"""bertcore explain: what a class is made of."""

import json

import pytest

from bertcore import pipeline
from bertcore.cli import main
from bertcore.tasks.attribution import attention_rollout, integrated_gradients
from tests.tasks.pipelines.folders import LABELS, LONGEST, TEXTS, save_head

LONG = " ".join(TEXTS) * 5
pytestmark = pytest.mark.usefixtures("on_numpy")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_head(tmp_path_factory.mktemp("model"), "AutoModelForSequenceClassification", LABELS)


def said(capsys, *arguments, code=0):
    assert main(["explain", *map(str, arguments), "--backend", "numpy"]) == code
    captured = capsys.readouterr()
    return captured.err if code else captured.out


@pytest.mark.parametrize("label", [None, "neutral"])
def test_gradients(folder, capsys, label):
    classify = pipeline("text-classification", folder)
    expected = integrated_gradients(classify, TEXTS[0], label=label, steps=7)
    asked = ["--steps", 7] + ([] if label is None else ["--label", label])
    found = json.loads(said(capsys, folder, "--text", TEXTS[0], *asked, "--json"))
    assert (found["method"], found["label"], found["gap"]) == ("gradients", expected.label, expected.gap)
    assert found["classes"] == classify(TEXTS[0], top_k=None)
    for token, name, offsets, score in zip(
        found["tokens"], expected.tokens, expected.offsets, expected.scores, strict=True
    ):
        assert token == {"token": name, "start": offsets[0], "end": offsets[1], "score": pytest.approx(score)}
    classes, _, title, *lines, _, last = said(capsys, folder, "--text", TEXTS[0], *asked).splitlines()
    assert classes.split()[:2] == [found["classes"][0]["label"], f"{found['classes'][0]['score']:.4f}"]
    assert title.split() == ["token", "score"]
    scores = expected.scores.tolist()
    for line, name, score in zip(lines, expected.tokens, scores, strict=True):
        length = round(24 * abs(score) / max(map(abs, scores)))
        assert line.split() == [name, f"{score:.4f}", *[("+" if score > 0 else "-") * length] * (length > 0)]
    added = f"together {sum(scores):.4f}, what the text adds to the score of {expected.label}"
    assert last == f"{added}; error {expected.gap:.4f}"


def test_rollout_of_a_pair(folder, capsys):
    pair = {"text": TEXTS[0], "text_pair": TEXTS[1]}
    expected = attention_rollout(pipeline("text-classification", folder), pair)
    found = json.loads(
        said(capsys, folder, "--text", TEXTS[0], "--text-pair", TEXTS[1], "--method", "rollout", "--json")
    )
    assert set(found) == {"method", "classes", "tokens"}
    assert [each["token"] for each in found["tokens"]] == expected.tokens
    assert [each["score"] for each in found["tokens"]] == pytest.approx(expected.scores.tolist())
    assert (
        said(capsys, folder, "--text", TEXTS[0], "--text-pair", TEXTS[1], "--method", "rollout")
        .splitlines()[-1]
        .startswith("[SEP]")
    )


def test_long_texts(folder, capsys):
    assert f"more than the {LONGEST} tokens that are read" in said(capsys, folder, "--text", LONG, code=1)
    cut = json.loads(
        said(capsys, folder, "--text", LONG, "--truncation", "cut", "--max-length", 9, "--steps", 2, "--json")
    )
    assert len(cut["tokens"]) == 9
