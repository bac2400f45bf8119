"""What a tokenizer's call returns."""

from typing import NamedTuple

import numpy as np


class CharSpan(NamedTuple):
    """From the first character to the one after the last, in a text as it was given."""

    start: int
    end: int


class TokenSpan(NamedTuple):
    """From the first token to the one after the last, in a row."""

    start: int
    end: int


class BatchEncoding(dict):
    """Token ids and what belongs to them, by name: a dict of lists, or of NumPy arrays; `batch.input_ids` works too.

    One text gives flat lists, a list of texts lists of lists. `encodings` has one entry of the tokenizers library for
    each row; batch[number] is one of them. The methods read them: which text, word and characters a token is from, and
    back. They take (row, index), or the index alone for row 0; rows and tokens may be counted from the end.
    sequence_index is 0 for a word or character of text, 1 for one of text_pair. Where nothing corresponds, the answer
    is None.
    """

    def __init__(self, values, encodings):
        super().__init__(values)
        self.encodings = encodings

    def __getitem__(self, name):
        return self.encodings[name] if isinstance(name, int) else super().__getitem__(name)

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no {name!r}; it has {', '.join(self)}") from None

    def __reduce__(self):
        return type(self), (dict(self), self.encodings)

    @property
    def n_sequences(self) -> int | None:
        """1 for texts, 2 for pairs; None for no rows."""
        return self.encodings[0].n_sequences if self.encodings else None

    def tokens(self, batch_index: int = 0) -> list[str]:
        """The tokens of one row, special ones and padding included."""
        return self.encodings[batch_index].tokens

    def word_ids(self, batch_index: int = 0) -> list[int | None]:
        """For each token of one row, which word of its text it comes from; None for special tokens."""
        return self.encodings[batch_index].word_ids

    def sequence_ids(self, batch_index: int = 0) -> list[int | None]:
        """For each token of one row, whether it is from text (0) or text_pair (1); None for special tokens."""
        return self.encodings[batch_index].sequence_ids

    def token_to_sequence(self, batch_or_token_index: int, token_index: int | None = None) -> int | None:
        """Whether a token is from text (0) or text_pair (1)."""
        encoding, token = self._token_at(batch_or_token_index, token_index)
        return encoding.token_to_sequence(token)

    def token_to_word(self, batch_or_token_index: int, token_index: int | None = None) -> int | None:
        """Which word of its text a token comes from."""
        encoding, token = self._token_at(batch_or_token_index, token_index)
        return encoding.token_to_word(token)

    def token_to_chars(self, batch_or_token_index: int, token_index: int | None = None) -> CharSpan | None:
        """The characters that a token stands for."""
        encoding, token = self._token_at(batch_or_token_index, token_index)
        found = encoding.token_to_chars(token)
        return None if found is None else CharSpan(*found)

    def word_to_tokens(
        self, batch_or_word_index: int, word_index: int | None = None, sequence_index: int = 0
    ) -> TokenSpan | None:
        """The tokens of a word."""
        encoding, word = self._at(batch_or_word_index, word_index)
        found = encoding.word_to_tokens(word, sequence_index)
        return None if found is None else TokenSpan(*found)

    def word_to_chars(
        self, batch_or_word_index: int, word_index: int | None = None, sequence_index: int = 0
    ) -> CharSpan | None:
        """The characters of a word."""
        encoding, word = self._at(batch_or_word_index, word_index)
        found = encoding.word_to_chars(word, sequence_index)
        return None if found is None else CharSpan(*found)

    def char_to_token(
        self, batch_or_char_index: int, char_index: int | None = None, sequence_index: int = 0
    ) -> int | None:
        """The token that a character is part of."""
        encoding, char = self._at(batch_or_char_index, char_index)
        return encoding.char_to_token(char, sequence_index)

    def char_to_word(
        self, batch_or_char_index: int, char_index: int | None = None, sequence_index: int = 0
    ) -> int | None:
        """The word that a character is part of."""
        encoding, char = self._at(batch_or_char_index, char_index)
        return encoding.char_to_word(char, sequence_index)

    def _token_at(self, first: int, second: int | None) -> tuple:
        encoding, token = self._at(first, second)
        return encoding, token + len(encoding) if token < 0 else token

    def _at(self, first: int, second: int | None) -> tuple:
        """The row and the index of a method's arguments."""
        return (self.encodings[0], first) if second is None else (self.encodings[first], second)


def as_array(name: str, rows: list, width: int = 0) -> np.ndarray:
    """Rows of equal length, of numbers or of `width` numbers each, as an int64 array.

    Raises ValueError when their lengths differ.
    """
    if name in ("overflow_to_sample_mapping", "length"):
        return np.array(rows, np.int64)
    lengths = {len(row) for row in rows}
    if len(lengths) > 1:
        raise ValueError(
            f"{name} has rows of {min(lengths)} to {max(lengths)} tokens, which make no array; pass padding=True"
        )
    return np.array(rows, np.int64).reshape(len(rows), *lengths or (0,), *((width,) if width else ()))
