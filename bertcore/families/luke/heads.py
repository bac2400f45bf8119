"""The heads that classify entities, by their hidden states and those of their first and last words."""

from typing import Any

from bertcore.execution import Pass
from bertcore.heads.classifier import ClassifierSpec
from bertcore.nn import functional
from bertcore.nn.layers import Linear, drop
from bertcore.nn.parameter import Block
from bertcore.nn.spec import EncoderSpec


class EntityClassifier(Block):
    """A linear map of several hidden states side by side (Yamada et al. 2020, arXiv:2010.01057, section 4).

    Args:
        head_spec: what the classifier is made of.
        spec: of the encoder.
        num_labels: how many scores it gives.
        parts: how many hidden states stand side by side.
    """

    def __init__(self, head_spec: ClassifierSpec, spec: EncoderSpec, num_labels: int, parts: int):
        sizes = {"in_features": parts * spec.hidden_size, "out_features": num_labels}
        self.dropout = head_spec.dropout
        self.output = Linear(head_spec.output, **sizes, bias="output" not in head_spec.without_bias)

    def __call__(self, run: Pass, *parts: Any) -> Any:
        """Hidden states, (entities, hidden) each -> logits, (entities, num_labels)."""
        features = parts[0] if len(parts) == 1 else functional.concatenate(run, *parts, axis=1)
        return self.output(run, drop(run, features, self.dropout))
