"""GLiNER: the entities of texts, of any labels, with the names and results of the package gliner."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Self

import numpy as np

from bertcore import kernels
from bertcore.arguments import DType, check_count, check_share, warn_caller
from bertcore.checkpoint import CheckpointError, resolve
from bertcore.checkpoint.files import checkpoint_folder, locked, made_folder
from bertcore.kernels import checks
from bertcore.models.gliner import GLiNERModel
from bertcore.tasks.texts import BATCH_TOKENS, TextsCutWarning, checked_text, checked_texts, in_batches
from bertcore.tokenization import AutoTokenizer
from bertcore.tokenization.mentions import apart
from bertcore.tokenization.prompts import MARKS, PromptedText, PromptReader, as_batch, split_words

TRUNCATIONS = "warn", "error"
TOKENIZER_FILES = "tokenizer_config.json", "tokenizer.json"


@dataclass(frozen=True)
class Found:
    """An entity by its words.

    Attributes:
        start, end: the numbers of its first and last word.
        label: the number of its label.
        score: from 0 to 1.
    """

    start: int
    end: int
    label: int
    score: float


class GLiNER:
    """A model that finds the entities of any labels in texts. Several threads may use one at once.

    Args:
        model: of the span or the token kind.
        tokenizer: its tokenizer.

    Attributes:
        model, tokenizer: the parts.
        has_warned: whether it has warned that texts were cut.

    Raises:
        ValueError: if the tokenizer lacks the model's marks, or the model a row for them.
    """

    def __init__(self, model: GLiNERModel, tokenizer: Any):
        self.model, self.tokenizer, self.has_warned = model, tokenizer, False
        spec, self._reader = model.gliner, PromptReader.of(tokenizer, model.gliner, model.spec.longest_sequence)
        limit = self._reader.max_tokens
        self._limits = f"{spec.max_len} words, or the {limit} tokens that the model takes with the labels"
        known = tokenizer.convert_tokens_to_ids(spec.ent_token)
        if known != spec.class_token:
            raise ValueError(f"class_token_index is {spec.class_token}, expected {known}, the id of {spec.ent_token!r}")
        if len(tokenizer) > model.spec.vocab_size:
            raise ValueError(f"tokenizer has {len(tokenizer)} tokens, expected at most {model.spec.vocab_size}")

    def __repr__(self) -> str:
        return f"<GLiNER ({self.model.gliner.kind}) of {self.model!r}>"

    @property
    def config(self) -> Mapping[str, Any]:
        """The model's gliner_config.json."""
        return self.model.config

    @property
    def dtype(self) -> str:
        """The dtype of the weights."""
        return self.model.dtype

    @classmethod
    def from_pretrained(
        cls,
        model_id: str | os.PathLike,
        *,
        dtype: DType | None = None,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | os.PathLike | None = None,
        local_files_only: bool = False,
    ) -> Self:
        """Load a published model: gliner_config.json, model.safetensors or pytorch_model.bin, and a tokenizer.

        Args:
            model_id: the folder, or the model's id on the Hugging Face hub.
            dtype: as for `AutoModel.from_pretrained`.
            revision, token, cache_dir, local_files_only: for an id on the hub, as for `checkpoint.resolve`.

        Raises:
            CheckpointError: a file is wrong, or the model is of a kind that is not here.
            ValueError: the tokenizer or the dtype is wrong.
        """
        hub: dict[str, Any] = {"token": token, "cache_dir": cache_dir, "local_files_only": local_files_only}
        folder = checkpoint_folder(resolve(model_id, "gliner", revision=revision, **hub))
        with locked(folder, shared=True):
            model = GLiNERModel.from_pretrained(folder, dtype=dtype)
            source: Any = folder
            if not any((folder / name).is_file() for name in TOKENIZER_FILES):
                source = model.config.get("model_name")  # the first models came without
            tokenizer = AutoTokenizer.from_pretrained(source, **(hub if source is not folder else {}))
        if -1 in (model.gliner.class_token, model.config.get("vocab_size", -1)):
            tokenizer.add_tokens([MARKS[0], model.gliner.ent_token, model.gliner.sep_token], special_tokens=True)
            model.set_class_token(tokenizer.convert_tokens_to_ids(model.gliner.ent_token))
        try:
            return cls(model, tokenizer)
        except ValueError as error:
            raise CheckpointError(f"{folder}: {error}") from error

    def save_pretrained(self, save_directory: str | os.PathLike) -> None:
        """Write the model and its tokenizer into a folder, from which the package gliner loads them, too."""
        folder = made_folder(save_directory)
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def predict_entities(
        self,
        text: str,
        labels: Any,
        flat_ner: bool = True,
        threshold: float = 0.5,
        multi_label: bool = False,
    ) -> list[dict[str, Any]]:
        """Return the entities of one text; arguments and errors are those of `inference`."""
        return self.inference([checked_text("text", text)], labels, flat_ner, threshold, multi_label)[0]

    def inference(
        self,
        texts: str | Sequence[str],
        labels: Any,
        flat_ner: bool = True,
        threshold: float = 0.5,
        multi_label: bool = False,
        batch_size: int = 8,
        *,
        batch_tokens: int = BATCH_TOKENS,
        truncation: bool | str = "warn",
    ) -> list[list[dict[str, Any]]]:
        """Return the entities of each text, in the order of their first characters.

        Args:
            texts: one text or several. A text of more than the config's `max_len` words, or of more tokens than the
                model takes with its labels, is cut.
            labels: a list of names, {name: the description that the model reads}, or a list with one of these for each
                text.
            flat_ner: whether no two entities may share a word. Otherwise one may lie within another.
            threshold: entities have scores above this.
            multi_label: whether the same words may have several labels.
            batch_size, batch_tokens: most texts, and most tokens, computed at once; they do not change the result.
            truncation: treatment of texts that are too long: "warn" cuts them, and the first call that does ends with a
                TextsCutWarning; True cuts them; "error" refuses them.

        Returns:
            {"start": the first character, "end": the last + 1, "text", "label", "score"} of each entity.

        Raises:
            TypeError: a text or a label is not a string.
            ValueError: a text is not valid Unicode, or too long for truncation "error"; a label has one of the model's
                marks; labels are too long, or their lists not as many as the texts; another argument is out of range.
        """
        some = [checked_text("texts", texts)] if isinstance(texts, str) else list(checked_texts(texts))
        sets, threshold = self._checked_labels(labels, len(some)), check_share("threshold", threshold)
        flat, several = checks.boolean("flat_ner", flat_ner), checks.boolean("multi_label", multi_label)
        sizes = check_count("batch_tokens", batch_tokens), check_count("batch_size", batch_size)
        if truncation is not True:
            checks.choice("truncation", truncation, TRUNCATIONS)
        most = self.model.gliner.max_len + 1  # a word more shows that a text is cut
        answers: list[list[dict[str, Any]]] = [[] for _ in some]
        words = [list(islice(split_words(text), most)) for text in some]
        asked = [number for number, names in enumerate(sets) if words[number] and names]
        given = [[some[number][slice(*word)] for word in words[number]] for number in asked]
        rows = self._reader.read(given, [list(sets[number].values()) for number in asked])
        cut = [number for number, row in zip(asked, rows, strict=True) if row.was_cut]
        if cut and truncation == "error":
            raise ValueError(f"texts[{cut[0]}] has more than {self._limits}, and truncation is 'error'")

        def compute(batch: list[PromptedText]) -> list[list[Found]]:
            return self._above(batch, threshold)

        found = chain.from_iterable(in_batches(rows, sizes[0], compute, int, sizes[1]))
        for number, row, entities in zip(asked, rows, found, strict=True):
            names = list(sets[number])
            spans, scores = [(each.start, each.end + 1) for each in entities], [each.score for each in entities]
            for place in apart(spans, scores, nested=not flat, several=several):
                each = entities[place]
                first, last = (words[number][row.words[word]] for word in (each.start, each.end))
                text = some[number][first[0] : last[1]]
                entity = {"start": first[0], "end": last[1], "text": text, "label": names[each.label]}
                answers[number].append(entity | {"score": each.score})
        if cut and truncation == "warn" and not self.has_warned:
            self.has_warned = True
            problem = f"{len(cut)} of {len(some)} texts were cut to {self._limits}"
            warn_caller(f"{problem}. This warning is given once", TextsCutWarning)
        return answers

    batch_predict_entities = inference

    def _checked_labels(self, labels: Any, texts: int) -> list[Mapping[str, str]]:
        sets, marks = label_sets(labels, texts), (self.model.gliner.ent_token, self.model.gliner.sep_token)
        for prompt in {prompt for some in sets for prompt in some.values()}:
            if any(mark in prompt for mark in marks):
                raise ValueError(f"labels has {prompt!r}, expected none with {' or '.join(marks)}, the model's marks")
        return sets

    def _above(self, rows: Sequence[PromptedText], threshold: float) -> list[list[Found]]:
        """Return the spans of each text whose score is above the threshold."""
        logits = kernels.to_host(self.model(**as_batch(rows, self.tokenizer.pad_token_id)).logits)
        scores, found = 0.5 + np.tanh(logits / 2) / 2, []  # the logistic function
        for row, own in zip(rows, scores, strict=True):
            labels = row.input_ids.count(self.model.gliner.class_token)
            if self.model.gliner.kind == "span":
                found.append(spans_above(own[: len(row.words), :, :labels], threshold))
            else:
                found.append(runs_above(own[: len(row.words), :labels], threshold))
        return found


def label_sets(labels: Any, texts: int) -> list[Mapping[str, str]]:
    """Return {label: what the model reads for it} for each text."""
    if isinstance(labels, str | Mapping) or not isinstance(labels, Sequence | np.ndarray):
        return [_label_set("labels", [labels] if isinstance(labels, str) else labels)] * texts
    if not any(isinstance(each, list | tuple | Mapping) for each in labels):
        return [_label_set("labels", labels)] * texts
    if len(labels) != texts:
        raise ValueError(f"labels has {len(labels)} lists, expected one for each of the {texts} texts")
    return [_label_set(f"labels[{number}]", each) for number, each in enumerate(labels)]


def _label_set(name: str, labels: Any) -> Mapping[str, str]:
    if isinstance(labels, str) or not isinstance(labels, Mapping | Sequence | np.ndarray):
        raise TypeError(f"{name} is {labels!r:.60}, expected a list of strings")
    found = labels if isinstance(labels, Mapping) else {label: label for label in checked_texts(labels, name)}
    for label, prompt in found.items():
        checked_text(f"a key of {name}", label)
        checked_text(f"{name}[{label!r}]", prompt)
        if not prompt.strip():
            raise ValueError(f"{name} has an empty label, expected at least one character")
    if len(set(found.values())) < len(found):
        raise ValueError(f"{name} has a description twice, expected another one for each label")
    return found


def spans_above(scores: np.ndarray, threshold: float) -> list[Found]:
    """Return the spans above the threshold, of (words, widths, labels)."""
    first, width, label = np.nonzero(scores > threshold)
    is_within = first + width < len(scores)
    first, width, label = first[is_within], width[is_within], label[is_within]
    given = first, first + width, label, scores[first, width, label]
    return [Found(*each) for each in zip(*(some.tolist() for some in given), strict=True)]


def runs_above(scores: np.ndarray, threshold: float) -> list[Found]:
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
                found.append(Found(first, first + width, label, float(score)))
    return sorted(found, key=lambda each: (each.start, each.label, each.end))
