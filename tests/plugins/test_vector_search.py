"""A kept index in usearch, hnswlib, FAISS and sqlite-vec: they find what the index finds."""

import numpy as np
import pytest

from bertcore import VectorIndex
from bertcore.plugins import vector_search
from bertcore.tasks import index as index_module
from tests.refusals import refuses

ROWS = np.random.default_rng(0).normal(size=(211, 17)).astype(np.float32)
QUERIES = ROWS[:9] + np.float32(0.2)
UNIT = QUERIES / np.linalg.norm(QUERIES, axis=1, keepdims=True)
IDS = np.random.default_rng(1).permutation(1000)[: len(ROWS)]
TEXTS = [f"text {number}" for number in IDS]


@pytest.fixture
def index(tmp_path, monkeypatch):
    """An index in two parts, read in blocks that are shorter than either."""
    monkeypatch.setattr(index_module.VectorIndex.vectors, "__defaults__", (64,))
    made = VectorIndex.build(tmp_path / "index", ROWS[:150], ids=IDS[:150], texts=TEXTS[:150])
    return made.add(ROWS[150:], ids=IDS[150:], texts=TEXTS[150:])


def expected(index):
    found = index.search(QUERIES, top_k=5)
    return [[entry["corpus_id"] for entry in each] for each in found], [[e["score"] for e in each] for each in found]


def test_usearch(index):
    pytest.importorskip("usearch")
    made = vector_search.to_usearch(index)
    ids, scores = expected(index)
    found = made.search(UNIT, 5, exact=True)
    assert found.keys.tolist() == ids and len(made) == len(index)
    np.testing.assert_allclose(1 - found.distances, scores, atol=1e-6)
    assert np.mean(made.search(UNIT, 5).keys == found.keys) > 0.9
    assert vector_search.to_usearch(index, dtype="f16", connectivity=8).search(UNIT[0], 1).keys[0] == ids[0][0]


def test_hnswlib(index):
    pytest.importorskip("hnswlib")
    made = vector_search.to_hnswlib(index, room=1, M=24, ef_construction=300, random_seed=1)
    made.set_ef(211)
    ids, scores = expected(index)
    found, distances = made.knn_query(UNIT, k=5)
    assert found.tolist() == ids
    np.testing.assert_allclose(1 - distances, scores, atol=1e-6)
    made.add_items(ROWS[:1], [2000])
    refuses(ValueError, "room is -1, expected", vector_search.to_hnswlib, index, room=-1)


@pytest.mark.parametrize("factory", ["Flat", "HNSW32", "IVF4,Flat"])
def test_faiss(index, factory):
    pytest.importorskip("faiss")
    ids, scores = expected(index)
    found, rows = vector_search.to_faiss(index, factory).search(UNIT, 5)
    assert np.mean(rows == np.array(ids)) > (0.99 if factory == "Flat" else 0.4)
    if factory == "Flat":
        np.testing.assert_allclose(found, scores, atol=1e-6)


def test_sqlite(index, tmp_path):
    sqlite3, _ = pytest.importorskip("pysqlite3"), pytest.importorskip("sqlite_vec")
    connection = vector_search.to_sqlite(index, sqlite3.connect(":memory:"), "notes")
    ids, scores = expected(index)
    asked = "select rowid, distance, text from notes where embedding match ? and k = 5 order by distance"
    for query, some, best in zip(QUERIES, ids, scores, strict=True):
        found = connection.execute(asked, (query.tobytes(),)).fetchall()
        assert [row[0] for row in found] == some and [row[2] for row in found] == [f"text {id}" for id in some]
        np.testing.assert_allclose([1 - row[1] for row in found], best, atol=1e-5)
    refuses(sqlite3.OperationalError, "notes", vector_search.to_sqlite, index, connection, "notes")
    refuses(ValueError, "table is 'a b', expected letters", vector_search.to_sqlite, index, connection, "a b")
    refuses(ValueError, "connection cannot load extensions", vector_search.to_sqlite, index, object())
    dot = VectorIndex.build(tmp_path / "dot", ROWS, similarity="dot")
    refuses(ValueError, "index compares by dot, expected cosine", vector_search.to_sqlite, dot, connection)


@pytest.mark.parametrize("library", ["usearch", "hnswlib"])
def test_ids_that_wrap_around(tmp_path, library):
    pytest.importorskip(library)
    index = VectorIndex.build(tmp_path / "index", ROWS, ids=range(-3, 208))
    made = getattr(vector_search, f"to_{library}")
    refuses(ValueError, "index has the id -3, expected 0 or more", made, index)
    refuses(TypeError, "index is ndarray, expected a VectorIndex", made, ROWS)
