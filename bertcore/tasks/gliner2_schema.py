"""Schemas of GLiNER2: the requested parts, and the words that represent them before a text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias

import numpy as np

from bertcore.arguments import check_count, check_share
from bertcore.kernels import checks
from bertcore.tasks.texts import checked_text, checked_texts

P, SEP_STRUCT, SEP_TEXT, DESCRIPTION = "[P]", "[SEP_STRUCT]", "[SEP_TEXT]", "[DESCRIPTION]"
EXAMPLE, OUTPUT = "[EXAMPLE]", "[OUTPUT]"
MARKS = {"records": "[C]", "entities": "[E]", "relations": "[R]", "classes": "[L]"}
TOKENS = (SEP_STRUCT, SEP_TEXT, P, *MARKS.values(), EXAMPLE, OUTPUT, DESCRIPTION)
Names: TypeAlias = Iterable[str] | Mapping[str, Any]  # or names with their descriptions or settings
DTYPES = ("list", "str")
ACTIVATIONS = ("auto", "softmax", "sigmoid")
KEYS = "entities", "relations", "structures", "classifications"
FIELD = "dtype", "choices", "description", "threshold"
CLASSIFICATION = "task", "labels", "multi_label", "cls_threshold", "top_k", "class_act", "prompt", "examples"

# Addresses, mail addresses, names behind @, words joined by - and _ with their combining marks, other characters.
LETTER = r"[\w\u0300-\u036f\u200c\u200d]"
WORD = re.compile(
    rf"(?:https?://\S+|www\.\S+)|[a-z0-9._%+-]+@[a-z0-9.-]+\.[a-z]{{2,}}|@[a-z0-9_]+|{LETTER}+(?:[-_]{LETTER}+)*|\S",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Field:
    """A label to find spans for, or a choice of a record.

    Attributes:
        dtype: "list" for all spans or choices, "str" for the best.
        threshold: the minimum score; None for the call's.
        choices: the values that a record's field may have; empty for spans of the text.
        description: a description that the model reads in addition to the name.
    """

    dtype: str = "list"
    threshold: float | None = None
    choices: tuple[str, ...] = ()
    description: str | None = None

    def __post_init__(self) -> None:
        checks.choice("dtype", self.dtype, DTYPES)
        if self.threshold is not None:
            check_share("threshold", self.threshold)
        if self.description is not None:
            checked_text("description", self.description)
        _names("choices", self.choices)


@dataclass
class SchemaPart:
    """A part of a schema: entities, a relation, a record, or classes.

    Attributes:
        kind: a key of MARKS.
        name: its name in results.
        fields: its labels.
        prompt: a text that the model reads in addition to the name.
        options: for classes: multi_label, cls_threshold, class_act, top_k, examples.
    """

    kind: str
    name: str
    fields: dict[str, Field]
    prompt: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def tokens(self) -> list[str]:
        """Return the words that represent the part before a text."""
        text = self.name if self.prompt is None else f"{self.name}: {self.prompt}"
        for name, each in self.fields.items():
            text += f" {DESCRIPTION} {name}: {each.description}" if each.description else ""
        for given, label in self.options.get("examples", ()):
            text += f" {EXAMPLE} {given} {OUTPUT} {label}" if label in self.fields else ""
        return ["(", P, text, "(", *(word for name in self.fields for word in (MARKS[self.kind], name)), ")", ")"]


def _names(name: str, given: object) -> dict[str, Any]:
    """Return a string, a list of strings or a mapping of them as {name: description or settings}."""
    found = {given: None} if isinstance(given, str) else given
    if not isinstance(found, Mapping):
        if isinstance(found, np.ndarray) or not isinstance(found, Iterable):
            raise TypeError(f"{name} is {given!r:.60}, expected a list of strings")
        found = dict.fromkeys(checked_texts(found, name))
    for key in found:
        if not checked_text(f"a key of {name}", key).strip():
            raise ValueError(f"{name} has an empty name, expected at least one character")
    return dict(found)


def _fields(name: str, given: object, **defaults: Any) -> dict[str, Field]:
    """Return the fields of names with a description or settings each."""
    found = {}
    for label, each in _names(name, given).items():
        settings = {"description": each} if isinstance(each, str) else {} if each is None else each
        if not isinstance(settings, Mapping):
            raise TypeError(f"{name}[{label!r}] is {each!r:.60}, expected a description or a mapping")
        known = "description", "dtype", "threshold"
        found[label] = Field(**defaults | settings_of(f"{name}[{label!r}]", settings, known))
    return found


def _check_marks(*texts: str) -> None:
    """Raise ValueError for a text with one of the model's marker tokens, which would be read as such."""
    for text in texts:
        for token in TOKENS:
            if token in text:
                raise ValueError(f"{text!r:.60} has {token}, one of the model's marker tokens, expected none")


class Schema:
    """A description of what to find; each method adds a part and returns the schema, as in gliner2.

    Attributes:
        parts: the parts.
    """

    def __init__(self) -> None:
        self.parts: list[SchemaPart] = []

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the schema of a mapping, such as a JSON file's; the keys are gliner2's.

        These are entities and relations (names, or {name: description or settings}), structures ({name: {"fields":
        [`field`'s arguments, ...]}}) and classifications ([`classification`'s arguments, ...]); all may be absent.

        Raises TypeError or ValueError for another key, and as the methods do.
        """
        read = settings_of("schema", data, KEYS)
        given = {key: [] if read.get(key) is None else read[key] for key in KEYS}
        schema = cls().entities(given["entities"]).relations(given["relations"])
        for name, record in _names("structures", given["structures"]).items():
            fields = settings_of(f"structures[{name!r}]", record, ("fields",), needed=("fields",))["fields"]
            if not listed(f"structures[{name!r}].fields", fields):
                raise ValueError(f"structures[{name!r}].fields is empty, expected at least one")
            schema.structure(name)
            for each in fields:
                schema.field(**settings_of("a field", each, ("name", *FIELD), needed=("name",)))
        for each in listed("classifications", given["classifications"]):
            schema.classification(**settings_of("a classification", each, CLASSIFICATION, needed=("task", "labels")))
        return schema

    def _add(self, kind: str, name: str, fields: dict[str, Field], **more: Any) -> Self:
        checked_text("the name of a part", name)
        examples = [text for pair in more.get("options", {}).get("examples", ()) for text in pair]
        texts = [more.get("prompt") or "", *fields, *(each.description or "" for each in fields.values())]
        _check_marks(name, *texts, *examples)
        taken = [part for part in self.parts if part.name == name]
        if taken and kind == taken[0].kind == "entities":
            taken[0].fields |= fields
            return self
        if taken or not name.strip() or (name == "entities") != (kind == "entities"):
            raise ValueError(f"a part is called {name!r}, expected a unique name other than entities")
        self.parts.append(SchemaPart(kind, name, fields, **more))
        return self

    def entities(self, entity_types: Names, dtype: str = "list", threshold: float | None = None) -> Self:
        """Find entities of these types.

        Args:
            entity_types: a list of names, or {name: a description, or a mapping of description, dtype and threshold}.
            dtype, threshold: defaults of these; see `Field`.
        """
        return self._add(
            "entities", "entities", _fields("entity_types", entity_types, dtype=dtype, threshold=threshold)
        )

    def relations(self, relation_types: Names, threshold: float | None = None) -> Self:
        """Find pairs of a head and a tail; arguments as for `entities`."""
        for name, each in _fields("relation_types", relation_types, threshold=threshold).items():
            ends = {end: Field(threshold=each.threshold) for end in ("head", "tail")}
            self._add("relations", name, ends, prompt=each.description)
        return self

    def classification(
        self, task: str, labels: Names, multi_label: bool = False, cls_threshold: float = 0.5, *,
        top_k: int | None = None, class_act: str = "auto", prompt: str | None = None,
        examples: Sequence[tuple[str, str]] = (),
    ) -> Self:  # fmt: skip
        """Classify the text.

        Args:
            task: the name of the result.
            labels: a list of names, or {name: description}.
            multi_label: whether several labels may apply: all with a score of at least `cls_threshold`, else the best.
            cls_threshold: see multi_label.
            top_k: the maximum number of labels with multi_label; None for all.
            class_act: "softmax" or "sigmoid"; "auto" is sigmoid with multi_label.
            prompt: a text that the model reads in addition to the name.
            examples: texts with their labels, which the model also reads.
        """
        pairs = [tuple(listed("a pair of examples", pair)) for pair in listed("examples", examples)]
        if wrong := [pair for pair in pairs if [type(text) for text in pair] != [str, str]]:
            raise TypeError(f"examples has {wrong[0]!r:.60}, expected pairs of a text and its label")
        if prompt is not None:
            checked_text("prompt", prompt)
        options = {"multi_label": checks.boolean("multi_label", multi_label), "examples": pairs}
        options["cls_threshold"] = check_share("cls_threshold", cls_threshold)
        options["top_k"] = None if top_k is None else check_count("top_k", top_k)
        options["class_act"] = checks.choice("class_act", class_act, ACTIVATIONS) or class_act
        fields = _fields("labels", labels)
        if not fields:
            raise ValueError("labels is empty, expected at least one")
        return self._add("classes", task, fields, prompt=prompt, options=options)

    def structure(self, name: str) -> Self:
        """Begin a record, whose fields the following calls of `field` add."""
        return self._add("records", name, {})

    def field(
        self, name: str, dtype: str = "list", choices: Sequence[str] | None = None, description: str | None = None,
        threshold: float | None = None,
    ) -> Self:  # fmt: skip
        """Add a field with this name to the last record; the other arguments are as for `Field`."""
        if not self.parts or self.parts[-1].kind != "records":
            raise ValueError("field is called before any structure, expected a call of structure first")
        if name in self.parts[-1].fields:
            raise ValueError(f"field {name!r} exists already, expected another name")
        options = tuple(_names("choices", choices or ()))
        made = {**_fields("name", [name]), name: Field(dtype, threshold, options, description)}
        _check_marks(name, description or "", *options)
        self.parts[-1].fields |= made
        return self

    def ordered(self) -> list[SchemaPart]:
        """Return the parts that have fields, in the order in which the model reads them."""
        kinds = list(MARKS)
        return sorted((part for part in self.parts if part.fields), key=lambda part: kinds.index(part.kind))

    def words(self) -> list[str]:
        """Return all words that precede a text."""
        return [*(word for part in self.ordered() for word in part.tokens()), *self.prefix()[0]]

    def prefix(self) -> tuple[list[str], dict[tuple[str, str], range]]:
        """Return the words of choices, which precede a text, and their places by record and field."""
        found, places = [], {}
        for part in self.parts:
            inner: list[str] = []
            for name, each in part.fields.items():
                choices = [word for choice in each.choices for word in ("|", choice)][1:]
                if choices:
                    first = len(found) + len(inner) + 4  # after "(", "part:", name, "(": the first comma is left out
                    places[part.name, name] = range(first, first + len(choices), 2)
                    inner += [",", name, "(", *choices, ")"]
            found += ["(", f"{part.name}:", *inner[1:], ")"] if inner else []
        return found, places


@dataclass
class SchemaRow:
    """A text after its schema.

    Attributes:
        text: the text as read, which ends with a punctuation mark.
        schema: the schema.
        choices: the places of the choices of each record and field among the words before the text.
        words: the character ranges of the text's words.
        arrays: input_ids, words_mask and groups_mask; in training also instances, as a GLiNER2Model takes it, and
            class_targets, which at the mark of a class is 1, or 2 if the class is true, and otherwise 0.
        spans: in training, the (query, first word, last word) of each mention; for queries see GLiNER2Logits.
        queries: the number of queries in training.
    """

    text: str
    schema: Schema
    choices: dict[tuple[str, str], list[int]]
    words: list[tuple[int, int]]
    arrays: dict[str, list[int]]
    spans: list[tuple[int, int, int]] = field(default_factory=list)
    queries: int = 0

    def __len__(self) -> int:
        return len(self.arrays["input_ids"])


def with_stop(text: str) -> str:
    """Return a text as it is read: with a punctuation mark at its end."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


def listed(name: str, given: object) -> list[Any] | tuple[Any, ...]:
    """Return a list or tuple. Raises TypeError for anything else."""
    if not isinstance(given, list | tuple):
        raise TypeError(f"{name} is {given!r:.60}, expected a list")
    return given


def settings_of(
    name: str, given: object, known: Sequence[str] | None = None, needed: Sequence[str] = ()
) -> dict[str, Any]:
    """Return a mapping with known keys, or any strings. Raises TypeError or ValueError for anything else."""
    if not isinstance(given, Mapping):
        expected = f" with {', '.join(needed or known)}" if known else ""
        raise TypeError(f"{name} is {given!r:.60}, expected a mapping{expected}")
    for key in given:
        if known is None:
            checked_text(f"a key of {name}", key)
        else:
            checks.choice(f"a key of {name}", key, known)
    if missing := [key for key in needed if key not in given]:
        raise ValueError(f"{name} has no {missing[0]!r}, expected {' and '.join(needed)}")
    return dict(given)


def classes_asked(tasks: Mapping[str, Any]) -> Schema:
    schema = Schema()
    if not isinstance(tasks, Mapping):
        raise TypeError(f"tasks is {tasks!r:.60}, expected {{name: labels}}")
    for name, given in tasks.items():
        is_config = isinstance(given, Mapping) and "labels" in given
        schema.classification(name, **(dict(given) if is_config else {"labels": given}))
    return schema


def records_asked(structures: Mapping[str, Any]) -> Schema:
    schema = Schema()
    if not isinstance(structures, Mapping):
        raise TypeError(f"structures is {structures!r:.60}, expected {{name: fields}}")
    for name, fields in structures.items():
        if isinstance(fields, str) or not isinstance(fields, Iterable):
            raise TypeError(f"structures[{name!r}] is {fields!r:.60}, expected a list of fields")
        schema.structure(name)
        for spec in fields:
            schema.field(**(dict(spec) if isinstance(spec, Mapping) else _spec(checked_text("a field", spec))))
        if not schema.parts[-1].fields:
            raise ValueError(f"structures[{name!r}] is empty, expected at least one field")
    return schema


def _spec(text: str) -> dict[str, Any]:
    """Return the settings of a field "name::str::[one|two]::description"."""
    name, *rest = text.split("::")
    found: dict[str, Any] = {"name": name}
    for part in rest:
        if part in DTYPES:
            found["dtype"] = part
        elif part.startswith("[") and part.endswith("]"):
            found["choices"] = [choice.strip() for choice in part[1:-1].split("|")]
        else:
            found["description"] = part
    return found if "dtype" in found or "choices" not in found else found | {"dtype": "str"}
