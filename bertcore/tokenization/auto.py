"""Finding the tokenizer of a checkpoint."""

import os
from typing import Any

from bertcore.checkpoint import resolve
from bertcore.checkpoint.files import checkpoint_folder

from .errors import naming_files
from .luke import LukeTokenizer
from .settings import read_settings
from .tokenizer import Tokenizer


class AutoTokenizer:
    """Loads the tokenizer of a checkpoint; see `from_pretrained`."""

    def __init__(self):
        raise TypeError("AutoTokenizer is not made directly; use AutoTokenizer.from_pretrained(folder)")

    @staticmethod
    def from_pretrained(
        folder: str | os.PathLike,
        *,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | os.PathLike | None = None,
        local_files_only: bool = False,
        **settings: Any,
    ) -> Tokenizer:
        """The tokenizer in `folder`: its tokenizer.json, or what an older checkpoint's vocabulary files make.

        `folder` may be the model's id on the Hugging Face hub instead ("ORGANISATION/NAME"); revision, token, cache_dir
        and local_files_only are for that, as `checkpoint.resolve` has them.

        Those files are vocab.txt (BERT's WordPiece), vocab.json and merges.txt (byte-level BPE), or a SentencePiece
        model (spiece.model, spm.model, sentencepiece.bpe.model). Whose tokenizer it is, with which special tokens and
        rules, is read from tokenizer_class in tokenizer_config.json, else from config.json's tokenizer_class or
        model_type.

        tokenizer_config.json and special_tokens_map.json, when they are there, give the special tokens, the longest
        input and (over tokenizer.json) do_lower_case, strip_accents, tokenize_chinese_chars and add_prefix_space.
        `settings` win over the files; names as there: add_prefix_space=True, model_max_length=128, mask_token="<m>".
        LUKE's tokenizer takes entities, too: see `LukeTokenizer`.

        Raises CheckpointError (a ValueError) when the folder holds no tokenizer, or a broken one; the file is named.
        TypeError for one of `settings` that does not exist, ValueError for one that is wrong or that the tokenizer.json
        cannot follow.
        """
        from .backend import build_backend

        hub = {"revision": revision, "token": token, "cache_dir": cache_dir, "local_files_only": local_files_only}
        folder = checkpoint_folder(resolve(folder, "tokenizer", **hub))
        with naming_files(folder, settings):
            read = read_settings(folder, settings)
            built = build_backend(folder, read)
            return LukeTokenizer(built, read, folder) if built.family.entities else Tokenizer(built, read)
