"""Collators, which turn a list of tokenized examples into one batch of arrays, and masking.

A fraction of the ordinary tokens is chosen: token by token (Devlin et al. 2018, section 3.1), word by word, or in spans
of words (Joshi et al. 2020, arXiv:1907.10529, section 3.1). Most of them become the mask, some a random token, the rest
stay; all of them are labels. Dynamic masking is drawn anew for every batch (Liu et al. 2019, arXiv:1907.11692); static
masking is seeded by the text itself.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bertcore.arguments import check_count, check_share
from bertcore.kernels import checks
from bertcore.nn.functional.losses import IGNORED
from bertcore.tokenization.tokenizer import Tokenizer

UNITS = ("token", "word", "span")
SPAN_CHANCE, LONGEST_SPAN = 0.2, 10  # probability that a span ends after a word; in words
SHORT_ENOUGH = 1 - (1 - SPAN_CHANCE) ** LONGEST_SPAN  # probability that a geometric length is at most that


def check_sum(**shares: float) -> None:
    """Raise ValueError for shares above 1 together."""
    if sum(shares.values()) > 1 + 1e-9:
        together = " and ".join(map(str, shares.values()))
        raise ValueError(f"{' and '.join(shares)} are {together}, expected at most 1 together")


@dataclass(frozen=True)
class Masking:
    """Rules for choosing and replacing tokens.

    Attributes:
        share: the fraction of a text's tokens that is chosen, rounded to a number of tokens, at least one.
        mask_share, random_share: the fractions of the chosen that become the mask, or a random token; the others stay.
        unit: "token"; "word", all its tokens together; or "span" of words with geometric lengths (a span ends after
            each word with probability 0.2) of at most 10, 3.8 on average, as published. Each unit is replaced as a
            whole.
        is_static: whether a text is masked alike every time.

    Raises:
        ValueError: for a share outside 0 to 1, shares above 1 together, or an unknown unit.
    """

    share: float = 0.15
    mask_share: float = 0.8
    random_share: float = 0.1
    unit: str = "token"
    is_static: bool = False

    def __post_init__(self) -> None:
        for name in ("share", "mask_share", "random_share"):
            object.__setattr__(self, name, check_share(name, getattr(self, name)))
        check_sum(mask_share=self.mask_share, random_share=self.random_share)
        checks.boolean("is_static", self.is_static)
        checks.choice("unit", self.unit, UNITS)

    def apply(self, ids: np.ndarray, words: Words, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return (ids with tokens replaced, labels) of one text; labels are -100 where a token was not chosen.

        Args:
            ids: (tokens,) integers, special tokens and padding among them.
            words: of the vocabulary.
            rng: source of the random choices; not used if masking is static.
        """
        if self.is_static:
            rng = np.random.default_rng(int.from_bytes(hashlib.sha256(ids.astype("<i8").tobytes()).digest()[:8]))
        chosen = self.choose_units(words.units(ids, by_word=self.unit != "token"), rng)
        draws = np.append(rng.random(len(ids)), 2.0)[chosen]  # the last, at -1, is for tokens not chosen
        is_mask, is_random = draws < self.mask_share, (draws >= self.mask_share) & (draws < self.changed_share)
        replaced = np.where(is_mask, words.mask, ids)
        replaced[is_random] = words.ordinary[rng.integers(0, len(words.ordinary), int(is_random.sum()))]
        return replaced, np.where(chosen >= 0, ids, IGNORED)

    @property
    def changed_share(self) -> float:
        """The fraction of the chosen tokens that become the mask or a random token."""
        return self.mask_share + self.random_share

    def choose_units(self, words: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return for each token the number of its chosen unit, or -1; `words` has each token's word, -1 if special."""
        sizes = np.bincount(words[words >= 0]).tolist()
        starts = np.flatnonzero((words >= 0) & (words != np.append(-1, words[:-1]))).tolist()
        chosen, left = np.full(len(words), -1), max(1, round(self.share * sum(sizes))) if self.share else 0
        for number, first in enumerate(rng.permutation(len(starts)).tolist()):
            if left <= 0:
                break
            length = 1
            if self.unit == "span":  # a geometric number of at most LONGEST_SPAN, by the inverse of its distribution
                length += int(math.log1p(-rng.random() * SHORT_ENOUGH) / math.log1p(-SPAN_CHANCE))
            end = starts[first]
            for word in range(first, min(first + length, len(starts))):
                is_next = starts[word] == end and chosen[end] < 0  # no special token between, and not chosen yet
                is_first_of_all = number == 0 and word == first  # it is taken, however long
                if not is_next or (sizes[word] > left and not is_first_of_all):
                    break
                end += sizes[word]
                chosen[starts[word] : end] = number
                left -= sizes[word]
        return chosen


@dataclass(frozen=True)
class Words:
    """Facts of a vocabulary that masking needs.

    Attributes:
        mask: the id of the mask.
        is_special: whether a token is special (or padding), by id.
        begins: whether a token begins a word, by id.
        ordinary: the ids of all other tokens, from which random ones are drawn.
    """

    mask: int
    is_special: np.ndarray
    begins: np.ndarray
    ordinary: np.ndarray

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Words:
        """Read the facts from a tokenizer's vocabulary.

        A token continues a word if it begins with "##" (WordPiece); or, if tokens that begin words are marked ("▁" of
        SentencePiece, "Ġ" of byte-level BPE), if it has no mark.

        Raises:
            ValueError: if the tokenizer has no mask.
        """
        if tokenizer.mask_token_id is None:
            raise ValueError("tokenizer has no mask token, which masked language modelling needs")
        count = len(tokenizer)
        tokens = np.array(["" if token is None else token for token in tokenizer.convert_ids_to_tokens(range(count))])
        is_special = np.array(tokenizer.get_special_tokens_mask(range(count)), bool)
        continues = np.char.startswith(tokens, "##")
        is_marked = np.char.startswith(tokens, "\u2581") | np.char.startswith(tokens, "\u0120")
        begins = is_marked if is_marked.any() and not continues.any() else ~continues
        return cls(tokenizer.mask_token_id, is_special, begins, np.flatnonzero(~is_special))

    def check(self, ids: np.ndarray, name: str) -> None:
        """Raise ValueError, naming them `name`, for ids outside the vocabulary."""
        if ids.size and not 0 <= ids.min() <= ids.max() < len(self.begins):
            wrong = ids.min() if ids.min() < 0 else ids.max()
            raise ValueError(f"{name} has {wrong}, expected ids from 0 to {len(self.begins) - 1}")

    def units(self, ids: np.ndarray, *, by_word: bool) -> np.ndarray:
        """Return each token's number, or with `by_word` its word's, from 0; special tokens have -1 and do not count."""
        is_ordinary = ~self.is_special[ids]
        begins = is_ordinary
        if by_word:
            begins = is_ordinary & (self.begins[ids] | ~np.append(False, is_ordinary[:-1]))
        return np.where(is_ordinary, np.cumsum(begins) - 1, -1)


LABELS = {"label": "labels", "label_ids": "labels"}  # what examples call the labels of a batch
SEQUENCES = list | tuple | np.ndarray
LEFT_OUT = {"special_tokens_mask", "offset_mapping", "length", "overflow_to_sample_mapping"}


class DataCollatorWithPadding:
    """Pads per-token values to the longest example of the batch; other numbers become one array.

    Args:
        tokenizer: decides the side and the ids of the padding.
        padding: True or "longest", or "max_length" for `max_length` tokens.
        max_length: see `padding`.
        pad_to_multiple_of: rounds the padded length up.

    Examples are mappings of input_ids, other per-token inputs of the model (token labels too, padded with -100), and
    label (or label_ids, labels): a number, or a list of one length in all examples. "label" and "label_ids" become
    "labels" in the batch. special_tokens_mask, offset_mapping, length, overflow_to_sample_mapping, and keys whose
    values are all None are left out.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        padding: bool | str = True,
        max_length: int | None = None,
        pad_to_multiple_of: int | None = None,
    ):
        if not (padding is True or padding in ("longest", "max_length")):
            raise ValueError(f"padding is {padding!r}, expected True, 'longest' or 'max_length'")
        if padding == "max_length" and max_length is None:
            raise ValueError("max_length is missing, expected a length for padding='max_length'")
        self.tokenizer, self.padding = tokenizer, padding
        self.max_length = None if max_length is None else check_count("max_length", max_length)
        multiple = 1 if pad_to_multiple_of is None else pad_to_multiple_of
        self.pad_to_multiple_of = check_count("pad_to_multiple_of", multiple)
        self.pad_token_id = tokenizer.pad_token_id

    def __repr__(self) -> str:
        settings = (f"{name}={value!r}" for name, value in vars(self).items() if name != "tokenizer")
        return f"{type(self).__name__}({', '.join(settings)})"

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
        """Return the batch: arrays with one row per example.

        Raises:
            ValueError: for an example that lacks a key, or has values of another length than its input_ids.
        """
        names = _names(examples)
        lengths = [len(ids_of(example, index)) for index, example in enumerate(examples)]
        width = self._width(lengths)
        batch = {}
        for name in names:
            column = [_on_host(example[name]) for example in examples]
            if all(value is None for value in column):
                continue
            pairs = zip(column, lengths, strict=True)
            if all(isinstance(value, SEQUENCES) and np.ndim(value) and len(value) == size for value, size in pairs):
                batch[LABELS.get(name, name)] = self._padded(name, column, width)
            else:
                batch[LABELS.get(name, name)] = _stacked(name, column)
        if "attention_mask" not in batch:
            batch["attention_mask"] = self._padded("attention_mask", [[1] * length for length in lengths], width)
        return batch

    def _width(self, lengths: list[int]) -> int:
        width = self.max_length if self.padding == "max_length" else max(lengths)
        if max(lengths) > width:
            raise ValueError(
                f"examples[{lengths.index(max(lengths))}] has {max(lengths)} tokens, max_length is {width}"
            )
        return -(-width // self.pad_to_multiple_of) * self.pad_to_multiple_of

    def _padded(self, name: str, rows: Sequence[Sequence[Any]], width: int) -> np.ndarray:
        fills = {"input_ids": self.pad_token_id, "token_type_ids": self.tokenizer.pad_token_type_id, "labels": IGNORED}
        fill = fills.get(LABELS.get(name, name), 0)
        if fill is None and min(map(len, rows)) < width:
            raise ValueError("tokenizer has no padding token, and the examples have different lengths")
        first = np.asarray(rows[0])
        is_float = any(len(row) and np.asarray(row).dtype.kind == "f" for row in rows)
        padded = np.full((len(rows), width, *first.shape[1:]), fill or 0, np.float32 if is_float else np.int64)
        for row, values in zip(padded, rows, strict=True):
            place = slice(width - len(values), None) if self.tokenizer.padding_side == "left" else slice(len(values))
            row[place] = values
        return padded


class DataCollatorForTokenClassification(DataCollatorWithPadding):
    """The same by transformers' name: labels of tokens are padded with -100."""


class DataCollatorForMultipleChoice(DataCollatorWithPadding):
    """Padded batches of examples with several candidate texts each, (examples, choices, tokens).

    All values of an example, except its label, are lists with one entry per choice.
    """

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
        """Return the batch. Raises ValueError for an example without the choices that examples[0] has."""
        names, choices = _names(examples), []
        labels = [name for name in names if LABELS.get(name, name) == "labels"]
        names = [name for name in names if name not in labels]
        first = _on_host(examples[0]["input_ids"])
        count = len(first) if isinstance(first, SEQUENCES) else 1
        for index, example in enumerate(examples):
            columns = {name: _on_host(example[name]) for name in names}
            for name, column in columns.items():
                if not isinstance(column, SEQUENCES) or len(column) != count:
                    given = f"examples[{index}][{name!r}] is {column!r:.60}"
                    raise ValueError(f"{given}, expected a list with an entry for each of {count} choices")
            for place in range(count):
                ids_of({"input_ids": columns["input_ids"][place]}, index)
                choices.append({name: column[place] for name, column in columns.items()})
        batch = super().__call__(choices)
        batch = {name: array.reshape(len(examples), count, *array.shape[1:]) for name, array in batch.items()}
        for name in labels:
            batch["labels"] = _stacked(name, [example[name] for example in examples])
        return batch


class DataCollatorForLanguageModeling(DataCollatorWithPadding):
    """Padded batches for masked or causal language models, with labels made from the input ids.

    Args:
        tokenizer: the tokenizer of the texts.
        mlm: mask tokens; otherwise labels are the ids (a causal model shifts them), -100 at padding.
        mlm_probability: the fraction of a text's tokens to predict.
        whole_word_mask: mask all tokens of a word together.
        mask_replace_prob, random_replace_prob: the fractions of the chosen tokens that become the mask or a random
            token; the others are unchanged.
        pad_to_multiple_of: rounds the padded length up.
        seed: the seed of the random choices.
        span_mask: mask spans of words together, like SpanBERT.
        static: mask a text in the same way every time.

    The first eight are the same as in transformers; see `Masking` for how tokens are chosen.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        mlm: bool = True,
        whole_word_mask: bool = False,
        mlm_probability: float = 0.15,
        mask_replace_prob: float = 0.8,
        random_replace_prob: float = 0.1,
        pad_to_multiple_of: int | None = None,
        seed: int = 0,
        *,
        span_mask: bool = False,
        static: bool = False,
    ):
        super().__init__(tokenizer, pad_to_multiple_of=pad_to_multiple_of)
        flags = {"mlm": mlm, "whole_word_mask": whole_word_mask, "span_mask": span_mask, "static": static}
        for name, flag in flags.items():
            checks.boolean(name, flag)
        if (whole_word_mask or span_mask or static) and not mlm:
            raise ValueError("whole_word_mask, span_mask or static is set with mlm=False, expected mlm=True for masks")
        shares = {"mask_replace_prob": mask_replace_prob, "random_replace_prob": random_replace_prob}
        for name, share in {"mlm_probability": mlm_probability, **shares}.items():
            check_share(name, share)
        check_sum(**shares)
        unit = "span" if span_mask else "word" if whole_word_mask else "token"
        self.masking = Masking(mlm_probability, mask_replace_prob, random_replace_prob, unit, static)
        self.words = Words.of(tokenizer) if mlm else None
        self.rng = np.random.default_rng(check_count("seed", seed, 0))

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
        """Return the batch with labels; labels of the examples are ignored."""
        made = []
        for index, example in enumerate(examples):
            ids = ids_of(example, index)
            if self.words is not None:
                self.words.check(ids, f"examples[{index}]['input_ids']")
            replaced, labels = (ids, ids) if self.words is None else self.masking.apply(ids, self.words, self.rng)
            rest = {name: value for name, value in example.items() if LABELS.get(name, name) != "labels"}
            made.append(rest | {"input_ids": replaced, "labels": labels})
        return super().__call__(made)

    def masking_settings(self) -> dict[str, Any]:
        """Return the settings that a resumed run must keep."""
        return asdict(self.masking)


def ids_of(example: Mapping[str, Any], index: int) -> np.ndarray:
    """Return an example's token ids, int64 (tokens,). Raises ValueError for anything but integers."""
    if not isinstance(example, Mapping) or "input_ids" not in example:
        raise ValueError(f"examples[{index}] has no input_ids, it is {example!r:.60}")
    try:
        ids = np.asarray(example["input_ids"])
    except ValueError:  # rows of different lengths
        ids = np.zeros(())
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise ValueError(f"examples[{index}]['input_ids'] is {example['input_ids']!r:.60}, expected a list of integers")
    return ids.astype(np.int64)


def _names(examples: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys of the batch, which all examples must have."""
    if not isinstance(examples, Sequence) or not examples:
        raise ValueError(f"examples is {examples!r:.60}, expected a list of at least one mapping")
    for index, example in enumerate(examples):
        if not isinstance(example, Mapping):
            raise ValueError(f"examples[{index}] is {example!r:.60}, expected a mapping")
    names = [name for name in examples[0] if name not in LEFT_OUT]
    for index, example in enumerate(examples):
        missing = [name for name in ("input_ids", *names) if name not in example]
        unknown = [name for name in example if name not in (*names, *LEFT_OUT)]
        if missing or unknown:
            problem = f"has no {missing[0]}" if missing else f"has {unknown[0]}, which examples[0] lacks"
            raise ValueError(f"examples[{index}] {problem}")
    return names


def _on_host(value: object) -> Any:
    """Convert other libraries' arrays, as in rows of datasets.with_format("torch"), to NumPy arrays."""
    return np.asarray(value) if hasattr(value, "__array__") else value


def _stacked(name: str, column: Sequence[Any]) -> np.ndarray:
    arrays = [np.asarray(value) for value in column]
    for index, array in enumerate(arrays):
        if array.dtype.kind not in "biuf" or array.shape != arrays[0].shape:
            raise ValueError(
                f"examples[{index}][{name!r}] is {column[index]!r}, expected numbers: one for each token, "
                "or as many as in examples[0]"
            )
    stacked = np.stack(arrays)
    return stacked.astype(np.float32 if stacked.dtype.kind == "f" else np.int64)


class NumberedCollator:
    """A collator whose random choices depend only on a seed and the number of the batch.

    A resumed run therefore sees the same batches as an uninterrupted one, and so do two evaluations.

    Args:
        collator: makes a batch of examples. Its attribute `rng`, if any, is the source of its random choices; its
            method `masking_settings`, if any, returns JSON settings that a resumed run must keep.
        seed: the seed of the run.
        columns: the keys of examples to keep; None for all.
    """

    def __init__(self, collator: Callable[[Sequence[Any]], Any], seed: int, columns: Collection[str] | None = None):
        self._collator, self._seed, self._columns = collator, seed, columns

    @property
    def masking(self) -> dict[str, Any] | None:
        """The collator's `masking_settings()`, or None."""
        settings = getattr(self._collator, "masking_settings", None)
        return None if settings is None else settings()

    def __call__(self, examples: Sequence[Any], number: int) -> Mapping[str, Any]:
        """Return the batch of this number."""
        if self._columns is not None:
            known = self._columns  # the collator raises the error for an example that is not a mapping
            examples = [
                {key: each[key] for key in each if key in known} if isinstance(each, Mapping) else each
                for each in examples
            ]
        if hasattr(self._collator, "rng"):
            self._collator.rng = np.random.default_rng((self._seed, number))
        batch = self._collator(examples)
        if not isinstance(batch, Mapping):
            raise TypeError(f"data_collator returned {type(batch).__name__}, expected a mapping of a model's arguments")
        return batch


NO_LIMIT = 10**9  # tokenizers without a limit have a model_max_length of at least this


def is_cut(tokenizer: Tokenizer, max_length: int | None) -> bool:
    """Return whether texts have a length limit: `max_length` or the tokenizer's."""
    return max_length is not None or tokenizer.model_max_length < NO_LIMIT
