"""What models return: the fields have the names, and the order, that they have in transformers."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple


class AttentionComponents(NamedTuple):
    """The terms that a layer's attention scores are the sum of (He et al. 2021, arXiv:2006.03654, equation 2).

    Each is (sequences, heads, length, length), scaled as the scores are, with zeros where either token is padding; None
    where the model has no such term.
    """

    content_to_content: Any
    content_to_position: Any
    position_to_content: Any


class Later:
    """A field that is computed when it is first read: what training seldom looks at, and takes long."""

    def __init__(self, compute: Callable[[], Any]):
        self.compute = compute


@dataclass(eq=False, kw_only=True)  # arrays have no single truth value
class ModelOutput:
    """Fields by attribute, by name (`out["logits"]`) or, skipping absent ones, by position (`out[0]`).

    A field that is given as `Later` is computed when it is first read.

    Attributes:
        loss: a scalar, where there is one: of a model with a head, given labels.
        mems: XLNet's and Transformer-XL's memory for the next segment, for each layer (memory, sequences, hidden).
        hidden_states: on request, the embeddings' and each layer's output, (sequences, length, hidden) each.
        entity_hidden_states: the same of LUKE's entities, (sequences, entities, hidden) each.
        attentions: on request, each layer's probabilities, (sequences, heads, length, length) each; with entities these
            follow the words, (sequences, heads, length + entities, length + entities).
        attention_components: on request (output_attention_components, DeBERTa), the AttentionComponents of each layer.
    """

    _last: ClassVar[tuple[str, ...]] = (
        "mems",
        "hidden_states",
        "entity_hidden_states",
        "attentions",
        "attention_components",
    )
    loss: Any = None
    mems: tuple[Any, ...] | None = None
    hidden_states: tuple[Any, ...] | None = None
    entity_hidden_states: tuple[Any, ...] | None = None
    attentions: tuple[Any, ...] | None = None
    attention_components: tuple[AttentionComponents, ...] | None = None

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if type(value) is Later:
            value = value.compute()
            setattr(self, name, value)
        return value

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in vars(self)}  # a copy for another process has all its fields

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
        names = [field.name for field in fields(self) if field.name not in self._last]  # a class's own come first
        return [(name, getattr(self, name)) for name in (*names, *self._last) if getattr(self, name) is not None]

    def values(self) -> tuple[Any, ...]:
        """As to_tuple: with keys and items this makes dict(out) work."""
        return self.to_tuple()

    def predictions(self) -> tuple[Any, ...]:
        """The scores of the heads (all fields that are logits), or of a model without a head its fields."""
        logits = tuple(getattr(self, name) for name in self.keys() if name.endswith("logits"))
        return logits or tuple(value for name, value in self.items() if name not in ("loss", *self._last))

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
class EntityEncoderOutput(EncoderOutput):
    """Attributes:
    entity_last_hidden_state: (sequences, entities, hidden); pads are zero.
    """

    _last = ("hidden_states", "attentions", "entity_last_hidden_state", "entity_hidden_states")
    entity_last_hidden_state: Any = None


@dataclass(eq=False, kw_only=True)
class LogitsOutput(ModelOutput):
    """Attributes:
    logits: of the head, zero where there is padding: (sequences, length, classes or words), (sequences, classes),
        (sequences, choices), or for replaced tokens (sequences, length).
    """

    logits: Any = None


@dataclass(eq=False, kw_only=True)
class EntityMaskedLMOutput(ModelOutput):
    """Attributes:
    mlm_loss, mep_loss: of the words and of the entities, scalars.
    logits: (sequences, length, vocabulary); pads are zero.
    entity_logits: (sequences, entities, vocabulary of entities), if there are entities.
    """

    mlm_loss: Any = None
    mep_loss: Any = None
    logits: Any = None
    entity_logits: Any = None


@dataclass(eq=False, kw_only=True)
class PreTrainingOutput(ModelOutput):
    """Attributes:
    prediction_logits: of the language model, (sequences, length, vocabulary); pads are zero.
    seq_relationship_logits, sop_logits: of next sentence prediction (BERT) or sentence order (ALBERT), (sequences, 2).
    """

    prediction_logits: Any = None
    seq_relationship_logits: Any = None
    sop_logits: Any = None


@dataclass(eq=False, kw_only=True)
class QuestionAnsweringOutput(ModelOutput):
    """Attributes:
    start_logits, end_logits: (sequences, length); pads are zero.
    """

    start_logits: Any = None
    end_logits: Any = None
