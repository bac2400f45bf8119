"""Finding the tokenizer of a checkpoint."""

from bertcore.checkpoint.config import checkpoint_folder

from .settings import read_settings
from .tokenizer import Tokenizer


class AutoTokenizer:
    """Loads the tokenizer of a checkpoint; see `from_pretrained`."""

    def __init__(self):
        raise TypeError("AutoTokenizer is not made directly; use AutoTokenizer.from_pretrained(folder)")

    @staticmethod
    def from_pretrained(folder) -> Tokenizer:
        """The tokenizer in `folder`: its tokenizer.json, or BERT's WordPiece from an older checkpoint's vocab.txt.

        tokenizer_config.json and special_tokens_map.json, when they are there, give the special tokens, the longest
        input and (over tokenizer.json) do_lower_case, strip_accents and tokenize_chinese_chars.

        Raises CheckpointError (a ValueError) when the folder holds no tokenizer, or a broken one; the file is named.
        """
        from .backend import build_backend

        folder = checkpoint_folder(folder)
        settings = read_settings(folder)
        backend, special_tokens = build_backend(folder, settings)
        return Tokenizer(backend, special_tokens, settings)
