"""Examples of spans of texts: entities, their types and relations, and answers to questions.

A long text becomes windows with the place of the answer, and answers are read from scores.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, tee
from typing import Any

import numpy as np

from bertcore.kernels import checks
from bertcore.tokenization import mentions as marked
from bertcore.tokenization.tokenizer import Tokenizer
from bertcore.training import metrics
from bertcore.training.collators import IGNORED, DataCollatorWithPadding, is_cut
from bertcore.training.data.files import NewExamples, Rows, text_of, wrong_record
from bertcore.training.data.labelled import AT_ONCE, LabelledTexts, check_known

COUNTS = {"entity-classification": 1, "relation-extraction": 2}  # of spans
NO_RELATION = "no_relation"  # of pairs without a relation (TACRED)
QUESTIONS_AT_ONCE = 64  # tokenised together
BEST = 20  # the best starts and ends of an answer, which are tried in all pairs
EXPECTED_SPANS = "[[first, last + 1, label], ...], characters of the text"
Examples = Sequence[Mapping[str, Any]]
Spans = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class LabelledMentions:
    """Texts with one or two marked entities and a label: {"text", "spans": [[first, last + 1], ...], "label"}.

    Attributes:
        texts: the columns of texts and labels; a label is a class, or a list of any number of them.
        task: "entity-classification" of one span, or "relation-extraction" of a first (head) and a second (tail).
        negative: the class for no type or no relation, which F1 leaves out; None without one.
    """

    texts: LabelledTexts
    task: str
    negative: str | None = None

    @classmethod
    def found_in(
        cls, records: Rows, task: str, text: str = "text", label: str = "label", *, negative: str | None = None
    ) -> LabelledMentions:
        """Return the columns with the labels in the records, which are all read once.

        For pairs, `negative` is "no_relation" by default if that is a label.

        Raises ValueError for another task, a `negative` that is not a label, and as `LabelledTexts.found_in` does.
        """
        checks.choice("task", task, tuple(COUNTS))
        texts = LabelledTexts.found_in(records, text, None, label, kind="classes")
        if negative is None and COUNTS[task] == 2 and NO_RELATION in texts.labels:
            negative = NO_RELATION
        if negative is not None and negative not in texts.labels:
            known = ", ".join(texts.labels)
            raise ValueError(f"negative (--negative-label) is {negative!r}, expected one of the labels {known:.200}")
        return cls(texts, task, negative)

    @property
    def labels(self) -> tuple[str, ...]:
        return self.texts.labels

    @property
    def is_multiple(self) -> bool:
        return self.texts.is_multiple

    @property
    def count(self) -> int:
        return COUNTS[self.task]

    @property
    def model_class(self) -> str:
        return f"AutoModelForEntity{'Pair' if self.count == 2 else ''}Classification"

    def config(self, tokenizer: Tokenizer) -> dict[str, Any]:
        markers = None if has_entities(tokenizer) else list(marked.find_markers(tokenizer, self.count))
        return {"problem_type": self.texts.problem_type} | ({} if markers is None else {"entity_markers": markers})

    def examples(self, records: Rows, tokenizer: Tokenizer, *, max_length: int | None = None) -> NewExamples:
        """Yield an example of each record, cut to `max_length` tokens (by default the tokenizer's limit).

        Raises:
            MalformedRecord (a ValueError): naming a record that lacks a column, has an unknown label, or has spans that
                are too few or many, outside the text, overlapping or cut off.
            ValueError: for a tokenizer that pads on the left, or has no entity markers.
        """
        check_side(tokenizer)
        markers = None if has_entities(tokenizer) else marked.find_markers(tokenizer, self.count)
        length = (max_length or tokenizer.model_max_length) if is_cut(tokenizer, max_length) else None
        first, second = tee(records)
        rows = enumerate(zip(first, self.texts.inputs(second), strict=True))
        while some := list(islice(rows, AT_ONCE)):
            texts = [each["text"] for _, (_, (each, _)) in some]
            spans = [_checked(record, number, each["text"], self.count) for number, (record, (each, _)) in some]
            made = marked.mention_rows(tokenizer, texts, spans, markers, length)
            for (number, (record, (_, label))), row in zip(some, made, strict=True):
                if row.values is None:
                    problem = f"has spans beyond the first {length} tokens, expected them within (--max-length)"
                    raise wrong_record(record, number, problem)
                yield row.values | {"label": label}

    def metric(self, records: Sequence[Mapping[str, Any]], examples: Sequence[Mapping[str, Any]]) -> metrics.Metric:
        """Return the metrics of the task: `metrics.micro_f1` without the negative class, and the accuracy."""
        left_out = () if self.negative is None else (self.labels.index(self.negative),)
        return metrics.combined(metrics.micro_f1(left_out), metrics.accuracy)


@dataclass(frozen=True)
class LabelledEntities:
    """Texts with the entities in them: {"text", "spans": [[first, last + 1, label], ...]}.

    Attributes:
        text: the name of the text column; the spans are in the column "spans".
        labels: the names of the classes in their order: "NIL", for spans that are not entities, then the kinds.
        width: the most words of an entity.
        nested: whether entities may overlap.
    """

    text: str = "text"
    labels: tuple[str, ...] = (marked.NONE,)
    width: int = marked.WIDEST
    nested: bool = False

    model_class = "AutoModelForEntitySpanClassification"

    @classmethod
    def found_in(cls, records: Rows, text: str = "text", *, width: int = marked.WIDEST) -> LabelledEntities:
        """Return the columns with the kinds in the records, which are all read once.

        Raises:
            MalformedRecord (a ValueError): naming a record whose spans are not as expected.
            ValueError: if no record has an entity.
        """
        columns = cls(text, width=width)
        kinds = {kind for number, record in enumerate(records) for _, kind in columns.entities(record, number)}
        if not kinds:
            raise ValueError("there are no records with entities in 'spans'")
        return cls(text, (marked.NONE, *sorted(kinds)), width)

    def entities(self, record: Mapping[str, Any], number: int) -> list[tuple[marked.Span, str]]:
        """Return the entities of a record, ((first, last + 1), kind) each. Raises MalformedRecord for wrong spans."""
        text = text_of(record, number, self.text)
        given = record.get("spans")
        if not isinstance(given, list | tuple):
            raise wrong_record(record, number, f"'spans' is {given!r:.60}, expected {EXPECTED_SPANS}")
        kinds = []
        for place, each in enumerate(given):
            if not isinstance(each, list | tuple) or len(each) != 3 or not isinstance(each[2], str):
                raise wrong_record(record, number, f"spans[{place}] is {each!r:.60}, expected {EXPECTED_SPANS}")
            if not each[2].strip() or each[2].strip() == marked.NONE:
                why = f"{marked.NONE} marks spans that are not entities"
                problem = f"spans[{place}] has the label {each[2]!r}, expected another: {why}"
                raise wrong_record(record, number, problem)
            kinds.append(each[2].strip())
        spans = _checked(record, number, text, spans=[each[:2] for each in given], nested=self.nested)
        return list(zip(spans, kinds, strict=True))

    def config(self, tokenizer: Tokenizer) -> dict[str, Any]:
        return {"max_span_width": self.width}

    def examples(self, records: Rows, tokenizer: Tokenizer, *, max_length: int | None = None) -> NewExamples:
        """Yield an example of each text, cut to `max_length` tokens (by default the tokenizer's limit).

        An example has all spans of at most `width` words that begin and end with a token: entity_start_positions and
        entity_end_positions (the columns of first and last tokens) and labels. For LUKE, a text with many spans has
        several examples; overflow_to_sample_mapping is the text's number. A text without words is left out.

        Raises:
            MalformedRecord (a ValueError): naming a record that lacks a column, has an unknown label, or has spans
                that are outside the text or overlap.
            ValueError: for a tokenizer that pads on the left.
        """
        check_side(tokenizer)
        plain, most = marked.without_task(tokenizer), marked.MOST_SPANS if has_entities(tokenizer) else None
        numbered = enumerate(records)
        while some := list(islice(numbered, AT_ONCE)):
            entities = [dict(self.entities(record, number)) for number, record in some]
            texts = [record[self.text] for _, record in some]
            batch = plain(texts, truncation=is_cut(tokenizer, max_length), max_length=max_length)
            for index, (number, record) in enumerate(some):
                check_known(set(entities[index].values()), self.labels, record, number)
                made = {name: rows[index] for name, rows in batch.items()} | {"overflow_to_sample_mapping": number}
                found = marked.candidates(texts[index], marked.offsets_of(batch.encodings[index]), self.width)
                kinds = [self.labels.index(entities[index].get(span, marked.NONE)) for span in found.spans]
                columns = np.array([found.starts, found.ends, kinds], np.int64)
                for first in range(0, len(kinds), most or len(kinds) or 1):
                    starts, ends, labels = columns[:, first : first + (most or len(kinds))]
                    spans = {"entity_start_positions": starts, "entity_end_positions": ends}
                    yield made | spans | {"labels": labels}

    def metric(self, records: Sequence[Mapping[str, Any]], examples: Sequence[Mapping[str, Any]]) -> metrics.Metric:
        """Return a metric for the scores of `examples`, made from `records`: precision, recall and F1.

        A predicted entity counts if its kind and both ends are right, over all texts (Tjong Kim Sang and De Meulder
        2003); of overlapping ones the highest score wins. Entities outside the candidates count as missed.
        """
        total = sum(len(record["spans"]) for record in records)

        def compute(prediction: metrics.Prediction) -> dict[str, float]:
            found: dict[int, list[tuple[marked.Span, float, bool]]] = defaultdict(list)
            for example, scores, labels in zip(examples, *prediction, strict=True):
                ends = example["entity_start_positions"], example["entity_end_positions"]
                for start, end, row, label in zip(*ends, scores, labels, strict=False):
                    if kind := int(row.argmax()):
                        each = (int(start), int(end) + 1), float(row[kind]), kind == label
                        found[example["overflow_to_sample_mapping"]].append(each)
            right = predicted = 0
            for each in found.values():
                kept = marked.apart([span for span, _, _ in each], [score for _, score, _ in each])
                predicted, right = predicted + len(kept), right + sum(each[number][2] for number in kept)
            return metrics.of_counts(right, predicted, total)

        return compute


class SpanCollator(DataCollatorWithPadding):
    """Collator for `LabelledEntities.examples`: padded batches with spans, labels and LUKE's entities."""

    def __init__(self, tokenizer: Tokenizer):
        super().__init__(tokenizer)
        self._entities = marked.entities_of(tokenizer) if has_entities(tokenizer) else None

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
        """Return the batch; spans and labels are (examples, most spans), filled with -1 and -100."""
        own = ("entity_start_positions", "entity_end_positions", "labels")
        batch = super().__call__([{name: row[name] for name in row if name not in own} for row in examples])
        starts, ends, kinds = ([row[name] for row in examples] for name in own)
        batch |= marked.span_arrays(starts, ends, self._entities)
        labels = np.full(batch["entity_start_positions"].shape, IGNORED, np.int64)
        for row, some in zip(labels, kinds, strict=True):
            row[: len(some)] = some
        return batch | {"labels": labels}


def has_entities(tokenizer: Tokenizer) -> bool:
    """Return whether a tokenizer is LUKE's, with its entities."""
    return bool(getattr(tokenizer, "entity_vocab", None))


def check_side(tokenizer: Tokenizer) -> None:
    """Raise ValueError for a tokenizer that pads on the left, which would shift columns."""
    if tokenizer.padding_side != "right":
        raise ValueError("tokenizer pads on the left: load it with padding_side='right'")


def _checked(
    record: Mapping[str, Any], number: int, text: str, count: int | None = None, spans: object = None, *, nested=False
) -> list[marked.Span]:
    if "spans" not in record:
        raise wrong_record(record, number, "has no 'spans'")
    try:
        return marked.checked_spans(record["spans"] if spans is None else spans, text, count, nested=nested)
    except (TypeError, ValueError) as error:
        raise wrong_record(record, number, str(error)) from error


@dataclass(frozen=True)
class Questions:
    """Questions with texts that answer them, in SQuAD's form (Rajpurkar et al. 2016, arXiv:1606.05250).

    Attributes:
        question, context, answers: the names of the columns. `answers` has {"text": [...], "answer_start": [...]}:
            right answers, and the character of the context where each starts; empty if the text has no answer.
        stride: the number of tokens that consecutive windows of a long text share.
    """

    question: str = "question"
    context: str = "context"
    answers: str = "answers"
    stride: int = 128

    model_class = "AutoModelForQuestionAnswering"

    def examples(self, records: Rows, tokenizer: Tokenizer, *, max_length: int | None = None) -> NewExamples:
        """Yield the windows of each question, of at most `max_length` tokens (by default the tokenizer's limit).

        start_positions and end_positions are the columns of the first answer's first and last token, or of [CLS] if the
        window does not hold all of the answer. For `best_answers`, overflow_to_sample_mapping is the question's number,
        and offset_mapping has the characters of each token in the context, (0, 0) for other tokens.

        Raises:
            MalformedRecord (a ValueError): for a record that lacks a column, or whose answer is not at its position.
            ValueError: for a tokenizer that pads on the left, which would shift the columns.
        """
        check_side(tokenizer)
        numbered = enumerate(records)
        while some := list(islice(numbered, QUESTIONS_AT_ONCE)):
            columns = (self.question, self.context)
            rows = [[text_of(record, number, it, may_be_empty=False) for it in columns] for number, record in some]
            questions, contexts = [question.strip() for question, _ in rows], [context for _, context in rows]
            windows = tokenizer(
                questions,
                contexts,
                truncation="only_second",
                max_length=max_length,
                stride=self.stride,
                return_overflowing_tokens=True,
                return_offsets_mapping=True,
            )
            for row, sample in enumerate(windows["overflow_to_sample_mapping"]):
                number, record = some[sample]
                made = {name: rows[row] for name, rows in windows.items()}
                inside = [part == 1 for part in windows.sequence_ids(row)]
                offsets = [span if here else (0, 0) for span, here in zip(made["offset_mapping"], inside, strict=True)]
                ids, first = made["input_ids"], tokenizer.cls_token_id
                none = ids.index(first) if first in ids else 0
                start, end = _place(offsets, inside, self._answer(record, number)) or (none, none)
                yield made | {
                    "offset_mapping": offsets,
                    "overflow_to_sample_mapping": number,
                    "start_positions": start,
                    "end_positions": end,
                }

    def _answer(self, record: Mapping[str, Any], number: int) -> tuple[int, int] | None:
        if not (answers := self._answers(record, number)):
            return None
        first, start = answers[0]
        found = record[self.context][start : start + len(first)]
        if not first or start < 0 or found != first:
            raise wrong_record(record, number, f"the answer {first!r:.60} is not at {start}, the text is {found!r:.60}")
        return start, start + len(first)

    def _answers(self, record: Mapping[str, Any], number: int) -> list[tuple[str, int]]:
        answers = record.get(self.answers)
        try:
            found = list(zip(answers["text"], answers["answer_start"], strict=True))
            if all(isinstance(text, str) for text, _ in found) and not isinstance(answers["text"], str):
                return [(text, operator.index(start)) for text, start in found]
        except (KeyError, TypeError, IndexError, ValueError):
            pass
        problem = f'{self.answers!r} is {answers!r:.60}, expected {{"text": [...], "answer_start": [...]}}'
        raise wrong_record(record, number, problem)

    def references(self, record: Mapping[str, Any], number: int = 0) -> list[str]:
        """Return all right answers of a record. Raises MalformedRecord, naming its number, for another form."""
        return [text for text, _ in self._answers(record, number)]


def best_answers(
    records: Sequence[Mapping[str, Any]],
    windows: Sequence[Mapping[str, Any]],
    scores: tuple[Any, Any],
    *,
    context: str = "context",
    longest: int = 30,
) -> list[str]:
    """Return each record's answer: the span with the highest sum of start and end score, in any window.

    It is "" unless the span scores higher than the first token ([CLS]) of some window.

    Args:
        records: the source of `windows`.
        windows: of `Questions.examples`.
        scores: (start_logits, end_logits), (windows, length) each, at least as wide as the longest window.
        context: the name of the text column.
        longest: the most tokens of an answer.
    """
    best = [(-np.inf, "")] * len(records)
    none = np.full(len(records), np.inf)
    for window, starts, ends in zip(windows, *scores, strict=True):
        sample, offsets = window["overflow_to_sample_mapping"], window["offset_mapping"]
        outside = next((column for column, (first, last) in enumerate(offsets) if first == last), None)
        none[sample] = min(none[sample], -np.inf if outside is None else float(starts[outside] + ends[outside]))
        found = _best_span(starts[: len(offsets)], ends[: len(offsets)], offsets, longest)
        if found and found[0] > best[sample][0]:
            best[sample] = found[0], records[sample][context][found[1] : found[2]]
    return [text if score > nothing else "" for (score, text), nothing in zip(best, none, strict=True)]


def answer_metrics(records: Examples, windows: Examples, questions: Questions | None = None) -> Callable[..., Any]:
    """Return a metric for the scores of `windows`, made from `records`: exact match and F1 of the answers."""
    questions = questions or Questions()
    references = [questions.references(record, number) for number, record in enumerate(records)]

    def compute(prediction: tuple[Any, Any]) -> dict[str, float]:
        answers = best_answers(records, windows, prediction[0], context=questions.context)
        return metrics.answer_scores(answers, references)

    return compute


def _place(offsets: Spans, inside: Sequence[bool], answer: tuple[int, int] | None) -> tuple[int, int] | None:
    """Return the first and the last token of an answer; None if the window does not hold all of it."""
    if answer is None or True not in inside:
        return None
    first, last = inside.index(True), len(inside) - 1 - inside[::-1].index(True)
    if offsets[first][0] > answer[0] or offsets[last][1] < answer[1]:
        return None
    start = max(column for column in range(first, last + 1) if offsets[column][0] <= answer[0])
    end = min(column for column in range(first, last + 1) if offsets[column][1] >= answer[1])
    return (start, end) if start <= end else None


def _best_span(starts: np.ndarray, ends: np.ndarray, offsets: Spans, longest: int) -> tuple[float, int, int] | None:
    """Return (score, first character, last + 1) of the best span of at most `longest` tokens."""
    tokens = np.array([column for column, (first, last) in enumerate(offsets) if last > first], int)
    pairs = [
        (float(starts[start] + ends[end]), offsets[start][0], offsets[end][1])
        for start in tokens[np.argsort(-starts[tokens], kind="stable")[:BEST]]
        for end in tokens[np.argsort(-ends[tokens], kind="stable")[:BEST]]
        if start <= end < start + longest
    ]
    return max(pairs, default=None)
