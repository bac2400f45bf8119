"""Scores of texts and pairs of texts by a sequence classifier, and functions of scores."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.models.auto import AutoModelForSequenceClassification
from bertcore.tasks.long_texts import MergedWindows, Text, Window
from bertcore.tasks.reading import ReadOptions, TextReader
from bertcore.tasks.texts import lower_cased


@dataclass(frozen=True)
class Tokens:
    """The tokens of one text or pair: ids, and token types if the tokenizer returns them, (tokens,) integers."""

    ids: list[int]
    types: list[int] | None

    def __len__(self) -> int:
        return len(self.ids)


class SequenceScores(TextReader):
    """A sequence classifier with its tokenizer: texts or pairs of texts in, logits out.

    Args:
        folder: folder of the model and the tokenizer.
        dtype: as for AutoModel.
        max_seq_length: cut texts and pairs to this many tokens; by default as published.
        published_length: the published length; by default that of the tokenizer.
        do_lower_case: whether texts are lower-cased before they are tokenized.
        num_labels: number of labels, for which a head is made if the checkpoint has none; by default it must have one.

    Raises:
        CheckpointError: a file is invalid, or the checkpoint has no classifier's head.
        ValueError: `max_seq_length` is out of range.
    """

    def __init__(
        self,
        folder: Path,
        *,
        dtype: str | None = None,
        max_seq_length: int | None = None,
        published_length: int | None = None,
        do_lower_case: bool = False,
        num_labels: int | None = None,
    ):
        self._load_trained(AutoModelForSequenceClassification, folder, dtype, "sequence classifier", num_labels)
        self._load_tokenizer(folder, max_seq_length, published_length, "pair")
        self.do_lower_case = do_lower_case
        self.num_labels = self.model.config.num_labels

    def logits(
        self, rows: Iterable[Sequence[str]], how: ReadOptions, advance: Callable[[int], object] = lambda count: None
    ) -> Iterator[np.ndarray]:
        """Yield the logits, (labels,) float32, of each row, in their order: one text, (text,), or a pair of texts.

        Memory is bounded by `batch_tokens`; `advance` is called with the number of rows just completed.
        """
        yield from chain.from_iterable(self._read(rows, self.scored, MergedWindows(how.merge), how, advance))

    def _text(self, text: Sequence[str], prompt: str) -> Text:
        return Text(*map(lower_cased, text) if self.do_lower_case else text)

    def _size(self, text: Sequence[str]) -> int:
        return sum(map(len, text))

    def _row(self, window: Window) -> Tokens:
        has_types = "token_type_ids" in self.tokenizer.model_input_names
        return Tokens(window.ids, window.encoding.type_ids if has_types else None)

    def token_rows(
        self, rows: list[Sequence[str]], prompt: str = "", max_length: int | None = None
    ) -> Iterator[tuple[Tokens, bool]]:
        """Yield the tokens of each text or pair, cut to `max_length`, and whether it was cut.

        The length is `max_seq_length` by default.
        """
        most = self.max_seq_length if max_length is None else max_length
        for _, same in groupby(rows, key=len):
            columns = [list(column) for column in zip(*same, strict=True)]
            if self.do_lower_case:
                columns = [list(map(lower_cased, column)) for column in columns]
            found = self.tokenizer(*columns, truncation=True, max_length=most)
            ids, were_cut = found["input_ids"], [bool(encoding.overflowing) for encoding in found.encodings]
            types = found.get("token_type_ids", [None] * len(ids))
            yield from zip(map(Tokens, ids, types), were_cut, strict=True)

    def scored(self, batch: list[Tokens]) -> np.ndarray:
        """Return the logits of a batch, (rows, labels) float32."""
        longest = max(map(len, batch))
        inputs = {"input_ids": _padded([row.ids for row in batch], longest)}
        inputs["attention_mask"] = _padded([[1] * len(row) for row in batch], longest)
        if batch[0].types is not None:
            inputs["token_type_ids"] = _padded([row.types for row in batch], longest)
        return kernels.to_host(self.model(**inputs).logits).astype(np.float32, copy=False)


def _padded(rows: list[Any], length: int) -> np.ndarray:
    padded = np.zeros((len(rows), length), np.int32)
    for row, values in enumerate(rows):
        padded[row, : len(values)] = values
    return padded


def softmax(scores: np.ndarray) -> np.ndarray:
    """Return the softmax over the last axis, float64."""
    weights = np.exp(scores.astype(np.float64) - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def sigmoid(scores: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + exp(-score)), float64, without overflow."""
    scores = scores.astype(np.float64)
    small = np.exp(-np.abs(scores))
    return np.where(scores >= 0, 1.0, small) / (1.0 + small)


def unchanged(array: np.ndarray) -> np.ndarray:
    """Return the array itself; unlike a lambda, this can be pickled."""
    return array


FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {"softmax": softmax, "sigmoid": sigmoid, "none": unchanged}


def published_function(problem_type: str | None, num_labels: int) -> str:
    """Return the name in `FUNCTIONS` that turns a classifier's scores into probabilities, by its config.

    "none" for regression, "sigmoid" for one label or several at once, "softmax" otherwise.
    """
    if problem_type == "regression":
        return "none"
    return "sigmoid" if problem_type == "multi_label_classification" or num_labels == 1 else "softmax"


def best_labels(
    scores: np.ndarray, names: Mapping[int, str] | Sequence[str], top_k: int | None = None
) -> list[dict[str, Any]]:
    """Return {"label", "score"} of the classes, best first; `names` are by index."""
    order = np.argsort(-scores, kind="stable")[:top_k].tolist()
    return [{"label": names[index], "score": float(scores[index])} for index in order]
