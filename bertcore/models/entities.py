"""Models that classify marked spans of a text: one, a pair, or each of many.

Every family with token classification has them. LUKE's models, which also read entities, derive from these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertcore.heads import ClassifierSpec
from bertcore.kernels.arrays import ArrayLike, NativeArray
from bertcore.models import losses
from bertcore.models.adapter import Encoded
from bertcore.models.inputs import integer_batch, like, refuse_where
from bertcore.models.outputs import LogitsOutput
from bertcore.models.registry import HeadSpec
from bertcore.models.with_heads import ModelWithHeads, with_labels
from bertcore.nn import functional
from bertcore.nn.layers import Embedding, Linear, drop
from bertcore.nn.packing import PackedBatch
from bertcore.nn.parameter import Block
from bertcore.nn.spec import EncoderSpec
from bertcore.passes import Pass
from bertcore.tape import Tensor

WIDTHS = 64  # rows of the width table; wider spans share the last row


class SpanClassifier(Block):
    """out_proj(relu(the sum of a linear map of each part, and of the width's embedding)).

    A part is the hidden state of a token. Marked entities use the marker before each, with a projection and ReLU (Zhou
    and Chen 2022, arXiv:2102.01373); spans use the first and the last token, with the width (Zhong and Chen 2021,
    arXiv:2010.12812, with two such layers).
    `name` is the prefix of the tensors' names, `dropout` the rate of the last map's input in training, and `widths` the
    number of widths that have an embedding.
    """

    def __init__(
        self, name: str, parts: Sequence[str], spec: EncoderSpec, num_labels: int, dropout: float, widths: int = 0
    ):
        size = spec.hidden_size
        sizes = {"in_features": size, "out_features": size}
        self.parts = [Linear(f"{name}.{part}", **sizes, bias=part == parts[0]) for part in parts]
        self.widths = Embedding(f"{name}.width_embeddings", rows=widths, features=size) if widths else None
        self.output = Linear(f"{name}.out_proj", in_features=size, out_features=num_labels)
        self.dropout = dropout

    def __call__(self, run: Pass, hidden: Tensor, rows: Sequence[Any], widths: NativeArray | None = None) -> Tensor:
        """Map hidden states, (tokens, hidden), and the rows of each part, (spans,), to logits, (spans, num_labels)."""
        total = None if self.widths is None else self.widths(run, widths)
        for part, where in zip(self.parts, rows, strict=True):
            taken = functional.take_rows(run, part(run, hidden), rows=where)
            total = taken if total is None else functional.add(run, total, taken)
        features = functional.activation(run, total, activation="relu")
        return self.output(run, drop(run, features, self.dropout))


class AutoModelForEntityClassification(ModelWithHeads[LogitsOutput]):
    """An encoder that classifies one marked entity per sequence: scores, (sequences, num_labels).

    The option `num_labels` overrides the config, to start a new task.

    Calls take `entity_start_positions`, the column of the marker before the entity, (sequences, 1); LUKE's calls take
    the entities instead (`family.inputs`). `labels` are either classes, (sequences,), with -100 for no label, and the
    loss is the mean cross entropy; or 0 and 1 for each label, (sequences, num_labels), and the loss is the mean binary
    cross entropy. They return a LogitsOutput.
    """

    _architecture = "ForEntityClassification"
    tasks = ("token_classification",)
    _targets = ("entity_start_positions", "labels")
    _parts: tuple[str, ...] = ("entity",)

    def __init__(self, config: Mapping[str, Any], *, num_labels: int | None = None):
        super().__init__(with_labels(config, num_labels))

    @property
    def label_names(self) -> tuple[str, ...]:
        return ("labels",)

    @property
    def takes_entities(self) -> bool:
        """True if calls take entities in addition to the words."""
        return "entity_ids" in self.arguments

    def _head(self, task: str, spec: HeadSpec) -> Block:
        assert isinstance(spec, ClassifierSpec)
        return SpanClassifier(spec.output, self._parts, self.spec, self.config.num_labels, self.spec.classifier_dropout)

    def _output(self, encoded: Encoded, labels: ArrayLike | None = None,
                entity_start_positions: ArrayLike | None = None) -> LogitsOutput:  # fmt: skip
        """Classify the `_parts` of each sequence together."""
        columns = _columns(encoded, "entity_start_positions", entity_start_positions)
        expected = (encoded.packed.shape[0], len(self._parts))
        if columns.shape != expected:
            raise ValueError(f"entity_start_positions has shape {columns.shape}, expected {expected}")
        batch = PackedBatch(np.ones(expected, bool))
        rows = rows_of(encoded, batch, "entity_start_positions", columns).reshape(expected)
        parts = [encoded.run.to_backend(part) for part in rows.T.copy()]
        return self._classified(encoded, self.heads[0](encoded.run, encoded.hidden, parts), labels)

    def _classified(self, encoded: Encoded, logits: Tensor, labels: ArrayLike | None) -> LogitsOutput:
        loss = None
        if labels is not None:
            kind = losses.PROBLEM_TYPES[1 if losses.label_array("labels", labels).ndim == 1 else 2]
            loss = losses.classification_loss(encoded.run, logits, labels, self.config.num_labels, kind)
        return LogitsOutput(loss=loss, logits=logits, traced=encoded.traced)


class AutoModelForEntityPairClassification(AutoModelForEntityClassification):
    """An encoder that classifies a pair of marked entities per sequence: scores, (sequences, num_labels).

    `entity_start_positions` are the columns of the markers before the head and the tail, (sequences, 2). Otherwise as
    AutoModelForEntityClassification.
    """

    _architecture = "ForEntityPairClassification"
    _parts = ("head", "tail")


class AutoModelForEntitySpanClassification(AutoModelForEntityClassification):
    """An encoder that classifies spans: scores, (sequences, spans, num_labels).

    Calls take `entity_start_positions` and `entity_end_positions`, the columns of the first and the last token of each
    span, (sequences, spans), padded with -1; and `labels`: classes, (sequences, spans), -100 for no label; the loss is
    the mean cross entropy. LUKE's calls also take the entities (`family.inputs`), and accept labels of 0 and 1,
    (sequences, entities, num_labels). They return a LogitsOutput.
    """

    _architecture = "ForEntitySpanClassification"
    _targets = ("entity_start_positions", "entity_end_positions", "labels")
    _parts = ("start", "end")

    def _head(self, task: str, spec: HeadSpec) -> Block:
        assert isinstance(spec, ClassifierSpec)
        sizes = self.spec, self.config.num_labels, self.spec.classifier_dropout
        return SpanClassifier(spec.output, self._parts, *sizes, widths=WIDTHS)

    def _output(self, encoded: Encoded, labels: ArrayLike | None = None,
                entity_start_positions: ArrayLike | None = None,
                entity_end_positions: ArrayLike | None = None) -> LogitsOutput:  # fmt: skip
        run, names = encoded.run, ("entity_start_positions", "entity_end_positions")
        starts, ends = map(_columns, [encoded] * 2, names, (entity_start_positions, entity_end_positions))
        batch = PackedBatch(starts >= 0)
        like(names[0], starts, names[1], ends)
        wrong = batch.stays & (ends < starts)
        if wrong.any():
            refuse_where(wrong, names[1], ends, f"at least the start, {starts[wrong][0]}")
        rows = [run.to_backend(rows_of(encoded, batch, *each)) for each in zip(names, (starts, ends), strict=True)]
        widths = run.to_backend(batch.strip(np.minimum(ends - starts, WIDTHS - 1)))
        logits, loss = self.heads[0](run, encoded.hidden, rows, widths), None
        if labels is not None:
            loss = losses.token_loss(run, logits, labels, batch, self.config.num_labels, kind="entity_")
        return LogitsOutput(loss=loss, logits=batch.pad(run, logits), traced=encoded.traced)


def _columns(encoded: Encoded, name: str, columns: ArrayLike | None) -> np.ndarray:
    """Return columns of tokens, (sequences, spans), in host memory."""
    if columns is None:
        raise ValueError(f"{name} is None, expected the columns of the spans' tokens, (sequences, spans)")
    array = integer_batch(name, columns, ("sequences", "spans"))
    if len(array) != encoded.packed.shape[0]:
        raise ValueError(f"{name} has {len(array)} sequences, expected {encoded.packed.shape[0]} as input_ids has")
    return array


def rows_of(encoded: Encoded, batch: PackedBatch, name: str, columns: np.ndarray) -> np.ndarray:
    """Return the packed index of the token in each span's column, (spans,), for the spans in `batch`.

    Raises ValueError for a column that holds no real token.
    """
    rows = encoded.packed.rows()
    inside = (columns >= 0) & (columns < rows.shape[1])
    found = np.where(inside, np.take_along_axis(rows, np.where(inside, columns, 0), axis=1), -1)
    refuse_where(batch.stays & (found < 0), name, columns, "the column of a real token")
    return batch.strip(found)
