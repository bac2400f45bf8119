"""Sentence embeddings: text in, one vector a text out."""

from .encoder import SentenceEncoder, TextsCutWarning
from .saving import save_sentence_encoder

__all__ = ["SentenceEncoder", "TextsCutWarning", "save_sentence_encoder"]
