"""Texts with entities as models read them.

LUKE and others read markers around one or two entities, or every span of a few words; GLiNER reads words behind labels:
"[ENT] label [ENT] label ... [SEP] word word ...".
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

if TYPE_CHECKING:
    from tokenizers import Encoding

    from .tokenizer import Tokenizer

Span = tuple[int, int]

# A word, a character of Chinese or Japanese, or a punctuation mark: entities begin and end with one of these.
IDEOGRAPHS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
WORD = re.compile(rf"[{IDEOGRAPHS}]|[^\W{IDEOGRAPHS}]+|[^\w\s]")
MARKERS = "@#*^$%&+=~|<>/:;-!?.,"  # the first ones that the vocabulary has stand around entities
WIDEST = 8  # words of a span, by default (Zhong and Chen 2021, arXiv:2010.12812)
NONE = "NIL"  # the class of spans that are not entities, as in LUKE's checkpoints
MOST_SPANS = 128  # of a row of LUKE's, whose entities see each other
LUKE_TASKS = {  # of its tokenizer
    "entity-classification": "entity_classification",
    "relation-extraction": "entity_pair_classification",
    "span-ner": "entity_span_classification",
}
OUTSIDE = (-1, -1)  # the characters of a special token
SPANS = "[first, last + 1], characters of the text"


def checked_spans(spans: object, text: str, count: int | None = None, *, nested: bool = False) -> list[Span]:
    """Return the (first, last + 1) characters of spans in `text`, without white space around them.

    Raises TypeError for anything but a list of pairs of integers, ValueError for another number than `count`, for a
    span that is outside the text or holds white space alone, and, unless `nested`, for two that overlap.
    """
    if not isinstance(spans, Sequence | np.ndarray) or isinstance(spans, str | bytes):
        raise TypeError(f"spans is {spans!r:.60}, expected a list of {SPANS}")
    found = [_checked_span(f"spans[{number}]", span, text) for number, span in enumerate(spans)]
    if count is not None and len(found) != count:
        raise ValueError(f"spans has {len(found)} spans, expected {count}{': head and tail' if count == 2 else ''}")
    ordered = sorted(found)
    for before, after in pairwise([] if nested else ordered):
        if after[0] < before[1]:
            raise ValueError(f"spans has {list(before)} and {list(after)}, which overlap, expected spans apart")
    return found


def _checked_span(name: str, span: object, text: str) -> Span:
    ends = list(span) if isinstance(span, Sequence | np.ndarray) and not isinstance(span, str | bytes) else []
    if len(ends) != 2 or not all(isinstance(end, int | np.integer) and not isinstance(end, bool) for end in ends):
        raise TypeError(f"{name} is {span!r:.60}, expected {SPANS}")
    start, end = map(int, ends)
    if not 0 <= start < end <= len(text):
        raise ValueError(f"{name} is {[start, end]}, expected {SPANS}, from 0 to {len(text)}, and not empty")
    held = text[start:end]
    if held.isspace():
        raise ValueError(f"{name} is {[start, end]}, which holds {held!r:.20}, expected a word")
    return start + len(held) - len(held.lstrip()), end - len(held) + len(held.rstrip())


def find_markers(tokenizer: Tokenizer, count: int) -> tuple[str, ...]:
    """Return punctuation marks of the vocabulary to stand around `count` entities: "@" and "#" where it has them.

    Raises ValueError if it has fewer marks.
    """
    plain = without_task(tokenizer)
    ids = (plain(marker, add_special_tokens=False)["input_ids"] for marker in MARKERS)
    known = (marker for marker, row in zip(MARKERS, ids, strict=True) if row and tokenizer.unk_token_id not in row)
    found = tuple(islice(known, count))
    if len(found) < count:
        raise ValueError(f"tokenizer has {len(found)} of the marks {MARKERS}, expected {count} to mark entities with")
    return found


def marked(text: str, spans: Sequence[Span], markers: Sequence[str]) -> tuple[str, list[Span]]:
    """Return the text with its own marker before and after each span, and the places of both markers.

    "Ada was born in London" becomes "@ Ada @ was born in # London #" (Zhou and Chen 2022, arXiv:2102.01373).
    """
    places = [(0, 0)] * len(spans)
    parts, length, done = [], 0, 0
    for number in sorted(range(len(spans)), key=spans.__getitem__):
        (start, end), marker = spans[number], markers[number]
        before = text[done:start]
        before += "" if (before or text[:start])[-1:].isspace() or not start else " "
        place = length + len(before)
        places[number] = place, place + len(marker) + end - start + 2
        after = "" if text[end : end + 1].isspace() or end == len(text) else " "
        parts.append(f"{before}{marker} {text[start:end]} {marker}{after}")
        length, done = length + len(parts[-1]), end
    return "".join([*parts, text[done:]]), places


@dataclass(frozen=True)
class MentionRow:
    """A text with marked entities as a row of a model's inputs; `values` is None if its spans are cut off."""

    values: dict[str, list] | None
    was_cut: bool

    def __len__(self) -> int:
        return len(self.values["input_ids"]) if self.values else 0


def mention_rows(
    tokenizer: Any, texts: Sequence[str], spans: Sequence[Any], markers: Sequence[str] | None, max_length: int | None
) -> list[MentionRow]:
    """Return each text with its one or two entities marked, cut to `max_length` tokens.

    With `markers` a row has entity_start_positions, the columns of the markers before the entities; without, it has the
    entities that LUKE's tokenizer makes, and its own markers.

    Raises ValueError, without `markers`, unless the tokenizer is LUKE's for this number of entities.
    """
    pairs = zip(texts, spans, strict=True)
    both = [(text, []) if markers is None else marked(text, each, markers) for text, each in pairs]

    def encoded(numbers: Sequence[int], **cut: Any) -> Any:
        entities = {"entity_spans": [list(spans[number]) for number in numbers]} if markers is None else {}
        return tokenizer([both[number][0] for number in numbers], **entities, **cut)

    batch, found = encoded(range(len(texts)), truncation=False), []
    for number, (text, places) in enumerate(both):
        rows, row = batch, number
        was_cut = max_length is not None and len(batch["input_ids"][number]) > max_length
        if was_cut:
            rows, row = encoded([number], truncation=True, max_length=max_length), 0
        values = {name: column[row] for name, column in rows.items()}
        if markers is None:
            is_whole = len(values["entity_ids"]) == len(spans[number])
        else:
            starts, _ = token_ends(text, offsets_of(rows.encodings[row]))
            is_whole = all(place in starts for ends in places for place in ends)
            values["entity_start_positions"] = [starts.get(place, -1) for place, _ in places]
        found.append(MentionRow(values if is_whole else None, was_cut))
    return found


def without_task(tokenizer: Any) -> Any:
    """Return LUKE's tokenizer as one that takes only texts; return any other tokenizer unchanged."""
    if getattr(tokenizer, "task", None) is None:
        return tokenizer
    plain = copy.copy(tokenizer)
    plain.task = None
    return plain


def offsets_of(encoding: Encoding) -> list[Span]:
    """Return (first, last + 1) character of each token, OUTSIDE for special ones."""
    special = encoding.special_tokens_mask
    return [OUTSIDE if mark else span for mark, span in zip(special, encoding.offsets, strict=True)]


def token_ends(text: str, offsets: Iterable[Sequence[int]]) -> tuple[dict[int, int], dict[int, int]]:
    """Return the first column whose token starts at a character, and the last whose token ends before one.

    White space at the start of a token does not count, so that a token of nothing else starts where the next one does.
    Columns that are OUTSIDE are left out.
    """
    starts: dict[int, int] = {}
    ends: dict[int, int] = {}
    for column, (start, end) in enumerate(offsets):
        while 0 <= start < end and text[start].isspace():
            start += 1
        if start >= 0:
            starts.setdefault(int(start), column)
        if start < end:
            ends[int(end)] = column
    return starts, ends


class Candidates(NamedTuple):
    """The spans of a text that may be entities: their characters, and the columns of their first and last tokens."""

    spans: list[Span]
    starts: list[int]
    ends: list[int]


def candidates(text: str, offsets: Sequence[Sequence[int]], width: int) -> Candidates:
    """Return all spans of at most `width` words that begin and end with a token.

    `offsets` are the characters of each column's token, OUTSIDE for special ones.
    """
    starts, ends = token_ends(text, offsets)
    found = Candidates([], [], [])
    if not ends:
        return found
    first, last = min(starts), max(ends)  # a character more on each side shows whether a word goes on there
    words = [word.span() for word in WORD.finditer(text, max(0, first - 1), last + 1) if word.start() >= first]
    for number, (start, _) in enumerate(words):
        for _, end in words[number : number + width] if start in starts else ():
            if end in ends:
                found.spans.append((start, end))
                found.starts.append(starts[start])
                found.ends.append(ends[end])
    return found


def span_arrays(
    starts: Sequence[Sequence[int]], ends: Sequence[Sequence[int]], entities: Mapping[str, int] | None
) -> dict[str, np.ndarray]:
    """Return the inputs of the spans of a batch, (rows, spans), filled with -1.

    `starts` and `ends` are the columns of the spans' first and last tokens; `entities` is `entities_of` for LUKE.
    """
    shape = len(starts), max(1, *map(len, starts))
    first, last = np.full((2, *shape), -1, np.int64)
    for row, (some, others) in enumerate(zip(starts, ends, strict=True)):
        first[row, : len(some)], last[row, : len(others)] = some, others
    arrays = {"entity_start_positions": first, "entity_end_positions": last}
    if entities is None:
        return arrays
    real = first >= 0
    positions = first[..., None] + np.arange(entities["longest"])
    return arrays | {
        "entity_ids": np.where(real, entities["mask"], 0),
        "entity_attention_mask": real.astype(np.int64),
        "entity_position_ids": np.where(real[..., None] & (positions <= last[..., None]), positions, -1),
    }


def entities_of(tokenizer: Any) -> dict[str, int]:
    """Return the argument `entities` of `span_arrays` for LUKE's tokenizer. Raises ValueError without entities."""
    if not getattr(tokenizer, "entity_vocab", None):
        raise ValueError("tokenizer has no entity_vocab, expected LUKE's, with entity_vocab.json in its folder")
    return {"mask": tokenizer.special_entity_ids["entity_mask_token"], "longest": tokenizer.max_mention_length}


def apart(spans: Sequence[Span], scores: Sequence[float], *, nested: bool = False, several: bool = False) -> list[int]:
    """Return which spans to keep so that none overlap: the highest scores first (Yamada et al. 2020, section 4.3).

    With `nested` one span may lie within another; with `several` equal spans are all kept. If scores are equal, the
    first span wins. The result is in the order of the spans' starts.
    """
    most = max((end for _, end in spans), default=0)
    kept: list[int] = []
    chosen: set[Span] = set()
    taken = np.zeros(most, bool)
    longest = np.zeros(most, np.int64)  # the end of the longest kept span that begins at each place
    earliest = np.full(most, most)  # the start of the longest kept span that ends with each place
    for number in sorted(range(len(spans)), key=lambda each: -scores[each]):
        start, end = spans[number]
        if (start, end) in chosen:
            fits = several
        elif nested:
            fits = bool((earliest[start : end - 1] >= start).all() and (longest[start + 1 : end] <= end).all())
        else:
            fits = not taken[start:end].any()
        if fits:
            kept.append(number)
            chosen.add((start, end))
            taken[start:end] = True
            longest[start], earliest[end - 1] = max(longest[start], end), min(earliest[end - 1], start)
    return sorted(kept, key=lambda number: spans[number][0])


PROMPTED_WORD = re.compile(r"\w+(?:[-_]\w+)*|\S")
MARKS = "[FLERT]", "<<ENT>>", "<<SEP>>"  # GLiNER adds these to a tokenizer; a model may rename the last two


def split_words(text: str) -> Iterator[tuple[int, int]]:
    """Yield (first, last + 1) character of each word: letters and digits, joined by - and _, or another character."""
    return (match.span() for match in PROMPTED_WORD.finditer(text))


@dataclass(frozen=True)
class PromptedText:
    """A text behind its labels as token ids.

    `words` has the numbers of the text's words: first those that were read, then those that were not, because they have
    no tokens (control characters) or lie beyond the model's limit.
    """

    input_ids: list[int]
    words_mask: list[int]  # 1, 2, ... at the token whose state stands for the first word read, the second one, ...
    words: list[int]
    was_cut: bool  # there were more words

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
    def of(cls, tokenizer: Tokenizer, spec: Any, positions: int | None) -> Self:
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

    def _read(self, prompt: int, words: int, ids: list[int], encoding: Encoding) -> PromptedText:
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
