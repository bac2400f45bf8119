"""Sentence embeddings: one vector per text."""

from bertcore.tasks.texts import TextsCutWarning

from .encoder import SentenceEncoder
from .modules import save_sentence_encoder

__all__ = ["SentenceEncoder", "TextsCutWarning", "save_sentence_encoder"]
