"""GLiNER: find entities with any labels in texts, with the names and results of the package gliner."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy as np

from bertcore import kernels
from bertcore.arguments import DType, check_share
from bertcore.checkpoint import CheckpointError, files, read_config, resolve
from bertcore.checkpoint.files import checkpoint_folder, locked, made_folder
from bertcore.kernels import checks
from bertcore.models.gliner import CONFIG_NAME, GLiNERModel
from bertcore.tasks.long_texts import Cutting, MergedWindows
from bertcore.tasks.reading import ReadOptions, TextReader
from bertcore.tasks.texts import BATCH_TOKENS, CutTexts, checked_text, checked_texts, progress_bar, sequence_length
from bertcore.tokenization import AutoTokenizer
from bertcore.tokenization.mentions import MARKS, PromptedText, PromptReader, apart, as_batch, split_words
from bertcore.tokenization.tokenizer import Tokenizer

Labels: TypeAlias = Mapping[str, str] | Sequence[Any] | np.ndarray  # for all texts, or for each one
TRUNCATIONS = "warn", "error"
TOKENIZER_FILES = "tokenizer_config.json", "tokenizer.json"


@dataclass(frozen=True)
class WordSpan:
    """An entity, located by its words."""

    # the indices of its first and last word
    start: int
    end: int
    label: int  # the index of its label
    score: float  # from 0 to 1


class Extractor(TextReader):
    """The base of `GLiNER` and `GLiNER2`: loads a model with its tokenizer, and saves it."""

    _name = "texts"

    @classmethod
    def from_pretrained(
        cls, model_id: str | os.PathLike[str], *, dtype: DType | None = None, revision: str | None = None,
        token: str | bool | None = None, cache_dir: str | os.PathLike[str] | None = None,
        local_files_only: bool = False,
    ) -> Self:  # fmt: skip
        """Load a published model: gliner_config.json or config.json, the weights and a tokenizer.

        Args:
            model_id: the folder, or the model's id on the Hugging Face hub.
            dtype: as in `AutoModel.from_pretrained`.
            revision, token, cache_dir, local_files_only: for an id on the hub, as in `checkpoint.resolve`.

        Raises:
            CheckpointError: a file is invalid, or the kind of model is unsupported.
            ValueError: the tokenizer or the dtype is invalid.
        """
        hub: dict[str, Any] = {"token": token, "cache_dir": cache_dir, "local_files_only": local_files_only}
        folder = checkpoint_folder(resolve(model_id, "gliner", revision=revision, **hub))
        with locked(folder, shared=True):
            loaded = cls._loaded(folder, dtype, hub)
        try:
            return cls(*loaded)
        except ValueError as error:
            raise CheckpointError(f"{folder}: {error}") from error

    @classmethod
    def _loaded(cls, folder: Path, dtype: DType | None, hub: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return the model and the tokenizer of a folder."""
        raise NotImplementedError

    @staticmethod
    def _how(truncation: bool | str, max_length: int | None, **sizes: Any) -> ReadOptions:
        """Return the checked options of a call."""
        if truncation is not True:
            checks.choice("truncation", truncation, TRUNCATIONS)
        return ReadOptions(cutting=Cutting(truncation, max_length), backend=kernels.get_backend(), **sizes)

    def _answers(
        self,
        pairs: Iterable[tuple[str, Any]],
        compute: Callable[[list[Any]], list[Any]],
        how: ReadOptions,
        show_progress_bar: bool | None,
    ) -> Iterator[Any]:
        """Yield the results of `compute` for texts with their labels or schemas, in their order."""
        with progress_bar(None, show_progress_bar) as advance:
            yield from chain.from_iterable(self._read(pairs, compute, MergedWindows("mean"), how, advance))

    def _size(self, text: tuple[str, Any]) -> int:
        return len(text[0])

    def _check_vocabulary(self) -> None:
        if len(self.tokenizer) > (most := self.model.spec.vocab_size):
            raise ValueError(f"tokenizer has {len(self.tokenizer)} tokens, expected at most {most}")

    def save_pretrained(self, save_directory: str | os.PathLike[str]) -> None:
        """Write the model and its tokenizer into a folder, from which the package gliner loads them, too."""
        folder = made_folder(save_directory)
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


class GLiNER(Extractor):
    """A model that finds entities with any labels in texts. Several threads may use one at once.

    Args:
        model: a GLiNER model of the span or the token kind.
        tokenizer: its tokenizer.

    Raises:
        ValueError: if the tokenizer lacks the model's marker tokens, or the model's embeddings lack a row for them.
    """

    def __init__(self, model: GLiNERModel, tokenizer: Tokenizer):
        self.model, self.tokenizer = model, tokenizer
        spec, self.reader = model.gliner, PromptReader.of(tokenizer, model.gliner, model.spec.longest_sequence)
        self._lengths = self.reader.max_tokens, self.reader.max_tokens, 2, "tokenizer"
        known = tokenizer.convert_tokens_to_ids(spec.ent_token)
        if known != spec.class_token:
            raise ValueError(f"class_token_index is {spec.class_token}, expected {known}, the id of {spec.ent_token!r}")
        self._check_vocabulary()

    def __repr__(self) -> str:
        return f"<GLiNER ({self.model.gliner.kind}) of {self.model!r}>"

    @classmethod
    def _loaded(cls, folder: Path, dtype: DType | None, hub: Mapping[str, Any]) -> tuple[GLiNERModel, Any]:
        model = GLiNERModel.from_pretrained(folder, dtype=dtype)
        if any((folder / name).is_file() for name in TOKENIZER_FILES):
            tokenizer = AutoTokenizer.from_pretrained(folder)
        else:  # the first models lack it
            tokenizer = AutoTokenizer.from_pretrained(model.config.get("model_name"), **hub)
        if -1 in (model.gliner.class_token, model.config.get("vocab_size", -1)):
            tokenizer.add_tokens([MARKS[0], model.gliner.ent_token, model.gliner.sep_token], special_tokens=True)
            model.set_class_token(tokenizer.convert_tokens_to_ids(model.gliner.ent_token))
        return model, tokenizer

    @property
    def max_words(self) -> int:
        """The length that texts are cut to, in words."""
        return self.model.gliner.max_len

    @property
    def most_nested(self) -> int:
        """The most entities of a label that begin with the same word."""
        return self.model.gliner.max_width if self.model.gliner.kind == "span" else self.max_words

    @property
    def config(self) -> Mapping[str, Any]:
        """The model's gliner_config.json."""
        return self.model.config

    @property
    def dtype(self) -> str:
        """The dtype of the weights."""
        return self.model.dtype

    def predict_entities(
        self, text: str, labels: Labels, flat_ner: bool = True, threshold: float = 0.5, multi_label: bool = False
    ) -> list[dict[str, Any]]:
        """Return the entities of one text; arguments and errors are those of `inference`."""
        return self.inference([checked_text("text", text)], labels, flat_ner, threshold, multi_label)[0]

    def inference(
        self,
        texts: str | Sequence[str],
        labels: Labels,
        flat_ner: bool = True,
        threshold: float = 0.5,
        multi_label: bool = False,
        batch_size: int = 8,
        **options: Any,
    ) -> list[list[dict[str, Any]]]:
        """Return the entities of each text in a list; arguments and errors are those of `inference_stream`."""
        some = [checked_text("texts", texts)] if isinstance(texts, str) else list(checked_texts(texts))
        return list(self.inference_stream(some, labels, flat_ner, threshold, multi_label, batch_size, **options))

    batch_predict_entities = inference

    def inference_stream(
        self,
        texts: Iterable[str],
        labels: Labels,
        flat_ner: bool = True,
        threshold: float = 0.5,
        multi_label: bool = False,
        batch_size: int = 8,
        *,
        batch_tokens: int = BATCH_TOKENS,
        truncation: bool | str = "warn",
        show_progress_bar: bool | None = False,
    ) -> Iterator[list[dict[str, Any]]]:
        """Return an iterator over the entities of each text, sorted by their first characters; texts may be a stream.

        Args:
            texts: strings. A text with more than the config's `max_len` words, or with more tokens than fit into the
                model beside the labels, is cut.
            labels: a list of names, {name: the description that the model reads}, or for a list of texts a list with
                one of these per text.
            flat_ner: whether to return no two entities that share a word. Otherwise entities may be nested.
            threshold: entities have scores above this.
            multi_label: whether the same words may have several labels.
            batch_size, batch_tokens: maximum texts and tokens computed at once; they do not change the result.
            truncation: treatment of texts that are too long: "warn" cuts them, and the first call that cuts any ends
                with a TextsCutWarning; True cuts them; "error" rejects them.
            show_progress_bar: whether to show a bar; None shows one on a terminal, if the work takes long.

        Returns:
            {"start": index of the first character, "end": of the last + 1, "text", "label", "score"} for each entity.

        Raises:
            TypeError: a text or a label is not a string.
            ValueError: a text is not valid Unicode, or too long for truncation "error"; a label contains one of the
                model's marker tokens; labels are too long, or their lists are not as many as the texts; another
                argument is out of range.
        """
        sets = label_sets(labels, len(texts) if isinstance(texts, Sized) else None)
        marks = self.model.gliner.ent_token, self.model.gliner.sep_token
        for prompt in {prompt for some in sets for prompt in some.values()}:
            if any(mark in prompt for mark in marks):
                raise ValueError(f"labels has {prompt!r}, expected none with {' or '.join(marks)}, its marker tokens")
        checked, threshold = checked_texts(texts), check_share("threshold", threshold)
        fits = checked_fits(flat_ner, multi_label)
        how = self._how(truncation, None, batch_tokens=batch_tokens, batch_size=batch_size)

        def compute(rows: list[TextRow]) -> list[list[dict[str, Any]]]:
            read = [row.read for row in rows if row.read.input_ids]
            found = iter(self._above(read, threshold))
            return [entities(row, next(found), **fits) if row.read.input_ids else [] for row in rows]

        pairs = zip(checked, sets if is_for_each(labels) else repeat(sets[0]), strict=False)
        return self._answers(pairs, compute, how, show_progress_bar)

    def token_rows(self, pairs: Iterable[tuple[str, Mapping[str, str]]]) -> list[tuple[TextRow, bool]]:
        """Return the tokens of texts after {label: the text that stands for it}, and whether each text was cut."""
        most, rows = self.model.gliner.max_len + 1, []  # one more word shows that a text is cut
        for text, names in pairs:
            words = list(islice(split_words(text), most)) if names else []
            rows.append(TextRow(text, words, list(names), PromptedText([], [], [], False)))
            if words:
                (rows[-1].read,) = self.reader.read([[text[slice(*word)] for word in words]], [list(names.values())])
        return [(row, row.read.was_cut) for row in rows]

    def _rows(self, texts: list[Any], how: ReadOptions) -> Iterable[tuple[Any, bool]]:
        return self.token_rows(texts)

    def _cut_texts(self, max_length: int | None) -> CutTexts:
        limit = f"{self.model.gliner.max_len} words, or {self.max_seq_length} tokens with the labels"
        return CutTexts(self, max_length, None, limit=limit)

    @property
    def max_seq_length(self) -> int:
        """The length that labels and text together are cut to, in tokens; None sets the model's."""
        return self.reader.max_tokens

    @max_seq_length.setter
    def max_seq_length(self, value: int | None) -> None:
        self.reader.max_tokens = sequence_length(value, *self._lengths)

    def _above(self, rows: Sequence[PromptedText], threshold: float) -> list[list[WordSpan]]:
        """Return the spans of each text whose score is above the threshold."""
        if not rows:
            return []
        logits = kernels.to_host(self.model(**as_batch(rows, self.tokenizer.pad_token_id)).logits)
        scores, found = 0.5 + np.tanh(logits / 2) / 2, []  # the logistic function
        for row, own in zip(rows, scores, strict=True):
            labels, read = row.input_ids.count(self.model.gliner.class_token), max(row.words_mask)
            if self.model.gliner.kind == "span":
                found.append(spans_above(own[:read, :, :labels], threshold))
            else:
                found.append(runs_above(own[:read, :labels], threshold))
        return found


@dataclass
class TextRow:
    """A text with its words, its labels and its tokens; the tokens are empty if it lacks words or labels."""

    text: str
    words: list[tuple[int, int]]
    names: list[str]
    read: PromptedText

    def __len__(self) -> int:
        return len(self.read)


def entities(row: TextRow, found: Sequence[WordSpan], **fits: bool) -> list[dict[str, Any]]:
    """Return the compatible entities among the spans found in a text; `fits` is for `apart`."""
    spans, scores, kept = [(each.start, each.end + 1) for each in found], [each.score for each in found], []
    for each in (found[place] for place in apart(spans, scores, **fits)):
        start, end = row.words[row.read.words[each.start]][0], row.words[row.read.words[each.end]][1]
        entity = {"start": start, "end": end, "text": row.text[start:end], "label": row.names[each.label]}
        kept.append(entity | {"score": each.score})
    return kept


def checked_fits(flat_ner: bool, multi_label: bool) -> dict[str, bool]:
    """Return the options of `apart` for two arguments of a call."""
    return {"nested": not checks.boolean("flat_ner", flat_ner), "several": checks.boolean("multi_label", multi_label)}


def is_gliner(folder: Path) -> bool:
    """Return whether a folder holds a GLiNER or GLiNER2 model."""
    return (folder / CONFIG_NAME).is_file() or is_gliner2(folder)


def is_gliner2(folder: Path) -> bool:
    """Return whether a folder holds a GLiNER2 model."""
    return (folder / files.CONFIG_NAME).is_file() and read_config(folder).get("model_type") == "extractor"


def is_for_each(labels: Labels) -> bool:
    """Return whether labels are a list with one entry per text."""
    return (
        isinstance(labels, Sequence | np.ndarray)
        and not isinstance(labels, str)
        and any(isinstance(each, list | tuple | Mapping) for each in labels)
    )


def label_sets(labels: Labels, texts: int | None) -> list[Mapping[str, str]]:
    """Return {label: the text that stands for it} for all texts, or for each one."""
    if not is_for_each(labels):
        return [_label_set("labels", [labels] if isinstance(labels, str) else labels)]
    if len(labels) != texts:
        expected = "one list for a stream of texts" if texts is None else f"one for each of the {texts} texts"
        raise ValueError(f"labels has {len(labels)} lists, expected {expected}")
    return [_label_set(f"labels[{number}]", each) for number, each in enumerate(labels)]


def _label_set(name: str, labels: object) -> Mapping[str, str]:
    if isinstance(labels, str) or not isinstance(labels, Mapping | Sequence | np.ndarray):
        raise TypeError(f"{name} is {labels!r:.60}, expected a list of strings")
    found = labels if isinstance(labels, Mapping) else {label: label for label in checked_texts(labels, name)}
    for label, prompt in found.items():
        checked_text(f"a key of {name}", label)
        checked_text(f"{name}[{label!r}]", prompt)
        if not prompt.strip():
            raise ValueError(f"{name} has an empty label, expected at least one character")
    if len(set(found.values())) < len(found):
        raise ValueError(f"{name} has a description twice, expected a different one for each label")
    return found


def spans_above(scores: np.ndarray, threshold: float) -> list[WordSpan]:
    """Return the spans above the threshold, of (words, widths, labels)."""
    first, width, label = np.nonzero(scores > threshold)
    is_within = first + width < len(scores)
    first, width, label = first[is_within], width[is_within], label[is_within]
    given = first, first + width, label, scores[first, width, label]
    return [WordSpan(*each) for each in zip(*(some.tolist() for some in given), strict=True)]


def runs_above(scores: np.ndarray, threshold: float) -> list[WordSpan]:
    """Return the spans whose first word scores as a start, last as an end and all as inside, of (words, labels, 3).

    A span's score is the lowest of these.
    """
    found = []
    for label in range(scores.shape[1]):
        start, end, inside = scores[:, label].T
        outside = np.append(np.flatnonzero(inside < threshold), len(scores))
        for first in np.flatnonzero(start > threshold).tolist():
            stop = outside[np.searchsorted(outside, first)]
            lowest = np.minimum.accumulate(inside[first:stop])
            for width in np.flatnonzero(end[first:stop] > threshold).tolist():
                score = min(lowest[width], start[first], end[first + width])
                found.append(WordSpan(first, first + width, label, float(score)))
    return sorted(found, key=lambda each: (each.start, each.label, each.end))
