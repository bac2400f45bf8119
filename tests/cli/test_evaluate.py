"""`bertcore evaluate`: retrieval quality from files."""

import json

import pytest

from bertcore import SentenceEncoder
from bertcore.cli import main
from bertcore.tasks.evaluation import InformationRetrievalEvaluator
from tests.tasks.cross_encoder.tiny import save_tiny_classifier
from tests.tasks.sparse_encoder.tiny import save_tiny_splade
from tests.tiny_bert import random_texts

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
        "write": lines,
    }  # fmt: skip


def command(folder, files, *more, **changed):
    given = {name: files[name] for name in ("--queries", "--corpus", "--qrels")}
    given |= {f"--{name}": value for name, value in changed.items()}
    return ["evaluate", str(folder), *[part for pair in given.items() for part in pair], *more]


@pytest.mark.parametrize("qrels", ["--qrels", "trec"])
def test_metrics(encoder_folder, files, capsys, tmp_path, qrels):
    results = str(tmp_path / "results")
    assert main(command(encoder_folder, files, "--json", "--results", results, qrels=files[qrels])) == 0
    found = json.loads(capsys.readouterr().out)
    expected = InformationRetrievalEvaluator(QUERIES, CORPUS, ANSWERS)(SentenceEncoder(encoder_folder))
    assert found == pytest.approx({"queries": 2, "documents": len(CORPUS), **expected}, abs=1e-6)
    assert (tmp_path / "results" / "InformationRetrieval_results.csv").read_text(encoding="utf-8").startswith("epoch")


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


def test_dimensions_of_a_sparse_encoder_are_refused(files, tmp_path, capsys):
    assert main(command(save_tiny_splade(tmp_path / "splade"), files, "--truncate-dim", "2")) != 0
    assert "--truncate-dim is 2, expected none: " in capsys.readouterr().err


def test_a_cross_encoder_is_refused(files, tmp_path, capsys):
    assert main(command(save_tiny_classifier(tmp_path / "pairs"), files)) != 0
    assert "expected an encoder of single texts" in capsys.readouterr().err
