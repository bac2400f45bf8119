"""Batches of texts in columns: anchor, positive, negative, ..."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertcore.training.truncation import is_cut

LABELS = ("label", "labels", "score", "scores")


class ColumnCollator:
    """Examples of several texts, and a label or none, become one batch of (examples, columns, length).

    Examples are mappings of texts, all with the same names in the same order; what they are called does not matter.
    "label", "labels", "score" or "scores" is the label: a number, or a list of numbers as long as in every other
    example.

    Args:
        tokenizer: cuts the texts to `max_length` and pads them to the longest.
        max_length: in tokens, special ones included; by default the tokenizer's model_max_length, if it has one.
    """

    def __init__(self, tokenizer: Any, max_length: int | None = None):
        self.tokenizer, self.max_length = tokenizer, max_length

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
        """The batch: input_ids and what else the model takes, (examples, columns, length), and labels.

        Raises:
            ValueError: for no examples, or one whose names are not those of the first.
            TypeError: for a column that is no text.
        """
        if not examples:
            raise ValueError("examples is empty, expected at least one")
        names = list(examples[0])
        columns = [name for name in names if name not in LABELS]
        for index, example in enumerate(examples):
            if list(example) != names:
                raise ValueError(f"examples[{index}] has {', '.join(example)}, expected {', '.join(names)}")
            wrong = [name for name in columns if not isinstance(example[name], str)]
            if wrong:
                kind = type(example[wrong[0]]).__name__
                raise TypeError(f"examples[{index}][{wrong[0]!r}] is {kind}, expected a text")
        texts = [example[name] for example in examples for name in columns]
        cuts = {"truncation": is_cut(self.tokenizer, self.max_length), "max_length": self.max_length}
        rows = self.tokenizer(texts, padding=True, return_tensors="np", **cuts)
        batch = {name: array.reshape(len(examples), len(columns), -1) for name, array in rows.items()}
        for name in set(names) - set(columns):
            batch["labels"] = np.array([example[name] for example in examples])
        return batch
