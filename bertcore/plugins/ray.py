"""Ray Data's actor: `BatchEmbedder` (for ray[data], extra `ray`).

    from bertcore.plugins.ray import BatchEmbedder

    rows = ray.data.read_parquet("texts/")
    actors = ray.data.ActorPoolStrategy(size=2)
    rows = rows.map_batches(BatchEmbedder, fn_constructor_args=["all-MiniLM-L6-v2/"], compute=actors, num_cpus=4)
    rows.write_parquet("vectors/")

Each of the two actors loads the model once and computes on four threads. `bertcore embed --ray 2` does this for files
and can be resumed.
"""

import os
from typing import Any

import numpy as np

from bertcore.plugins import opened
from bertcore.tasks.texts import checked_texts


class BatchEmbedder:
    """Add embeddings to the batches of `ray.data.Dataset.map_batches`.

    On the numba backend a text has the same embedding, bit for bit, in every batch, actor and process.

    Args:
        model: a folder that exists on every node, or an id on the Hugging Face hub.
        text_column: name of the text column.
        embedding_column: name of the added column.
        options: options of `SentenceEncoder.encode`: prompt_name, normalize_embeddings, truncate_dim, truncation, ...

    Raises the errors of SentenceEncoder.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        text_column: str = "text",
        embedding_column: str = "embedding",
        **options: Any,
    ):
        self._encoder, self._options = opened(model), options
        self._text_column, self._embedding_column = text_column, embedding_column

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the columns of a batch and the embeddings, (rows, dim) float32.

        Raises ValueError if the text column is missing or the embedding column exists, TypeError for a null.
        """
        columns = ", ".join(batch)
        if self._text_column not in batch:
            raise ValueError(f"text_column is {self._text_column!r}, expected one of the dataset's columns: {columns}")
        if self._embedding_column in batch:
            raise ValueError(f"embedding_column is {self._embedding_column!r}, which exists in the dataset: {columns}")
        texts = checked_texts(batch[self._text_column], self._text_column)
        return {**batch, self._embedding_column: self._encoder.encode(texts, **self._options)}
