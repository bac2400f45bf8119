"""The recipes for tables, as `bertcore.plugins` has them."""

import pytest

from tests.plugins.texts import TEXTS, close


def test_pandas(encoder):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"text": TEXTS}, index=[3, 1, 4, 5, 9])
    frame["embedding"] = list(encoder.encode(frame["text"]))
    close(frame["embedding"].tolist(), encoder.encode(TEXTS))


def test_polars(encoder):
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"text": TEXTS})
    frame = frame.with_columns(polars.Series("embedding", encoder.encode(frame["text"])))
    assert frame.schema["embedding"] == polars.Array(polars.Float32, encoder.embedding_dimension)
    close(frame["embedding"].to_numpy(), encoder.encode(TEXTS))


def test_duckdb(encoder):
    duckdb, pa = pytest.importorskip("duckdb"), pytest.importorskip("pyarrow")

    def embed(texts):
        rows = encoder.encode(texts.to_pylist())
        return pa.FixedSizeListArray.from_arrays(rows.ravel(), rows.shape[1])

    connection = duckdb.connect()
    kind = f"FLOAT[{encoder.embedding_dimension}]"
    connection.create_function("embed", embed, ["VARCHAR"], kind, type="arrow")
    connection.execute("CREATE TABLE documents AS SELECT unnest(?) AS text", [TEXTS])
    rows = connection.sql("SELECT text, embed(text) FROM documents").fetchall()
    close([row for _, row in rows], encoder.encode([text for text, _ in rows]))
