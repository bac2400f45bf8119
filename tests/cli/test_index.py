"""`bertcore index` and `bertcore search --index`."""

import json
import re

import pytest

from bertcore import VectorIndex
from bertcore.cli import main
from tests.tasks.cross_encoder.tiny import save_tiny_classifier
from tests.tiny_bert import WIDTH, random_texts, save_tiny_encoder

CORPUS = ["the cat sat on a mat", "paris is the capital of france", "", "an upper mat", *random_texts(40, seed=3)]
QUERIES = ["a cat", "france"]


@pytest.fixture(autouse=True)
def on_numpy(on_numpy):
    """The reference: what is tested here stands above the backends."""


@pytest.fixture
def corpus_file(tmp_path):
    (tmp_path / "corpus").write_text("\n".join(CORPUS), encoding="utf-8")
    return str(tmp_path / "corpus")


def lines(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("options", [[], ["--precision", "int8", "--rescore-precision", "float32"]])
def test_as_search_of_the_corpus(encoder_folder, corpus_file, stdin, tmp_path, capsys, options):
    model, index, shown = str(encoder_folder), str(tmp_path / "index"), ["--queries", "-", "--top-k", "4", "--json"]
    assert main(["index", model, corpus_file, "-o", index, *options]) == 0
    precision = "int8" if options else "float32"
    assert re.search(
        rf"index: 44 texts, {WIDTH} dimensions, {precision}, [\d,]+ texts a second", capsys.readouterr().err
    )
    stdin("\n".join(QUERIES).encode())
    assert main(["search", model, "--index", index, *shown]) == 0
    found = lines(capsys)
    stdin("\n".join(QUERIES).encode())
    assert main(["search", model, corpus_file, *shown]) == 0
    for entry, wanted in zip(found, lines(capsys), strict=True):
        place = entry["corpus_id"]  # equal texts come in any order
        assert CORPUS[place] == entry["text"]
        assert entry == wanted | {"score": pytest.approx(wanted["score"], abs=1e-5), "corpus_id": place}


def test_adding_and_shards(encoder_folder, tmp_path, capsys):
    model, index = str(encoder_folder), str(tmp_path / "index")
    assert main(["index", model, "--text", CORPUS[0], "-o", index, "--precision", "binary"]) == 0
    assert main(["index", model, "--text", CORPUS[1], "-o", index, "--add"]) == 0
    assert len(VectorIndex(index)) == 2 and VectorIndex(index).rescore_precision == "int8"
    other = str(tmp_path / "other")
    command = ["index", model, "--text", "france", "-o", other, "--precision", "int8", "--rescore-precision", "none"]
    assert main(command) == 0
    capsys.readouterr()
    assert main(["search", model, "--index", index, "--index", other, CORPUS[1], "--top-k", "1"]) == 0
    score, number, text = capsys.readouterr().out.rstrip("\n").split("\t")
    assert float(score) == pytest.approx(1, abs=0.02) and (number, text) == ("2", CORPUS[1])


def test_errors(encoder_folder, corpus_file, tmp_path, capsys):
    model, index, empty = str(encoder_folder), str(tmp_path / "index"), tmp_path / "empty"
    empty.write_text("")
    reranker = str(save_tiny_classifier(tmp_path / "reranker"))
    other = str(save_tiny_encoder(tmp_path / "other", normalize=True))
    assert main(["index", model, corpus_file, "-o", index]) == 0
    for command, code, message in (
        (["index", model, corpus_file, "-o", index], 1, "which holds index.json, parts, expected a new or empty one"),
        (["index", model, str(empty), "-o", str(tmp_path / "new")], 1, "holds no texts"),
        (["index", model, corpus_file], 2, "--output"),
        (["index", model, corpus_file, "-o", "/proc/index"], 1, "/proc/index"),
        (["index", reranker, corpus_file, "-o", str(tmp_path / "new")], 1, "is a classifier encoder, expected"),
        (["index", other, "--text", "a", "-o", index, "--add"], 1, "was made by the model"),
        (["search", other, "--index", index, "a"], 1, "was made by the model"),
        (["search", model, "--index", str(tmp_path / "none"), "a"], 1, "does not exist, expected the folder of an ind"),
        (["search", model, "--index", index, corpus_file, "a"], 2, "CORPUS and --index are both given"),
        (["search", model, "--index", index, "--late", "a"], 2, "--index and --late are both given"),
    ):
        assert main(command) == code, command
        assert message in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
