"""Read a SentencePiece model file: its pieces and its normalization.

The file is a ModelProto message of sentencepiece_model.proto
(https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto) in the wire format of Protocol
Buffers (https://protobuf.dev/programming-guides/encoding). Reading is strict: the first wrong byte is an error.
"""

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bertcore.checkpoint.files import CheckpointError, read_complete

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
WIDTHS = {FIXED64: 8, FIXED32: 4}
TYPE_NAMES = {VARINT: "an integer", FIXED64: "8 bytes", BYTES: "a length and bytes", FIXED32: "4 bytes"}

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # a piece's type
MODEL_TYPES = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}

# Field number -> (name, wire type). Other fields are skipped.
MODEL_FIELDS = {1: ("pieces", BYTES), 2: ("trainer", BYTES), 3: ("normalizer", BYTES)}
PIECE_FIELDS = {1: ("piece", BYTES), 2: ("score", FIXED32), 3: ("type", VARINT)}
TRAINER_FIELDS = {3: ("model_type", VARINT), 24: ("treat_whitespace_as_suffix", VARINT), 35: ("byte_fallback", VARINT)}
NORMALIZER_FIELDS = {
    2: ("precompiled_charsmap", BYTES), 3: ("add_dummy_prefix", VARINT), 5: ("escape_whitespaces", VARINT),
}  # fmt: skip

STATES_AT_ONCE = 4096  # of the character map's trie; bounds the memory of a step to 8 MB
MOST_REPLACED = 256  # characters for one; 18 in Unicode's normal forms
BYTE_VALUES = np.arange(1, 256)  # the tokenizers library stops at a zero byte


class WireError(ValueError):
    """The bytes are not a valid message."""


@dataclass(frozen=True)
class SentencePieceModel:
    """The contents of a model file."""

    pieces: tuple[tuple[str, float], ...]  # (piece, score) in the order of their ids
    symbols: tuple[tuple[str, bool], ...]  # pieces that are matched in the text as they stand; True: control symbols
    unknown: str
    charsmap: bytes = b""  # the character map applied to the text first, in SentencePiece's compiled form
    add_dummy_prefix: bool = True  # a space is put before the text
    byte_fallback: bool = False  # unknown characters become the pieces of their bytes


def read_sentencepiece(file: Path) -> SentencePieceModel:
    """Read a model file.

    Raises CheckpointError, naming it, if it is broken or of a kind that no model here uses (BPE, other white space).
    """
    content = read_complete(file)
    try:
        return _model(content)
    except ValueError as error:  # WireError, and the character map's
        raise CheckpointError(f"{file} is not a SentencePiece model: {error}") from error


def _model(data: bytes) -> SentencePieceModel:
    parts: dict[str, list[bytes]] = {"pieces": [], "trainer": [], "normalizer": []}
    for name, value in _named_fields(data, MODEL_FIELDS, "model"):
        parts[name].append(value)
    # A message that comes in two parts is their concatenation.
    trainer = dict(_named_fields(b"".join(parts["trainer"]), TRAINER_FIELDS, "trainer_spec"))
    normalizer = dict(_named_fields(b"".join(parts["normalizer"]), NORMALIZER_FIELDS, "normalizer_spec"))
    if (model_type := trainer.get("model_type", 1)) != 1:
        raise WireError(f"its model_type is {MODEL_TYPES.get(model_type, model_type)}, expected unigram")
    if trainer.get("treat_whitespace_as_suffix", 0):
        raise WireError("its treat_whitespace_as_suffix is true, expected false")
    if not normalizer.get("escape_whitespaces", 1):
        raise WireError("its escape_whitespaces is false, expected true")
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


def _named_fields(message: bytes, names: Mapping[int, tuple[str, int]], where: str) -> Iterator[tuple]:
    for number, kind, value in read_fields(message):
        if number in names:
            name, expected = names[number]
            if kind != expected:
                raise WireError(f"{where}.{name} is {TYPE_NAMES[kind]}, expected {TYPE_NAMES[expected]}")
            yield name, value


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


# --- the wire format ---------------------------------------------------------------------------------------


def read_fields(message: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """Yield (field number, wire type, value) of each field; integers unsigned, all else as bytes. Raises WireError."""
    place, end = 0, len(message)
    while place < end:
        tag, value_start = _varint(message, place)
        number, kind = tag >> 3, tag & 7
        if number == 0 or kind not in TYPE_NAMES:
            raise WireError(f"byte {place} starts field {number} of type {kind}, which does not exist")
        if kind == VARINT:
            value, place = _varint(message, value_start)
        else:
            length, start = _varint(message, value_start) if kind == BYTES else (WIDTHS[kind], value_start)
            place = start + length
            if place > end:
                raise WireError(f"field {number} at byte {value_start} has {length} bytes; {end - start} are left")
            value = message[start:place]
        yield number, kind, value


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """Return the integer at `place` (7 bits a byte, least significant first) and where it ends."""
    if place < len(message) and message[place] < 0x80:  # nearly all are this short: a third of the time to read a file
        return message[place], place + 1
    value = 0
    for count, byte in enumerate(message[place : place + 10]):
        value |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            if value >= 2**64:
                break
            return value, place + count + 1
    if len(message) - place < 10:
        raise WireError(f"it ends within an integer at byte {place}")
    raise WireError(f"the integer at byte {place} has more than 64 bits")


# --- the character map ---------------------------------------------------------------------------------------


def check_charsmap(charsmap: bytes) -> int:
    """Return the longest replacement of SentencePiece's compiled character map, which the `tokenizers` library walks.

    The map is the size of a trie in bytes, the trie (a double array of 32-bit units, packed as in
    https://github.com/s-yata/darts-clone) and its replacement strings, each ended by a zero byte. The library trusts
    every index in it, and its Rust code panics at a text that leads outside.

    Raises ValueError if the parts do not fit together, or if a text would lead outside them or to invalid UTF-8, or to
    a replacement of more than MOST_REPLACED characters.
    """
    size = int.from_bytes(charsmap[:4], "little")
    if size == 0 or size % 4 or 4 + size > len(charsmap):
        raise ValueError(f"its trie has {size} bytes, expected a multiple of 4, and at most {len(charsmap) - 4}")
    trie = np.frombuffer(charsmap, "<u4", size // 4, 4).astype(np.int64)
    strings = np.frombuffer(charsmap, np.uint8, offset=4 + size)
    return _check_strings(strings, _values(trie))


def _values(trie: np.ndarray) -> np.ndarray:
    """Collect every value of the trie by walking all of its states. Raises ValueError if one lies outside."""
    seen = np.zeros(len(trie), bool)
    states, values = _offsets(trie[:1]), []
    while states.size:
        states = np.unique(states)
        if states[-1] | 0xFF >= len(trie):
            raise ValueError(f"its trie leads to unit {states[-1]} of {len(trie)}")
        states = states[~seen[states]]
        seen[states] = True
        parts = range(0, max(len(states), 1), STATES_AT_ONCE)
        found = [_step(states[start : start + STATES_AT_ONCE], trie) for start in parts]
        states, leaves = map(np.concatenate, zip(*found, strict=True))
        if leaves.size and leaves.max() >= len(trie):
            raise ValueError(f"its trie leads to unit {leaves.max()} of {len(trie)}")
        values.append(trie[leaves] & 0x7FFFFFFF)
    return np.concatenate(values)


def _step(states: np.ndarray, trie: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the states that one more byte leads to, and those that have a value."""
    positions = states[:, None] ^ BYTE_VALUES
    units = trie[positions]
    exists = (units & 0x800000FF) == BYTE_VALUES
    positions, units = positions[exists], units[exists]
    reached = positions ^ _offsets(units)
    return reached, reached[(units >> 8 & 1).astype(bool)]


def _offsets(units: np.ndarray) -> np.ndarray:
    return units >> 10 << ((units & 1 << 9) >> 6)


def _check_strings(strings: np.ndarray, values: np.ndarray) -> int:
    try:
        longest = max(map(len, strings.tobytes().decode("utf-8").split("\0")))
    except UnicodeDecodeError as error:
        raise ValueError(f"its strings are not UTF-8: {error}") from error
    if values.size and values.max() >= len(strings):
        raise ValueError(f"its trie gives the string at {values.max()}; the strings have {len(strings)} bytes")
    if (strings[values] & 0xC0 == 0x80).any():
        raise ValueError("its trie gives a string that starts within a character")
    if longest > MOST_REPLACED:
        raise ValueError(f"it replaces a character by {longest}, expected at most {MOST_REPLACED}")
    return longest
