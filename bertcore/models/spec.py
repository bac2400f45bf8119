"""What a family may vary: the numbers and choices that turn the shared blocks into one of its models."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
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

# A config may come from anywhere: sizes beyond any real model's would fill the memory before a weight is read.
MOST_LAYERS = 10_000
MOST_POSITIONS = MOST_LABELS = 2**20
MOST = 2**24  # of anything else: words, widths


@dataclass(frozen=True)
class EncoderSpec:
    """One encoder, whatever its family: sizes and choices, read from the family's config.

    Attributes:
        vocab_size, type_vocab_size, max_positions: rows of the word, token type and position tables; 0 where a family
            has no such table.
        hidden_size, intermediate_size: widths of the activations and of the feed-forward.
        embedding_size: width of the embeddings; where it is not hidden_size, they are projected.
        bottleneck_size: width of attention and feed-forward within a layer, where it is not hidden_size (MobileBERT).
        num_layers, num_heads: depth, and heads that divide hidden_size.
        activation: the feed-forward's, as `kernels.linear` names it.
        layer_norm_eps: added to the variance in every layer norm.
        initializer_range: standard deviation of the weights of a new model.
        pad_token_id: the word that stands for padding; its embedding learns nothing from being looked up.
        tied_decoder: whether a language model's decoder shares the word embeddings.
        positions_after_padding: RoBERTa's position ids: words that are not padding count from pad_token_id + 1 on,
            words that are have position pad_token_id.
        shared_layers: for each layer the index of the parameters it has (ALBERT's layers share them); by default its
            own.
        inner_layers: how many layers stand under one number in the checkpoint's names, with a number of their own
            within it (ALBERT's inner groups).
        projects_embeddings: embeddings are projected even where they are as wide as the hidden size (ALBERT).
        words_as_types: token types are looked up in the table of words, and none are added where a call gives none
            (GPT-2).
        is_relative: attention depends on how far apart two columns of a batch are.
        details: what one family alone varies, a dataclass of its own.
    """

    vocab_size: int
    type_vocab_size: int
    max_positions: int
    hidden_size: int
    intermediate_size: int
    embedding_size: int
    num_layers: int
    num_heads: int
    activation: str
    layer_norm_eps: float
    initializer_range: float
    pad_token_id: int | None
    tied_decoder: bool
    positions_after_padding: bool = False
    shared_layers: tuple[int, ...] = ()
    inner_layers: int = 1
    projects_embeddings: bool = False
    words_as_types: bool = False
    is_relative: bool = False
    bottleneck_size: int | None = None
    details: Any = None

    def __post_init__(self) -> None:
        if self.positions_after_padding and self.pad_token_id is None:
            raise ValueError("config: pad_token_id is null, expected an integer: positions start after it")
        if self.positions_after_padding and self.position_offset >= self.max_positions:
            raise ValueError(
                f"config: max_position_embeddings is {self.max_positions}, expected more than "
                f"{self.position_offset}: positions start after pad_token_id {self.pad_token_id}"
            )

    @property
    def position_offset(self) -> int:
        """The position of a sequence's first token."""
        return self.pad_token_id + 1 if self.positions_after_padding else 0

    @property
    def longest_sequence(self) -> int | None:
        """How many tokens a sequence may have; None if there is no limit."""
        return self.max_positions - self.position_offset if self.max_positions else None


# Keys of a config, the spec's attribute and what the key means where it is absent: BERT-base, as in transformers.
_SIZES = {
    "vocab_size": ("vocab_size", 30522),
    "hidden_size": ("hidden_size", 768),
    "num_attention_heads": ("num_heads", 12),
    "intermediate_size": ("intermediate_size", 3072),
}


def standard_spec(
    config: Mapping[str, Any], *, keys: Mapping[str, str] = MappingProxyType({}), **choices: Any
) -> EncoderSpec:
    """The spec of a config that uses the keys BERT's does, with the family's own `choices` in place of any of them.

    A choice is an attribute of the spec; `default_<key>` is what a key means where the config lacks it. `keys` are the
    family's own names of BERT's keys, as for ConfigReader.
    """
    defaults = [key for key in choices if key.startswith("default_")]
    read = ConfigReader(config, {key.removeprefix("default_"): choices.pop(key) for key in defaults}, keys)
    read.unsupported("position_embedding_type", "absolute", "absolute")
    read.unsupported("is_decoder", False, False)
    read.unsupported("add_cross_attention", False, False)
    values = {name: choices.get(name) or read.size(key, default) for key, (name, default) in _SIZES.items()}
    values |= {
        "num_layers": read.size("num_hidden_layers", 12, most=MOST_LAYERS),
        "embedding_size": values["hidden_size"],
        "type_vocab_size": read.count("type_vocab_size", 2),
        "max_positions": read.size("max_position_embeddings", 512, most=MOST_POSITIONS),
        "activation": read.activation("hidden_act", "gelu"),
        "layer_norm_eps": read.number("layer_norm_eps", 1e-12),
        "initializer_range": read.number("initializer_range", 0.02),
        "pad_token_id": read.index("pad_token_id", 0, values["vocab_size"]),
        "tied_decoder": read.flag("tie_word_embeddings", True),
    }
    spec = EncoderSpec(**(values | choices))
    read.check_heads(spec)
    return spec


class ConfigReader:
    """Reads values of a config with checks; errors name the key, what stood there and what was expected.

    `defaults` are what keys mean where the config lacks them, before what a caller says. `keys` maps a key to the
    family's own name of it; where the config lacks that, the key itself may stand there, as in transformers.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        defaults: Mapping[str, Any] = MappingProxyType({}),
        keys: Mapping[str, str] = MappingProxyType({}),
    ):
        self._config, self._defaults, self._keys = config, defaults, keys

    def size(self, key: str, default: int, *, most: int = MOST) -> int:
        """A positive integer, at most `most`."""
        value = self._get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"config: {self._name(key)} is {value!r}, expected a positive integer")
        if value > most:
            raise ValueError(f"config: {self._name(key)} is {value}, expected at most {most}")
        return value

    def count(self, key: str, default: int) -> int:
        """An integer of at least 0."""
        return 0 if self._get(key, default) == 0 else self.size(key, default)

    def index(self, key: str, default: int | None, size: int) -> int | None:
        """An integer in [0, size), or null."""
        value = self._config.get(self._name(key), self._defaults.get(key, default))
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < size):
            raise ValueError(
                f"config: {self._name(key)} is {value!r}, expected an integer from 0 to {size - 1}, or null"
            )
        return value

    def integer(self, key: str, default: int) -> int:
        """An integer of either sign."""
        value = self._get(key, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"config: {self._name(key)} is {value!r}, expected an integer")
        return value

    def number(self, key: str, default: float) -> float:
        """A finite number, not negative."""
        value = self._get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= sys.float_info.max:
            raise ValueError(f"config: {self._name(key)} is {value!r}, expected a finite number of at least 0")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise ValueError(f"config: {self._name(key)} is {value!r}, expected true or false")
        return value

    def activation(self, key: str, default: str) -> str:
        """The kernels' name of a published activation name."""
        value = self._get(key, default)
        if not isinstance(value, str) or value not in ACTIVATIONS:
            raise ValueError(f"config: {self._name(key)} is {value!r}, known are {', '.join(sorted(ACTIVATIONS))}")
        return ACTIVATIONS[value]

    def choice(self, key: str, default: str, *allowed: str) -> str:
        """One of the `allowed` values."""
        self.unsupported(key, default, *allowed)
        return self._get(key, default)

    def unsupported(self, key: str, default: Any, *allowed: Any) -> None:
        """Refuse a value that would need something this family does not have here."""
        value = self._get(key, default)
        if value not in allowed:
            raise ValueError(f"config: {self._name(key)} is {value!r}, supported is {' or '.join(map(repr, allowed))}")

    def _get(self, key: str, default: Any) -> Any:
        value = self._config.get(self._name(key))
        return self._defaults.get(key, default) if value is None else value

    def _name(self, key: str) -> str:
        """What `key` is called in the config."""
        own = self._keys.get(key, key)
        return key if own not in self._config and key in self._config else own

    def num_labels(self) -> int:
        """How many classes a classifying head tells apart: of id2label, or num_labels, 2 by default."""
        labels = self._config.get("id2label")
        if not isinstance(labels, Mapping) or not labels:
            return self.size("num_labels", 2, most=MOST_LABELS)
        if len(labels) > MOST_LABELS:
            raise ValueError(f"config: id2label has {len(labels)} entries, expected at most {MOST_LABELS}")
        return len(labels)

    def check_heads(self, spec: EncoderSpec) -> None:
        """Refuse a width that the heads cannot share."""
        key = "bottleneck_size" if spec.bottleneck_size else "hidden_size"
        width = getattr(spec, key)
        if width % spec.num_heads:
            heads = self._name("num_attention_heads")
            raise ValueError(f"config: {self._name(key)} is {width}, expected a multiple of {heads} {spec.num_heads}")
