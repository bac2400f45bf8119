"""An index that is kept: building, adding, searching, interrupted writes and altered folders."""

import json
import os
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertcore import VectorIndex, use_backend
from bertcore.checkpoint import CheckpointError
from bertcore.tasks import index as module
from bertcore.tasks.index import merged
from bertcore.tasks.quantization import quantize_embeddings
from bertcore.tasks.search import semantic_search
from tests.refusals import refuses

PRECISIONS = ("float32", "float16", "int8", "binary")
ROWS = np.random.default_rng(0).normal(size=(301, 39)).astype(np.float32) + 0.2
QUERIES = ROWS[:5] + np.float32(0.1)


@pytest.fixture(autouse=True)
def on_numpy(on_numpy):
    """The reference: test_nearest_codes.py compares the backends."""


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "index"


def ids_of(found):
    return [[entry["corpus_id"] for entry in entries] for entries in found]


def scores_of(found):
    return [[entry["score"] for entry in entries] for entries in found]


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_as_semantic_search(folder, precision, similarity):
    """Scored again by the rows themselves, every precision has the results of semantic_search."""
    kept = {"rescore_precision": "float32"} if precision in ("int8", "binary") else {}
    VectorIndex.build(folder, ROWS, precision=precision, similarity=similarity, **kept)
    index = VectorIndex(folder)
    options = {} if similarity == "cosine" else {"score_function": lambda a, b: a @ b.T}
    expected = semantic_search(QUERIES, ROWS, top_k=7, **options)
    found = index.search(QUERIES, top_k=7, rescore_multiplier=50)
    rounded = precision == "float16"
    np.testing.assert_allclose(scores_of(found), scores_of(expected), rtol=1e-3 if rounded else 1e-5)
    assert rounded or ids_of(found) == ids_of(expected)
    assert semantic_search(QUERIES, index, top_k=7, rescore_multiplier=50) == found
    again = index.search(QUERIES, 7, rescore_multiplier=50, query_chunk_size=2)
    assert ids_of(again) == ids_of(found)
    np.testing.assert_allclose(scores_of(again), scores_of(found), rtol=1e-6)
    index.verify()


@given(
    st.integers(0, 3),
    st.sampled_from([1, 2, 7, 31, 39, 160]),
    st.sampled_from([1, 2, 7, 39, 160]),
    st.sampled_from([1, 3, 39, 1000]),
    st.sampled_from(PRECISIONS),
)
def test_any_size(tmp_path_factory, seed, rows, width, top_k, precision):
    """An index of one part, of several, and built row by row answer the same; every row is found once."""
    made = np.random.default_rng(seed).integers(-3, 4, (rows, width)).astype(np.float32)
    folder, options = tmp_path_factory.mktemp("sizes"), {"precision": precision, "similarity": "dot"}
    whole = VectorIndex.build(folder / "whole", made, **options)
    by_row = VectorIndex.build(folder / "rows", iter(made), **options)
    found = whole.search(made[:2], top_k)
    assert found == by_row.search(made[:2], top_k) and len(whole) == rows
    assert all(len(set(ids)) == len(ids) == min(top_k, rows) for ids in ids_of(found))
    assert all(scores == sorted(scores, reverse=True) for scores in scores_of(found))
    if precision == "float32":
        split = VectorIndex.build(folder / "parts", made[:1], **options)
        if rows > 1:
            split.add(made[1:])
        assert VectorIndex(folder / "parts").search(made[:2], top_k) == found


@pytest.mark.parametrize("precision", ["int8", "binary"])
def test_scores_without_rescoring(folder, precision):
    index = VectorIndex.build(folder, ROWS, precision=precision, rescore_precision=None)
    exact = {entry["corpus_id"]: entry["score"] for entry in semantic_search(QUERIES[0], ROWS, top_k=301)[0]}
    found = index.search(QUERIES[0], top_k=301, rescore=False)[0]
    estimates = np.array([[entry["score"], exact[entry["corpus_id"]]] for entry in found])
    assert np.corrcoef(estimates.T)[0, 1] > (0.999 if precision == "int8" else 0.6)
    assert precision == "binary" or np.abs(estimates[:, 0] - estimates[:, 1]).max() < 0.02


def test_recall_of_codes_on_clusters(folder):
    rng = np.random.default_rng(3)
    rows = np.repeat(rng.normal(size=(200, 64)), 20, axis=0) + rng.normal(size=(4000, 64)) * 0.5 + 2
    exact = ids_of(semantic_search(rows[:50], rows))
    for precision, least in (("int8", 0.95), ("binary", 0.9)):
        index = VectorIndex.build(folder / precision, rows, precision=precision)
        found = ids_of(index.search(rows[:50]))
        assert np.mean([len({*a} & {*b}) / 10 for a, b in zip(found, exact, strict=True)]) > least


def test_ids_and_texts(folder):
    texts = ["", "ünï", "a\nb", "\x00", *map(str, range(297))]
    VectorIndex.build(folder, ROWS[:200], ids=range(1000, 1200), texts=texts[:200], metadata={"model": "m"})
    index = VectorIndex(folder)
    other = VectorIndex(folder)
    assert index.add(ROWS[200:], ids=np.arange(101), texts=iter(texts[200:])) is index
    other.add(ROWS[:1], ids=[7000], texts=["last"])  # it has read what was added
    assert (len(other), len(index), other.metadata) == (302, 301, {"model": "m"})
    assert index.texts(range(301)) == texts and other.texts([301]) == ["last"]
    best = other.search(ROWS[[1, 250]], top_k=1)
    assert [entry[0]["corpus_id"] for entry in best] == [1001, 50]
    assert [entry[0]["text"] for entry in best] == [texts[1], texts[250]]
    blocks = list(other.vectors(rows=77))
    assert np.concatenate([ids for ids, _ in blocks]).tolist() == [*range(1000, 1200), *range(101), 7000]
    rows = np.concatenate([rows for _, rows in blocks])
    np.testing.assert_allclose(rows[:301], ROWS / np.linalg.norm(ROWS, axis=1, keepdims=True), rtol=1e-5)
    refuses(ValueError, "row is 302, expected at most 301", other.texts, [302])


def test_memory_is_bounded(folder, monkeypatch):
    """The stream is asked for rows as they are written."""
    monkeypatch.setattr(module, "ROWS", 16)
    monkeypatch.setattr(module, "SAMPLE", 32)
    written, asked = [], []
    write = module.NpyStream.write
    monkeypatch.setattr(module.NpyStream, "write", lambda self, rows: (written.append(len(asked)), write(self, rows)))
    VectorIndex.build(folder, (asked.append(1) or row for row in ROWS))
    assert written[0] <= 48 and max(np.diff(written)) <= 17


def test_shards(folder):
    parts = [VectorIndex.build(folder / str(n), ROWS[n::2], ids=range(n, 301, 2)) for n in (0, 1)]
    found = merged([part.search(QUERIES, 9) for part in parts], 9)
    assert ids_of(found) == ids_of(semantic_search(QUERIES, ROWS, top_k=9))


@pytest.mark.parametrize("precision", ["int8", "uint8", "binary", "ubinary"])
def test_codes_in_semantic_search(precision):
    """Rescored among all rows, codes are scored by what they stand for; as many as asked for otherwise."""
    ranges = np.stack([ROWS.min(axis=0), ROWS.max(axis=0)])
    codes = quantize_embeddings(ROWS, precision, ranges=ranges)
    options = {"corpus_precision": precision, "ranges": ranges, "top_k": 5}
    found = semantic_search(QUERIES, codes, rescore_multiplier=99, **options)
    bits = np.unpackbits(quantize_embeddings(ROWS, "ubinary"), axis=1, count=39)
    exact = QUERIES @ (ROWS if "int8" in precision else bits).T
    np.testing.assert_allclose(scores_of(found), -np.sort(-exact)[:, :5], atol=0.1 if "int8" in precision else 1e-5)
    alone = semantic_search(QUERIES, codes, rescore=False, query_chunk_size=2, **options)
    assert [len(each) for each in alone] == [5] * 5 and all(each == sorted(each)[::-1] for each in scores_of(alone))


@pytest.mark.parametrize("codes, options, error, message", [
    (np.zeros((3, 39), np.int8), {"corpus_precision": "int8"}, ValueError, "ranges is None, expected"),
    (np.zeros((3, 39), np.int8), {"corpus_precision": "uint8"}, TypeError, "corpus_embeddings has dtype int8"),
    (np.zeros((3, 39), np.uint8), {"corpus_precision": "ubinary"}, ValueError, r"expected .texts, 5. for ubinary"),
    (np.zeros((3, 5), np.uint8), {"corpus_precision": "bits"}, ValueError, "corpus_precision is 'bits', expected"),
    (
        np.zeros((3, 5), np.uint8),
        {"corpus_precision": "ubinary", "rescore_multiplier": 0},
        ValueError,
        "rescore_multiplier is 0",
    ),
])  # fmt: skip
def test_wrong_codes(codes, options, error, message):
    refuses(error, message, semantic_search, QUERIES, codes, **options)


NAN = np.where(np.arange(301)[:, None] == 300, np.nan, ROWS)


@pytest.mark.parametrize("embeddings, options, error, message", [
    (ROWS[:0], {}, ValueError, "embeddings holds no rows, expected one or more"),
    (iter(()), {}, ValueError, "embeddings holds no rows"),
    (NAN, {}, ValueError, "holds inf or NaN"),
    (iter(NAN), {}, ValueError, r"embeddings\[300\] holds inf or NaN"),
    (np.full((2, 3), 1e39), {}, ValueError, "beyond the range of float32"),
    (np.full((2, 3), 1e5), {"precision": "float16", "similarity": "dot"}, ValueError, "beyond the range of float16"),
    ([ROWS[0], ROWS[1, :5]], {}, ValueError, r"embeddings\[1\] has 5 numbers, expected 39"),
    (np.zeros((3, 0)), {}, ValueError, r"embeddings\[0\] has 0 numbers, expected one or more"),
    ("text", {}, TypeError, "embeddings is str, expected an array"),
    ([None], {}, TypeError, r"embeddings\[0\] has dtype object, expected numbers"),
    (ROWS[0], {}, ValueError, r"embeddings\[0\] is one number, expected a row"),
    (ROWS[:3], {"texts": "abc"}, TypeError, "texts is str, expected one for each row"),
    (ROWS[:3], {"ids": 3}, TypeError, "ids is int, expected one for each row"),
    (ROWS, {"ids": range(300)}, ValueError, "ids has 300 entries, expected one for each row"),
    (ROWS, {"ids": range(302)}, ValueError, "ids has more than 301 entries"),
    (ROWS, {"ids": [*range(300), 7]}, ValueError, "ids has 7 2 times, expected each once"),
    (ROWS[:1], {"ids": ["a"]}, TypeError, r"ids\[0\] is 'a', expected an integer"),
    (ROWS[:1], {"ids": [1 << 63]}, ValueError, r"ids\[0\] is 9223372036854775808, expected"),
    (ROWS, {"texts": ["a"]}, ValueError, "texts has 1 entries"),
    (ROWS[:1], {"texts": [b"a"]}, TypeError, r"texts\[0\] is bytes"),
    (ROWS[:1], {"texts": ["\ud800"]}, ValueError, r"texts\[0\]"),
    (ROWS, {"precision": "int4"}, ValueError, "precision is 'int4', expected one of"),
    (ROWS, {"similarity": "manhattan"}, ValueError, "similarity is 'manhattan'"),
    (ROWS, {"rescore_precision": "int8"}, ValueError, "rescore_precision is 'int8', expected one of None"),
    (ROWS, {"metadata": {"a": 1}}, TypeError, "metadata is .*, expected texts by name"),
])  # fmt: skip
def test_wrong_input_leaves_nothing(tmp_path, folder, embeddings, options, error, message):
    refuses(error, message, VectorIndex.build, folder, embeddings, **options)
    refuses(TypeError, "folder is None, expected the name", VectorIndex.build, None, embeddings)
    refuses(TypeError, "folder is None, expected the name", VectorIndex, None)
    assert not [*tmp_path.iterdir()]


def test_wrong_additions_and_queries(folder):
    index = VectorIndex.build(folder, ROWS, precision="int8")
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    refuses(ValueError, "embeddings has rows of 5 numbers, expected 39", index.add, ROWS[:, :5])
    refuses(ValueError, "ids has 3 2 times", index.add, ROWS[:1], ids=[3])
    refuses(ValueError, "texts is given, expected None, as in", index.add, ROWS[:1], texts=["a"])
    refuses(ValueError, "embeddings holds no rows", index.add, [])
    refuses(ValueError, r"queries has shape .1, 5., expected .queries, 39", index.search, ROWS[0, :5])
    refuses(ValueError, "queries holds inf or NaN", index.search, NAN)
    refuses(ValueError, "queries holds numbers beyond the range of float32", index.search, np.full((1, 39), 1e39))
    refuses(ValueError, "top_k is 0", index.search, QUERIES, 0)
    refuses(TypeError, "rescore_multiplier is 'a'", index.search, QUERIES, rescore_multiplier="a")
    refuses(ValueError, "which holds index.json, parts, expected a new or empty", VectorIndex.build, folder, ROWS)
    refuses(ValueError, "the index stores no texts", index.texts, [0])
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before
    assert len(index.search(QUERIES, 999)[0]) == 301 and index.search(QUERIES[:0]) == []


@pytest.mark.parametrize("stop", [KeyboardInterrupt, MemoryError])
def test_interrupted(tmp_path, folder, stop):
    def broken():
        yield from ROWS[:200]
        raise stop

    refuses(stop, None, VectorIndex.build, folder, broken())
    assert not [*tmp_path.iterdir()]
    index = VectorIndex.build(folder, ROWS)
    refuses(stop, None, index.add, broken())
    assert len(VectorIndex(folder)) == 301
    assert sorted(os.listdir(folder)) == ["index.json", "parts"] and len(os.listdir(folder / "parts")) == 2


@pytest.mark.skipif(os.name != "posix" or not hasattr(os, "geteuid"), reason="POSIX")
def test_folders_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("x")
    refuses(OSError, None, VectorIndex.build, tmp_path / "file", ROWS)
    refuses(OSError, None, VectorIndex.build, "/proc/index", ROWS)
    refuses(ValueError, "folder is empty, expected the name", VectorIndex.build, "", ROWS)


def altered(folder, name, change):
    facts = json.loads((folder / "index.json").read_text())
    change(facts)
    (folder / "index.json").write_text(json.dumps(facts))


FACTS = {
    "another format": lambda facts: facts.update(format="faiss"),
    "a later version": lambda facts: facts.update(version=2),
    "another dimension": lambda facts: facts.update(dimension=40),
    "no dimension": lambda facts: facts.pop("dimension"),
    "a huge dimension": lambda facts: facts.update(dimension=10**30),
    "another precision": lambda facts: facts.update(precision="float32"),
    "an unknown precision": lambda facts: facts.update(precision=["int8"]),
    "texts": lambda facts: facts.update(has_texts=True),
    "metadata": lambda facts: facts.update(metadata=[1]),
    "parts": lambda facts: facts.update(parts={}),
    "no parts": lambda facts: facts.update(parts=[]),
    "a part": lambda facts: facts["parts"].append(facts["parts"][0]),
    "rows": lambda facts: facts["parts"][0].update(rows=300),
    "negative rows": lambda facts: facts["parts"][0].update(rows=-1),
    "files": lambda facts: facts["parts"][0].update(files={"../../etc/passwd": {}}),
    "sizes": lambda facts: facts["parts"][0]["files"]["ids"].update(bytes="1"),
    "ranges": lambda facts: facts.update(ranges=[[0.0], [1.0]]),
    "ranges in the wrong order": lambda facts: facts.update(ranges=facts["ranges"][::-1]),
    "center": lambda facts: facts.update(center=["a"] * 39),
    "infinity": lambda facts: facts["center"].__setitem__(0, float("inf")),
}


@pytest.mark.parametrize("change", FACTS.values(), ids=FACTS)
def test_altered_facts(folder, change):
    VectorIndex.build(folder, ROWS, precision="binary")
    altered(folder, "index.json", change)
    refuses(CheckpointError, str(folder), VectorIndex, folder)


class Evil:
    def __reduce__(self):
        return os.mkdir, ("evil",)


FILES = {
    "missing": lambda file: file.unlink(),
    "empty": lambda file: file.write_bytes(b""),
    "truncated": lambda file: file.write_bytes(file.read_bytes()[:-1]),
    "longer": lambda file: file.write_bytes(file.read_bytes() + b"x"),
    "text": lambda file: file.write_text("x" * 2000),
    "pickle": lambda file: file.write_bytes(pickle.dumps(Evil())),
    "objects": lambda file: np.save(file, np.array([Evil()], object), allow_pickle=True),
    "archive": lambda file: np.savez(file.open("wb"), a=np.zeros(3)),
    "another shape": lambda file: np.save(file, np.zeros((3, 3), np.int8)),
    "a folder": lambda file: (file.unlink(), file.mkdir()),
    "a pipe": lambda file: (file.unlink(), os.mkfifo(file)),
    "a link to nothing": lambda file: (file.unlink(), file.symlink_to("nowhere")),
    "a link to a device": lambda file: (file.unlink(), file.symlink_to("/dev/zero")),
}


@pytest.mark.parametrize("kind", ["bits", "int8", "ids", "offsets", "texts"])
@pytest.mark.parametrize("change", FILES.values(), ids=FILES)
def test_broken_files(folder, change, kind, monkeypatch):
    monkeypatch.chdir(folder.parent)
    VectorIndex.build(folder, ROWS[:40], texts=["ab"] * 40, precision="binary")
    change(folder / "parts" / f"000000-{kind}.npy")
    refuses(CheckpointError, f"000000-{kind}.npy", VectorIndex, folder)
    assert not os.path.exists("evil")


def test_altered_bytes(folder):
    VectorIndex.build(folder, ROWS[:40], texts=["ab"] * 40)
    offsets, texts = (folder / "parts" / f"000000-{kind}.npy" for kind in ("offsets", "texts"))
    intact = offsets.read_bytes()
    offsets.write_bytes(intact[:-8] + b"\xff" * 8)
    index = VectorIndex(folder)
    refuses(CheckpointError, "000000-offsets.npy does not fit the texts: it was altered", index.texts, [39])
    refuses(CheckpointError, "000000-offsets.npy was altered: its SHA-256", index.verify)
    offsets.write_bytes(intact)
    texts.write_bytes(texts.read_bytes()[:-2] + b"\xff\xff")
    refuses(CheckpointError, "000000-texts.npy is not UTF-8", VectorIndex(folder).texts, [39])


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b"[" * 5000, b'{"version": 1}', pickle.dumps(Evil())])
def test_no_index(folder, content):
    refuses(CheckpointError, "does not exist, expected the folder of an index", VectorIndex, folder)
    folder.mkdir()
    refuses(CheckpointError, "index.json", VectorIndex, folder)
    (folder / "index.json").write_bytes(content)
    refuses(CheckpointError, "index.json", VectorIndex, folder)


def test_links_are_replaced_not_followed(tmp_path, folder):
    """Adding to an index whose index.json is a link leaves the file that it points to as it was."""
    VectorIndex.build(folder, ROWS)
    target = tmp_path / "elsewhere.json"
    (folder / "index.json").rename(target)
    (folder / "index.json").symlink_to(target)
    before = target.read_bytes()
    VectorIndex(folder).add(ROWS[:1])
    assert target.read_bytes() == before and len(VectorIndex(folder)) == 302
    (tmp_path / "link").symlink_to(folder)
    assert len(VectorIndex(tmp_path / "link")) == 302


def test_backends_agree(folder):
    index = VectorIndex.build(folder, ROWS, precision="binary")
    with use_backend("numba"):
        found = index.search(QUERIES, rescore=False)
    assert found == index.search(QUERIES, rescore=False)
