"""Text to token ids and back, over the `tokenizers` library, which is imported when the first tokenizer is loaded."""

from .auto import AutoTokenizer
from .inputs import BatchEncoding
from .luke import LukeTokenizer
from .tokenizer import Tokenizer
from .training import train_tokenizer

__all__ = ["AutoTokenizer", "BatchEncoding", "LukeTokenizer", "Tokenizer", "train_tokenizer"]
