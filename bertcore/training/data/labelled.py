"""Examples of labelled texts: columns of records become inputs of a model and its loss."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from bertcore.kernels import checks
from bertcore.tokenization.tokenizer import Tokenizer
from bertcore.training.collators import IGNORED, is_cut
from bertcore.training.data.files import NewExamples, Record, Rows, without_column, wrong_record

AT_ONCE = 256  # records that are tokenised together
MISSING = "nan", "inf", "-inf"  # refused among numbers; among words they may be labels
MANY, FEW = 20, 20  # more different integers than MANY, with fewer than FEW records each, may be numbers or classes
MOST = float(np.finfo(np.float32).max)
DOCUMENT = "-DOCSTART-"  # begins a document in CoNLL's files

KINDS = "which may be classes or numbers to predict: choose with kind='classes' or 'numbers' (--label-kind)"

Numbered = tuple[int, Mapping[str, Any]]


@dataclass(frozen=True)
class LabelledTexts:
    """Texts, or pairs of texts, with a label each.

    Attributes:
        text, text_pair, label: the names of the columns; None for no second text.
        labels: the names of the classes in their order; empty for numbers.
        is_multiple: a label is a list of any number of classes (or their names separated by commas).

    A text's label is the index of its class, a number, or a 0 or 1 for each class, as the losses
    "single_label_classification", "regression" and "multi_label_classification" expect.
    """

    text: str = "text"
    text_pair: str | None = None
    label: str = "label"
    labels: tuple[str, ...] = ()
    is_multiple: bool = False

    model_class = "AutoModelForSequenceClassification"

    @classmethod
    def found_in(
        cls,
        records: Rows,
        text: str = "text",
        text_pair: str | None = None,
        label: str = "label",
        *,
        kind: str | None = None,
    ) -> LabelledTexts:
        """Return the columns with the labels in the records, which are all read once.

        A list gives a text several labels. Numbers stay numbers if any has a fraction; all other labels are classes,
        sorted by number or alphabetically: JSON's true is the class "true", and 1.0 is the class "1". `kind`, "classes"
        or "numbers", decides for integers; it is required if more than 20 differ, with fewer than 20 records each on
        average.

        Raises:
            MalformedRecord (a ValueError): for a record without a label, with nan where others have numbers, or with a
                word where others have fractions or `kind` asks for numbers.
            ValueError: for lists mixed with other labels, integers that may be either, labels that contradict `kind`,
                an unknown `kind`, or no record.
        """
        checks.choice("kind", kind, (None, "classes", "numbers"))
        names: dict[str, Numbered] = {}  # and the first record of each
        lists = count = 0
        for number, record in enumerate(records):
            value = _value(record, number, label)
            count, lists = count + 1, lists + isinstance(value, list)
            for each in value if isinstance(value, list) else [value]:
                names.setdefault(_name(each, record, number, label), (number, record))
        if not count or lists not in (0, count):
            problem = f"{lists} of {count} records have lists of labels" if count else "there are no records"
            raise ValueError(f"{problem}, expected labels of one kind")
        numbers = {name: found for name in names if (found := _number(name)) is not None}
        has_fractions = not all(found.is_integer() for found in numbers.values())
        for name, (number, record) in {} if lists or not numbers else names.items():
            if name not in numbers and (has_fractions or kind == "numbers" or name.lower() in MISSING):
                raise wrong_record(record, number, f"{label!r} is {name!r}, but a number in other records")
        are_numbers = not lists and len(numbers) == len(names)
        if (kind == "numbers" and not are_numbers) or (kind == "classes" and are_numbers and has_fractions):
            raise ValueError(f"kind (--label-kind) is {kind!r}, but the labels in {label!r} are not")
        if are_numbers and (has_fractions or kind == "numbers"):
            return cls(text, text_pair, label)
        if are_numbers and kind is None and len(names) > MANY and count < FEW * len(names):
            raise ValueError(f"{label!r} has {len(names)} different integers in {count} records, {KINDS}")
        return cls(text, text_pair, label, tuple(sorted(names, key=_by_number_or_letters)), bool(lists))

    @property
    def problem_type(self) -> str:
        """The config's name of the task."""
        if not self.labels:
            return "regression"
        return "multi_label_classification" if self.is_multiple else "single_label_classification"

    def examples(self, records: Rows, tokenizer: Tokenizer, *, max_length: int | None = None) -> NewExamples:
        """Yield an example of each record, cut to `max_length` tokens (by default the tokenizer's limit).

        Raises MalformedRecord, a ValueError, naming a record that lacks a column or has an unknown label.
        """
        inputs = self.inputs(records)
        while some := list(islice(inputs, AT_ONCE)):
            columns = map(list, zip(*(texts.values() for texts, _ in some), strict=True))
            batch = tokenizer(*columns, truncation=is_cut(tokenizer, max_length), max_length=max_length)
            for index, (_, label) in enumerate(some):
                yield {name: rows[index] for name, rows in batch.items()} | {"label": label}

    def inputs(self, records: Rows) -> Iterator[tuple[dict[str, str], Any]]:
        """Yield the texts of each record, {"text"} or {"text", "text_pair"} as pipelines take them, and its label.

        Raises as `examples` does.
        """
        columns = {"text": self.text} | ({} if self.text_pair is None else {"text_pair": self.text_pair})
        for number, record in enumerate(records):
            texts = {name: _text(record, number, column) for name, column in columns.items()}
            yield texts, self._label(_value(record, number, self.label), record, number)

    def _label(self, value: object, record: Mapping[str, Any], number: int) -> list[float] | float:
        if self.is_multiple:
            given = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
            if not isinstance(given, list | tuple):
                raise wrong_record(record, number, f"{self.label!r} is {value!r}, expected a list of labels")
            named = {_name(each, record, number, self.label) for each in given if each != ""}
            check_known(named, self.labels, record, number)
            return [float(name in named) for name in self.labels]
        if not self.labels:
            return _finite(record, number, self.label)
        name = _name(value, record, number, self.label)
        check_known({name}, self.labels, record, number)
        return self.labels.index(name)


@dataclass(frozen=True)
class LabelledWords:
    """Texts of words with a tag each.

    Attributes:
        words, tags: the names of the columns: lists, or strings separated by white space. A line of plain text is a
            word and its tag (the first and the last column, as in CoNLL); an empty line ends a text.
        labels: the tags in the order of their indices.

    The first token of a word has its tag; a word's other tokens, and special tokens, have none (-100).
    """

    words: str = "tokens"
    tags: str = "tags"
    labels: tuple[str, ...] = ()

    model_class = "AutoModelForTokenClassification"

    @classmethod
    def found_in(cls, records: Rows, words: str = "tokens", tags: str = "tags") -> LabelledWords:
        """Return the columns with the tags in the records, which are all read once. Raises ValueError without tags."""
        columns = cls(words, tags)
        found = {tag for _, _, _, row in columns._rows(records) for tag in row}
        if not found:
            raise ValueError("there are no records with tags")
        return cls(words, tags, tuple(sorted(found, key=_by_number_or_letters)))

    def examples(self, records: Rows, tokenizer: Tokenizer, *, max_length: int | None = None) -> NewExamples:
        """Yield an example of each text, cut to `max_length` tokens (by default the tokenizer's limit).

        Raises MalformedRecord, a ValueError, naming a record that lacks a column, has unequal numbers of words and
        tags, or an unknown tag.
        """
        numbers = {name: index for index, name in enumerate(self.labels)}
        rows = self._rows(records)
        while some := list(islice(rows, AT_ONCE)):
            options = {"truncation": is_cut(tokenizer, max_length), "max_length": max_length}
            batch = tokenizer([words for _, _, words, _ in some], is_split_into_words=True, **options)
            for index, (number, record, _, tags) in enumerate(some):
                check_known(set(tags), self.labels, record, number)
                made = {name: values[index] for name, values in batch.items()}
                labels, last = [], None
                for word in batch.word_ids(index):
                    labels.append(IGNORED if word is None or word == last else numbers[tags[word]])
                    last = word
                yield made | {"labels": labels}

    def whole(self, records: Rows) -> Iterator[Mapping[str, Any]]:
        """Yield the records, with lines joined to one record per text, at the position of its first word."""
        text: Record | None = None
        for number, record in enumerate(records):
            if not (isinstance(record, Record) and record.is_line):
                yield record
                continue
            parts = record["text"].split()
            if len(parts) == 1 and parts[0] != DOCUMENT:
                raise wrong_record(record, number, f"{parts[0]!r} has no tag, expected a word and its tag")
            if not parts or parts[0] == DOCUMENT:
                if text is not None:
                    yield text
                text = None
                continue
            if text is None:
                text = Record({self.words: [], self.tags: []}, record.file, record.line)
            text[self.words].append(parts[0])
            text[self.tags].append(parts[-1])
        if text is not None:
            yield text

    def _rows(self, records: Rows) -> Iterator[tuple[int, Mapping[str, Any], list[str], list[str]]]:
        """Yield (number, record, words, tags) of each text that has words."""
        for number, record in enumerate(self.whole(records)):
            both = ((_value(record, number, column), column) for column in (self.words, self.tags))
            words, tags = (_strings(value, record, number, column) for value, column in both)
            if len(words) != len(tags):
                raise wrong_record(record, number, f"has {len(words)} words and {len(tags)} tags")
            if words:
                yield number, record, words, tags


@dataclass(frozen=True)
class TextColumns:
    """Texts that belong together, with an optional number, for objectives of sentence embeddings.

    Attributes:
        columns: the names of the columns of texts, in their order.
        label: the name of the column of numbers, or None.
    """

    columns: tuple[str, ...] = ("text", "text_pair")
    label: str | None = None

    model_class = "AutoModel"

    def examples(self, records: Rows) -> NewExamples:
        """Yield the texts of each record, and its "label".

        Raises MalformedRecord, a ValueError, naming a record that lacks a column, or whose label is not a number.
        """
        for number, record in enumerate(records):
            made: dict[str, Any] = {column: _text(record, number, column) for column in self.columns}
            if self.label is not None:
                made["label"] = _finite(record, number, self.label)
            yield made


@dataclass(frozen=True)
class QueriedTexts:
    """Queries, each with its answering document and a list of other documents, for late interaction.

    Attributes:
        text, text_pair: the names of the columns of queries and of documents; "negatives" may have lists of others.
        label: the column of a teacher's scores: a list, the answer's score first, then the others'; None without.
    """

    text: str = "text"
    text_pair: str = "text_pair"
    label: str | None = None

    def examples(self, records: Rows) -> list[dict[str, Any]]:
        """Return the query, the document, the other documents and the scores of each record.

        Raises MalformedRecord, a ValueError, naming a record that lacks a column, or has too few or many scores.
        """
        found = []
        for number, record in enumerate(records):
            made: dict[str, Any] = {"query": _text(record, number, self.text)}
            made["document"] = _text(record, number, self.text_pair)
            others = record.get("negatives") or []
            others = _strings([others] if isinstance(others, str) else others, record, number, "negatives")
            made |= {f"negative_{place}": text for place, text in enumerate(others, 1)}
            if self.label is not None:
                scores = _value(record, number, self.label)
                scores = [_float32(score) for score in scores] if isinstance(scores, list) else []
                if len(scores) != 1 + len(others) or len(scores) < 2 or None in scores:
                    expected = f"{1 + len(others)} numbers, one for each document, at least 2"
                    problem = f"{self.label!r} is {record[self.label]!r:.60}, expected {expected}"
                    raise wrong_record(record, number, problem)
                made["label"] = scores
            found.append(made)
        return found


@dataclass(frozen=True)
class TextMentions:
    """Texts with the entities that they mention, for `objectives.EntityMaskedLM`.

    A record has the text; entity_spans, the first and the last + 1 character of each mention; and entities, the
    entities' names.

    Attributes:
        column: the name of the column of texts.
    """

    column: str = "text"

    def examples(self, records: Rows) -> NewExamples:
        """Yield the text, the spans and the names of each record.

        Raises MalformedRecord (a ValueError), naming a record that lacks one of them, or whose spans are
        outside the text or not one per name.
        """
        for number, record in enumerate(records):
            text, spans = _text(record, number, self.column), _value(record, number, "entity_spans")
            names = _value(record, number, "entities")
            if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
                raise wrong_record(record, number, f"'entities' is {names!r:.60}, expected a list of names")
            if not isinstance(spans, list | tuple) or not all(_is_span(span, len(text)) for span in spans):
                expected = f"a list of [first, last + 1], characters of the text, from 0 to {len(text)}"
                raise wrong_record(record, number, f"'entity_spans' is {spans!r:.60}, expected {expected}")
            if len(spans) != len(names):
                raise wrong_record(record, number, f"has {len(spans)} entity_spans and {len(names)} entities")
            yield {"text": text, "entity_spans": [tuple(span) for span in spans], "entities": list(names)}


def _is_span(span: Any, length: int) -> bool:
    """Return whether this is (first, last + 1) within `length` characters."""
    are_two = isinstance(span, list | tuple) and [type(end) for end in span] == [int, int]
    return are_two and 0 <= span[0] < span[1] <= length


def _value(record: Mapping[str, Any], number: int, column: str) -> Any:
    if not isinstance(record, Mapping) or column not in record:
        raise without_column(record, number, column, f"has no {column!r}")
    value = record[column]
    if value is None:
        raise wrong_record(record, number, f"{column!r} is null")
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


def _text(record: Mapping[str, Any], number: int, column: str) -> str:
    value = _value(record, number, column)
    if not isinstance(value, str):
        raise wrong_record(record, number, f"{column!r} is {value!r:.60}, expected a text")
    return value


def _strings(value: object, record: Mapping[str, Any], number: int, column: str) -> list[str]:
    parts = value.split() if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str | int) for part in parts):
        raise wrong_record(record, number, f"{column!r} is {value!r:.60}, expected a list of strings")
    return [_spelled(part) for part in parts]


def _name(value: object, record: Mapping[str, Any], number: int, column: str) -> str:
    """Return the name of a class."""
    if isinstance(value, str) and value.strip():
        return value.strip()
    if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return _spelled(value)
    raise wrong_record(record, number, f"{column!r} is {value!r:.60}, expected a label")


def _spelled(value: str | float) -> str:
    """Return a text as it is, a truth value as JSON has it, and a number without a fraction of 0."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _finite(record: Mapping[str, Any], number: int, column: str) -> float:
    value = _value(record, number, column)
    found = _float32(value)
    if found is None:
        raise wrong_record(record, number, f"{column!r} is {value!r:.60}, expected a number within float32")
    return found


def _float32(value: object) -> float | None:
    """Return `_number` if float32 can hold it, else None."""
    found = _number(value)
    return None if found is None or abs(found) > MOST else found


def _number(value: object) -> float | None:
    """Return the number that a value, or its spelling, represents; None if it is not finite or not a number."""
    try:
        found = float(value) if isinstance(value, str | int | float) else math.nan
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def check_known(names: set[str], labels: Sequence[str], record: Mapping[str, Any], number: int) -> None:
    """Raise MalformedRecord for names that are not among the labels."""
    unknown = sorted(names.difference(labels))
    if unknown:
        raise wrong_record(record, number, f"has the label {unknown[0]!r}, expected one of {', '.join(labels):.200}")


def _by_number_or_letters(name: str) -> tuple[float, str]:
    """Sort key: numbers first, in their order."""
    number = _number(name)
    return (math.inf if number is None else number), name
