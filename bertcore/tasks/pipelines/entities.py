"""Marked entities: their types, the relation of a pair, and the named entities of a text, found span by span."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from bertcore import kernels
from bertcore.arguments import check_count, check_share
from bertcore.checkpoint import CheckpointError
from bertcore.models import entities
from bertcore.tasks.long_texts import Cutting, Text, Window
from bertcore.tasks.pipelines.base import Answers, Arrays, CallOptions, ItemText, Pipeline, listed_names
from bertcore.tasks.pipelines.classification import BEST_ALONE, ClassificationOptions
from bertcore.tasks.sequence_scores import FUNCTIONS, best_labels, published_function, softmax
from bertcore.tasks.texts import checked_text, too_long
from bertcore.tokenization import mentions as marked
from bertcore.tokenization.tokenizer import Tokenizer

WIDEST_OF_LUKE = 16  # words of a span, as in its training (Yamada et al. 2020, section 4.3)


class _EntityPipeline(Pipeline):
    @classmethod
    def _tokenizer_options(cls, model: Any) -> dict[str, Any]:
        return {"task": marked.LUKE_TASKS[cls.task]} if model.takes_entities else {}

    def __init__(self, model: entities.AutoModelForEntityClassification, tokenizer: Tokenizer, **options: Any):
        super().__init__(model, tokenizer, **options)
        self._entities = None
        if model.takes_entities:
            self._entities = marked.entities_of(tokenizer)
            if tokenizer.task != marked.LUKE_TASKS[self.task]:
                expected = f"{marked.LUKE_TASKS[self.task]!r}: AutoTokenizer.from_pretrained(folder, task=...)"
                raise ValueError(f"tokenizer has the task {tokenizer.task!r}, expected {expected}")


@dataclass(frozen=True)
class MentionOptions(ClassificationOptions):
    """Options of a call, in addition to `ClassificationOptions`, without those of windows and calibration.

    Attributes:
        threshold: for a multi-label model, the minimum probability of a label; by default 0.5, unless `top_k` is given.
        truncation: as in `CallOptions`, except "chunk"; a text whose spans are cut off is rejected.
    """

    threshold: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threshold is not None:
            check_share("threshold", self.threshold)
        if self.truncation == "chunk" or self.calibration is not None or self.merge != "mean":
            raise ValueError("truncation='chunk', merge or calibration is given, expected none of them")


@dataclass(frozen=True)
class _Mention(Text):
    """A text with its marked spans."""

    spans: tuple[marked.Span, ...] = ()


class EntityClassificationPipeline(_EntityPipeline):
    """Predict the type of an entity in a text: {"label", "score"}, or with `top_k` a list of them, best first.

    An input is {"text", "spans": [[first, last + 1]]}, in characters; other keys are ignored. A multi-label model
    (problem_type "multi_label_classification") answers with the list of labels above the `threshold`. Options:
    `MentionOptions`.
    """

    task = "entity-classification"
    options_class = MentionOptions
    model_classes = (entities.AutoModelForEntityClassification,)
    _head = "classifier of entities"
    _keys = "text", "spans"
    count: ClassVar[int] = 1  # entities of an input

    def __init__(self, model: entities.AutoModelForEntityClassification, tokenizer: Tokenizer, **options: Any):
        super().__init__(model, tokenizer, **options)
        self._markers = None if model.takes_entities else self._read_markers()

    def _read_markers(self) -> tuple[str, ...]:
        stated = self.model.config.get("entity_markers")
        if stated is None:
            return marked.find_markers(self.tokenizer, self.count)
        are_texts = isinstance(stated, list) and all(isinstance(each, str) and each.strip() for each in stated)
        if not are_texts or len(stated) != self.count:
            raise CheckpointError(f"config: entity_markers is {stated!r:.60}, expected {self.count} strings")
        return tuple(stated)

    def _texts(self, item: object, name: str, options: MentionOptions | None) -> list[Text]:
        if not isinstance(item, Mapping):
            raise TypeError(f"{name} is {type(item).__name__}, expected {self._expected()}")
        missing = [key for key in self._keys if key not in item]
        if missing:
            raise ValueError(f"{name} has no {missing[0]!r}, it has {listed_names(item)}")
        text = checked_text(f"{name}['text']", item["text"])
        try:
            return [_Mention(text, spans=tuple(marked.checked_spans(item["spans"], text, self.count)))]
        except (TypeError, ValueError) as error:
            raise type(error)(f"{name}: {error}") from error

    @property
    def plain_tokenizer(self) -> Tokenizer:
        return marked.without_task(self.tokenizer)

    def length_of(self, item: object, name: str = "inputs") -> int:
        """Return the number of tokens of an input, uncut. Raises TypeError or ValueError as a call does."""
        (mention,) = self._texts(item, name, None)
        (row,) = marked.mention_rows(self.tokenizer, [mention.first], [mention.spans], self._markers, None)
        return len(row)

    def _rows(self, texts: Sequence[ItemText], cutting: Cutting) -> Iterator[tuple[Iterator[Any], bool]]:
        given = [each.text.first for each in texts], [each.text.spans for each in texts]
        rows = marked.mention_rows(self.tokenizer, *given, self._markers, cutting.max_length)
        for each, row in zip(texts, rows, strict=True):
            if row.was_cut and cutting.truncation == "error":
                raise too_long(each.name, f"{cutting.max_length} tokens")
            if row.values is None:
                expected = f"expected them within the first {cutting.max_length} tokens"
                raise ValueError(f"{each.name} has spans in the part of the text that is cut off, {expected}")
            yield iter([row]), row.was_cut

    def _arrays(self, found: Sequence[Any], least: int = 0) -> dict[str, np.ndarray]:
        width = max(least, *map(len, found))
        options = {"padding": "max_length", "max_length": width, "padding_side": "right"}
        rows = [{name: row.values[name] for name in row.values if not name.startswith("entity_")} for row in found]
        arrays = dict(self.tokenizer.pad(rows, **options, return_attention_mask=True, return_tensors="np"))
        names = found[0].values.keys() - rows[0].keys()
        return arrays | {name: np.array([row.values[name] for row in found], np.int64) for name in names}

    def _read(self, windows: Sequence[Window], arrays: Arrays, options: MentionOptions) -> Sequence[Any]:
        published = published_function(self.model.config.get("problem_type"), len(self.id2label))
        logits = kernels.to_host(self.model(**arrays).logits)
        return list(FUNCTIONS[options.function_to_apply or published](logits))

    def _answer(self, item: object, name: str, kept: list[list[Any]], options: MentionOptions) -> Answers:
        ((scores,),) = kept
        ranked = best_labels(scores, self.id2label)
        threshold, top_k = options.threshold, options.top_k
        if threshold is None and top_k == BEST_ALONE:
            if self.model.config.get("problem_type") != "multi_label_classification":
                return ranked[0]
            threshold = 0.5
        above = [each for each in ranked if threshold is None or each["score"] >= threshold]
        return above if top_k == BEST_ALONE else above[:top_k]


class RelationExtractionPipeline(EntityClassificationPipeline):
    """Predict the relation of two entities in a text: {"label", "score"}, or with `top_k` a list of them, best first.

    An input is {"text", "spans": [head, tail]}, [first, last + 1] characters each; otherwise as for
    `EntityClassificationPipeline`.
    """

    task = "relation-extraction"
    model_classes = (entities.AutoModelForEntityPairClassification,)
    _head = "classifier of pairs of entities"
    count = 2


@dataclass(frozen=True)
class SpanNerOptions(CallOptions):
    """Options of a call, in addition to `CallOptions`; every span of a few words is scored, so batches are smaller.

    Attributes:
        threshold: the minimum probability of an entity.
        max_span_width: the maximum number of words of an entity; by default the config's, else 8 (16 for LUKE).
        batch_tokens: 1024 by default.
    """

    threshold: float = 0.0
    max_span_width: int | None = None
    batch_tokens: int = 1024

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share("threshold", self.threshold)
        if self.max_span_width is not None:
            check_count("max_span_width", self.max_span_width)


class SpanNerPipeline(_EntityPipeline):
    """Find the entities of each text: {"entity_group", "score", "word", "start", "end"} each, in their order.

    Answers have the form of token classification. Every span of at most `max_span_width` words is scored; among
    overlapping spans the highest logit wins, as in LUKE's evaluation (Yamada et al. 2020, section 4.3). A text that is
    read in windows ("chunk") has the entities of all windows. Options: `SpanNerOptions`.
    """

    task = "span-ner"
    options_class = SpanNerOptions
    model_classes = (entities.AutoModelForEntitySpanClassification,)
    _head = "classifier of spans"
    _keys = ("text",)

    def __init__(self, model: entities.AutoModelForEntityClassification, tokenizer: Tokenizer, **options: Any):
        super().__init__(model, tokenizer, **options)
        names = [number for number, name in self.id2label.items() if name in (marked.NONE, "O")]
        if len(names) != 1:
            listed = ", ".join(self.id2label.values())
            expected = f"one class {marked.NONE} (or O), of spans without entities"
            raise ValueError(f"id2label has {listed:.200}, expected {expected}")
        (self._none,) = names
        self.tokenizer = marked.without_task(tokenizer)
        stated = model.config.get("max_span_width", WIDEST_OF_LUKE if model.takes_entities else marked.WIDEST)
        try:
            self._width = check_count("max_span_width", stated)
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"config: {error}") from error

    def _expected(self) -> str:
        return f"a string or {super()._expected()}"

    def _texts(self, item: object, name: str, options: SpanNerOptions) -> list[Text]:
        if isinstance(item, Mapping) and "text" not in item:
            raise ValueError(f"{name} has no 'text', it has {listed_names(item)}")
        return super()._texts(_text_of(item), name, options)

    def _read(self, windows: Sequence[Window], arrays: Arrays, options: SpanNerOptions) -> Sequence[Any]:
        found = [self._candidates(window, options) for window in windows]
        most = None if self._entities is None else marked.MOST_SPANS
        groups = [
            (row, slice(first, first + (most or len(each.spans))))
            for row, each in enumerate(found)
            for first in range(0, len(each.spans), most or len(each.spans) or 1)
        ]
        kept: list[list[tuple[marked.Span, float, float, int]]] = [[] for _ in windows]
        for first in range(0, len(groups), len(windows)):
            some = groups[first : first + len(windows)]
            rows = [row for row, _ in some]
            spans = ([getattr(found[row], ends)[part] for row, part in some] for ends in ("starts", "ends"))
            batch = {name: array[rows] for name, array in arrays.items()} | marked.span_arrays(*spans, self._entities)
            logits = kernels.to_host(self.model(**batch).logits)
            for (row, part), scores in zip(some, logits, strict=True):
                kept[row] += self._entities_of(found[row].spans[part], scores)
        return kept

    def _candidates(self, window: Window, options: SpanNerOptions) -> marked.Candidates:
        inside = set(window.content.tolist())
        offsets = window.offsets.tolist()
        spans = [offsets[column] if column in inside else marked.OUTSIDE for column in range(len(window))]
        return marked.candidates(window.text, spans, options.max_span_width or self._width)

    def _entities_of(self, spans: Sequence[marked.Span], logits: np.ndarray) -> Iterator[tuple[Any, float, float, int]]:
        """Yield (characters, logit, probability, class) of the spans that are entities."""
        logits = logits[: len(spans)]
        chances, kinds = softmax(logits), logits.argmax(axis=1)
        for number in np.flatnonzero(kinds != self._none).tolist():
            kind = int(kinds[number])
            yield spans[number], float(logits[number, kind]), float(chances[number, kind]), kind

    def _answer(self, item: Any, name: str, kept: list[list[Any]], options: SpanNerOptions) -> list[dict[str, Any]]:
        found = [each for window in kept[0] for each in window if each[2] >= options.threshold]
        answers = []
        for number in marked.apart([span for span, *_ in found], [logit for _, logit, *_ in found]):
            (start, end), _, score, kind = found[number]
            about = {"entity_group": self.id2label[kind], "score": score, "word": _text_of(item)[start:end]}
            answers.append(about | {"start": start, "end": end})
        return answers


def _text_of(item: object) -> Any:
    return item["text"] if isinstance(item, Mapping) else item
