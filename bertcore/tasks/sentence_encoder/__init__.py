"""Sentence embeddings: text in, one vector a text out."""

from bertcore.tasks.texts import TextsCutWarning

from .encoder import SentenceEncoder
from .settings import save_sentence_encoder

__all__ = ["SentenceEncoder", "TextsCutWarning", "save_sentence_encoder"]
