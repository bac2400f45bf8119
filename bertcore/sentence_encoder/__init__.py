"""Sentence embeddings: text in, one vector a text out."""

from .encoder import SentenceEncoder

__all__ = ["SentenceEncoder"]
