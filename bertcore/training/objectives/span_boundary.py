"""The span boundary objective: masked spans of words, predicted also from the tokens beside them."""

from __future__ import annotations

from typing import Any

from bertcore.models.outputs import SpanBoundaryOutput
from bertcore.training.masking import Masking
from bertcore.training.objectives.language_modeling import MaskedLM
from bertcore.training.objectives.objective import Batch

SPANS = Masking(unit="span")


class SpanBoundary(MaskedLM):
    """Masked words, each also predicted from the boundaries of its span (Joshi et al. 2020, arXiv:1907.10529).

    The loss is the sum of two means of cross entropies: over the masked tokens, from the token itself, and over those
    whose span has a boundary on both sides, from these two tokens and the place in the span. Its weight is the number
    of masked tokens. `bertcore.AutoModelForSpanBoundary` says what a span is.

    Args:
        masking: how tokens are chosen and replaced; spans of words by default.
        label_smoothing: of both, as for `Supervised`.

    `loss` raises TypeError for a model without the head of span boundaries.
    """

    model_class = "AutoModelForSpanBoundary"

    def __init__(self, masking: Masking = SPANS, *, label_smoothing: float = 0.0):
        super().__init__(masking, label_smoothing=label_smoothing)

    def loss(self, model: Any, batch: Batch) -> Any:
        out = super().loss(model, batch)
        if not isinstance(out, SpanBoundaryOutput):  # its loss is that of the masked tokens alone
            raise TypeError(f"SpanBoundary needs an {self.model_class}, the model gives {type(out).__name__}")
        return out
