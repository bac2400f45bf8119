"""bertcore calibrate, and bertcore classify with what it writes."""

import json
import sys

import numpy as np
import pytest

from bertcore import pipeline, use_backend
from bertcore.cli import main
from bertcore.tasks.calibration import IsotonicCalibration, TemperatureScaling, expected_calibration_error
from bertcore.tasks.sequence_scores import softmax
from tests.tasks.pipelines.folders import LABELS, TEXTS, save_head
from tests.tiny_bert import random_texts, save_tiny_bert

NAMES = list(LABELS.values())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_head(tmp_path_factory.mktemp("model"), "AutoModelForSequenceClassification", LABELS)


@pytest.fixture(scope="module")
def rows(folder):
    """Texts whose labels are drawn from the model's probabilities at a temperature of 4: it is too sure."""
    texts, rng = random_texts(120, longest=15), np.random.default_rng(5)
    scores = logits(folder, texts)
    labels = (scores / 4 + rng.gumbel(size=scores.shape)).argmax(axis=1)
    return [{"review": text, "class": NAMES[label]} for text, label in zip(texts, labels, strict=True)]


def logits(folder, texts):
    with use_backend("numpy"):
        answers = pipeline("text-classification", folder)(texts, top_k=None, function_to_apply="none")
    return np.array([[{each["label"]: each["score"] for each in answer}[name] for name in NAMES] for answer in answers])


def save(rows, file):
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def calibrate(folder, *arguments):
    columns = ("--text", "review", "--label", "class")
    return main(["calibrate", *map(str, (folder, *arguments, *columns)), "--backend", "numpy"])


@pytest.mark.parametrize("method", ["temperature", "isotonic"])
def test_calibrate_and_classify(folder, rows, method, tmp_path, capsys):
    data, measure = save(rows[:80], tmp_path / "data.jsonl"), save(rows[80:], tmp_path / "measure.jsonl")
    out = tmp_path / "calibration.json"
    assert calibrate(folder, data, "--eval", measure, "--method", method, "--out", out) == 0
    said = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())

    kinds = {"temperature": (TemperatureScaling, lambda x: x), "isotonic": (IsotonicCalibration, softmax)}
    kind, function = kinds[method]
    right = np.array([NAMES.index(row["class"]) for row in rows])
    scores = logits(folder, [row["review"] for row in rows])
    fitted = kind().fit(function(scores[:80]), right[:80])
    after = fitted.transform(function(scores[80:]))
    errors = [expected_calibration_error(table, right[80:]) for table in (softmax(scores[80:]), after)]
    assert said["texts"] == "80 fitted to, 40 held out" and said["file"] == str(out)
    assert said["error"] == "{:.4f} before, {:.4f} after (expected calibration error)".format(*errors)
    assert errors[1] < errors[0]
    if method == "temperature":
        assert said["scores"] == f"divided by {fitted.temperature:.4f}" and fitted.temperature > 1.5

    assert calibrate(folder, data, "--eval", measure, "--method", method, "--out", out, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["calibration_error"] == pytest.approx(errors, rel=1e-6) and len(found["accuracy"]) == 2
    assert (found["method"], found["fitted_to"], found["held_out"], found["file"]) == (method, 80, 40, str(out))
    assert found.get("temperature") == (pytest.approx(fitted.temperature) if method == "temperature" else None)

    given = ("classify", folder, "--text", TEXTS[0], "--calibration", out, "--top-k", 3, "--json", "--backend", "numpy")
    assert main([*map(str, given)]) == 0
    found = {each["label"]: each["score"] for each in json.loads(capsys.readouterr().out)}
    (expected,) = fitted.transform(function(logits(folder, TEXTS[:1])))
    np.testing.assert_allclose([found[name] for name in NAMES], expected, rtol=1e-5)


def test_a_half_is_held_out(folder, rows, tmp_path, capsys):
    data = save(rows[:41], tmp_path / "data.jsonl")
    assert calibrate(folder, data, "--out", tmp_path / "out.json") == 0
    assert capsys.readouterr().out.startswith("texts     21 fitted to, 20 held out")


def test_calibration_is_refused(folder, rows, tmp_path, capsys):
    def refused(*arguments, model=folder):
        assert calibrate(model, *arguments, "--out", tmp_path / "out.json") == 1
        assert not (tmp_path / "out.json").exists()
        return capsys.readouterr().err

    data = save(rows[:20], tmp_path / "data.jsonl")
    wrong = save([*rows[:3], {"review": "a", "class": "maybe"}], tmp_path / "wrong.jsonl")
    assert "has the label 'maybe', expected one of CONTRADICTION, neutral, Entailment" in refused(wrong)
    regression = tmp_path / "regression"
    save_head(regression, "AutoModelForSequenceClassification", LABELS, problem_type="regression")
    assert "expected a classifier that chooses one of several named classes" in refused(data, model=regression)
    same = save_head(tmp_path / "same", "AutoModelForSequenceClassification", {"0": "a", "1": "b", "2": "a"})
    assert "expected a classifier that chooses one of several named classes" in refused(data, model=same)
    assert "has no classifier of texts" in refused(data, model=save_tiny_bert(tmp_path / "headless"))


@pytest.mark.parametrize(("method", "package"), [("temperature", "SciPy"), ("isotonic", "scikit-learn")])
def test_missing_package_is_reported_first(folder, tmp_path, capsys, monkeypatch, method, package):
    for name in ("scipy.optimize", "sklearn.isotonic"):
        monkeypatch.setitem(sys.modules, name, None)
    assert calibrate(folder, tmp_path / "nowhere.jsonl", "--method", method, "--out", tmp_path / "out.json") == 1
    assert f"{package} is not installed, which this needs: pip install 'bertcore[training]'" in capsys.readouterr().err
