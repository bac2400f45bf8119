"""Words for the masks of texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.arguments import check_count
from bertcore.tasks.long_texts import Window
from bertcore.tasks.pipelines.base import CallOptions, Pipeline
from bertcore.tasks.sequence_scores import softmax
from bertcore.tasks.texts import check_words


@dataclass(frozen=True)
class FillMaskOptions(CallOptions):
    """What a call may say, beside `CallOptions`.

    Attributes:
        top_k: how many words a mask.
        targets: the words to choose from, each one token of the vocabulary; by default all.
    """

    top_k: int = 5
    targets: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("top_k", self.top_k)


@dataclass(frozen=True)
class _Masks:
    """The masks of a window: where they are in it and in the text, and for each its best words."""

    ids: list[int]
    columns: list[int]
    places: list[int]
    words: np.ndarray
    scores: np.ndarray


class FillMaskPipeline(Pipeline):
    """The most probable words of each mask: [{"score", "token", "token_str", "sequence"}], the best first.

    A text with several masks gets a list of such lists, one a mask, from left to right; each mask is predicted on its
    own, the others staying masked. score is the probability over the model's whole vocabulary; sequence the text with
    the word in its place (of a text that is read in windows, the window that the mask is read in). Options:
    `FillMaskOptions`.
    """

    task = "fill-mask"
    options_class = FillMaskOptions
    _model_class = "AutoModelForMaskedLM"
    _head = "masked language model's head"

    def __init__(self, model: Any, tokenizer: Any, **options: Any):
        if tokenizer.mask_token is None:
            raise ValueError("this model's tokenizer has no mask token, so it cannot do fill-mask")
        super().__init__(model, tokenizer, **options)

    def _options(self, given: Mapping[str, Any]) -> Any:
        options = super()._options(given)
        if options.targets is not None:
            self._target_ids(options.targets)
        return options

    def _target_ids(self, targets: str | Sequence[str]) -> list[int]:
        words = [targets] if isinstance(targets, str) else targets
        check_words("targets", words)
        if not words:
            raise ValueError("targets is empty, expected words")
        vocabulary, found = self.tokenizer.get_vocab(), []
        for word in words:
            ids = [vocabulary[word]] if word in vocabulary else self.tokenizer.encode(word, add_special_tokens=False)
            if len(ids) != 1 or ids[0] == self.tokenizer.unk_token_id:
                raise ValueError(f"targets has {word!r}, which is {len(ids)} tokens or unknown, expected one token")
            found.append(ids[0])
        return list(dict.fromkeys(found))

    def _read(self, windows: Sequence[Window], arrays: Mapping[str, np.ndarray], options: Any) -> Sequence[Any]:
        masked = (arrays["input_ids"] == self.tokenizer.mask_token_id) & (arrays["attention_mask"] == 1)
        words = scores = np.zeros((0, 0))
        if masked.any():  # the scores of the masks alone: a vocabulary's for all tokens are most of the memory
            labels = np.where(masked, 0, -100)
            logits = kernels.to_host(self.model.label_scores(**arrays, labels=labels)[0])
            words, scores = self._best(logits, options)
        found, first = [], 0
        for row, window in enumerate(windows):
            columns = np.flatnonzero(masked[row]).tolist()
            rows = slice(first, first + len(columns))
            first += len(columns)
            places = window.offsets[columns, 0].tolist() if columns else []
            found.append(_Masks(list(window.ids), columns, places, words[rows], scores[rows]))
        return found

    def _best(self, logits: np.ndarray, options: FillMaskOptions) -> tuple[np.ndarray, np.ndarray]:
        """The ids and probabilities of the best words of each row, (masks, top_k)."""
        # A vocabulary is often rounded up in the model: what lies beyond the tokenizer's stands for no word.
        choices = np.arange(min(len(self.tokenizer), logits.shape[1]))
        if options.targets is not None:
            choices = np.array(self._target_ids(options.targets))
        probabilities = softmax(logits)[:, choices]
        order = np.argsort(-probabilities, axis=1, kind="stable")[:, : options.top_k]
        return choices[order], np.take_along_axis(probabilities, order, axis=1)

    def _answer(self, item: Any, name: str, kept: list[list[Any]], options: Any) -> Any:
        read = {}  # a mask that two windows share is read in the one in which it is further from the edge
        for masks in kept[0]:
            for number, (column, place) in enumerate(zip(masks.columns, masks.places, strict=True)):
                room = min(column, len(masks.ids) - column)
                if place not in read or room > read[place][0]:
                    read[place] = room, masks, number
        if not read:
            mask, length = self.tokenizer.mask_token, self._cutting(options).max_length
            if mask in item:
                expected = "truncation='chunk' reads all of it"
                raise ValueError(f"{name} has {mask} beyond the {length} tokens that are read: {expected}")
            raise ValueError(f"{name} has no {mask}: put {mask} where a word is to be predicted")
        answers = [self._words(*read[place][1:], alone=len(read) == 1) for place in sorted(read)]
        return answers[0] if len(answers) == 1 else answers

    def _words(self, masks: _Masks, number: int, *, alone: bool) -> list[dict[str, Any]]:
        answers = []
        for word, score in zip(masks.words[number].tolist(), masks.scores[number].tolist(), strict=True):
            ids = [*masks.ids]
            ids[masks.columns[number]] = word
            # Special tokens are left out where no other mask would go with them.
            text = self.tokenizer.decode(ids, skip_special_tokens=alone)
            answers.append(
                {"score": score, "token": word, "token_str": self.tokenizer.decode([word]), "sequence": text}
            )
        return answers
