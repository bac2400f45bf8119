"""Sparse embeddings: text in, a weight for each word of the vocabulary out, most of them zero (SPLADE)."""

from .encoder import SparseEncoder
from .rows import SparseRow

__all__ = ["SparseEncoder", "SparseRow"]
