"""Masking: the tokens that a masked language model predicts, and their replacements.

A fraction of the ordinary tokens is chosen: token by token (Devlin et al. 2018, section 3.1), word by word, or in spans
of words (Joshi et al. 2020, arXiv:1907.10529, section 3.1). Most of them become the mask, some a random token, the rest
stay; all of them are labels. Dynamic masking is drawn anew for every batch (Liu et al. 2019, arXiv:1907.11692); static
masking is seeded by the text itself.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np

from bertcore.arguments import check_share
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
