"""What models return: the fields have the names, and the order, that they have in transformers."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any


@dataclass(eq=False)
class ModelOutput:
    """Fields by attribute, by name (`out["logits"]`) or, skipping absent ones, by position (`out[0]`)."""

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
        pairs = [(field.name, getattr(self, field.name)) for field in fields(self)]
        return [(name, value) for name, value in pairs if value is not None]

    def values(self) -> tuple[Any, ...]:
        """As to_tuple: with keys and items this makes dict(out) work."""
        return self.to_tuple()

    def to_tuple(self) -> tuple[Any, ...]:
        """The values of the fields that are there."""
        return tuple(value for _, value in self.items())


@dataclass(eq=False)  # arrays have no single truth value
class EncoderOutput(ModelOutput):
    """Attributes:
    last_hidden_state: (sequences, length, hidden); pads are zero.
    pooler_output: (sequences, hidden), for encoders with a pooler.
    hidden_states: on request, the embeddings' and each layer's output, (sequences, length, hidden) each.
    attentions: on request, each layer's probabilities, (sequences, heads, length, length) each.
    """

    last_hidden_state: Any = None
    pooler_output: Any = None
    hidden_states: tuple[Any, ...] | None = None
    attentions: tuple[Any, ...] | None = None


@dataclass(eq=False)
class MaskedLMOutput(ModelOutput):
    """Attributes:
    loss: with labels, the mean cross entropy over the labels that are not -100.
    logits: (sequences, length, vocabulary); pads are zero.
    hidden_states, attentions: as in EncoderOutput.
    """

    loss: Any = None
    logits: Any = None
    hidden_states: tuple[Any, ...] | None = None
    attentions: tuple[Any, ...] | None = None
