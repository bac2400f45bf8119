"""Spark's column function: `embedding_udf` (needs pyspark, extra `spark`).

    from bertcore.plugins.spark import embedding_udf

    embed = embedding_udf("all-MiniLM-L6-v2/")
    frame.withColumn("embedding", embed("text")).write.parquet("vectors/")

Each of Spark's Python processes loads the model once; it computes on as many threads as a task has CPUs
(spark.task.cpus).
"""

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bertcore.plugins import opened
from bertcore.tasks.texts import checked_texts

try:
    from pandas import isna
    from pyspark.ml.functions import predict_batch_udf
    from pyspark.sql.types import ArrayType, FloatType
except ImportError as error:
    raise ImportError(f'{error.name} is not installed: pip install "bertcore[spark]"') from error


def embedding_udf(model: str | os.PathLike[str], *, batch_size: int = 1024, **options: Any) -> Callable[..., Any]:
    """Return a function from a column of texts to a column of embeddings, arrays of float32.

    On the numba backend a text has the same embedding, bit for bit, in every batch, task and process. A null or a
    non-string ends the job with pyspark.errors.PythonException.

    Args:
        model: a folder that exists on every node, or an id on the Hugging Face hub.
        batch_size: rows of one call of `encode`; bounds the memory of their embeddings.
        options: options of `SentenceEncoder.encode`: prompt_name, normalize_embeddings, truncate_dim, truncation, ...
    """
    folder = os.fspath(model)

    def make_predict() -> Callable[[np.ndarray], np.ndarray]:
        encoder = opened(folder)
        return lambda values: encoder.encode(_texts(values), **options)

    return predict_batch_udf(make_predict, return_type=ArrayType(FloatType()), batch_size=batch_size)


def _texts(values: np.ndarray) -> Iterator[str]:
    if isna(values).any():
        raise ValueError("the column of texts has a null, expected a text in each row: fill or drop nulls")
    return checked_texts(values, "the column of texts")
