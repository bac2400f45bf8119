"""The loss of GLiNER2's schemas: spans of entities, relations and records, their numbers, and classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.arguments import check_share
from bertcore.gradients import TrainedModel, with_loss
from bertcore.kernels import checks
from bertcore.models.gliner2 import SEVERAL, GLiNER2Model
from bertcore.models.outputs import ModelOutput
from bertcore.tokenization.tokenizer import Tokenizer
from bertcore.training.data.files import wrong_record
from bertcore.training.objectives.objective import Batch, Objective
from bertcore.training.objectives.similarity import log_sums, softplus


class GLiNER2Schemas(Objective):
    """The sum of the losses of spans, classes and numbers of instances, as in the package gliner2.

    Spans and classes have the binary cross entropy, the numbers of a relation's or record's instances the cross
    entropy. Parts without any instance have no loss; of more than 19 instances, 19 count.

    Examples are gliner2's records, {"input", "output"}: see `bertcore.tasks.gliner2_records.read_record`. gliner2 also
    leaves out and renames labels at random; give records with such labels where that is wanted.

    Args:
        reader: the `GLiNER2` whose model is trained.
        negatives: the probability with which a span that is not an entity counts.
        shuffle: whether the labels of a part are read in random order.

    Raises TypeError or ValueError for a wrong model or number.
    """

    targets = ("span_targets", "span_weights", "class_targets")

    def __init__(self, reader: Any, *, negatives: float = 0.5, shuffle: bool = True):
        if not isinstance(getattr(reader, "model", None), GLiNER2Model):
            raise TypeError(f"reader is {type(reader).__name__}, expected a GLiNER2")
        self.reader, self.negatives = reader, check_share("negatives", negatives)
        self.shuffle = checks.boolean("shuffle", shuffle)

    def collator(self, tokenizer: Tokenizer, *, seed: int = 0) -> GLiNER2Collator:
        return GLiNER2Collator(self, seed=seed)

    def weight(self, batch: Batch) -> float:
        """Return 1: the loss is a sum."""
        return 1.0

    def loss(self, model: TrainedModel, batch: Batch) -> ModelOutput:
        inputs = {name: array for name, array in batch.items() if name not in self.targets}
        marks, counts = (kernels.to_host(batch[name]) for name in ("groups_mask", "instances"))
        classes = kernels.to_host(batch["class_targets"])
        known = {
            "spans": (batch["span_targets"], batch["span_weights"]),
            "classes": (classes[classes > 0][:, None] - 1, 1.0),
            "counts": (counts[(marks % 3 == SEVERAL) & (counts > 0)], None),
        }

        def of_output(out: ModelOutput) -> tuple[Any, Mapping[str, Any]]:
            value, gradients, dtype = 0.0, {}, None
            for name, (targets, weights) in known.items():
                if (logits := getattr(out, name)) is None:
                    continue
                xp, dtype = kernels.array_module(logits), logits.dtype
                losses, slopes = _losses(xp, logits.astype("float64"), xp.asarray(targets), weights)
                value, gradients[name] = value + losses.sum(), slopes.astype(dtype)
            return xp.asarray(value, dtype), gradients

        return with_loss(model(**inputs), of_output)


def _losses(xp: Any, logits: Any, targets: Any, weights: Any) -> tuple[Any, Any]:
    """Return losses and their slopes: binary cross entropy, or without weights the cross entropy."""
    if weights is None:
        (sums, slopes), rows = log_sums(logits), xp.arange(len(targets))
        slopes[rows, targets] -= 1
        return sums - logits[rows, targets], slopes
    losses, shares = softplus(logits)
    return (losses - logits * targets) * weights, (shares - targets) * weights


class GLiNER2Collator:
    """Batches of a GLiNER2Model from records; see `GLiNER2Schemas`.

    `rng` draws the order of labels, and the spans that count.
    """

    def __init__(self, objective: GLiNER2Schemas, *, seed: int = 0):
        self._objective, self.rng = objective, np.random.default_rng(seed)

    def __call__(self, examples: Sequence[Any]) -> dict[str, np.ndarray]:
        """Return input_ids, attention_mask, words_mask, groups_mask, instances, and the targets of the logits.

        Raises MalformedRecord, a ValueError, naming a malformed record.
        """
        rows, reader, order = [], self._objective.reader, self.rng if self._objective.shuffle else None
        for number, record in enumerate(examples):
            try:
                rows.append(reader.labelled_row(record, order))
            except (TypeError, ValueError) as error:
                raise wrong_record(record, number, str(error)) from None
        batch, width = reader.padded(rows), reader.model.max_width
        counts = batch["words_mask"].max(axis=1)
        shape = len(rows), int(counts.max()), width, max(row.queries for row in rows)
        targets, weights = np.zeros((2, *shape), np.float32)
        for number, (row, count) in enumerate(zip(rows, counts.tolist(), strict=True)):
            for query, first, last in row.spans:
                if last - first < width:
                    targets[number, first, last - first, query] = 1
            is_within = np.arange(shape[1])[:, None] + np.arange(width) < count
            weights[number, :, :, : row.queries] = is_within[:, :, None]
        if self._objective.negatives < 1:
            weights *= (targets > 0) | (self.rng.random(shape) < self._objective.negatives)
        return batch | {"span_targets": targets, "span_weights": weights}

    def masking_settings(self) -> dict[str, Any]:
        return {"negatives": self._objective.negatives, "shuffle": self._objective.shuffle}
