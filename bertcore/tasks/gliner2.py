"""GLiNER2: find entities, relations, records and classes by a schema, with the results of the package gliner2."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from itertools import repeat, tee
from pathlib import Path
from typing import Any

import numpy as np

from bertcore.arguments import DType, check_count, check_share, naming_nearest
from bertcore.kernels import checks
from bertcore.models.gliner2 import CLASSES, ONE, SEVERAL, GLiNER2Model
from bertcore.tasks.gliner import Extractor, Labels, checked_fits, is_for_each, label_sets
from bertcore.tasks.gliner2_records import read_record
from bertcore.tasks.gliner2_schema import (
    SEP_STRUCT,
    SEP_TEXT,
    TOKENS,
    WORD,
    Names,
    Schema,
    SchemaPart,
    SchemaRow,
    classes_asked,
    records_asked,
    with_stop,
)  # fmt: skip
from bertcore.tasks.reading import ReadOptions
from bertcore.tasks.sequence_scores import FUNCTIONS
from bertcore.tasks.texts import BATCH_TOKENS, MOST_TOKENS, CutTexts, checked_text, checked_texts
from bertcore.tokenization import AutoTokenizer
from bertcore.tokenization.mentions import apart
from bertcore.tokenization.tokenizer import Tokenizer


class GLiNER2(Extractor):
    """A model that extracts what a schema describes. Several threads may use one at once.

    Args:
        model: a `GLiNER2Model`.
        tokenizer: its tokenizer.

    Attributes:
        max_seq_length: the length that schema and text together are cut to, in tokens.

    Raises ValueError for a tokenizer without the model's marker tokens.
    """

    def __init__(self, model: GLiNER2Model, tokenizer: Tokenizer):
        for token in TOKENS:
            if tokenizer.convert_tokens_to_ids(token) in (None, tokenizer.unk_token_id):
                raise ValueError(f"tokenizer has no token {token!r}, expected one of GLiNER2's models")
        self.model, self.tokenizer = model, tokenizer
        self._lengths = MOST_TOKENS, model.spec.longest_sequence, 0, "tokenizer"
        self.max_seq_length = None
        self._check_vocabulary()

    def __repr__(self) -> str:
        return f"<GLiNER2 of {self.model!r}>"

    @classmethod
    def _loaded(cls, folder: Path, dtype: DType | None, hub: Mapping[str, Any]) -> tuple[GLiNER2Model, Any]:
        return GLiNER2Model.from_pretrained(folder, dtype=dtype), AutoTokenizer.from_pretrained(folder)

    @staticmethod
    def create_schema() -> Schema:
        """Return an empty schema."""
        return Schema()

    def extract(self, text: str, schema: Schema, threshold: float = 0.5, **options: Any) -> dict[str, Any]:
        """Extract the parts of a schema from one text; see `batch_extract`."""
        return self.batch_extract([checked_text("text", text)], schema, threshold=threshold, **options)[0]

    def batch_extract(
        self,
        texts: Sequence[str],
        schemas: Schema | Sequence[Schema],
        batch_size: int = 8,
        threshold: float = 0.5,
        **options: Any,
    ) -> list[dict[str, Any]]:
        """Return the results of each text in a list; arguments and errors are those of `extract_stream`."""
        return list(self.extract_stream(list(checked_texts(texts)), schemas, batch_size, threshold, **options))

    def extract_stream(
        self,
        texts: Iterable[str],
        schemas: Schema | Sequence[Schema],
        batch_size: int = 8,
        threshold: float = 0.5,
        *,
        include_confidence: bool = False,
        include_spans: bool = False,
        max_len: int | None = None,
        batch_tokens: int = BATCH_TOKENS,
        truncation: bool | str = "warn",
        show_progress_bar: bool | None = False,
    ) -> Iterator[dict[str, Any]]:
        """Return an iterator over what a schema describes in each text; texts may be a stream.

        Args:
            texts: strings.
            schemas: a schema, or for a list of texts a list with one per text.
            batch_size, batch_tokens, truncation, show_progress_bar: as for `GLiNER.inference_stream`.
            threshold: the minimum score of spans.
            include_confidence: whether results have scores: {"text", "confidence"}, {"label", "confidence"}.
            include_spans: whether results have their first character and last + 1: {"text", "start", "end"}.
            max_len: the maximum number of words of a text, by default the config's; positions limit texts, too.

        Returns:
            {"entities": {type: [text, ...]}, "relation_extraction": {type: [(head, tail), ...]}, record: [{field:
            [text, ...] or text or None}, ...], task: label or [label, ...]}, with only the keys that the schema has.

        Raises:
            TypeError: a text is not a string, or a schema is not a Schema.
            ValueError: a number is out of range, or a text is too long for truncation "error".
        """
        count = len(texts) if isinstance(texts, Sized) else None
        is_list = isinstance(schemas, list | tuple)
        every = list(schemas) if is_list else [schemas]
        wrong = [each for each in every if not isinstance(each, Schema)]
        if wrong or (is_list and len(every) != count):
            what = type(wrong[0]).__name__ if wrong else f"a list of {len(every)}"
            expected = "a Schema" if count is None else f"a Schema, or {count} of them"
            raise (TypeError if wrong else ValueError)(f"schemas is {what}, expected {expected}")
        checked, threshold = checked_texts(texts), check_share("threshold", threshold)
        shows = checks.boolean("include_confidence", include_confidence), checks.boolean("include_spans", include_spans)
        most = self.model.max_len if max_len is None else check_count("max_len", max_len)
        how = self._how(truncation, most, batch_tokens=batch_tokens, batch_size=batch_size)

        def compute(rows: list[SchemaRow]) -> list[dict[str, Any]]:
            logits = self.model(**self.padded(rows)).logits
            return [result(row, given, threshold, *shows) for row, given in zip(rows, logits, strict=True)]

        pairs = zip(checked, every if is_list else repeat(schemas), strict=False)
        return self._answers(pairs, compute, how, show_progress_bar)

    @naming_nearest("max_len", "batch_tokens", "truncation", "show_progress_bar")
    def inference_stream(
        self, texts: Iterable[str], labels: Labels, flat_ner: bool = True, threshold: float = 0.5,
        multi_label: bool = False, batch_size: int = 8, **options: Any,
    ) -> Iterator[list[dict[str, Any]]]:  # fmt: skip
        """Return an iterator over the entities of each text, as `GLiNER.inference_stream`, which has the arguments.

        Entities with one label never overlap. If `labels` maps names to descriptions, the model reads both.
        """
        kept, count = texts, len(texts) if isinstance(texts, Sized) else None
        if count is None:
            texts, kept = tee(checked_texts(texts))
        schemas = [_schema_of(some) for some in label_sets(labels, count)]
        fits = checked_fits(flat_ner, multi_label)
        given = schemas if is_for_each(labels) else schemas[0]
        shows = {"include_confidence": True, "include_spans": True}
        results = self.extract_stream(texts, given, batch_size, threshold, **shows, **options)
        return (_apart(text, found.get("entities", {}), fits) for found, text in zip(results, kept, strict=False))

    def token_rows(self, pairs: Iterable[tuple[str, Mapping[str, str]]]) -> list[tuple[SchemaRow, bool]]:
        """Return the tokens of texts after the labels {label: description}, and whether each text was cut."""
        return [self.token_row(text, _schema_of(names), self.model.max_len) for text, names in pairs]

    @property
    def max_words(self) -> int:
        """The length that texts are cut to, in words."""
        return self.model.max_len or self.max_seq_length

    @property
    def most_nested(self) -> int:
        """The most entities of a label that begin with the same word."""
        return self.model.max_width

    def _rows(self, texts: list[Any], how: ReadOptions) -> Iterable[tuple[SchemaRow, bool]]:
        return [self.token_row(*each, how.cutting.max_length) for each in texts]

    @staticmethod
    def padded(rows: Sequence[SchemaRow]) -> dict[str, np.ndarray]:
        """Return the arrays of rows, padded with zeros, and the attention mask."""
        width = max(map(len, rows))
        arrays = {name: np.zeros((len(rows), width), np.int64) for name in (*rows[0].arrays, "attention_mask")}
        for place, row in enumerate(rows):
            for name, values in (row.arrays | {"attention_mask": 1}).items():
                arrays[name][place, : len(row)] = values
        return arrays

    def labelled_row(self, record: object, order: np.random.Generator | None = None) -> SchemaRow:
        """Return a record (see `read_record`) as tokens and targets; `order` draws the order of its labels."""
        made = read_record(record)
        if order is not None:
            made.shuffle(order)
        return made.labelled(self.token_row(made.text, made.schema, self.model.max_len)[0])

    def token_row(self, text: str, schema: Schema, max_len: int | None) -> tuple[SchemaRow, bool]:
        """Return the tokens of a text after its schema, and whether it was cut."""
        text = with_stop(text)
        words, (choices, of_fields) = [match.span() for match in WORD.finditer(text)], schema.prefix()
        was_cut, parts = max_len is not None and len(words) > max_len, [part.tokens() for part in schema.ordered()]
        words = words[:max_len]
        before = [*[word for part in parts for word in (*part, SEP_STRUCT)][:-1], SEP_TEXT]
        given = [*before, *choices, *(text[first:last].lower() for first, last in words)]
        found = self.tokenizer([given], is_split_into_words=True, add_special_tokens=False)
        ids, places = found["input_ids"][0], found.encodings[0].word_ids
        firsts = {word: place for place, word in reversed(list(enumerate(places)))}
        masks: dict[str, list[int]] = {"words_mask": [0] * len(ids), "groups_mask": [0] * len(ids)}
        at, first = 0, len(before) + len(choices)  # the first word of the text
        for number, (tokens, part) in enumerate(zip(parts, schema.ordered(), strict=True), 1):
            kind = {"classes": CLASSES, "entities": ONE}.get(part.kind, SEVERAL)
            for word in (at + 1, *range(at + 4, at + len(tokens) - 2, 2)):
                masks["groups_mask"][firsts[word]] = 3 * number + kind
            at += len(tokens) + 1
        read = [word for word in range(len(before), len(given)) if word in firsts]
        for number, word in enumerate(read, 1):
            masks["words_mask"][firsts[word]] = number
        most = self.max_seq_length
        if len(ids) > most:
            was_cut = True
            if first > places[most - 1]:
                raise ValueError(f"the schema has more than the {most} tokens that the model takes, expected fewer")
            ids, masks = ids[:most], {name: mask[:most] for name, mask in masks.items()}
            read = read[: max(masks["words_mask"])]
        kept = [words[word - first] for word in read if word >= first]
        columns = {word - len(before): column for column, word in enumerate(read)}
        for (record, name), some in of_fields.items():
            if unread := [choices[place] for place in some if place not in columns]:
                raise ValueError(f"choices of {record}.{name} has {unread[0]!r:.60}, which the tokenizer does not read")
        of_choices = {key: [columns[place] for place in some] for key, some in of_fields.items()}
        return SchemaRow(text, schema, of_choices, kept, {"input_ids": ids} | masks), was_cut

    def _cut_texts(self, max_length: int | None) -> CutTexts:
        most = self.max_seq_length
        limits = [f"{max_length} words"] * bool(max_length) + [f"{most} tokens with the schema"] * (most < MOST_TOKENS)
        return CutTexts(self, max_length, None, limit=" or ".join(limits))

    def extract_entities(
        self, text: str, entity_types: Names, threshold: float = 0.5, **options: Any
    ) -> dict[str, Any]:
        """Return {"entities": {type: [...]}}; see `Schema.entities` and `batch_extract`."""
        return self.extract(text, Schema().entities(entity_types), threshold, **options)

    def extract_relations(
        self, text: str, relation_types: Names, threshold: float = 0.5, **options: Any
    ) -> dict[str, Any]:
        """Return {"relation_extraction": {type: [...]}}; see `Schema.relations` and `batch_extract`."""
        return self.extract(text, Schema().relations(relation_types), threshold, **options)

    def classify_text(
        self, text: str, tasks: Mapping[str, Any], threshold: float = 0.5, **options: Any
    ) -> dict[str, Any]:
        """Return {task: label} for {task: labels, or a mapping of `Schema.classification`'s arguments}."""
        return self.extract(text, classes_asked(tasks), threshold, **options)

    def extract_json(
        self, text: str, structures: Mapping[str, Any], threshold: float = 0.5, **options: Any
    ) -> dict[str, Any]:
        """Return {record: [{field: ...}]} for {record: fields}.

        A field is "name", "name::str", "name::[one|two]", "name::str::description", or a mapping of `Schema.field`'s
        arguments.
        """
        return self.extract(text, records_asked(structures), threshold, **options)

    def batch_extract_entities(self, texts: Sequence[str], entity_types: Names, **options: Any) -> list[dict[str, Any]]:
        """Return the entities of each text, as `extract_entities` does."""
        return self.batch_extract(texts, Schema().entities(entity_types), **options)

    def batch_extract_relations(
        self, texts: Sequence[str], relation_types: Names, **options: Any
    ) -> list[dict[str, Any]]:
        """Return the relations of each text, as `extract_relations` does."""
        return self.batch_extract(texts, Schema().relations(relation_types), **options)

    def batch_classify_text(
        self, texts: Sequence[str], tasks: Mapping[str, Any], **options: Any
    ) -> list[dict[str, Any]]:
        """Return the classes of each text, as `classify_text` does."""
        return self.batch_extract(texts, classes_asked(tasks), **options)

    def batch_extract_json(
        self, texts: Sequence[str], structures: Mapping[str, Any], **options: Any
    ) -> list[dict[str, Any]]:
        """Return the records of each text, as `extract_json` does."""
        return self.batch_extract(texts, records_asked(structures), **options)


def _schema_of(labels: Mapping[str, str]) -> Schema:
    """Return the schema of entities {label: the text that stands for it}."""
    return Schema().entities({name: None if name == prompt else prompt for name, prompt in labels.items()})


def _apart(text: str, found: Mapping[str, list[dict[str, Any]]], fits: Mapping[str, bool]) -> list[dict[str, Any]]:
    """Return the compatible entities among those of each label, in GLiNER's form; `fits` is for `apart`."""
    every = []
    for label, some in found.items():
        for each in some:
            start, end = each["start"], min(each["end"], len(text))  # without the full stop that was appended
            if start < end:
                entity = {"start": start, "end": end, "text": text[start:end], "label": label}
                every.append(entity | {"score": each["confidence"]})
    spans = [(each["start"], each["end"]) for each in every]
    return [every[place] for place in apart(spans, [each["score"] for each in every], **fits)]


def result(
    row: SchemaRow, logits: Sequence[np.ndarray], threshold: float, confidence: bool, spans: bool
) -> dict[str, Any]:
    """Return the results of a text's schema from the logits of its parts."""
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
    """Converts scores of a text's words to results."""

    row: SchemaRow
    threshold: float
    confidence: bool
    spans: bool

    def classes(self, part: SchemaPart, logits: np.ndarray) -> object:
        options, labels = part.options, list(part.fields)
        is_multiple, name = options["multi_label"], options["class_act"]
        scores = FUNCTIONS[name if name != "auto" else "sigmoid" if is_multiple else "softmax"](logits)
        chosen = np.flatnonzero(scores >= options["cls_threshold"]).tolist() if is_multiple else []
        chosen = chosen or [int(scores.argmax())]
        if is_multiple and options["top_k"] is not None:
            chosen = sorted(chosen, key=lambda place: -scores[place])[: options["top_k"]]
        found = [
            {"label": labels[place], "confidence": float(scores[place])} if self.confidence else labels[place]
            for place in chosen
        ]
        return found if is_multiple else found[0]

    def record(self, part: SchemaPart, scores: np.ndarray) -> dict[str, Any]:
        """Return the values of an instance's fields from scores (fields, words, max_width)."""
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
