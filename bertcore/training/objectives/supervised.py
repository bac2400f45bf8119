"""Objectives whose loss is the model's own, of the labels in the batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.training.masking import IGNORED
from bertcore.training.objectives.objective import Batch, Objective

TARGETS = ("labels", "start_positions", "entity_labels", "next_sentence_label", "sentence_order_label")


class Supervised(Objective):
    """The model's own loss, as its class documents it for the labels in the batch."""

    def loss(self, model: Any, batch: Batch) -> Any:
        return model(**batch)

    def weight(self, batch: Batch) -> float:
        """The labels that are not -100: of tokens, or of sequences; of answers for question answering."""
        target = next((batch[name] for name in TARGETS if batch.get(name) is not None), None)
        if target is None:
            raise ValueError(f"batch has no labels, expected one of {', '.join(TARGETS)}; it has {', '.join(batch)}")
        return float(np.count_nonzero(host_array(target) != IGNORED))


def host_array(array: Any) -> np.ndarray:
    """An array, or lists, in host memory."""
    return array.get() if kernels.array_module(array) is not np else np.asarray(array)
