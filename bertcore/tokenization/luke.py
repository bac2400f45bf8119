"""LUKE's tokenizer: the tokens of a text and the entities mentioned in it, as in transformers.

Source: Yamada et al. 2020, https://arxiv.org/abs/2010.01057.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertcore.arguments import check_count, warn_caller
from bertcore.checkpoint.files import CheckpointError, read_json_object

from .inputs import BatchEncoding, CallOptions, Padding, Texts, Truncation, read_texts
from .settings import TokenizerSettings, WrongSetting
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    from tokenizers import Encoding

    from .backend import Built

Span = tuple[int, int]

ENTITY_VOCABULARY_NAME = "entity_vocab.json"
SPECIAL_ENTITIES = {f"entity_{name}_token": f"[{name.upper()}]" for name in ("unk", "pad", "mask", "mask2")}
# Entities that stand for mentions without a name, by task; the default is entity_mask_token.
MASKS = {"entity_pair_classification": ("entity_mask_token", "entity_mask2_token")}
# The markers around each mention, by task; their number is the number of mentions that the task takes.
MARKERS = {
    "entity_classification": ("entity_1_token",),
    "entity_pair_classification": ("entity_1_token", "entity_2_token"),
}
TASKS = (None, *MARKERS, "entity_span_classification")
WITHOUT_ENTITIES = ("stride", "is_split_into_words", "return_overflowing_tokens", "return_offsets_mapping")


@dataclass(frozen=True)
class Mentions:
    """The entities of one text: characters [start, end) of each, and its id in the entity vocabulary."""

    spans: Sequence[Span] = ()
    ids: Sequence[int] = ()

    def pieces(self, text: str) -> tuple[list[str], list[int]]:
        """Cut the text at every start and end; return the pieces and the places of the cuts.

        The space before a start or an end belongs to the piece that follows, as it does to byte-level tokens.
        """
        places = sorted({place for span in self.spans for place in span})
        cuts = [place - (place > 0 and text[place - 1] == " ") for place in places]
        return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)], places


@dataclass(frozen=True)
class EntityRow:
    """The entities of one row of a batch: their ids, and the positions of their tokens, [start, end) each."""

    ids: list[int]
    spans: list[Span]

    def values(self, length: int, pad_id: int, most_tokens: int) -> dict[str, list]:
        """Return the model's inputs, padded to `length` entities; transformers' names and values."""
        missing = length - len(self.ids)
        positions = [list(range(start, end))[:most_tokens] for start, end in self.spans] + [[]] * missing
        return {
            "entity_ids": self.ids + [pad_id] * missing,
            "entity_position_ids": [row + [-1] * (most_tokens - len(row)) for row in positions],
            "entity_start_positions": [start for start, _ in self.spans] + [0] * missing,
            "entity_end_positions": [end - 1 for _, end in self.spans] + [0] * missing,
            "entity_token_type_ids": [0] * length,
            "entity_attention_mask": [1] * len(self.ids) + [0] * missing,
        }


class LukeTokenizer(Tokenizer):
    """A tokenizer that also takes entities; `save_pretrained` also writes entity_vocab.json if the folder had one.

    Attributes:
        entity_vocab: entity name -> id, from entity_vocab.json; empty if the folder has none.
        task: None, "entity_classification", "entity_pair_classification" or "entity_span_classification"; from
            tokenizer_config.json, or given to `AutoTokenizer.from_pretrained`.
        max_entity_length: the most entities of a row.
        max_mention_length: the most tokens of an entity.
    """

    def __init__(self, built: "Built", settings: TokenizerSettings, folder: Path):
        super().__init__(built, settings)
        stated = settings.entities
        self.task = stated.get("task")
        if self.task not in TASKS:
            raise WrongSetting("task", f"task is {self.task!r}, expected one of {', '.join(map(repr, TASKS))}")
        most = _stated_count(stated, "max_entity_length", 32)
        self.max_entity_length = len(MARKERS[self.task]) if self.task in MARKERS else most
        self.max_mention_length = _stated_count(stated, "max_mention_length", 30)
        self._widths |= {"entity_position_ids": self.max_mention_length}
        names = {name: built.special_tokens.get(name, usual) for name, usual in SPECIAL_ENTITIES.items()}
        self.entity_vocab = _read_entities(folder / ENTITY_VOCABULARY_NAME, names)
        self._entity_ids = {name: self.entity_vocab.get(entity) for name, entity in names.items()}

    @property
    def special_entity_ids(self) -> dict[str, int]:
        """The ids of entity_unk_token, entity_pad_token, entity_mask_token and entity_mask2_token, by these names."""
        return dict(self._entity_ids)

    def _file_contents(self) -> dict[str, str]:
        contents = super()._file_contents()
        if self.entity_vocab:
            contents[ENTITY_VOCABULARY_NAME] = json.dumps(self.entity_vocab, ensure_ascii=False)
        return contents

    def __call__(
        self,
        text: str | list[str],
        text_pair: str | list[str] | None = None,
        entity_spans: list | None = None,
        entity_spans_pair: list | None = None,
        entities: list | None = None,
        entities_pair: list | None = None,
        *,
        max_entity_length: int | None = None,
        **options: Any,
    ) -> BatchEncoding:
        """Return token ids as `Tokenizer.__call__` does, and the entities.

        Args:
            text: as in `Tokenizer.__call__`.
            text_pair: likewise.
            entity_spans: for each text a list of (first, last + 1) characters; for one text just the list. The task
                entity_classification takes one span, entity_pair_classification two that do not overlap, and marks
                them in the text.
            entity_spans_pair: the spans of text_pair.
            entities: for each span the entity's name in entity_vocab; None: the entity is masked.
            entities_pair: the entities of text_pair.
            max_entity_length: the most entities of a row when truncation is on, and the length that
                padding="max_length" pads to; None means the tokenizer's own.
            **options: those of `Tokenizer.__call__`; with entities not stride, is_split_into_words,
                return_overflowing_tokens, return_offsets_mapping and padding_side="left".

        Returns entity_ids, entity_position_ids (the positions of each entity's tokens, then -1),
        entity_attention_mask, with token types entity_token_type_ids, and for the task entity_span_classification
        entity_start_positions and entity_end_positions. An entity whose tokens truncation cuts off is left out, with a
        warning.

        Raises TypeError and ValueError for wrong arguments, such as spans that lie outside their text.
        """
        given = (entity_spans, entity_spans_pair, entities, entities_pair)
        if self.task is None and all(one is None for one in given):
            return super().__call__(text, text_pair, **options)
        texts = read_texts(text, text_pair)
        if not self.entity_vocab:
            raise ValueError(f"entities need the file {ENTITY_VOCABULARY_NAME}, which this tokenizer's folder lacks")
        if not texts.batched:
            given = tuple(one if one is None else [one] for one in given)
        spans, spans_pair, names, names_pair = given
        if self.task is not None and spans is None:
            raise ValueError(f"entity_spans is None; the task {self.task!r} needs them")
        mentions = [self._mentions("entity_spans", texts.first, spans, names)]
        mentions.append(self._mentions("entity_spans_pair", texts.second or [], spans_pair, names_pair))
        if max_entity_length is not None:
            check_count("max_entity_length", max_entity_length, 1)
        if wrong := [name for name in WITHOUT_ENTITIES if name in options]:
            raise TypeError(f"{', '.join(wrong)} is given, which a call with entities does not support")
        return self._with_entities(texts, mentions, max_entity_length or self.max_entity_length, CallOptions(**options))

    def _with_entities(self, texts: Texts, mentions: list[Any], most: int, options: CallOptions) -> BatchEncoding:
        cut, fill = self._limits(options, pair=texts.second is not None)
        if fill.strategy and fill.side == "left":
            raise ValueError("padding_side is 'left', expected 'right': entity positions count from the first column")
        given = [texts.first] if texts.second is None else [texts.first, texts.second]
        columns = [self._tokenized(some, own) for some, own in zip(given, mentions, strict=False)]
        encodings, rows = [], []
        for number, parts in enumerate(zip(*columns, strict=True)):
            joined = [part for part, _ in parts]
            encodings.append(self._engine.post_process(joined, cut, options.add_special_tokens))
            found = [column[number].ids for column in mentions[: len(parts)]]
            row = _kept_entities(encodings[-1], parts, found, cut)
            rows.append(EntityRow(row.ids[:most], row.spans[:most]) if cut else row)
        self._pad(encodings, fill)
        values = self._values(encodings, options.columns) | self._entity_values(rows, fill, most, options.columns)
        return self._result(values, encodings, options.return_tensors, flat=not texts.batched)

    def _mentions(self, argument: str, texts: list[str], spans: list | None, names: list | None) -> list[Mentions]:
        """Return the entities of each text, checked; `argument` is the name of the spans in errors."""
        if spans is None:
            if names is not None:
                raise ValueError(f"entities are given without {argument}, expected both")
            return [Mentions() for _ in texts]
        task, found = self.task if argument == "entity_spans" else None, []
        _check_rows(argument, spans, texts)
        if names is not None:
            _check_rows("entities", names, texts)
        for row, text in enumerate(texts):
            where = f"{argument}[{row}]"
            checked = [_span(f"{where}[{number}]", span, text) for number, span in enumerate(spans[row])]
            wanted = len(MARKERS.get(task, checked))
            if len(checked) != wanted:
                raise ValueError(f"{where} has {len(checked)} spans, expected {wanted} for the task {task!r}")
            if names is None:
                ids = [self._entity_ids[name] for name in MASKS.get(task, ("entity_mask_token",) * len(checked))]
            else:
                unknown = self._entity_ids["entity_unk_token"]
                ids = [self.entity_vocab.get(name, unknown) for name in _names(row, names[row], len(checked))]
            found.append(Mentions(checked, ids))
        return found

    def _tokenized(self, texts: list[str], mentions: list[Mentions]) -> list[tuple["Encoding", list[Span]]]:
        """Return each text's encoding without special tokens, and the tokens [start, end) of its entities."""
        cut = [one.pieces(text) for text, one in zip(texts, mentions, strict=True)]
        inputs = [(piece,) for pieces, _ in cut for piece in pieces]
        encoded = iter(self._engine.encode(inputs, None, False))
        markers = [self._engine.encode([(getattr(self, name),)], None, False)[0] for name in MARKERS.get(self.task, ())]
        given = zip(cut, mentions, strict=True)
        return [self._joined([next(encoded) for _ in pieces], at, one.spans, markers) for (pieces, at), one in given]

    def _joined(
        self, pieces: list["Encoding"], places: list[int], spans: Sequence[Span], markers: list["Encoding"]
    ) -> tuple["Encoding", list[Span]]:
        """Join a text's pieces, with a marker before and after each span; also return the tokens of each span."""
        ordered = sorted(spans)
        if markers and any(end > start for (_, end), (start, _) in pairwise(ordered)):
            raise ValueError(f"the entity_spans {ordered} overlap, expected spans apart for the task {self.task!r}")
        around = [[marker] for marker in markers] or [[] for _ in spans]
        parts, starts, ends = [pieces[0]], {}, {}
        for place, piece in zip(places, pieces[1:], strict=True):
            for number, (start, end) in enumerate(spans):
                if start < end == place:
                    parts += around[number]
                    ends[number] = sum(map(len, parts))
            for number, (start, end) in enumerate(spans):
                if start == place:
                    starts[number] = sum(map(len, parts))
                    parts += around[number]
                if start == end == place:
                    parts += around[number]
                    ends[number] = sum(map(len, parts))
            parts.append(piece)
        return self._engine.merged(parts), [(starts[number], ends[number]) for number in range(len(spans))]

    def _entity_values(
        self, rows: list[EntityRow], fill: Padding, most: int, wanted: Mapping[str, bool | None]
    ) -> dict[str, list]:
        counts, pad_id = [len(row.ids) for row in rows], self._entity_ids["entity_pad_token"]
        lengths = [replace(fill, length=most).target(counts)] * len(rows) if fill.strategy else counts
        pairs = zip(rows, lengths, strict=True)
        values = [row.values(most_of, pad_id, self.max_mention_length) for row, most_of in pairs]
        names = ["entity_ids", "entity_position_ids"]
        if self.task == "entity_span_classification":
            names += ["entity_start_positions", "entity_end_positions"]
        for name in ("token_type_ids", "attention_mask"):
            names += [f"entity_{name}"] if self._wanted(name, wanted[name]) else []
        return {name: [row[name] for row in values] for name in names}


def _kept_entities(
    encoding: "Encoding", parts: Sequence[tuple["Encoding", list[Span]]], ids: list, cut: Truncation | None
) -> EntityRow:
    """Return the entities that truncation left, their tokens counted from the row's start; warn about the others."""
    row = EntityRow([], [])
    sequences = encoding.sequence_ids
    for number, (part, spans) in enumerate(parts):
        kept = sequences.count(number)
        offset = sequences.index(number) if kept else 0
        lost = len(part) - kept if cut and cut.side == "left" else 0
        for entity, (start, end) in zip(ids[number], spans, strict=True):
            if lost <= start and end - lost <= kept:
                row.ids.append(entity)
                row.spans.append((start - lost + offset, end - lost + offset))
    gone = sum(map(len, ids)) - len(row.ids)
    if gone:
        warn_caller(f"entities left out because truncation cut off their tokens: {gone}")
    return row


def _stated_count(stated: Mapping[str, Any], name: str, default: int) -> int:
    try:
        return check_count(name, stated.get(name, default))
    except (TypeError, ValueError) as error:
        raise WrongSetting(name, str(error)) from error


def _read_entities(file: Path, special: Mapping[str, str]) -> dict[str, int]:
    """Read the ids of the entities in `file`; {} without one. Raises CheckpointError if a special entity is missing."""
    if not file.is_file():
        return {}
    found = read_json_object(file)
    if not all(type(number) is int and number >= 0 for number in found.values()):
        raise CheckpointError(f"{file} has values other than ids, expected an object of ids by entity")
    missing = [entity for entity in special.values() if entity not in found]
    if missing:
        raise CheckpointError(f"{file} lacks the special entities {', '.join(missing)}")
    return found


def _check_rows(argument: str, rows: object, texts: list[str]) -> None:
    if not isinstance(rows, list | tuple) or not all(isinstance(row, list | tuple) for row in rows):
        raise TypeError(f"{argument} is {rows!r:.60}, expected a list for each text")
    if len(rows) != len(texts):
        raise ValueError(f"{argument} has {len(rows)} lists, expected {len(texts)}, one for each text")


def _span(name: str, span: object, text: str) -> Span:
    if not isinstance(span, list | tuple) or len(span) != 2 or not all(hasattr(place, "__index__") for place in span):
        raise TypeError(f"{name} is {span!r:.60}, expected the first and the last + 1 character of an entity")
    start, end = (place.__index__() for place in span)
    if not 0 <= start <= end <= len(text):
        raise ValueError(f"{name} is ({start}, {end}); the text has {len(text)} characters")
    return start, end


def _names(row: int, names: Sequence[Any], count: int) -> Sequence[str]:
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f"entities[{row}] is {names!r:.60}, expected names")
    if len(names) != count:
        raise ValueError(f"entities[{row}] has {len(names)} names for {count} spans")
    return names
