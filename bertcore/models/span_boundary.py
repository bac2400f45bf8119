"""The masked language model with the head of the span boundary objective."""

from __future__ import annotations

from typing import Any

from bertcore.heads.span_boundary import SpanBoundaryHead, find_boundaries
from bertcore.models import losses
from bertcore.models.adapter import Encoded
from bertcore.models.auto import AutoModelForMaskedLM
from bertcore.models.outputs import SpanBoundaryOutput
from bertcore.models.registry import HeadSpec
from bertcore.nn import functional
from bertcore.nn.parameter import Block


class AutoModelForSpanBoundary(AutoModelForMaskedLM):
    """AutoModelForMaskedLM with a second head, which predicts the words of masked spans from the two tokens beside them
    (SpanBERT: Joshi et al. 2020, arXiv:1907.10529).

    Calls take `labels`, as AutoModelForMaskedLM, and return a SpanBoundaryOutput. The spans are the labelled tokens
    that stand side by side; the loss is the sum of both heads' means, or the language model's alone if no labelled
    token has a boundary on both sides. For BERT and RoBERTa and what has their shape.

    A saved model is a masked language model to transformers, which does not know the second head.
    """

    _tasks = ("masked_lm", "span_boundary")

    def _head(self, task: str, spec: HeadSpec) -> Block:
        if task == "masked_lm":
            return super()._head(task, spec)
        return SpanBoundaryHead(spec, self.spec, self.encoder.embeddings.words.table)

    def _output(self, encoded: Encoded, labels: Any = None) -> SpanBoundaryOutput:
        if labels is not None:
            labels = losses.words(encoded.packed, labels, self.spec.vocab_size)
        mlm_loss, logits = self._words(self.heads[0], encoded, labels)
        sbo_loss = None if labels is None else self._boundary_loss(encoded, labels)
        return SpanBoundaryOutput(
            loss=mlm_loss if sbo_loss is None else functional.add(encoded.run, mlm_loss, sbo_loss),
            mlm_loss=mlm_loss,
            sbo_loss=sbo_loss,
            logits=logits,
            traced=encoded.traced,
        )

    def _boundary_loss(self, encoded: Encoded, labels: Any) -> Any:
        """The mean cross entropy of the second head; None if there is nothing to predict."""
        head, run = self.heads[1], encoded.run
        found = find_boundaries(labels, encoded.packed.cu_seqlens, head.most)
        if not found.rows.size:
            return None
        rows, *beside = found
        scores = head(run, encoded.hidden, *map(run.to_backend, beside))
        return losses.cross_entropy(run, scores, run.to_backend(labels[rows]))
