"""The compared models by their sizes, batches by the lengths of their texts, and the FLOPs of both."""

import zlib
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bench.texts import ragged_lengths


@dataclass(frozen=True)
class Size:
    """An encoder: its family (transformers' model_type) and widths."""

    family: str = "bert"
    layers: int = 12
    hidden: int = 768
    heads: int = 12
    intermediate: int = 3072
    vocabulary: int = 30522

    def flops(self, lengths: tuple[int, ...]) -> int:
        """Return twice the multiply-adds of the linear maps on the real tokens, and of attention within each text."""
        linear = 2 * (4 * self.hidden**2 + 2 * self.hidden * self.intermediate) * sum(lengths)
        attention = 4 * self.hidden * sum(length**2 for length in lengths)
        return self.layers * (linear + attention)


MODELS = {
    "bert-base": Size(),
    "minilm-l6": Size(layers=6, hidden=384, intermediate=1536),
    "distilbert": Size(family="distilbert", layers=6),
    "tiny": Size(layers=2, hidden=32, heads=4, intermediate=56, vocabulary=97),
    "tiny-distilbert": Size(family="distilbert", layers=2, hidden=32, heads=4, intermediate=56, vocabulary=97),
}
MEASURED_MODELS = ("bert-base", "minilm-l6", "distilbert")  # the tiny ones are for tests

SHAPES = {
    "1x16": (16,),
    "1x128": (128,),
    "8x128": (128,) * 8,
    "1x512": (512,),
    "8x512": (512,) * 8,
    "ragged": ragged_lengths(),
}
PRECISIONS = ("float32", "bfloat16", "int8")


class Batch(NamedTuple):
    """Token ids and attention mask, both int64 (texts, longest), padded on the right, as a tokenizer returns them."""

    input_ids: np.ndarray
    attention_mask: np.ndarray

    @property
    def is_real(self) -> np.ndarray:
        """The positions that hold a token of a text, (texts, longest)."""
        return self.attention_mask.astype(bool)


@dataclass(frozen=True)
class Case:
    """One model on one batch, by the names of both."""

    model: str
    shape: str

    @property
    def size(self) -> Size:
        return MODELS[self.model]

    @property
    def lengths(self) -> tuple[int, ...]:
        return SHAPES[self.shape]

    @property
    def flops(self) -> int:
        return self.size.flops(self.lengths)

    def batch(self) -> Batch:
        """Return random ids, the same in every run; 0, the padding's id, stands at padding alone."""
        return random_batch(self.lengths, self.size.vocabulary, zlib.crc32(self.shape.encode()))


def random_batch(lengths: tuple[int, ...], vocabulary: int, seed: int, padding: int = 0) -> Batch:
    """Return texts of random tokens with these lengths, padded to the longest; no token has the padding's id."""
    positions = np.arange(max(lengths))
    mask = (positions < np.array(lengths)[:, None]).astype(np.int64)
    ids = np.random.default_rng(seed).integers(0, vocabulary - 1, mask.shape)
    return Batch(np.where(mask, ids + (ids >= padding), padding), mask)
