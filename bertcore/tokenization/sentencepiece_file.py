"""Reading a SentencePiece model file: its pieces and what it says about normalisation.

The format is the message ModelProto of sentencepiece_model.proto
(https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto).
"""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bertcore.checkpoint.files import CheckpointError

from .charsmap import check_charsmap
from .wire_format import BYTES, FIXED32, TYPE_NAMES, VARINT, WireError, read_fields

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # a piece's type
MODEL_TYPES = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}

# Field number -> (name, wire type). Fields that are not named here are skipped, unseen.
MODEL_FIELDS = {1: ("pieces", BYTES), 2: ("trainer", BYTES), 3: ("normalizer", BYTES)}
PIECE_FIELDS = {1: ("piece", BYTES), 2: ("score", FIXED32), 3: ("type", VARINT)}
TRAINER_FIELDS = {3: ("model_type", VARINT), 24: ("treat_whitespace_as_suffix", VARINT), 35: ("byte_fallback", VARINT)}
NORMALIZER_FIELDS = {
    2: ("precompiled_charsmap", BYTES), 3: ("add_dummy_prefix", VARINT), 5: ("escape_whitespaces", VARINT),
}  # fmt: skip


@dataclass(frozen=True)
class SentencePieceModel:
    """What a model file says.

    pieces: (piece, score) in the order of their ids. symbols: pieces that are matched in the text as they stand, and
        whether each is special (a control symbol) or not (defined by the user). unknown: the unknown piece.
    charsmap: the map of characters applied to the text first, in SentencePiece's compiled form; empty for none.
    add_dummy_prefix: a space is put before the text. byte_fallback: unknown characters become their bytes' pieces.
    """

    pieces: tuple[tuple[str, float], ...]
    symbols: tuple[tuple[str, bool], ...]
    unknown: str
    charsmap: bytes = b""
    add_dummy_prefix: bool = True
    byte_fallback: bool = False


def read_sentencepiece(file: Path) -> SentencePieceModel:
    """The model in `file`.

    Raises CheckpointError, naming the file, when it cannot be read, is no such message, holds pieces that make no
    vocabulary, or is of a kind that no member of the family uses (BPE, white space as suffix or not escaped).
    """
    try:
        return _model(file.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # WireError, and a charsmap's
        raise CheckpointError(f"{file} is not a SentencePiece model: {error}") from error


def _model(data: bytes) -> SentencePieceModel:
    parts = {"pieces": [], "trainer": b"", "normalizer": b""}
    for name, value in _named_fields(data, MODEL_FIELDS, "model"):
        if name == "pieces":
            parts[name].append(value)
        else:
            parts[name] += value  # a message that comes in two parts is their concatenation
    trainer = dict(_named_fields(parts["trainer"], TRAINER_FIELDS, "trainer_spec"))
    normalizer = dict(_named_fields(parts["normalizer"], NORMALIZER_FIELDS, "normalizer_spec"))
    _check_kind(trainer, normalizer)
    pieces = [_piece(number, message) for number, message in enumerate(parts["pieces"])]
    unknown = [piece for piece, _, kind in pieces if kind == UNKNOWN]
    if len(unknown) != 1:
        raise WireError(f"it has {len(unknown)} unknown pieces, expected one")
    if len({piece for piece, _, _ in pieces}) != len(pieces):
        raise WireError("a piece occurs twice")
    charsmap = normalizer.get("precompiled_charsmap", b"")
    if charsmap:
        check_charsmap(charsmap)
    return SentencePieceModel(
        pieces=tuple((piece, score) for piece, score, _ in pieces),
        symbols=tuple((piece, kind == CONTROL) for piece, _, kind in pieces if kind in (CONTROL, USER_DEFINED)),
        unknown=unknown[0],
        charsmap=charsmap,
        add_dummy_prefix=bool(normalizer.get("add_dummy_prefix", True)),
        byte_fallback=bool(trainer.get("byte_fallback", False)),
    )


def _named_fields(message: bytes, names: Mapping[int, tuple[str, int]], where: str):
    for number, kind, value in read_fields(message):
        if number in names:
            name, expected = names[number]
            if kind != expected:
                raise WireError(f"{where}.{name} is {TYPE_NAMES[kind]}, expected {TYPE_NAMES[expected]}")
            yield name, value


def _check_kind(trainer: dict, normalizer: dict) -> None:
    model_type = trainer.get("model_type", 1)
    if model_type != 1:
        raise WireError(f"its model_type is {MODEL_TYPES.get(model_type, model_type)}, expected unigram")
    if trainer.get("treat_whitespace_as_suffix", 0):
        raise WireError("its treat_whitespace_as_suffix is true, expected false")
    if not normalizer.get("escape_whitespaces", 1):
        raise WireError("its escape_whitespaces is false, expected true")


def _piece(number: int, message: bytes) -> tuple[str, float, int]:
    fields = dict(_named_fields(message, PIECE_FIELDS, f"pieces[{number}]"))
    kind = fields.get("type", NORMAL)
    (score,) = struct.unpack("<f", fields.get("score", bytes(4)))
    try:
        piece = fields.get("piece", b"").decode("utf-8")
    except UnicodeDecodeError as error:
        raise WireError(f"pieces[{number}] is not UTF-8: {error}") from error
    if not piece:
        raise WireError(f"pieces[{number}] is empty")
    if not math.isfinite(score):
        raise WireError(f"pieces[{number}] has the score {score}, expected a finite number")
    if kind not in range(NORMAL, BYTE + 1):
        raise WireError(f"pieces[{number}] has the type {kind}, expected {NORMAL} to {BYTE}")
    return piece, score, kind
