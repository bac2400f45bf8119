"""Texts in words behind labels, as GLiNER's models read them: "[ENT] label [ENT] label ... [SEP] word word ..."."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Self

import numpy as np

WORD = re.compile(r"\w+(?:[-_]\w+)*|\S")
MARKS = "[FLERT]", "<<ENT>>", "<<SEP>>"  # GLiNER adds these to a tokenizer; a model may rename the last two


def split_words(text: str) -> Iterator[tuple[int, int]]:
    """Yield (first, last + 1) character of each word: letters and digits, joined by - and _, or another character."""
    return (match.span() for match in WORD.finditer(text))


@dataclass(frozen=True)
class PromptedText:
    """A text behind its labels as token ids.

    Attributes:
        words_mask: 1, 2, ... at the token whose state stands for the first word read, the second one, ...; else 0.
        words: the numbers of the text's words: first those that were read, then those that were not, because they have
            no tokens (control characters) or lie beyond the model's limit.
        was_cut: whether there were more words.
    """

    input_ids: list[int]
    words_mask: list[int]
    words: list[int]
    was_cut: bool

    def __len__(self) -> int:
        return len(self.input_ids)


class PromptReader:
    """Reader that puts labels before texts: `ent_token` before each label, `sep_token` after the last one.

    Texts are cut to `max_words`, and with the labels to `max_tokens`. With `pools_last`, the state of its last
    token stands for a word. Raises ValueError for a tokenizer without one of the tokens.
    """

    def __init__(
        self, tokenizer: Any, ent_token: str, sep_token: str, *, max_words: int, max_tokens: int, pools_last: bool
    ):
        for token in (ent_token, sep_token):
            if tokenizer.convert_tokens_to_ids(token) in (None, tokenizer.unk_token_id):
                raise ValueError(f"tokenizer has no token {token!r}, expected a GLiNER model's tokenizer")
        self.tokenizer, self.ent_token, self.sep_token = tokenizer, ent_token, sep_token
        self.max_words, self.max_tokens, self.pools_last = max_words, max_tokens, pools_last

    @classmethod
    def of(cls, tokenizer: Any, spec: Any, positions: int | None) -> Self:
        """Return the reader of a model with this `GLiNERSpec` and number of positions."""
        limit = min(tokenizer.model_max_length, positions or tokenizer.model_max_length, 2**31 - 1)
        sizes = {"max_words": spec.max_len, "max_tokens": limit}
        return cls(tokenizer, spec.ent_token, spec.sep_token, **sizes, pools_last=spec.pools_last)

    def read(self, texts: Sequence[Sequence[str]], labels: Sequence[Sequence[str]]) -> list[PromptedText]:
        """Return texts, given in words, behind their labels. Raises ValueError for labels that leave no tokens."""
        if not texts:
            return []
        prompts = [[part for label in some for part in (self.ent_token, label)] + [self.sep_token] for some in labels]
        words = [[*prompt, *islice(text, self.max_words)] for prompt, text in zip(prompts, texts, strict=True)]
        options: dict[str, Any] = {"truncation": True, "max_length": self.max_tokens}
        found = self.tokenizer(words, is_split_into_words=True, return_attention_mask=False, **options)
        given = zip(prompts, texts, found["input_ids"], found.encodings, strict=True)
        return [self._read(len(prompt), len(text), *row) for prompt, text, *row in given]

    def _read(self, prompt: int, words: int, ids: list[int], encoding: Any) -> PromptedText:
        places = encoding.word_ids
        if prompt - 1 not in places:
            raise ValueError(f"labels have more than the {self.max_tokens} tokens that the model takes, expected fewer")
        mask, read = [0] * len(ids), []
        for place, word in enumerate(places):
            beside = places[place + 1 : place + 2] if self.pools_last else places[max(place - 1, 0) : place]
            if word is not None and word >= prompt and beside != [word]:
                read.append(word - prompt)
                mask[place] = len(read)
        is_cut = words > self.max_words or (bool(encoding.overflowing) and words > 0)
        unread = set(range(min(words, self.max_words))).difference(read)
        return PromptedText(list(ids), mask, read + sorted(unread), is_cut)


def as_batch(rows: Sequence[PromptedText], pad_token_id: int | None) -> dict[str, np.ndarray]:
    """Return the arguments of a GLiNERModel: input_ids, attention_mask, words_mask and text_lengths."""
    shape = len(rows), max(map(len, rows), default=0)
    ids, mask, words = np.full(shape, pad_token_id or 0), np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for row, some in enumerate(rows):
        here = slice(len(some))
        ids[row, here], mask[row, here], words[row, here] = some.input_ids, 1, some.words_mask
    lengths = np.array([len(some.words) for some in rows], np.int64)[:, None]
    return {"input_ids": ids, "attention_mask": mask, "words_mask": words, "text_lengths": lengths}
