"""Text to token ids and back, over the `tokenizers` library, which is imported when the first tokenizer is loaded."""

import os
from typing import Any

from bertcore.checkpoint import resolve
from bertcore.checkpoint.files import checkpoint_folder, locked

from .inputs import BatchEncoding
from .luke import LukeTokenizer
from .settings import naming_files, read_settings
from .tokenizer import Tokenizer
from .training import train_tokenizer

__all__ = ["AutoTokenizer", "BatchEncoding", "LukeTokenizer", "Tokenizer", "train_tokenizer"]


class AutoTokenizer:
    """Loader of a checkpoint's tokenizer; see `from_pretrained`."""

    def __init__(self):
        raise TypeError("AutoTokenizer is not made directly; use AutoTokenizer.from_pretrained(folder)")

    @staticmethod
    def from_pretrained(
        folder: str | os.PathLike[str],
        *,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        local_files_only: bool = False,
        **settings: Any,
    ) -> Tokenizer:
        """Load the tokenizer in `folder` from its tokenizer.json, or from an older checkpoint's vocabulary files.

        Vocabulary files are vocab.txt (BERT's WordPiece), vocab.json and merges.txt (byte-level BPE), or a
        SentencePiece model (spiece.model, spm.model, sentencepiece.bpe.model). The family, and with it special tokens
        and rules, follows from tokenizer_class in tokenizer_config.json, else from config.json's tokenizer_class or
        model_type. tokenizer_config.json and special_tokens_map.json, where they exist, give the special tokens, the
        longest input and (over tokenizer.json) do_lower_case, strip_accents, tokenize_chinese_chars and
        add_prefix_space.

        Args:
            folder: a folder, or a model's id on the Hugging Face hub ("ORGANISATION/NAME").
            revision, token, cache_dir, local_files_only: for an id on the hub, as in `checkpoint.resolve`.
            **settings: override the files, under the names of tokenizer_config.json: add_prefix_space=True,
                model_max_length=128, mask_token="<m>".

        Returns a `Tokenizer`; for LUKE a `LukeTokenizer`, which also takes entities.

        Raises:
            CheckpointError (a ValueError): the folder holds no tokenizer, or a broken one; the file is named.
            TypeError: an unknown setting.
            ValueError: a wrong setting, or one that the tokenizer.json cannot follow.
        """
        from .backend import build_backend

        hub = {"revision": revision, "token": token, "cache_dir": cache_dir, "local_files_only": local_files_only}
        folder = checkpoint_folder(resolve(folder, "tokenizer", **hub))
        with naming_files(folder, settings), locked(folder, shared=True):
            read = read_settings(folder, settings)
            built = build_backend(folder, read)
            return LukeTokenizer(built, read, folder) if built.family.entities else Tokenizer(built, read)
