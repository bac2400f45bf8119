"""Static embeddings: one vector for each token of the vocabulary, looked up and not computed."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.checkpoint import CheckpointError, open_checkpoint


@dataclass(frozen=True)
class StaticSpec:
    """What a sentence encoder asks of a model's spec."""

    hidden_size: int
    longest_sequence: None = None  # a text may have any length


class StaticModel:
    """A table of vectors in the place of an encoder (sentence-transformers' StaticEmbedding, model2vec).

    Args:
        folder: with the table "embedding.weight", or model2vec's "embeddings", perhaps with a row for each token
            ("mapping") and a weight for each ("weights").

    Attributes:
        table: float32 (vocabulary, dim).

    Raises CheckpointError for a file without such a table.
    """

    dtype = "float32"

    def __init__(self, folder: Path):
        opened = open_checkpoint(folder)
        if "embedding.weight" in opened:
            table = opened["embedding.weight"]
        elif "embeddings" in opened:
            table = opened["embeddings"]
            table = table[np.asarray(opened["mapping"], np.int64)] if "mapping" in opened else table
            table = table * opened["weights"][:, None] if "weights" in opened else table
        else:
            raise CheckpointError(f"{opened.source} has neither embedding.weight nor embeddings, a table of vectors")
        if table.ndim != 2:
            raise CheckpointError(f"{opened.source}: the table has shape {table.shape}, expected (vocabulary, dim)")
        self.table = np.asarray(table, np.float32)
        self.spec = StaticSpec(self.table.shape[1])

    def encode_packed(self, input_ids: Sequence[Any]) -> tuple[Any, np.ndarray]:
        """The vectors of the tokens of each sequence, (tokens, dim), in the memory of the backend in force, and the
        offsets of the sequences, int32 (sequences + 1,), as `Model.encode_packed` returns them."""
        cu_seqlens = np.cumsum([0, *map(len, input_ids)]).astype(np.int32)
        ids = np.concatenate([np.zeros(0, np.int64), *input_ids])
        if ids.size and ids.max() >= len(self.table):
            raise ValueError(f"input_ids has {ids.max()}, expected 0 to {len(self.table) - 1}: the rows of the table")
        with kernels.use_backend(kernels.resolve_backend(None, on_gpu=False)):
            return kernels.to_backend(self.table[ids]), cu_seqlens
