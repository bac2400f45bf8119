"""What models return: the fields have the names, and the order, that they have in transformers."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any


@dataclass(eq=False, kw_only=True)  # arrays have no single truth value
class ModelOutput:
    """Fields by attribute, by name (`out["logits"]`) or, skipping absent ones, by position (`out[0]`).

    Attributes:
        mems: XLNet's memory for the next segment, one array for each layer, (sequences, length, hidden).
        hidden_states: on request, the embeddings' and each layer's output, (sequences, length, hidden) each.
        attentions: on request, each layer's probabilities, (sequences, heads, length, length) each.
    """

    mems: tuple[Any, ...] | None = None
    hidden_states: tuple[Any, ...] | None = None
    attentions: tuple[Any, ...] | None = None

    def __getitem__(self, key: str | int | slice) -> Any:
        return dict(self.items())[key] if isinstance(key, str) else self.to_tuple()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self.keys())

    def keys(self) -> list[str]:
        """The names of the fields that are there."""
        return [name for name, _ in self.items()]

    def items(self) -> list[tuple[str, Any]]:
        """(name, value) of the fields that are there."""
        common = [field.name for field in fields(ModelOutput)]
        names = [field.name for field in fields(self) if field.name not in common] + common  # a class's own come first
        return [(name, getattr(self, name)) for name in names if getattr(self, name) is not None]

    def values(self) -> tuple[Any, ...]:
        """As to_tuple: with keys and items this makes dict(out) work."""
        return self.to_tuple()

    def to_tuple(self) -> tuple[Any, ...]:
        """The values of the fields that are there."""
        return tuple(value for _, value in self.items())


@dataclass(eq=False, kw_only=True)
class EncoderOutput(ModelOutput):
    """Attributes:
    last_hidden_state: (sequences, length, hidden); pads are zero.
    pooler_output: (sequences, hidden), for encoders with a pooler.
    """

    last_hidden_state: Any = None
    pooler_output: Any = None


@dataclass(eq=False, kw_only=True)
class LogitsOutput(ModelOutput):
    """Attributes:
    loss: with labels, a scalar.
    logits: of the head, zero where there is padding: (sequences, length, classes or words), (sequences, classes),
        (sequences, choices), or for replaced tokens (sequences, length).
    """

    loss: Any = None
    logits: Any = None


@dataclass(eq=False, kw_only=True)
class PreTrainingOutput(ModelOutput):
    """Attributes:
    loss: with labels for both heads, the sum of their losses.
    prediction_logits: of the language model, (sequences, length, vocabulary); pads are zero.
    seq_relationship_logits, sop_logits: of next sentence prediction (BERT) or sentence order (ALBERT), (sequences, 2).
    """

    loss: Any = None
    prediction_logits: Any = None
    seq_relationship_logits: Any = None
    sop_logits: Any = None


@dataclass(eq=False, kw_only=True)
class QuestionAnsweringOutput(ModelOutput):
    """Attributes:
    loss: with start_positions and end_positions, the mean of both cross entropies.
    start_logits, end_logits: (sequences, length); pads are zero.
    """

    loss: Any = None
    start_logits: Any = None
    end_logits: Any = None
