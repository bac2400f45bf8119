"""What a family may vary: the numbers and choices that turn the shared blocks into one of its models."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# hidden_act of a published config -> the name bertcore.kernels knows it by.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}

# A config may come from anywhere: a number of layers beyond any real model's would fill the memory with blocks.
MOST_LAYERS = 10_000


@dataclass(frozen=True)
class EncoderSpec:
    """One encoder, whatever its family: sizes and choices, read from the family's config.

    Attributes:
        vocab_size, type_vocab_size, max_positions: rows of the word, token type and position tables.
        hidden_size, intermediate_size: widths of the activations and of the feed-forward.
        num_layers, num_heads: depth, and heads that divide hidden_size.
        activation: the feed-forward's, as `kernels.linear` names it.
        layer_norm_eps: added to the variance in every layer norm.
        initializer_range: standard deviation of the weights of a new model.
        pad_token_id: the word that stands for padding; its embedding learns nothing from being looked up.
        tied_decoder: whether the masked-LM decoder shares the word embeddings.
    """

    vocab_size: int
    type_vocab_size: int
    max_positions: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    activation: str
    layer_norm_eps: float
    initializer_range: float
    pad_token_id: int | None
    tied_decoder: bool

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_heads:
            raise ValueError(f"config: hidden_size {self.hidden_size} is not a multiple of {self.num_heads} heads")


class ConfigReader:
    """Reads values of a config with checks; errors name the key, what stood there and what was expected."""

    def __init__(self, config: Mapping[str, Any]):
        self._config = config

    def size(self, key: str, default: int, *, most: int = 2**31 - 1) -> int:
        """A positive integer, at most `most`."""
        value = self._get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"config: {key} is {value!r}, expected a positive integer")
        if value > most:
            raise ValueError(f"config: {key} is {value}, expected at most {most}")
        return value

    def index(self, key: str, default: int | None, size: int) -> int | None:
        """An integer in [0, size), or null."""
        value = self._config.get(key, default)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < size):
            raise ValueError(f"config: {key} is {value!r}, expected an integer from 0 to {size - 1}, or null")
        return value

    def number(self, key: str, default: float) -> float:
        """A finite number, not negative."""
        value = self._get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= sys.float_info.max:
            raise ValueError(f"config: {key} is {value!r}, expected a finite number of at least 0")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise ValueError(f"config: {key} is {value!r}, expected true or false")
        return value

    def activation(self, key: str, default: str) -> str:
        """The kernels' name of a published activation name."""
        value = self._get(key, default)
        if not isinstance(value, str) or value not in ACTIVATIONS:
            raise ValueError(f"config: {key} is {value!r}, known are {', '.join(sorted(ACTIVATIONS))}")
        return ACTIVATIONS[value]

    def unsupported(self, key: str, default: Any, *allowed: Any) -> None:
        """Refuse a value that would need something this family does not have here."""
        value = self._get(key, default)
        if value not in allowed:
            raise ValueError(f"config: {key} is {value!r}, supported is {' or '.join(map(repr, allowed))}")

    def _get(self, key: str, default: Any) -> Any:
        value = self._config.get(key)
        return default if value is None else value
