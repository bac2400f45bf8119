"""LUKE's tokenizer: beside the text's tokens, the entities mentioned in it (Yamada et al. 2020,
https://arxiv.org/abs/2010.01057), with the names and results of transformers."""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from bertcore.arguments import check_count, warn_caller
from bertcore.checkpoint.files import CheckpointError, read_json_object

from .batch import BatchEncoding
from .errors import WrongSetting
from .mentions import MARKERS, TASKS, EntityRow, Mentions, Span, read_mentions
from .options import Padding, Truncation, check_tensors
from .settings import TokenizerSettings
from .texts import Texts, read_texts
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    from .backend import Built

ENTITY_VOCABULARY_NAME = "entity_vocab.json"
SPECIAL_ENTITIES = {
    "entity_unk_token": "[UNK]", "entity_pad_token": "[PAD]", "entity_mask_token": "[MASK]",
    "entity_mask2_token": "[MASK2]",
}  # fmt: skip


class LukeTokenizer(Tokenizer):
    """A tokenizer that also takes entities; `save_pretrained` writes entity_vocab.json, too, where there is one.

    Attributes:
        entity_vocab: entity name -> id, from entity_vocab.json; empty when the folder has none.
        task: None, "entity_classification", "entity_pair_classification" or "entity_span_classification"; of
            tokenizer_config.json, or given to `AutoTokenizer.from_pretrained`.
        max_entity_length: the most entities of a row. max_mention_length: the most tokens of an entity.
    """

    def __init__(self, built: "Built", settings: TokenizerSettings, folder: Path):
        super().__init__(built, settings)
        stated = settings.entities
        self.task = stated.get("task")
        if self.task not in TASKS:
            expected = ", ".join(map(repr, TASKS))
            raise WrongSetting("task", f"task is {self.task!r}, expected one of {expected}")
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
        entity_spans=None,
        entity_spans_pair=None,
        entities=None,
        entities_pair=None,
        *,
        max_entity_length: int | None = None,
        **options,
    ) -> BatchEncoding:
        """Token ids as `Tokenizer.__call__` gives them, and entities where there are any.

        Args:
            entity_spans, entity_spans_pair: for each text a list of (first, last + 1) characters; for one text just
                the list. The task entity_classification takes one span, entity_pair_classification two that do not
                overlap, and marks them in the text.
            entities, entities_pair: for each span the entity's name in entity_vocab; None: the entity is masked.
            max_entity_length: the most entities of a row when truncation is on, and the length that
                padding="max_length" fills up to; None means the tokenizer's own.
            options: those of `Tokenizer.__call__`; with entities not stride, is_split_into_words,
                return_overflowing_tokens, return_offsets_mapping and padding_side="left".

        Returns entity_ids, entity_position_ids (the positions of each entity's tokens, -1 where there are no more),
        entity_attention_mask, with token types entity_token_type_ids, and for the task entity_span_classification
        entity_start_positions and entity_end_positions. An entity whose tokens truncation cuts off is left out, with a
        warning.

        Raises TypeError and ValueError for spans that lie outside their text, and the like.
        """
        if self.task is None and all(one is None for one in (entity_spans, entity_spans_pair, entities, entities_pair)):
            return super().__call__(text, text_pair, **options)
        texts = read_texts(text, text_pair, False)
        if not self.entity_vocab:
            raise ValueError(f"entities need the file {ENTITY_VOCABULARY_NAME}, which this tokenizer's folder lacks")
        if not texts.batched:
            given = (entity_spans, entity_spans_pair, entities, entities_pair)
            entity_spans, entity_spans_pair, entities, entities_pair = (one if one is None else [one] for one in given)
        if self.task is not None and entity_spans is None:
            raise ValueError(f"entity_spans is None; the task {self.task!r} needs them")
        first = self._mentions("entity_spans", texts.first, entity_spans, entities)
        second = self._mentions("entity_spans_pair", texts.second or [], entity_spans_pair, entities_pair)
        if max_entity_length is not None:
            check_count("max_entity_length", max_entity_length, 1)
        return self._with_entities(texts, first, second, max_entity_length or self.max_entity_length, **options)

    def _mentions(self, argument: str, texts: list[str], spans, names) -> list[Mentions]:
        def entity_id(name: str) -> int:
            return self.entity_vocab.get(name, self._entity_ids["entity_unk_token"])

        task = self.task if argument == "entity_spans" else None
        return read_mentions(argument, texts, spans, names, task, entity_id, self._entity_ids)

    def _with_entities(
        self,
        texts: Texts,
        first: list[Mentions],
        second: list[Mentions],
        most: int,
        *,
        add_special_tokens: bool = True,
        padding: bool | str = False,
        truncation: bool | str | None = None,
        max_length: int | None = None,
        pad_to_multiple_of: int | None = None,
        padding_side: str | None = None,
        return_tensors: str | None = None,
        return_token_type_ids: bool | None = None,
        return_attention_mask: bool | None = None,
        return_special_tokens_mask: bool = False,
        return_length: bool = False,
    ) -> BatchEncoding:
        check_tensors(return_tensors)
        cut, fill = self._limits(
            texts.second is not None, add_special_tokens, padding, truncation, max_length, 0, pad_to_multiple_of,
            padding_side,
        )  # fmt: skip
        if fill.strategy and fill.side == "left":
            raise ValueError("padding_side is 'left'; entities' positions count from a row's first column: 'right'")
        columns = [self._tokenized(texts.first, first)]
        if texts.second is not None:
            columns.append(self._tokenized(texts.second, second))
        encodings, rows = [], []
        for number, parts in enumerate(zip(*columns, strict=True)):
            encodings.append(self._engine.post_process([part for part, _ in parts], cut, add_special_tokens))
            found = [mentions[number].ids for mentions in (first, second)[: len(parts)]]
            row = self._entity_row(encodings[-1], parts, found, cut)
            rows.append(EntityRow(row.ids[:most], row.spans[:most]) if cut else row)
        self._pad(encodings, fill)
        wanted = {
            "token_type_ids": return_token_type_ids, "attention_mask": return_attention_mask,
            "special_tokens_mask": return_special_tokens_mask, "length": return_length,
        }  # fmt: skip
        values = self._values(encodings, wanted) | self._entity_values(rows, fill, most, wanted)
        return self._result(values, encodings, return_tensors, flat=not texts.batched)

    def _tokenized(self, texts: list[str], mentions: list[Mentions]) -> list[tuple]:
        """Each text's encoding without special tokens, and the tokens [start, end) of its entities."""
        cut = [one.pieces(text) for text, one in zip(texts, mentions, strict=True)]
        inputs = [(piece,) for pieces, _ in cut for piece in pieces]
        encoded = iter(self._engine.encode(inputs, None, False))
        markers = [self._engine.encode([(getattr(self, name),)], None, False)[0] for name in MARKERS.get(self.task, ())]
        rows = []
        for (pieces, places), one in zip(cut, mentions, strict=True):
            rows.append(self._joined([next(encoded) for _ in pieces], places, one.spans, markers))
        return rows

    def _joined(self, pieces: list, places: list[int], spans: Sequence[Span], markers: list) -> tuple:
        """A text's pieces as one encoding, a marker before and after each span, and the spans' tokens with them."""
        ordered = sorted(spans)
        if markers and any(end > start for (_, end), (start, _) in pairwise(ordered)):
            raise ValueError(f"the entity_spans {ordered} overlap, expected apart for the task {self.task!r}")
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

    def _entity_row(self, encoding, parts, ids: list[list[int]], cut: Truncation | None) -> EntityRow:
        """The entities that are still there, their tokens counted from the row's start."""
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

    def _entity_values(self, rows: list[EntityRow], fill: Padding, most: int, wanted: dict) -> dict[str, list]:
        """The columns of the entities."""
        counts = [len(row.ids) for row in rows]
        length = None if fill.strategy is None else most if fill.strategy == "max_length" else max(counts, default=0)
        target = None if length is None else -(-length // fill.multiple) * fill.multiple
        pad_id = self._entity_ids["entity_pad_token"]
        values = [
            row.values(count if target is None else target, pad_id, self.max_mention_length)
            for row, count in zip(rows, counts, strict=True)
        ]
        names = ["entity_ids", "entity_position_ids"]
        if self.task == "entity_span_classification":
            names += ["entity_start_positions", "entity_end_positions"]
        for name in ("token_type_ids", "attention_mask"):
            names += [f"entity_{name}"] if self._wanted(name, wanted[name]) else []
        return {name: [row[name] for row in values] for name in names}


def _stated_count(stated: Mapping, name: str, default: int) -> int:
    """A setting that is a number of entities or tokens."""
    try:
        return check_count(name, stated.get(name, default))
    except (TypeError, ValueError) as error:
        raise WrongSetting(name, str(error)) from error


def _read_entities(file: Path, special: Mapping[str, str]) -> dict[str, int]:
    """The ids of the entities in `file`; none when it is not there. CheckpointError when a special one is missing."""
    if not file.is_file():
        return {}
    found = read_json_object(file)
    if not all(type(number) is int and number >= 0 for number in found.values()):
        raise CheckpointError(f"{file} is no object of ids by entity")
    missing = [entity for entity in special.values() if entity not in found]
    if missing:
        raise CheckpointError(f"{file} lacks the special entities {', '.join(missing)}")
    return found
