"""bertcore calibrate and evaluate."""

import json
import sys

import numpy as np
import pytest

from bertcore import SentenceEncoder, pipeline, use_backend
from bertcore.cli import main
from bertcore.evaluation import InformationRetrievalEvaluator
from bertcore.tasks.calibration import IsotonicCalibration, TemperatureScaling, expected_calibration_error
from bertcore.tasks.sequence_scores import softmax
from tests.tasks.cross_encoder.tiny import save_tiny_classifier
from tests.tasks.pipelines.folders import LABELS, TEXTS, save_head
from tests.tasks.sparse_encoder.tiny import save_tiny_splade
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


QUERIES = {"q1": "a cat", "7": "france", "q3": "dogs asleep"}
CORPUS = {"a": "the cat sat on a mat", "b": "paris is the capital of france", "3": "", "c": "Cats a mat"}
CORPUS |= {f"r{place}": text for place, text in enumerate(random_texts(9, seed=3))}
ANSWERS = {"q1": {"a", "c"}, "7": {"b", "gone"}}


@pytest.fixture
def files(tmp_path):
    def lines(name, records):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in records), encoding="utf-8")
        return str(tmp_path / name)

    documents = [{"_id": key, "text": text} for key, text in CORPUS.items() if key != "c"]
    documents += [{"_id": "c", "title": "Cats", "text": "a mat"}]
    rows = [f"{query}\t{document}\t1" for query, found in ANSWERS.items() for document in sorted(found)]
    trec = [row.replace("\t", " 0 ", 1).replace("\t", " ") for row in [*rows, "q1\tr1\t0"]]
    return {
        "--queries": lines("queries.jsonl", [json.dumps({"id": int(key) if key == "7" else key, "text": text})
                                             for key, text in QUERIES.items()]),
        "--corpus": lines("corpus.jsonl", map(json.dumps, documents)),
        "--qrels": lines("qrels.tsv", ["query-id\tcorpus-id\tscore", *rows, "q1\tr1\t0"]),
        "trec": lines("qrels.txt", [*trec, ""]),
        "headless": lines("headless.tsv", [*rows, "q1\tr1\t0"]),
        "TREC in a table": lines("trec.csv", trec),
        "write": lines,
    }  # fmt: skip


def command(folder, files, *more, **changed):
    given = {name: files[name] for name in ("--queries", "--corpus", "--qrels")}
    given |= {f"--{name}": value for name, value in changed.items()}
    return ["evaluate", str(folder), *[part for pair in given.items() for part in pair], *more]


@pytest.mark.parametrize("qrels", ["--qrels", "trec", "headless", "TREC in a table"])
def test_metrics(encoder_folder, files, capsys, tmp_path, qrels):
    results = str(tmp_path / "results")
    assert main(command(encoder_folder, files, "--json", "--results", results, qrels=files[qrels])) == 0
    found = json.loads(capsys.readouterr().out)
    expected = InformationRetrievalEvaluator(QUERIES, CORPUS, ANSWERS)(SentenceEncoder(encoder_folder))
    assert found == pytest.approx({"queries": 2, "documents": len(CORPUS), **expected}, abs=1e-6)
    assert (
        (tmp_path / "results" / "Information-Retrieval_evaluation_results.csv")
        .read_text(encoding="utf-8")
        .startswith("epoch")
    )


def test_a_table_and_other_encoders(files, tmp_path, capsys):
    assert main(command(save_tiny_splade(tmp_path / "splade"), files)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2 queries, 13 documents, 4 answers (1 of them not in the corpus), dot"
    assert [line.split()[0] for line in lines[2:]][-2:] == ["ndcg@10", "map@100"]


def test_lines_of_text(encoder_folder, files, capsys):
    changed = {
        "queries": files["write"]("queries.txt", ["a cat", "france"]),
        "corpus": files["write"]("corpus.txt", ["a dog", "", "a cat", "france"]),
        "qrels": files["write"]("answers.txt", ["1 0 3 1", "2 0 4 1"]),
    }
    assert main(command(encoder_folder, files, "--json", **changed)) == 0
    assert json.loads(capsys.readouterr().out)["cosine_accuracy@1"] == 1.0


@pytest.mark.parametrize("option, lines, message", [
    ("queries", ['{"text": "a"}'], "x.jsonl:1: _id is None, expected a string or an integer"),
    ("queries", ['{"_id": "a", "text": "a"}'] * 2, "x.jsonl:2: _id is 'a' a second time"),
    ("queries", ['{"_id": "a"}'], "has no text named 'text'"),
    ("queries", [], "--queries is"),
    ("qrels", ['{"query-id": "q1"}'], "expected query-id, corpus-id and score"),
    ("qrels", ['{"query-id": "q1", "corpus-id": "a", "score": "x"}'], "score is 'x', expected a number"),
    ("qrels", ['{"query-id": "q1", "corpus-id": "a", "score": NaN}'], "score is nan, expected a number"),
    ("qrels", [f'{{"query-id": "q1", "corpus-id": "a", "score": 1{"0" * 400}}}'], "0, expected a number"),
    ("qrels", ['{"query-id": "q1", "corpus-id": "gone"}'], "names no query of --queries with a document"),
])  # fmt: skip
def test_wrong_files(encoder_folder, files, capsys, option, lines, message):
    assert main(command(encoder_folder, files, **{option: files["write"]("x.jsonl", lines)})) != 0
    said = capsys.readouterr().err
    assert message in said and len(said.splitlines()) == 1


def test_other_encoders_that_are_refused(files, tmp_path, capsys):
    assert main(command(save_tiny_splade(tmp_path / "splade"), files, "--truncate-dim", "2")) != 0
    assert "--truncate-dim is 2, expected none: " in capsys.readouterr().err
    assert main(command(save_tiny_classifier(tmp_path / "pairs"), files)) != 0
    assert "expected an encoder of single texts" in capsys.readouterr().err
