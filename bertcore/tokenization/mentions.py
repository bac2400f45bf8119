"""LUKE's entities in a text: which tokens each one covers, and the inputs that describe it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Span = tuple[int, int]

# The entity that stands for a mention without a name, by task; the second one of a pair has another.
MASKS = {"entity_pair_classification": ("entity_mask_token", "entity_mask2_token")}
# How many mentions a task takes, and the markers that go around each.
MARKERS = {
    "entity_classification": ("entity_1_token",),
    "entity_pair_classification": ("entity_1_token", "entity_2_token"),
}
TASKS = (None, *MARKERS, "entity_span_classification")


@dataclass(frozen=True)
class Mentions:
    """The entities of one text: characters [start, end) of each, and its id in the entity vocabulary."""

    spans: Sequence[Span] = ()
    ids: Sequence[int] = ()

    def pieces(self, text: str) -> tuple[list[str], list[int]]:
        """The text cut at every start and end, and the places of the cuts among the pieces.

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
        """What the model takes, filled up to `length` entities; transformers' names and values."""
        missing = length - len(self.ids)
        positions = [list(range(start, end))[:most_tokens] for start, end in self.spans]
        return {
            "entity_ids": self.ids + [pad_id] * missing,
            "entity_position_ids": [
                row + [-1] * (most_tokens - len(row)) for row in (*positions, *([] for _ in range(missing)))
            ],
            "entity_start_positions": [start for start, _ in self.spans] + [0] * missing,
            "entity_end_positions": [end - 1 for _, end in self.spans] + [0] * missing,
            "entity_token_type_ids": [0] * length,
            "entity_attention_mask": [1] * len(self.ids) + [0] * missing,
        }


def read_mentions(
    argument: str, texts: list[str], spans, names, task: str | None, entity_id: Callable[[str], int],
    special_ids: Mapping[str, int],
) -> list[Mentions]:  # fmt: skip
    """The entities of each text, checked; TypeError or ValueError naming the one that is wrong.

    spans, names: one list for each text, or None; `argument` is what the errors call the spans.
    """
    if spans is None:
        if names is not None:
            raise ValueError(f"entities are given without {argument}")
        return [Mentions() for _ in texts]
    _check_rows(argument, spans, texts)
    if names is not None:
        _check_rows("entities", names, texts)
    found = []
    for row, text in enumerate(texts):
        where = f"{argument}[{row}]"
        checked = [_span(f"{where}[{number}]", span, text) for number, span in enumerate(spans[row])]
        wanted = len(MARKERS.get(task, checked))
        if len(checked) != wanted:
            raise ValueError(f"{where} has {len(checked)} spans, expected {wanted} for the task {task!r}")
        if names is None:
            masks = MASKS.get(task, ("entity_mask_token",) * len(checked))
            ids = [special_ids[name] for name in masks]
        else:
            ids = _named(row, names[row], checked, entity_id)
        found.append(Mentions(checked, ids))
    return found


def _check_rows(argument: str, rows, texts: list[str]) -> None:
    if not isinstance(rows, list | tuple) or not all(isinstance(row, list | tuple) for row in rows):
        raise TypeError(f"{argument} is {rows!r:.60}, expected a list for each text")
    if len(rows) != len(texts):
        raise ValueError(f"{argument} has {len(rows)} lists, expected {len(texts)}, one for each text")


def _span(name: str, span, text: str) -> Span:
    if not isinstance(span, list | tuple) or len(span) != 2 or not all(hasattr(place, "__index__") for place in span):
        raise TypeError(f"{name} is {span!r:.60}, expected the first and the last + 1 character of an entity")
    start, end = (place.__index__() for place in span)
    if not 0 <= start <= end <= len(text):
        raise ValueError(f"{name} is ({start}, {end}); the text has {len(text)} characters")
    return start, end


def _named(row: int, names, spans: list[Span], entity_id: Callable[[str], int]) -> list[int]:
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f"entities[{row}] is {names!r:.60}, expected names")
    if len(names) != len(spans):
        raise ValueError(f"entities[{row}] has {len(names)} names for {len(spans)} spans")
    return [entity_id(name) for name in names]
