"""The encoder of every family, assembled from the blocks of bertcore.nn as its spec and names say."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bertcore.models.registry import Family
from bertcore.models.spec import EncoderSpec
from bertcore.nn.embeddings import Embeddings
from bertcore.nn.encoder import EncoderLayer
from bertcore.nn.parameter import Block
from bertcore.nn.pooler import Pooler


@dataclass
class EncoderInput:
    """The packed tokens of a batch, in the memory of the backend in force.

    Attributes:
        input_ids, token_type_ids, position_ids: integers, (tokens,).
        cu_seqlens: int32 offsets, (sequences + 1,).
        first_tokens: the packed index of each sequence's first token.
    """

    input_ids: Any
    token_type_ids: Any
    position_ids: Any
    cu_seqlens: Any
    first_tokens: Any


@dataclass
class Trace:
    """What a caller asked to see of the inside: each list is filled layer by layer, None is not recorded."""

    hidden_states: list | None = None
    attentions: list | None = None

    def hidden(self, state: Any) -> None:
        """Note one hidden state, (tokens, hidden)."""
        if self.hidden_states is not None:
            self.hidden_states.append(state)


class Encoder(Block):
    """Embeddings, layers and, if wanted, a pooler."""

    def __init__(self, family: Family, spec: EncoderSpec, *, prefix: str, pooler: bool):
        names = _with_prefix(prefix, family.encoder_names)
        layer_names = _with_prefix(prefix, family.layer_names)
        self.embeddings = Embeddings(names, spec)
        self.layers = [EncoderLayer(_numbered(layer_names, index), spec) for index in range(spec.num_layers)]
        self.pooler = Pooler(names, spec) if pooler else None

    def __call__(self, inputs: EncoderInput, trace: Trace) -> Any:
        """The last hidden state, (tokens, hidden)."""
        hidden = self.embeddings(inputs.input_ids, inputs.token_type_ids, inputs.position_ids)
        trace.hidden(hidden)
        for layer in self.layers:
            hidden = layer(hidden, inputs.cu_seqlens, trace.attentions)
            trace.hidden(hidden)
        return hidden


def _with_prefix(prefix: str, names: Mapping[str, str]) -> dict[str, str]:
    return {part: prefix + name for part, name in names.items()}


def _numbered(names: Mapping[str, str], layer: int) -> dict[str, str]:
    return {part: name.format(layer=layer) for part, name in names.items()}
