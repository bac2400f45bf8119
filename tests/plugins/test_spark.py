"""Spark's data frames over our function, with two tasks at a time."""

import os
import shutil
import sys

import numpy as np
import pytest

from bertcore import use_backend
from tests.plugins.texts import LONG, TEXTS
from tests.refusals import refuses
from tests.tiny_bert import random_texts

sql = pytest.importorskip("pyspark.sql")
for library in ("pandas", "pyarrow"):
    pytest.importorskip(library)
if shutil.which("java") is None:
    pytest.skip("no Java, which Spark runs in", allow_module_level=True)

from pyspark.errors import PythonException  # noqa: E402

from bertcore.plugins.spark import embedding_udf  # noqa: E402

pytestmark = pytest.mark.slow
MANY = [*TEXTS, *random_texts(160)]


@pytest.fixture(scope="module")
def spark():
    """A session of two workers."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else a task has the first python3 of the PATH
    builder = sql.SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = builder.config("spark.driver.memory", "512m").config("spark.driver.host", "localhost").getOrCreate()
    yield session
    session.stop()


def embedded(spark, texts, embed, schema="text string"):
    frame = spark.createDataFrame([(text,) for text in texts], schema).repartition(4)
    return frame.withColumn("embedding", embed("text")).collect()


def test_the_bits_of_one_process(spark, folder, encoder):
    rows = embedded(spark, MANY, embedding_udf(folder, batch_size=7))
    texts = [row["text"] for row in rows]
    assert sorted(texts) == sorted(MANY)
    with use_backend("numba"):
        expected = encoder.encode(texts)
    np.testing.assert_array_equal(np.array([row["embedding"] for row in rows], np.float32), expected)


def test_options(spark, folder, encoder):
    options = {"prompt_name": "query", "normalize_embeddings": True, "truncate_dim": 7, "truncation": "chunk"}
    (row,) = embedded(spark, [LONG], embedding_udf(folder, **options))
    with use_backend("numba"):
        np.testing.assert_array_equal(np.array(row["embedding"], np.float32), encoder.encode(LONG, **options))


def test_an_empty_frame(spark, folder):
    assert embedded(spark, [], embedding_udf(folder)) == []


@pytest.mark.parametrize(("texts", "schema", "options", "message"), [
    (["a", None], "text string", {}, "the column of texts has a null, expected a text in each row"),
    ([1.5], "text double", {}, r"the column of texts\[0\] is float64, expected str"),
    (["a"], "text string", {"prompt_name": "no"}, "prompt_name is 'no'"),
])  # fmt: skip
def test_what_is_refused(spark, folder, texts, schema, options, message):
    refuses(PythonException, message, embedded, spark, texts, embedding_udf(folder, **options), schema)


def test_a_column_that_is_not_there(spark, folder):
    frame = spark.createDataFrame([("a",)], "body string")
    refuses(Exception, "`text` cannot be resolved", frame.withColumn, "embedding", embedding_udf(folder)("text"))
