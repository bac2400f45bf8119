"""`bertcore search`: the lines of a corpus that are nearest to queries."""

import json

import pytest

from bertcore import SentenceEncoder, use_backend
from bertcore.cli import main, search
from tests.tiny_bert import random_texts

CORPUS = ["the cat sat on a mat", "paris is the capital of france", "", "an upper mat", *random_texts(9, seed=3)]


@pytest.fixture
def corpus_file(tmp_path):
    (tmp_path / "corpus").write_text("\n".join(CORPUS), encoding="utf-8")
    return str(tmp_path / "corpus")


@pytest.mark.parametrize("block", [3, 4096])
def test_queries(encoder_folder, corpus_file, stdin, capsys, monkeypatch, block):
    from bertcore.tasks.search import semantic_search

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
