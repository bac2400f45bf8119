"""Text to token ids and back, over the `tokenizers` library, which is imported when the first tokenizer is loaded."""

from .auto import AutoTokenizer
from .batch import BatchEncoding
from .luke import LukeTokenizer
from .tokenizer import Tokenizer

__all__ = ["AutoTokenizer", "BatchEncoding", "LukeTokenizer", "Tokenizer"]
