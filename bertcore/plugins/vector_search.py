"""Convert a `VectorIndex` for other search libraries: usearch, hnswlib, FAISS, and SQLite with sqlite-vec.

    from bertcore import VectorIndex
    from bertcore.plugins.vector_search import to_hnswlib

    graph = to_hnswlib(VectorIndex("notes/"))
    rows, distances = graph.knn_query(encoder.encode_query(["how do cats rest"], normalize_embeddings=True), k=3)

Each function needs only its library (usearch, hnswlib, faiss-cpu, sqlite-vec). Vectors are read in blocks, as exact as
the index stores them (0 and 1 if it stores only bits). The result is the library's own object, whose keys are the ids
of the index. A cosine index stores vectors of length 1, so inner products with queries of length 1 are cosines.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from bertcore.arguments import check_count
from bertcore.tasks.index import VectorIndex

if TYPE_CHECKING:
    import sqlite3

    import faiss
    import hnswlib
    from usearch.index import Index


def to_usearch(index: VectorIndex, **options: Any) -> Index:
    """Return an approximate `usearch.index.Index` on inner products (distance: 1 minus the product).

    `options` are options of `usearch.index.Index`: dtype ("f32" by default), connectivity, expansion_add,
    expansion_search. Raises ValueError for negative ids.
    """
    from usearch.index import Index

    made = Index(ndim=_checked(index).dimension, metric="ip", **{"dtype": "f32"} | options)
    for ids, rows in _blocks(index, "usearch"):
        made.add(ids.astype(np.uint64), rows)
    return made


def to_hnswlib(index: VectorIndex, *, room: int = 0, **options: Any) -> hnswlib.Index:
    """Return an approximate `hnswlib.Index` on inner products (distance: 1 minus the product).

    `room` is the number of vectors that can be added later; `options` are options of `init_index`: M, ef_construction,
    random_seed. Raises ValueError for negative ids.
    """
    import hnswlib

    made = hnswlib.Index(space="ip", dim=_checked(index).dimension)
    made.init_index(max_elements=len(index) + check_count("room", room, 0), **options)
    for ids, rows in _blocks(index, "hnswlib"):
        made.add_items(rows, ids)
    return made


def to_faiss(index: VectorIndex, factory: str = "Flat") -> faiss.Index:
    """Return a `faiss.Index` on inner products, with ids.

    `factory` is a description for `faiss.index_factory`: "Flat" (exact), "HNSW32", "IVF256,PQ48", ... An index that
    needs training is trained on all vectors, in memory.
    """
    import faiss

    inner = faiss.index_factory(_checked(index).dimension, factory, faiss.METRIC_INNER_PRODUCT)
    if not inner.is_trained:
        inner.train(np.concatenate([rows for _, rows in index.vectors()]))
    made = faiss.IndexIDMap2(inner)
    for ids, rows in index.vectors():
        made.add_with_ids(rows, ids)
    return made


def to_sqlite(index: VectorIndex, connection: sqlite3.Connection, table: str = "vectors") -> sqlite3.Connection:
    """Write a cosine index into a new virtual table of sqlite-vec, in one transaction, and return the connection.

    The table has rowid (the id), embedding and, if the index stores texts, text:

        select rowid, distance, text from vectors where embedding match ? and k = 3 order by distance

    with a query's float32 bytes; distance is 1 minus the cosine.

    Args:
        index: a cosine index.
        connection: a connection that can load extensions, from a Python whose sqlite3 allows it or from pysqlite3.
        table: name of the table.

    Raises ValueError for an index of another similarity, a connection that cannot load extensions, or a table name that
    is not an ASCII identifier.
    """
    import sqlite_vec

    if _checked(index).similarity != "cosine":
        raise ValueError(f"index compares by {index.similarity}, expected cosine: sqlite-vec has no inner product")
    if not isinstance(table, str) or not table.isidentifier() or not table.isascii():
        raise ValueError(f"table is {table!r:.80}, expected letters, digits and _")
    if not hasattr(connection, "enable_load_extension"):
        raise ValueError("connection cannot load extensions, expected one from another Python build or pysqlite3")
    connection.enable_load_extension(True)
    sqlite_vec.load(connection)
    connection.enable_load_extension(False)
    columns = ("rowid", "embedding", "text")[: 3 if index.has_texts else 2]
    insert = f"insert into {table} ({', '.join(columns)}) values ({', '.join('?' * len(columns))})"
    declared = f"embedding float[{index.dimension}] distance_metric=cosine" + ", +text text" * index.has_texts
    with connection:
        connection.execute(f"create virtual table {table} using vec0({declared})")
        first = 0
        for ids, rows in index.vectors():
            packed = (row.tobytes() for row in rows)
            fields = [ids.tolist(), packed, *([index.texts(range(first, first + len(ids)))] * index.has_texts)]
            connection.executemany(insert, zip(*fields, strict=True))
            first += len(ids)
    return connection


def _checked(index: object) -> VectorIndex:
    if not isinstance(index, VectorIndex):
        raise TypeError(f"index is {type(index).__name__}, expected a VectorIndex")
    return index


def _blocks(index: VectorIndex, library: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield ids and vectors. Raises ValueError for negative ids, which wrap around in the library."""
    for ids, rows in index.vectors():
        if ids.min() < 0:
            raise ValueError(f"index has the id {ids.min()}, expected 0 or more: {library}'s keys are unsigned")
        yield ids, rows
