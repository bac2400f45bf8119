"""Records that a GLiNER2 model learns from, in the form of the package gliner2: a text, a schema, and the answers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from bertcore.models.gliner2 import MOST_INSTANCES
from bertcore.tasks.gliner2_schema import WORD, Field, Schema, SchemaRow, listed, settings_of, with_stop
from bertcore.tasks.texts import checked_text

RECORD = "input", "output"
DESCRIPTIONS = "entity_descriptions", "json_descriptions", "relation_descriptions"
ANSWERS = "entities", "json_structures", "relations", "classifications", *DESCRIPTIONS, "record_metadata"
CLASSIFICATION = "task", "labels", "true_label", "multi_label", "prompt", "examples", "label_descriptions"
ENDS = "head", "tail"


@dataclass
class LabelledText:
    """A text, a schema, and what it describes in the text.

    Attributes:
        text: the text.
        schema: the schema.
        instances: {part: [{field: mentions}, ...]} of entities, relations and records. A mention is a string, for all
            places where its words stand, or a mapping of its text, start and end.
        classes: {task: its true labels}.
    """

    text: str
    schema: Schema
    instances: dict[str, list[dict[str, list[Any]]]]
    classes: dict[str, list[str]]

    @cached_property
    def words(self) -> list[str]:
        """The words of the text in lower case."""
        return [word.lower() for word in WORD.findall(with_stop(self.text))]

    def shuffle(self, rng: np.random.Generator) -> None:
        """Put the labels of each part, and their choices, in random order."""

        def mixed(values: Sequence[Any]) -> list[Any]:
            return [values[place] for place in rng.permutation(len(values))]

        for part in self.schema.parts:
            pairs = mixed(list(part.fields.items()))
            part.fields = {name: replace(each, choices=tuple(mixed(each.choices))) for name, each in pairs}

    def facts(self, result: Mapping[str, Any] | None = None) -> set[tuple[str, str, str]]:
        """Return {(part, label, text in lower case)} of the answers, or of a result of `GLiNER2.extract`."""
        instances: dict[str, Any] = dict(self.instances)
        classes: dict[str, Any] = dict(self.classes)
        if result is not None:
            classes = {name: [found] if isinstance(found := result[name], str) else found for name in classes}
            pairs = result.get("relation_extraction", {})
            instances = {name: result.get(name, []) for name in instances}
            instances |= {name: [dict(zip(ENDS, pair, strict=True)) for pair in some] for name, some in pairs.items()}
            instances["entities"] = [result.get("entities", {})]
        found = {(name, "", label) for name, some in classes.items() for label in some}
        for name, some in instances.items():
            for label, mentions in (pair for each in some for pair in each.items()):
                every = [mentions] if isinstance(mentions, str) else mentions or []
                texts = (each["text"] if isinstance(each, Mapping) else each for each in every)
                found |= {(name, label, text.lower()) for text in texts}
        return found

    def labelled(self, row: SchemaRow) -> SchemaRow:
        """Return the row of the text behind its schema, with targets."""
        marks = np.array(row.arrays["groups_mask"])
        counts, classes = np.zeros((2, len(marks)), np.int64)
        spans: list[tuple[int, int, int]] = []
        queries = 0
        for number, part in enumerate(row.schema.ordered(), 1):
            places = np.flatnonzero(marks // 3 == number)
            if part.kind == "classes":
                classes[places[1:]] = [1 + (label in self.classes[part.name]) for label in part.fields]
                continue
            instances = self.instances[part.name][: MOST_INSTANCES - 1]
            counts[places[0]] = len(instances)
            for instance in instances:
                for name in part.fields:
                    found = _places(row, row.choices.get((part.name, name)), part.fields[name], instance[name])
                    spans += [(queries, *place) for place in found]
                    queries += 1
        arrays: dict[str, Any] = row.arrays | {"instances": counts, "class_targets": classes}
        return replace(row, arrays=arrays, spans=spans, queries=queries)


def _places(row: SchemaRow, of_choices: list[int] | None, field: Field, mentions: list[Any]) -> list[tuple[int, int]]:
    """Return the (first, last) words of mentions; the words of choices precede those of the text."""
    if of_choices is not None:
        chosen = [of_choices[field.choices.index(mention)] for mention in mentions]
        return [(place, place) for place in chosen]
    words, found = [row.text[first:last].lower() for first, last in row.words], []
    for mention in mentions:
        if isinstance(mention, Mapping):
            start, end = mention["start"], mention["end"]
            touched = [place for place, (first, last) in enumerate(row.words) if first < end and start < last]
            found += [(touched[0], touched[-1])] if touched else []
        else:
            size, starts = _found(mention, words)
            found += [(start, start + size - 1) for start in starts]
    ahead = max(row.arrays["words_mask"]) - len(words)
    return [(first + ahead, last + ahead) for first, last in found]


def _found(mention: str, words: list[str]) -> tuple[int, list[int]]:
    """Return the number of a mention's words, and where they stand among the words of a text in lower case."""
    wanted = [text.lower() for text in WORD.findall(mention)]
    size = len(wanted)
    starts = [start for start in range(len(words) - size + 1) if words[start : start + size] == wanted]
    return size, starts if wanted else []


def read_record(record: object) -> LabelledText:
    """Return a record {"input": text, "output": answers} as a text with a schema.

    The answers, all optional, are entities, {label: mentions}; json_structures, [{record: {field: mentions}}, ...], one
    for each instance, where a field with choices is {"value", "choices"}; relations, [{name: {"head", "tail"}}, ...];
    and classifications, [{"task", "labels", "true_label"}, ...]. Labels without mentions are learned as absent.
    Mentions other than choices are words of the text, in upper or lower case.

    Raises TypeError or ValueError for anything else.
    """
    whole = settings_of("the record", record, RECORD, needed=RECORD)
    made = LabelledText(checked_text("input", whole["input"]), Schema(), {}, {})
    given = settings_of("output", whole["output"], ANSWERS)
    described = {name: settings_of(name, given.get(name, {})) for name in DESCRIPTIONS}
    _add_records(made, given, described["json_descriptions"])
    found = settings_of("entities", given.get("entities", {}))
    names = [*found, *(name for name in described["entity_descriptions"] if name not in found)]
    if names:
        made.schema.entities({name: described["entity_descriptions"].get(name) for name in names})
        made.instances["entities"] = [{name: _mentions(made, name, found.get(name)) for name in names}]
    for name, instances in _grouped("relations", given).items():
        made.schema.relations({name: described["relation_descriptions"].get(name)})
        ends = [settings_of(f"relations[{name!r}]", each, ENDS, needed=ENDS) for each in instances]
        made.instances[name] = _distinct([{end: _mentions(made, end, each[end]) for end in ENDS} for each in ends])
    for each in listed("classifications", given.get("classifications", [])):
        asked = settings_of("a classification", each, CLASSIFICATION, needed=CLASSIFICATION[:3])
        labels, right = listed("labels", asked.pop("labels")), asked.pop("true_label")
        of_labels = settings_of("label_descriptions", asked.pop("label_descriptions", {}))
        made.schema.classification(labels={label: of_labels.get(label) for label in labels}, **asked)
        made.classes[asked["task"]] = right = [right] if isinstance(right, str) else list(listed("true_label", right))
        if wrong := [label for label in right if label not in labels]:
            raise ValueError(f"true_label has {wrong[0]!r:.60}, expected one of the labels of {asked['task']!r}")
    if not made.classes and not any(made.instances.values()):
        raise ValueError("output has nothing to learn, expected entities, json_structures, relations, classifications")
    return made


def _grouped(key: str, given: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return {name: [answers, ...]} of a list of mappings {name: answers}."""
    found: dict[str, list[Any]] = {}
    for each in listed(key, given.get(key, [])):
        for name, answers in settings_of(f"an entry of {key}", each).items():
            found.setdefault(name, []).append(answers)
    return found


def _add_records(made: LabelledText, given: Mapping[str, Any], described: Mapping[str, Any]) -> None:
    for name, instances in _grouped("json_structures", given).items():
        rows = [settings_of(f"json_structures[{name!r}]", each) for each in instances]
        texts = settings_of(f"json_descriptions[{name!r}]", described.get(name, {}))
        choices: dict[str, dict[str, None]] = {}
        for row in rows:
            for field, value in row.items():
                choices.setdefault(field, {})
                if isinstance(value, Mapping) and "choices" in value:
                    row[field] = settings_of(field, value, ("value", "choices"), needed=("value", "choices"))["value"]
                    choices[field] |= dict.fromkeys(listed("choices", value["choices"]))
        made.schema.structure(name)
        for field, some in choices.items():
            made.schema.field(field, choices=list(some), description=texts.get(field))
        found = [{field: _mentions(made, field, row.get(field), choices[field]) for field in choices} for row in rows]
        made.instances[name] = _distinct(found) if any(any(each.values()) for each in found) else []


def _mentions(made: LabelledText, name: str, value: object, choices: Collection[str] = ()) -> list[Any]:
    found = [value] if isinstance(value, str | Mapping) else listed(name, [] if value is None else value)
    for each in found:
        if choices and each not in ["", *choices]:
            raise ValueError(f"{name} is {each!r:.60}, expected one of its choices")
        if isinstance(each, Mapping):
            place = settings_of(name, each, ("text", "start", "end"), needed=("text", "start", "end"))
            ends = place["start"], place["end"]
            is_span = [type(end) for end in ends] == [int, int] and 0 <= ends[0] < ends[1]
            if not is_span or made.text[slice(*ends)] != place["text"] or not place["text"].strip():
                raise ValueError(f"{name} is {dict(each)!r:.80}, expected the text between its start and its end")
        elif checked_text(name, each) and not choices and not _found(each, made.words)[1]:
            raise ValueError(f"{name} is {each!r:.80}, expected words of the text")
    return [each for each in found if each]


def _distinct(instances: list[dict[str, list[Any]]]) -> list[dict[str, list[Any]]]:
    return [each for place, each in enumerate(instances) if each not in instances[:place]]
