"""Outputs of models; fields have transformers' names and order."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import InitVar, dataclass, fields
from typing import Any, ClassVar, TypeVar

from bertcore.tape import Tensor


class Later:
    """A field that is computed when first read, because it is slow to compute and rarely read in training."""

    def __init__(self, compute: Callable[[], Any]):
        self.compute = compute


def _described(value: Any) -> str:
    """Return the dtype and shape of an array, or of a tuple's first array, instead of its numbers."""
    if type(value) is Later:
        return "computed when read"
    if isinstance(value, tuple):
        return f"{len(value)} of {_described(next((each for each in value if each is not None), None))}"
    return f"{value.dtype} {tuple(value.shape)}" if getattr(value, "shape", ()) else repr(value)


@dataclass(eq=False, kw_only=True)  # arrays have no single truth value
class ModelOutput:
    """Fields by attribute, by name (`out["logits"]`) or, skipping absent ones, by position (`out[0]`).

    A `Later` field is computed when it is first read.

    Args:
        traced: the fields that follow a class's own: hidden_states, attentions, and family-specific ones, which the
            adapter documents (`Encoded.traced`).

    Attributes:
        loss: a scalar, if the model has a head and was given labels.
        hidden_states: on request, the output of the embeddings and of each layer, (sequences, length, hidden) each.
        attentions: on request, each layer's attention probabilities, (sequences, heads, length, length) each.
        projections: on request, each layer's (query, key, value) as attention multiplies them, after rotary positions,
            (sequences, length, heads * head_dim) each, or None for a layer not requested; not available in families
            with attention of their own (DeBERTa, XLNet, LUKE with entities, Transformer-XL).
    """

    hidden_states: ClassVar[Any] = None
    attentions: ClassVar[Any] = None
    projections: ClassVar[Any] = None
    loss: Tensor = None
    traced: InitVar[Mapping[str, Any] | None] = None

    def __post_init__(self, traced: Mapping[str, Any] | None) -> None:
        vars(self).update(traced or {})

    def __init_subclass__(cls) -> None:
        cls.__repr__ = ModelOutput.__repr__  # type: ignore[method-assign]  # a dataclass would generate its own

    def __repr__(self) -> str:
        given = (f"{name}: {_described(value)}" for name, value in vars(self).items() if value is not None)
        return f"<{type(self).__name__}: {', '.join(given)}>"

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if type(value) is Later:
            value = value.compute()
            setattr(self, name, value)
        return value

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in vars(self)}  # a copy for another process has all fields

    def __getitem__(self, key: str | int | slice) -> Any:
        return dict(self.items())[key] if isinstance(key, str) else self.to_tuple()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self.keys())

    def keys(self) -> list[str]:
        return [name for name, _ in self.items()]

    def items(self) -> list[tuple[str, Any]]:
        """Return (name, value) of the fields that are not None."""
        return [(name, getattr(self, name)) for name in list(vars(self)) if getattr(self, name) is not None]

    def values(self) -> tuple[Any, ...]:
        return self.to_tuple()

    def predictions(self) -> tuple[Any, ...]:
        """Return the logits of all heads; without a head, all fields."""
        logits = tuple(getattr(self, name) for name in self.keys() if name.endswith("logits"))
        own = {field.name for field in fields(self)} - {"loss"}
        return logits or tuple(value for name, value in self.items() if name in own)

    def to_tuple(self) -> tuple[Any, ...]:
        return tuple(value for _, value in self.items())


OutputT = TypeVar("OutputT", bound=ModelOutput)
"""The output of a class of models."""


@dataclass(eq=False, kw_only=True)
class EncoderOutput(ModelOutput):
    """The output of an encoder.

    Attributes:
        last_hidden_state: (sequences, length, hidden); zero at padding.
        pooler_output: (sequences, hidden), for encoders with a pooler.
    """

    last_hidden_state: Tensor = None
    pooler_output: Tensor = None


@dataclass(eq=False, kw_only=True)
class LogitsOutput(ModelOutput):
    """The output of a model with one head.

    Attributes:
        logits: the head's logits, zero at padding: (sequences, length, classes or words), (sequences, classes),
            (sequences, choices), or for replaced tokens (sequences, length).
    """

    logits: Tensor = None


@dataclass(eq=False, kw_only=True)
class SpanBoundaryOutput(ModelOutput):
    """The output of a model with a span boundary head.

    Attributes:
        mlm_loss, sbo_loss: the losses of the language model and of the span boundary head, scalars.
        logits: of the language model, (sequences, length, vocabulary); zero at padding.
    """

    mlm_loss: Tensor = None
    sbo_loss: Tensor = None
    logits: Tensor = None


@dataclass(eq=False, kw_only=True)
class PreTrainingOutput(ModelOutput):
    """The output of a model with its pretraining heads.

    Attributes:
        prediction_logits: of the language model, (sequences, length, vocabulary); zero at padding.
        seq_relationship_logits, sop_logits: of next sentence (BERT) or sentence order (ALBERT), (sequences, 2).
    """

    prediction_logits: Tensor = None
    seq_relationship_logits: Tensor = None
    sop_logits: Tensor = None


@dataclass(eq=False, kw_only=True)
class ReplacedTokensOutput(ModelOutput):
    """The output of a generator and a discriminator.

    Attributes:
        generator_loss, discriminator_loss: the unweighted parts of the loss, scalars.
        generator_logits: of the generator, (sequences, length, vocabulary), if requested.
        logits: of the discriminator, (sequences, length); zero at padding.
        given_ids: the input ids of the discriminator, (sequences, length).
        replaced: 1 for replaced tokens, 0 for original ones, -100 at padding, (sequences, length).
    """

    generator_loss: Tensor = None
    discriminator_loss: Tensor = None
    generator_logits: Tensor = None
    logits: Tensor = None
    given_ids: Tensor = None
    replaced: Tensor = None

    def predictions(self) -> tuple[Any, ...]:
        """Return the scores of both models, and the discriminator's targets."""
        return self.generator_logits, self.logits, self.replaced


@dataclass(eq=False, kw_only=True)
class QuestionAnsweringOutput(ModelOutput):
    """The output of a question answering model.

    Attributes:
        start_logits, end_logits: (sequences, length); zero at padding.
    """

    start_logits: Tensor = None
    end_logits: Tensor = None
