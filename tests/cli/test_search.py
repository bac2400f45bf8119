"""`bertcore search` and `bertcore rerank`: lines of text in the order of their scores."""

import json
import os
import subprocess
import sys

import pytest

from bertcore import CrossEncoder, MultiVectorEncoder, SentenceEncoder, use_backend
from bertcore.cli import main, search
from bertcore.tasks.search import semantic_search
from tests.tasks.cross_encoder.tiny import save_tiny_classifier
from tests.tasks.multi_vector.tiny import save_tiny_late
from tests.tiny_bert import random_texts

CORPUS = ["the cat sat on a mat", "paris is the capital of france", "", "an upper mat", *random_texts(9, seed=3)]


@pytest.fixture
def corpus_file(tmp_path):
    (tmp_path / "corpus").write_text("\n".join(CORPUS), encoding="utf-8")
    return str(tmp_path / "corpus")


@pytest.mark.parametrize("block", [3, 4096])
def test_queries(encoder_folder, corpus_file, stdin, capsys, monkeypatch, block):
    monkeypatch.setattr(search, "BLOCK_ROWS", block)
    queries = ["a cat", "france"]
    stdin("\n".join(queries).encode())
    command = ["search", str(encoder_folder), corpus_file, "--queries", "-", "--top-k", "4", "--json"]
    assert main([*command, "--backend", "numpy"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    with use_backend("numpy"):
        encoder = SentenceEncoder(encoder_folder)
        expected = semantic_search(encoder.encode(queries), encoder.encode(CORPUS), top_k=4)
    for entry, wanted in zip(found, [hit for hits in expected for hit in hits], strict=True):
        assert entry["corpus_id"] == wanted["corpus_id"] and entry["text"] == CORPUS[entry["corpus_id"]]
        assert entry["score"] == pytest.approx(wanted["score"], abs=1e-5)
    assert [entry["query"] for entry in found] == ["a cat"] * 4 + ["france"] * 4


def test_one_query(encoder_folder, corpus_file, capsys):
    assert main(["search", str(encoder_folder), corpus_file, CORPUS[1], "--top-k", "1", "--backend", "numpy"]) == 0
    assert capsys.readouterr().out == f"1.0000\t2\t{CORPUS[1]}\n"


@pytest.mark.parametrize("options", [[], ["--late"]])
def test_late_interaction(tmp_path, corpus_file, capsys, options):
    folder = save_tiny_late(tmp_path / "late")
    encoder = MultiVectorEncoder(folder)
    expected = [entry["corpus_id"] for entry in encoder.rank("a cat", CORPUS, top_k=4)]
    assert main(["search", str(folder), corpus_file, "a cat", "--top-k", "4", "--json", *options]) == 0
    assert [json.loads(line)["corpus_id"] for line in capsys.readouterr().out.splitlines()] == expected
    assert main(["rerank", str(folder), "a cat", corpus_file, "--top-k", "4", "--json", "--max-length", "9"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    shorter = MultiVectorEncoder(folder, document_length=9).rank("a cat", CORPUS, top_k=4, return_documents=True)
    assert [entry["text"] for entry in found] == [entry["text"] for entry in shorter]
    assert [entry["score"] for entry in found] == pytest.approx([entry["score"] for entry in shorter], rel=1e-5)


def test_late_interaction_with_a_sentence_encoder(encoder_folder, corpus_file, capsys):
    assert main(["search", str(encoder_folder), corpus_file, "a cat", "--late"]) == 1
    error = "has no map to token vectors, expected a model trained by bertcore finetune --task late-interaction"
    assert error in capsys.readouterr().err


LINES = ["on a mat", "paris", "", "the cat sat", "on a mat"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny_classifier(tmp_path_factory.mktemp("reranker"))


@pytest.mark.parametrize("top_k", [None, 2, 9])
def test_order(folder, stdin, capsys, top_k):
    stdin("\n".join(LINES).encode())
    options = [] if top_k is None else ["--top-k", str(top_k)]
    assert main(["rerank", str(folder), "the cat", "--json", *options]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    with use_backend("numba"):
        assert found == CrossEncoder(folder).rank("the cat", LINES, top_k=top_k, return_documents=True)


def test_lines(folder, tmp_path, capsys):
    (tmp_path / "texts").write_text("paris\n", encoding="utf-8")
    assert main(["rerank", str(folder), "the cat", str(tmp_path / "texts")]) == 0
    score, number, text = capsys.readouterr().out.rstrip("\n").split("\t")
    assert 0 < float(score) < 1 and (number, text) == ("1", "paris")


def test_long_lines(folder, stdin, capsys):
    lines = ["the cat sat", "paris is the capital of " * 12]
    stdin("\n".join(lines).encode())
    assert main(["rerank", str(folder), "the cat", "--json", "--truncation", "chunk"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    with use_backend("numba"):
        expected = CrossEncoder(folder).rank("the cat", lines, return_documents=True, truncation="chunk")
    assert found == expected
    stdin("\n".join(lines).encode())
    assert main(["rerank", str(folder), "the cat", "--truncation", "error"]) == 1
    assert "text 2 has more than the 40 tokens that are read" in capsys.readouterr().err


def test_output_is_utf8(folder, tmp_path):
    (tmp_path / "texts").write_text("ünïcode €\n", encoding="utf-8")
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "BERTCORE_BACKEND": "numpy"}
    command = [sys.executable, "-m", "bertcore", "rerank", str(folder), "the cat", str(tmp_path / "texts")]
    done = subprocess.run(command, env=env, capture_output=True, check=True)
    assert done.stdout.decode("utf-8").endswith("\tünïcode €\n")
