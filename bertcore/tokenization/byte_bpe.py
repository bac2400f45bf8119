"""Byte-level BPE (GPT-2's, https://openai.com/index/better-language-models) from vocab.json and merges.txt."""

import json
from collections.abc import Mapping
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from bertcore.checkpoint.files import CheckpointError, listed, read_json_object

from .families import TokenizerFamily
from .settings import TokenizerSettings


def build(files: list[Path], family: TokenizerFamily, special: Mapping[str, str], settings: TokenizerSettings):
    """The tokenizer of a vocab.json (token -> id) and a merges.txt (two tokens a line, in order of their rank).

    Raises CheckpointError when a file cannot be read, ids are no integers, occur twice or leave gaps (added tokens
    would get ids that are taken), or a merge is made of, or makes, a token that the vocabulary lacks.
    """
    vocabulary_file, merges_file = files
    vocabulary = _read_vocabulary(vocabulary_file)
    merges = _read_merges(merges_file, vocabulary)
    try:
        model = models.BPE(vocabulary, merges, continuing_subword_prefix="", end_of_word_suffix="")
    except Exception as error:  # the library raises Exception itself; a lone surrogate in a token gets here
        raise CheckpointError(f"{vocabulary_file} cannot be read by the tokenizers library: {error}") from error
    backend = Tokenizer(model)
    set_steps(backend, family, settings)
    return backend


def set_steps(backend: Tokenizer, family: TokenizerFamily, settings: TokenizerSettings) -> None:
    """Give the tokenizer the byte-level steps before and after the model."""
    prefix_space = bool(settings.option("add_prefix_space", family))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    backend.decoder = decoders.ByteLevel()


def _read_vocabulary(file: Path) -> dict[str, int]:
    vocabulary = read_json_object(file)
    wrong = [token for token, number in vocabulary.items() if type(number) is not int]
    if wrong:
        raise CheckpointError(f"{file}: the id of {wrong[0]!r} is {vocabulary[wrong[0]]!r}, expected an integer")
    if json.loads(file.read_text(encoding="utf-8"), object_pairs_hook=len) != len(vocabulary):
        raise CheckpointError(f"{file}: a token occurs twice")
    ids = set(vocabulary.values())
    if len(ids) != len(vocabulary):
        raise CheckpointError(f"{file}: {len(vocabulary)} tokens share {len(ids)} ids, expected one for each")
    if ids != set(range(len(ids))):
        missing = listed([str(number) for number in range(len(ids)) if number not in ids])
        raise CheckpointError(f"{file}: {len(ids)} tokens have ids other than 0 to {len(ids) - 1}: {missing} missing")
    return vocabulary


def _read_merges(file: Path, vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{file} is not UTF-8: {error}") from error
    first = 1 if lines[0].startswith("#version") else 0
    merges = []
    for number, line in enumerate(lines[first:], first + 1):
        if not line.strip("\r"):
            continue
        parts = tuple(line.rstrip("\r").split(" "))
        if len(parts) != 2:
            raise CheckpointError(f"{file}: line {number} has {len(parts)} parts, expected two tokens")
        unknown = [token for token in (*parts, "".join(parts)) if token not in vocabulary]
        if unknown:
            raise CheckpointError(f"{file}: line {number} merges {parts}; the vocabulary lacks {unknown[0]!r}")
        merges.append(parts)
    return merges
