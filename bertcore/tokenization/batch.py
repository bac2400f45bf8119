"""The result of a tokenizer's call, and the padding of rows that were tokenized before."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from .inputs import Padding, as_ids

PADDED = ("input_ids", "token_type_ids", "attention_mask", "special_tokens_mask")


class CharSpan(NamedTuple):
    """The first character, and the one after the last, in a text as it was given."""

    start: int
    end: int


class TokenSpan(NamedTuple):
    """The first token, and the one after the last, in a row."""

    start: int
    end: int


class BatchEncoding(dict[str, Any]):
    """Token ids and other columns by name: a dict of lists, or of NumPy arrays; `batch.input_ids` works too.

    One text gives flat lists, a list of texts lists of lists. `encodings` has one entry of the tokenizers library for
    each row; batch[number] is one of them. The methods relate tokens to words, characters and texts. They take
    (row, index), or the index alone for row 0; rows and tokens may be counted from the end. sequence_index is 0 for a
    word or character of text, 1 for one of text_pair. They return None if nothing corresponds.
    """

    def __init__(self, values: Mapping[str, Any], encodings: list[Any]):
        super().__init__(values)
        self.encodings = encodings

    def __getitem__(self, name: str | int) -> Any:
        return self.encodings[name] if isinstance(name, int) else super().__getitem__(name)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no {name!r}; it has {', '.join(self)}") from None

    def __reduce__(self):
        return type(self), (dict(self), self.encodings)

    @property
    def n_sequences(self) -> int | None:
        """1 for texts, 2 for pairs; None without rows."""
        return self.encodings[0].n_sequences if self.encodings else None

    def tokens(self, batch_index: int = 0) -> list[str]:
        """Return the tokens of one row, special ones and padding included."""
        return self.encodings[batch_index].tokens

    def word_ids(self, batch_index: int = 0) -> list[int | None]:
        """Return the number of each token's word in its text; None for special tokens."""
        return self.encodings[batch_index].word_ids

    def sequence_ids(self, batch_index: int = 0) -> list[int | None]:
        """Return 0 for each token of text, 1 for each of text_pair, None for special tokens."""
        return self.encodings[batch_index].sequence_ids

    def token_to_sequence(self, batch_or_token_index: int, token_index: int | None = None) -> int | None:
        """Return 0 for a token of text, 1 for one of text_pair."""
        return self._of_token("token_to_sequence", batch_or_token_index, token_index)

    def token_to_word(self, batch_or_token_index: int, token_index: int | None = None) -> int | None:
        """Return the number of a token's word in its text."""
        return self._of_token("token_to_word", batch_or_token_index, token_index)

    def token_to_chars(self, batch_or_token_index: int, token_index: int | None = None) -> CharSpan | None:
        """Return the characters that a token stands for."""
        return _span(CharSpan, self._of_token("token_to_chars", batch_or_token_index, token_index))

    def word_to_tokens(
        self, batch_or_word_index: int, word_index: int | None = None, sequence_index: int = 0
    ) -> TokenSpan | None:
        """Return the tokens of a word."""
        encoding, word = self._at(batch_or_word_index, word_index)
        return _span(TokenSpan, encoding.word_to_tokens(word, sequence_index))

    def word_to_chars(
        self, batch_or_word_index: int, word_index: int | None = None, sequence_index: int = 0
    ) -> CharSpan | None:
        """Return the characters of a word."""
        encoding, word = self._at(batch_or_word_index, word_index)
        return _span(CharSpan, encoding.word_to_chars(word, sequence_index))

    def char_to_token(
        self, batch_or_char_index: int, char_index: int | None = None, sequence_index: int = 0
    ) -> int | None:
        """Return the token that a character is part of."""
        encoding, char = self._at(batch_or_char_index, char_index)
        return encoding.char_to_token(char, sequence_index)

    def char_to_word(
        self, batch_or_char_index: int, char_index: int | None = None, sequence_index: int = 0
    ) -> int | None:
        """Return the word that a character is part of."""
        encoding, char = self._at(batch_or_char_index, char_index)
        return encoding.char_to_word(char, sequence_index)

    def _of_token(self, method: str, first: int, second: int | None) -> Any:
        encoding, token = self._at(first, second)
        return getattr(encoding, method)(token + len(encoding) if token < 0 else token)

    def _at(self, first: int, second: int | None) -> tuple:
        """Return the row and the index of a method's arguments."""
        return (self.encodings[0], first) if second is None else (self.encodings[first], second)


def _span(kind: type, found: tuple[int, int] | None) -> Any:
    return None if found is None else kind(*found)


def as_array(name: str, rows: list, width: int = 0) -> np.ndarray:
    """Convert rows of equal length, of numbers or of `width` numbers each, to an int64 array.

    Raises ValueError if their lengths differ.
    """
    if name in ("overflow_to_sample_mapping", "length"):
        return np.array(rows, np.int64)
    lengths = {len(row) for row in rows}
    if len(lengths) > 1:
        sizes = f"rows of {min(lengths)} to {max(lengths)} tokens"
        raise ValueError(f"{name} has {sizes}, which cannot form an array; pass padding=True")
    return np.array(rows, np.int64).reshape(len(rows), *lengths or (0,), *((width,) if width else ()))


def as_columns(encoded: Any) -> tuple[dict[str, list], bool]:
    """Convert a list of rows by name, one row, or columns to columns of lists; also return whether it was one row.

    Raises TypeError or ValueError for anything else.
    """
    if isinstance(encoded, list | tuple):
        if not all(isinstance(row, Mapping) for row in encoded):
            raise TypeError("encoded_inputs has items that are not mappings, expected results of a tokenizer")
        names = list(encoded[0]) if encoded else ["input_ids"]
        for number, row in enumerate(encoded):
            if set(row) != set(names):
                raise ValueError(f"encoded_inputs[{number}] has {', '.join(row)}, expected {', '.join(names)}")
        encoded = {name: [row[name] for row in encoded] for name in names}
    if not isinstance(encoded, Mapping) or "input_ids" not in encoded:
        raise TypeError("encoded_inputs has no input_ids, expected a result of a tokenizer, or a list of them")
    ids = encoded["input_ids"]
    single = len(ids) > 0 and not hasattr(ids[0], "__len__")
    columns = {name: [values] if single else list(values) for name, values in encoded.items()}
    for name, values in columns.items():
        if len(values) != len(columns["input_ids"]):
            raise ValueError(f"{name} has {len(values)} rows, expected {len(columns['input_ids'])}, like input_ids")
        if name in PADDED:
            columns[name] = [as_ids(f"{name}[{row}]", value) for row, value in enumerate(values)]
    return columns, single


def pad_columns(columns: dict[str, list], fill: Padding, values: Mapping[str, int]) -> dict[str, list]:
    """Pad the columns of `PADDED`, each with its value; others stay as they are."""
    if fill.strategy is None:
        return columns
    length = fill.target([len(row) for row in columns["input_ids"]])

    def padded(row: list[int], value: int) -> list[int]:
        more = [value] * (length - len(row))
        return row + more if fill.side == "right" else more + row

    return columns | {name: [padded(row, values[name]) for row in columns[name]] for name in columns if name in PADDED}


def as_arrays(columns: dict[str, list]) -> dict[str, np.ndarray]:
    """Convert the columns to arrays. Raises ValueError naming one whose rows differ in length."""
    arrays = {}
    for name, rows in columns.items():
        try:
            arrays[name] = as_array(name, rows) if name in PADDED else np.array(rows)
        except ValueError as error:
            raise ValueError(f"{name} cannot form an array: {error}") from error
    return arrays
