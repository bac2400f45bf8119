"""Objectives whose loss is the model's own, of the labels in the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.arguments import check_numbers, check_share
from bertcore.execution.settings import ClassOptions, use_class_options
from bertcore.training.masking import IGNORED
from bertcore.training.objectives.objective import Batch, Objective

TARGETS = ("labels", "start_positions", "entity_labels", "next_sentence_label", "sentence_order_label")


class Supervised(Objective):
    """The model's own loss, as its class documents it for the labels in the batch.

    Args:
        label_smoothing: how much of a label is given to all classes alike, from 0 to 1, for labels that are classes, of
            tokens or sequences, or probabilities of classes. As torch.nn.functional.cross_entropy defines it, which
            transformers' label smoother agrees with.
        class_weights: what the loss of each class is multiplied by, (classes,), as there: the mean is over the weights
            of the labels.

    Probabilities of classes are labels of AutoModelForSequenceClassification with
    problem_type="single_label_classification". A loss has ValueError for options if it has no classes.
    """

    def __init__(self, label_smoothing: float = 0.0, class_weights: Sequence[float] | None = None):
        weights = None if class_weights is None else check_numbers("class_weights", class_weights).astype(np.float64)
        if weights is not None and (weights.ndim != 1 or not np.isfinite(weights).all() or (weights < 0).any()):
            raise ValueError(f"class_weights is {class_weights!r}, expected a finite number from 0 on for each class")
        self.label_smoothing, self.class_weights = check_share("label_smoothing", label_smoothing), weights

    def loss(self, model: Any, batch: Batch) -> Any:
        if not self.label_smoothing and self.class_weights is None:
            return model(**batch)
        options = ClassOptions(self.label_smoothing, self.class_weights)
        with use_class_options(options):
            out = model(**batch)
        if out.loss is not None and not options.were_used:
            name = "label_smoothing" if self.label_smoothing else "class_weights"
            raise ValueError(f"{name} is for labels that are classes, which the loss of this model and batch has not")
        return out

    def weight(self, batch: Batch) -> float:
        """The labels that are not -100, of tokens or of sequences, or with class_weights the sum of their weights; for
        question answering the answers within the batch's length."""
        name = next((name for name in TARGETS if batch.get(name) is not None), None)
        if name is None:
            raise ValueError(f"batch has no labels, expected one of {', '.join(TARGETS)}; it has {', '.join(batch)}")
        labels = kernels.to_host(batch[name])
        if name == "start_positions":
            return float(np.count_nonzero(labels < kernels.to_host(batch["input_ids"]).shape[1]))
        counted = labels[labels != IGNORED]
        if self.class_weights is None or counted.dtype.kind == "f":
            return float(counted.size)
        return float(self.class_weights[counted].sum())
