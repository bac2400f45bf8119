"""Sentence embeddings: text in, one vector a text out."""

from .encoder import SentenceEncoder, TextsCutWarning

__all__ = ["SentenceEncoder", "TextsCutWarning"]
