"""A tokenizer's call: its options, texts and token ids, checked before anything is computed, and its result."""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bertcore.arguments import check_count, warn_caller
from bertcore.kernels import checks

from .settings import UNKNOWN_LENGTH

PADDINGS = {False: None, "do_not_pad": None, True: "longest", "longest": "longest", "max_length": "max_length"}
TRUNCATIONS = {
    False: None, "do_not_truncate": None, True: "longest_first", "longest_first": "longest_first",
    "only_first": "only_first", "only_second": "only_second",
}  # fmt: skip
LONGEST_PADDING = 2**31 - 1  # padded rows take memory whatever their texts

WORDS = (list, tuple)  # the types of a text that is split into words


@dataclass(slots=True)
class CallOptions:
    """The options of a tokenizer's call, as `Tokenizer.__call__` documents them."""

    add_special_tokens: bool = True
    padding: bool | str = False
    truncation: bool | str | None = None
    max_length: int | None = None
    stride: int = 0
    is_split_into_words: bool = False
    pad_to_multiple_of: int | None = None
    padding_side: str | None = None
    return_tensors: str | None = None
    return_token_type_ids: bool | None = None
    return_attention_mask: bool | None = None
    return_overflowing_tokens: bool = False
    return_special_tokens_mask: bool = False
    return_offsets_mapping: bool = False
    return_length: bool = False

    def __post_init__(self) -> None:
        checks.choice("return_tensors", self.return_tensors, (None, "np"))
        checks.boolean("add_special_tokens", self.add_special_tokens)
        checks.boolean("is_split_into_words", self.is_split_into_words)

    @property
    def columns(self) -> dict[str, bool | None]:
        """The columns of the result beside input_ids: asked for, not wanted, or None for the tokenizer's default."""
        return {
            "token_type_ids": self.return_token_type_ids,
            "attention_mask": self.return_attention_mask,
            "special_tokens_mask": self.return_special_tokens_mask,
            "offset_mapping": self.return_offsets_mapping,
            "length": self.return_length,
        }


class Truncation(NamedTuple):
    """Cut rows to max_length tokens, special ones included, from one side; a cut-off piece repeats `stride` tokens."""

    strategy: str
    max_length: int
    stride: int
    side: str


@dataclass(frozen=True)
class Padding:
    """Pad rows: strategy "longest", "max_length" (to `length`) or None; rounded up to a multiple."""

    strategy: str | None
    length: int
    multiple: int
    side: str

    def target(self, lengths: list[int]) -> int:
        """Return the length that every row is padded to (longer ones stay as they are)."""
        length = self.length if self.strategy == "max_length" else max(lengths, default=0)
        return -(-length // self.multiple) * self.multiple


def read_truncation(
    options: CallOptions, *, pair: bool, side: str, special: int, model_max_length: int
) -> Truncation | None:
    """Return the truncation that a call of one text or a pair asks for; `special` tokens are added.

    As in transformers, truncation=None with a max_length and without padding means truncation.
    """
    truncation, max_length = options.truncation, options.max_length
    stride = check_count("stride", options.stride, 0)
    if truncation is None:
        truncation = max_length is not None and options.padding is False
        if max_length is not None and options.padding in (True, "longest"):
            warn_caller("max_length does nothing beside padding=True; pass truncation=True to cut")
    strategy = _choice("truncation", truncation, TRUNCATIONS)
    if strategy is None:
        return None
    if strategy == "only_second" and not pair:
        raise ValueError("truncation='only_second' needs text_pair")
    length = _length("truncation", max_length, model_max_length)
    if length < special:
        raise ValueError(f"max_length is {length}, expected at least {special}, the number of special tokens")
    # Two texts that are both too long share the row.
    piece = (length - special) // 2 if pair and strategy == "longest_first" else length - special
    if stride and stride >= piece:
        raise ValueError(f"stride is {stride}, expected less than the {piece} tokens that a piece may have")
    return Truncation(strategy, min(length, sys.maxsize), stride, side)  # sys.maxsize: the library's limit


def read_padding(options: CallOptions, *, side: str, cut: Truncation | None, model_max_length: int) -> Padding:
    """Return the padding that a call asks for."""
    strategy, multiple = _choice("padding", options.padding, PADDINGS), options.pad_to_multiple_of
    side = side if options.padding_side is None else options.padding_side
    if side not in ("left", "right"):
        raise ValueError(f"padding_side is {side!r}, expected 'left' or 'right'")
    multiple = 1 if multiple is None else check_count("pad_to_multiple_of", multiple, 1, LONGEST_PADDING)
    if strategy and cut and cut.max_length % multiple:
        raise ValueError(f"max_length is {cut.max_length}, expected a multiple of pad_to_multiple_of={multiple}")
    length = _length("padding='max_length'", options.max_length, model_max_length) if strategy == "max_length" else 0
    if length > LONGEST_PADDING:
        raise ValueError(f"max_length is {length}, expected at most {LONGEST_PADDING} with padding='max_length'")
    return Padding(strategy, length, multiple, side)


def _choice(name: str, value: object, choices: Mapping[bool | str, str | None]) -> str | None:
    if isinstance(value, bool | str) and value in choices:
        return choices[value]
    raise ValueError(f"{name} is {value!r}, expected one of {', '.join(map(repr, choices))}")


def _length(what: str, max_length: int | None, model_max_length: int) -> int:
    if max_length is not None:
        return check_count("max_length", max_length, 0)
    if model_max_length >= UNKNOWN_LENGTH:
        raise ValueError(f"{what} needs max_length: the tokenizer's files state no model_max_length")
    return model_max_length


# --- texts ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Texts:
    """The texts of a call, one or (batched) several: strings, or lists of words; second is None without text_pair."""

    first: list
    second: list | None
    batched: bool
    split: bool = False

    def inputs(self) -> list[tuple]:
        """Return one text or pair for each row."""
        columns = [self.first] if self.second is None else [self.first, self.second]
        return list(zip(*columns, strict=True))

    def name(self, argument: str, row: int) -> str:
        """Return the name of one text in an error."""
        return f"{argument}[{row}]" if self.batched else argument

    def check_unicode(self) -> None:
        """Raise ValueError, naming the text, for the first one that cannot be encoded as UTF-8."""
        for argument, column in (("text", self.first), ("text_pair", self.second or [])):
            for row, text in enumerate(column):
                name = self.name(argument, row)
                for word, string in enumerate(text if self.split else [text]):
                    check_unicode(f"{name}[{word}]" if self.split else name, string)


def check_unicode(name: str, text: str) -> None:
    """Raise ValueError for text that cannot be encoded as UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} is not valid Unicode: a lone surrogate at character {error.start}") from error


def read_texts(text: Any, text_pair: Any, split: bool = False) -> Texts:
    """Check both arguments of a call; with `split`, texts are lists of words. Errors name the wrong text."""
    single = not (text and isinstance(text[0], WORDS)) if split and isinstance(text, WORDS) else isinstance(text, str)
    if not single:
        first = _check_batch("text", text, split)
        second = None if text_pair is None else _check_batch("text_pair", text_pair, split)
        if second is not None and len(second) != len(first):
            raise ValueError(f"text_pair has {len(second)} texts, expected {len(first)}, one for each of text")
        return Texts(first, second, batched=True, split=split)
    _check_text("text", text, split)
    if text_pair is not None:
        _check_text("text_pair", text_pair, split, ", as text is one")
    first, second = (list(one) if isinstance(one, tuple) else one for one in (text, text_pair))
    return Texts([first], None if second is None else [second], batched=False, split=split)


def _check_batch(argument: str, texts: object, split: bool) -> list:
    if not isinstance(texts, WORDS):
        expected = "a list of words, or a list of such lists" if split else "a string or a list of strings"
        raise TypeError(f"{argument} is {type(texts).__name__}, expected {expected}")
    for row, text in enumerate(texts):
        if split or not isinstance(text, str):
            _check_text(f"{argument}[{row}]", text, split)
    return [list(text) for text in texts] if split else list(texts)


def _check_text(name: str, text: Any, split: bool, why: str = "") -> None:
    if not isinstance(text, WORDS if split else str):
        expected = "a list of words (is_split_into_words)" if split else "a string"
        raise TypeError(f"{name} is {type(text).__name__}, expected {expected}{why}")
    for number, word in enumerate(text) if split else ():
        if not isinstance(word, str):
            raise TypeError(f"{name}[{number}] is {type(word).__name__}, expected a string")


# --- token ids -----------------------------------------------------------------------------------------------


def is_id(value: object) -> bool:
    """Return whether `value` is one integer: Python's, NumPy's, or a 0-dimensional array."""
    return hasattr(value, "__index__") and not getattr(value, "shape", ())


def as_ids(argument: str, values: Any, *, nested: bool = False) -> list:
    """Convert an integer or a sequence of integers to a list; if `nested`, a sequence of sequences to a list of lists.

    Raises TypeError, naming the argument (and the place in it), for anything else.
    """
    expected = "an integer or a sequence of integers" + (", or a sequence of such sequences" if nested else "")
    found = values.tolist() if hasattr(values, "tolist") else values
    if is_id(found):
        return [found.__index__()]
    if isinstance(found, str | bytes | Mapping) or not isinstance(found, Iterable):
        raise TypeError(f"{argument} is {type(values).__name__}, expected {expected}")
    ids = list(found)
    if nested and ids and isinstance(ids[0], Iterable) and not isinstance(ids[0], str) and not is_id(ids[0]):
        return [as_ids(f"{argument}[{index}]", row) for index, row in enumerate(ids)]
    for index, number in enumerate(ids):
        if not is_id(number):
            raise TypeError(f"{argument}[{index}] is {type(number).__name__}, expected an integer")
    return [number.__index__() for number in ids]


def each_of(argument: str, values: object, entries: str) -> Iterable:
    """Return `values` if they are iterable, else raise TypeError naming the argument and its `entries`."""
    if isinstance(values, bytes) or not isinstance(values, Iterable):
        raise TypeError(f"{argument} is {type(values).__name__}, expected a list of {entries}")
    return values


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
