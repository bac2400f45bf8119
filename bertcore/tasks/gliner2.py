"""GLiNER2: entities, relations, records and classes of texts by a schema, as the package gliner2 has them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np

from bertcore import kernels
from bertcore.arguments import DType, check_count, check_share
from bertcore.checkpoint.files import CONFIG_NAME
from bertcore.kernels import checks
from bertcore.models.gliner2 import CLASSES, ENCODER_CONFIG, ONE, SEVERAL, GLiNER2Model
from bertcore.tasks.gliner import TRUNCATIONS, Extractor
from bertcore.tasks.long_texts import Cutting, MergedWindows
from bertcore.tasks.reading import ReadOptions
from bertcore.tasks.texts import BATCH_TOKENS, MOST_TOKENS, CutTexts, checked_text, checked_texts
from bertcore.tokenization import AutoTokenizer
from bertcore.tokenization.mentions import apart

# Addresses, mail addresses, names behind @, words joined by - and _ with their combining marks, other characters.
LETTER = r"[\w\u0300-\u036f\u200c\u200d]"
WORD = re.compile(
    rf"(?:https?://\S+|www\.\S+)|[a-z0-9._%+-]+@[a-z0-9.-]+\.[a-z]{{2,}}|@[a-z0-9_]+|{LETTER}+(?:[-_]{LETTER}+)*|\S",
    re.IGNORECASE,
)
P, SEP_STRUCT, SEP_TEXT, DESCRIPTION = "[P]", "[SEP_STRUCT]", "[SEP_TEXT]", "[DESCRIPTION]"
EXAMPLE, OUTPUT = "[EXAMPLE]", "[OUTPUT]"
MARKS = {"records": "[C]", "entities": "[E]", "relations": "[R]", "classes": "[L]"}
TOKENS = (SEP_STRUCT, SEP_TEXT, P, *MARKS.values(), EXAMPLE, OUTPUT, DESCRIPTION)
DTYPES = ("list", "str")
ACTIVATIONS = ("auto", "softmax", "sigmoid")


@dataclass(frozen=True)
class Field:
    """A label that spans are looked for, or a choice of a record.

    Attributes:
        dtype: "list" for all spans, "str" for the best.
        threshold: the least score; None for the call's.
        choices: the values that a record's field may have; empty for spans of the text.
        description: what the model reads beside the name.
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
class Part:
    """A part of a schema: entities, a relation, a record, or classes.

    Attributes:
        kind: a key of MARKS.
        name: its name in results.
        fields: its labels.
        prompt: what the model reads beside the name.
        options: of classes: multi_label, cls_threshold, class_act, top_k, examples.
    """

    kind: str
    name: str
    fields: dict[str, Field]
    prompt: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def tokens(self) -> list[str]:
        """Return the words that stand for the part before a text."""
        text = self.name if self.prompt is None else f"{self.name}: {self.prompt}"
        for name, each in self.fields.items():
            text += f" {DESCRIPTION} {name}: {each.description}" if each.description else ""
        for given, label in self.options.get("examples", ()):
            text += f" {EXAMPLE} {given} {OUTPUT} {label}" if label in self.fields else ""
        return ["(", P, text, "(", *(word for name in self.fields for word in (MARKS[self.kind], name)), ")", ")"]


def _names(name: str, given: Any) -> dict[str, Any]:
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


def _fields(name: str, given: Any, **defaults: Any) -> dict[str, Field]:
    """Return the fields of names with a description or settings each."""
    found = {}
    for label, each in _names(name, given).items():
        settings = {"description": each} if isinstance(each, str) else each or {}
        if not isinstance(settings, Mapping):
            raise TypeError(f"{name}[{label!r}] is {each!r:.60}, expected a description or a mapping")
        for key in settings:
            checks.choice(f"a key of {name}[{label!r}]", key, ("description", "dtype", "threshold"))
        found[label] = Field(**defaults | dict(settings))
    return found


def _check_marks(*texts: str) -> None:
    """Raise ValueError for a text with one of the model's marks, which would be read as one."""
    for text in texts:
        for token in TOKENS:
            if token in text:
                raise ValueError(f"{text!r:.60} has {token}, one of the model's marks, expected none")


class Schema:
    """A description of what to find; each method adds a part and returns the schema, as in gliner2.

    Attributes:
        parts: the parts.
    """

    def __init__(self) -> None:
        self.parts: list[Part] = []

    def _add(self, kind: str, name: str, fields: dict[str, Field], **more: Any) -> Self:
        checked_text("the name of a part", name)
        _check_marks(name, more.get("prompt") or "", *fields, *(each.description or "" for each in fields.values()))
        taken = [part for part in self.parts if part.name == name]
        if taken and kind == taken[0].kind == "entities":
            taken[0].fields |= fields
            return self
        if taken or not name.strip() or (name == "entities") != (kind == "entities"):
            raise ValueError(f"a part is called {name!r}, expected a name of its own beside entities")
        self.parts.append(Part(kind, name, fields, **more))
        return self

    def entities(self, entity_types: Any, dtype: str = "list", threshold: float | None = None) -> Self:
        """Find entities of these types.

        Args:
            entity_types: a list of names, or {name: a description, or a mapping of description, dtype and threshold}.
            dtype: "list" for all, or "str" for the best.
            threshold: the least score; by default the call's.
        """
        return self._add(
            "entities", "entities", _fields("entity_types", entity_types, dtype=dtype, threshold=threshold)
        )

    def relations(self, relation_types: Any, threshold: float | None = None) -> Self:
        """Find pairs of a head and a tail; arguments as for `entities`."""
        for name, each in _fields("relation_types", relation_types, threshold=threshold).items():
            ends = {end: Field(threshold=each.threshold) for end in ("head", "tail")}
            self._add("relations", name, ends, prompt=each.description)
        return self

    def classification(
        self, task: str, labels: Any, multi_label: bool = False, cls_threshold: float = 0.5, *,
        top_k: int | None = None, class_act: str = "auto", prompt: str | None = None,
        examples: Sequence[tuple[str, str]] = (),
    ) -> Self:  # fmt: skip
        """Classify the text.

        Args:
            task: the name of the result.
            labels: a list of names, or {name: description}.
            multi_label: whether several may be right: each with a score of `cls_threshold` or more, or the best.
            cls_threshold: see multi_label.
            top_k: the most labels of several; None for all.
            class_act: "softmax" or "sigmoid"; "auto" is sigmoid for several labels.
            prompt: what the model reads beside the name.
            examples: texts with their labels, which the model reads, too.
        """
        options = {"multi_label": checks.boolean("multi_label", multi_label), "examples": list(examples)}
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
        """Add a field to the last record.

        Args:
            name: its name.
            dtype: "list" for all spans or choices, "str" for the best.
            choices: the values that it may have; by default it is a span of the text.
            description: what the model reads beside the name.
            threshold: the least score; by default the call's.
        """
        if not self.parts or self.parts[-1].kind != "records":
            raise ValueError("field is called without a structure before it")
        if name in self.parts[-1].fields:
            raise ValueError(f"field {name!r} is there already, expected another name")
        options = tuple(_names("choices", choices or ()))
        made = {**_fields("name", [name]), name: Field(dtype, threshold, options, description)}
        _check_marks(name, description or "", *options)
        self.parts[-1].fields |= made
        return self

    def ordered(self) -> list[Part]:
        """Return the parts in the order in which the model reads them."""
        kinds = list(MARKS)
        return sorted(self.parts, key=lambda part: kinds.index(part.kind))

    def prefix(self) -> tuple[list[str], dict[tuple[str, str], range]]:
        """Return the words of choices, which stand before a text, and the places of each record's and field's."""
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
class Asked:
    """A text behind a schema.

    Attributes:
        text: as it is read, which ends with a mark.
        schema: the schema.
        choices: the places of the choices of each record and field, among the words before the text.
        words: the characters of the words of the text.
        arrays: input_ids, words_mask and groups_mask.
    """

    text: str
    schema: Schema
    choices: dict[tuple[str, str], list[int]]
    words: list[tuple[int, int]]
    arrays: dict[str, list[int]]

    def __len__(self) -> int:
        return len(self.arrays["input_ids"])


class GLiNER2(Extractor):
    """A model that finds what a schema asks for. Several threads may use one at once.

    Args:
        model: a `GLiNER2Model`.
        tokenizer: its tokenizer.

    Attributes:
        model, tokenizer: the parts.

    Raises ValueError for a tokenizer without the model's marks.
    """

    def __init__(self, model: GLiNER2Model, tokenizer: Any):
        for token in TOKENS:
            if tokenizer.convert_tokens_to_ids(token) in (None, tokenizer.unk_token_id):
                raise ValueError(f"tokenizer has no token {token!r}, expected one of GLiNER2's models")
        self.model, self.tokenizer = model, tokenizer
        self._check_vocabulary()

    def __repr__(self) -> str:
        return f"<GLiNER2 of {self.model!r}>"

    @classmethod
    def _loaded(cls, folder: Path, dtype: DType | None, hub: Mapping[str, Any]) -> tuple[GLiNER2Model, Any]:
        return GLiNER2Model.from_pretrained(folder, dtype=dtype), AutoTokenizer.from_pretrained(folder)

    def save_pretrained(self, save_directory: str | os.PathLike) -> None:
        """Write the model and its tokenizer into a folder, from which the package gliner2 loads them, too."""
        super().save_pretrained(save_directory)
        folder = Path(save_directory)
        (folder / ENCODER_CONFIG).mkdir(exist_ok=True)
        encoder = json.dumps(dict(self.model.config[ENCODER_CONFIG]), indent=2)
        (folder / ENCODER_CONFIG / CONFIG_NAME).write_text(f"{encoder}\n", encoding="utf-8")

    @staticmethod
    def create_schema() -> Schema:
        """Return an empty schema."""
        return Schema()

    def extract(self, text: str, schema: Schema, threshold: float = 0.5, **options: Any) -> dict[str, Any]:
        """Return what a schema asks for in one text; see `batch_extract`."""
        return self.batch_extract([checked_text("text", text)], schema, threshold=threshold, **options)[0]

    def batch_extract(
        self,
        texts: Sequence[str],
        schemas: Schema | Sequence[Schema],
        batch_size: int = 8,
        threshold: float = 0.5,
        *,
        include_confidence: bool = False,
        include_spans: bool = False,
        max_len: int | None = None,
        batch_tokens: int = BATCH_TOKENS,
        truncation: bool | str = "warn",
    ) -> list[dict[str, Any]]:
        """Return what a schema asks for in each text.

        Args:
            texts: strings.
            schemas: a schema, or one for each text.
            batch_size, batch_tokens: most texts, and most tokens, computed at once; they do not change the result.
            threshold: the least score of spans.
            include_confidence: whether results have scores: {"text", "confidence"}, {"label", "confidence"}.
            include_spans: whether they have the first character and the last + 1: {"text", "start", "end"}.
            max_len: the most words of a text; by default the config's. The model's positions limit texts, too.
            truncation: treatment of texts that are too long: "warn" cuts them and warns once, True cuts them, "error"
                refuses them.

        Returns:
            {"entities": {type: [text, ...]}, "relation_extraction": {type: [(head, tail), ...]}, record: [{field:
            [text, ...] or text or None}, ...], task: label or [label, ...]}; only those that the schema has.

        Raises:
            TypeError: a text or a schema is none.
            ValueError: a number is out of range, or a text is too long for truncation "error".
        """
        some = list(checked_texts(texts))
        every = list(schemas) if isinstance(schemas, list | tuple) else [schemas] * len(some)
        wrong = [each for each in [*every, schemas] if not isinstance(each, Schema | list | tuple)]
        if wrong or len(every) != len(some):
            what = f"{type(wrong[0]).__name__}" if wrong else f"a list of {len(every)}"
            raise (TypeError if wrong else ValueError)(f"schemas is {what}, expected a Schema, or {len(some)} of them")
        threshold = check_share("threshold", threshold)
        shows = checks.boolean("include_confidence", include_confidence), checks.boolean("include_spans", include_spans)
        if truncation is not True:
            checks.choice("truncation", truncation, TRUNCATIONS)
        most = self.model.max_len if max_len is None else check_count("max_len", max_len)
        sizes: dict[str, Any] = {"batch_tokens": batch_tokens, "batch_size": batch_size}
        how = ReadOptions(cutting=Cutting(truncation, most), backend=kernels.get_backend(), **sizes)

        def compute(rows: list[Asked]) -> list[dict[str, Any]]:
            width = max(map(len, rows))
            arrays = {name: np.zeros((len(rows), width), np.int64) for name in (*rows[0].arrays, "attention_mask")}
            for place, row in enumerate(rows):
                for name, values in (row.arrays | {"attention_mask": [1] * len(row)}).items():
                    arrays[name][place, : len(row)] = values
            logits = self.model(**arrays).logits
            return [result(row, given, threshold, *shows) for row, given in zip(rows, logits, strict=True)]

        pairs = zip(some, every, strict=True)
        return list(chain.from_iterable(self._read(pairs, compute, MergedWindows("mean"), how, lambda count: None)))

    def _rows(self, texts: list[Any], how: ReadOptions) -> Iterable[tuple[Asked, bool]]:
        return [self._row(*each, how.cutting.max_length) for each in texts]

    def _row(self, text: str, schema: Schema, max_len: int | None) -> tuple[Asked, bool]:
        """Return the tokens of a text behind its schema, and whether it was cut."""
        text = text if text.endswith((".", "!", "?")) else f"{text}."
        words, (choices, of_fields) = [match.span() for match in WORD.finditer(text)], schema.prefix()
        was_cut, parts = max_len is not None and len(words) > max_len, [part.tokens() for part in schema.ordered()]
        words = words[:max_len]
        before = [*[word for part in parts for word in (*part, SEP_STRUCT)][:-1], SEP_TEXT]
        given = [*before, *choices, *(text[first:last].lower() for first, last in words)]
        found = self.tokenizer([given], is_split_into_words=True, add_special_tokens=False)
        ids, places = found["input_ids"][0], found.encodings[0].word_ids
        marks = {before.index(SEP_TEXT): 0}
        at = 0
        for number, (tokens, part) in enumerate(zip(parts, schema.ordered(), strict=True), 1):
            kind = {"classes": CLASSES, "entities": ONE}.get(part.kind, SEVERAL)
            marks |= dict.fromkeys([at + 1, *range(at + 4, at + len(tokens) - 2, 2)], 3 * number + kind)
            at += len(tokens) + 1
        firsts = {word: place for place, word in reversed(list(enumerate(places)))}
        masks: dict[str, list[int]] = {"words_mask": [0] * len(ids), "groups_mask": [0] * len(ids)}
        for word, mark in marks.items():
            masks["groups_mask"][firsts[word]] = mark
        read = [word for word in range(len(before), len(given)) if word in firsts]
        for number, word in enumerate(read, 1):
            masks["words_mask"][firsts[word]] = number
        most = self.model.spec.longest_sequence or MOST_TOKENS
        if len(ids) > most:
            was_cut = True
            if len(before) + len(choices) > places[most - 1]:
                raise ValueError(f"the schema has more than the {most} tokens that the model takes, expected fewer")
            ids, masks = ids[:most], {name: mask[:most] for name, mask in masks.items()}
            read = read[: max(masks["words_mask"])]
        first = len(before) + len(choices)
        kept = [words[word - first] for word in read if word >= first]
        columns = {word - len(before): column for column, word in enumerate(read)}
        for (record, name), some in of_fields.items():
            if unread := [choices[place] for place in some if place not in columns]:
                raise ValueError(f"choices of {record}.{name} has {unread[0]!r:.60}, which the tokenizer does not read")
        of_choices = {key: [columns[place] for place in some] for key, some in of_fields.items()}
        return Asked(text, schema, of_choices, kept, {"input_ids": ids} | masks), was_cut

    def _size(self, text: Any) -> int:
        return len(text[0])

    def _cut_texts(self, max_length: int | None) -> CutTexts:
        most = self.model.spec.longest_sequence
        limits = [f"{max_length} words"] * bool(max_length) + [f"{most} tokens with the schema"] * bool(most)
        return CutTexts(self, max_length, None, limit=" or ".join(limits))

    def extract_entities(self, text: str, entity_types: Any, threshold: float = 0.5, **options: Any) -> dict[str, Any]:
        """Return {"entities": {type: [...]}}; see `Schema.entities` and `batch_extract`."""
        return self.extract(text, Schema().entities(entity_types), threshold, **options)

    def extract_relations(
        self, text: str, relation_types: Any, threshold: float = 0.5, **options: Any
    ) -> dict[str, Any]:
        """Return {"relation_extraction": {type: [...]}}; see `Schema.relations` and `batch_extract`."""
        return self.extract(text, Schema().relations(relation_types), threshold, **options)

    def classify_text(
        self, text: str, tasks: Mapping[str, Any], threshold: float = 0.5, **options: Any
    ) -> dict[str, Any]:
        """Return {task: label} for {task: labels, or a mapping of `Schema.classification`'s arguments}."""
        return self.extract(text, _classes(tasks), threshold, **options)

    def extract_json(
        self, text: str, structures: Mapping[str, Any], threshold: float = 0.5, **options: Any
    ) -> dict[str, Any]:
        """Return {record: [{field: ...}]} for {record: fields}.

        A field is "name", "name::str", "name::[one|two]", "name::str::description", or a mapping of `Schema.field`'s
        arguments.
        """
        return self.extract(text, _records(structures), threshold, **options)

    def batch_extract_entities(self, texts: Sequence[str], entity_types: Any, **options: Any) -> list[dict[str, Any]]:
        """Return the entities of each text, as `extract_entities` does."""
        return self.batch_extract(texts, Schema().entities(entity_types), **options)

    def batch_extract_relations(
        self, texts: Sequence[str], relation_types: Any, **options: Any
    ) -> list[dict[str, Any]]:
        """Return the relations of each text, as `extract_relations` does."""
        return self.batch_extract(texts, Schema().relations(relation_types), **options)

    def batch_classify_text(
        self, texts: Sequence[str], tasks: Mapping[str, Any], **options: Any
    ) -> list[dict[str, Any]]:
        """Return the classes of each text, as `classify_text` does."""
        return self.batch_extract(texts, _classes(tasks), **options)

    def batch_extract_json(
        self, texts: Sequence[str], structures: Mapping[str, Any], **options: Any
    ) -> list[dict[str, Any]]:
        """Return the records of each text, as `extract_json` does."""
        return self.batch_extract(texts, _records(structures), **options)


def _classes(tasks: Any) -> Schema:
    schema = Schema()
    if not isinstance(tasks, Mapping):
        raise TypeError(f"tasks is {tasks!r:.60}, expected {{name: labels}}")
    for name, given in tasks.items():
        is_config = isinstance(given, Mapping) and "labels" in given
        schema.classification(name, **(dict(given) if is_config else {"labels": given}))
    return schema


def _records(structures: Any) -> Schema:
    schema = Schema()
    if not isinstance(structures, Mapping):
        raise TypeError(f"structures is {structures!r:.60}, expected {{name: fields}}")
    for name, fields in structures.items():
        if isinstance(fields, str) or not isinstance(fields, Iterable):
            raise TypeError(f"structures[{name!r}] is {fields!r:.60}, expected a list of fields")
        schema.structure(name)
        for spec in fields:
            schema.field(**(dict(spec) if isinstance(spec, Mapping) else _spec(checked_text("a field", spec))))
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


def result(row: Asked, logits: Sequence[np.ndarray], threshold: float, confidence: bool, spans: bool) -> dict[str, Any]:
    """Return what the schema of a text asks for, of the logits of its parts."""
    found: dict[str, Any] = {}
    reader = _Reader(row, threshold, confidence, spans)
    for part, values in zip(row.schema.ordered(), logits, strict=True):
        if part.kind == "classes":
            found[part.name] = reader.classes(part, values)
            continue
        scores = 0.5 + np.tanh(values / 2) / 2
        records = [reader.record(part, each) for each in scores]
        if part.kind == "entities":
            found[part.name] = records[0] if records else {}
        elif part.kind == "relations":
            pairs = [(each["head"], each["tail"]) for each in records if each["head"] and each["tail"]]
            plain = not (confidence or spans)
            made = [pair if plain else {"head": pair[0], "tail": pair[1]} for pair in pairs]
            found.setdefault("relation_extraction", {})[part.name] = made
        else:
            kept = [each for each in records if any(value not in (None, []) for value in each.values())]
            found[part.name] = kept if records else {}
    if "relation_extraction" in found:
        found["relation_extraction"] = found.pop("relation_extraction")  # the last one
    return found


@dataclass
class _Reader:
    """Reads scores of a text's words as results."""

    row: Asked
    threshold: float
    confidence: bool
    spans: bool

    def classes(self, part: Part, logits: np.ndarray) -> Any:
        options, labels = part.options, list(part.fields)
        is_multiple = options["multi_label"]
        if options["class_act"] == "sigmoid" or (options["class_act"] == "auto" and is_multiple):
            scores = 0.5 + np.tanh(logits / 2) / 2
        else:
            shares = np.exp(logits - logits.max())
            scores = shares / shares.sum()
        best = int(scores.argmax())
        chosen = np.flatnonzero(scores >= options["cls_threshold"]).tolist() if is_multiple else []
        chosen = chosen or [best]
        if is_multiple and options["top_k"] is not None:
            chosen = sorted(chosen, key=lambda place: -scores[place])[: options["top_k"]]
        found = [
            {"label": labels[place], "confidence": float(scores[place])} if self.confidence else labels[place]
            for place in chosen
        ]
        return found if is_multiple else found[0]

    def record(self, part: Part, scores: np.ndarray) -> dict[str, Any]:
        """Return the values of the fields of an instance, of scores (fields, words, max_width)."""
        ahead, found = len(scores[0]) - len(self.row.words), {}
        for (name, each), some in zip(part.fields.items(), scores, strict=True):
            least = self.threshold if each.threshold is None else each.threshold
            best = each.dtype == "str" or part.kind == "relations"
            if each.choices:
                values = self._chosen(each.choices, some[self.row.choices[part.name, name], 0], least, best)
            else:
                values = self._found(some[ahead:], least, best)
            found[name] = (values[0] if values else None) if best else values
        return found

    def _chosen(self, choices: Sequence[str], scores: np.ndarray, least: float, best: bool) -> list[Any]:
        pairs = [pair for pair in zip(scores.tolist(), choices, strict=True) if pair[0] >= least]
        pairs = sorted(pairs, key=lambda pair: -pair[0])[:1] if best else pairs
        return [{"text": choice, "confidence": score} if self.confidence else choice for score, choice in pairs]

    def _found(self, scores: np.ndarray, least: float, best: bool) -> list[Any]:
        words, texts, values = self.row.words, set(), []
        first, width = np.nonzero(scores >= least)
        is_within = first + width < len(words)
        first, width = first[is_within], width[is_within]
        spans = [(words[start][0], words[end][1]) for start, end in zip(first, first + width, strict=True)]
        levels = scores[first, width].tolist()
        kept = sorted(apart(spans, levels), key=lambda place: -levels[place])
        for place in kept[: 1 if best else None]:
            start, end = spans[place]
            value: dict[str, Any] = {"text": self.row.text[start:end].strip()}
            value |= {"confidence": levels[place]} if self.confidence else {}
            value |= {"start": start, "end": end} if self.spans else {}
            key = (value["text"].lower(), *((start, end) if self.spans else ()))
            if key not in texts:
                texts.add(key)
                values.append(value if len(value) > 1 else value["text"])
        return values
