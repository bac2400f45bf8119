"""Read published configs with checks: `ConfigReader`, and functions that return specs."""

import copy
import difflib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from bertcore.nn.rotary import RotarySpec
from bertcore.nn.spec import EncoderSpec, LayerSpec

# hidden_act of a published config -> its name in bertcore.kernels.
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

# A config may come from anywhere: sizes beyond those of real models would fill the memory before a weight is read.
MOST_LAYERS = 10_000
MOST_POSITIONS = MOST_LABELS = 2**20
MOST = 2**24  # for other sizes: vocabulary, widths


# Defaults of absent config keys: BERT-base, as in transformers.
DEFAULTS = MappingProxyType(
    {
        "vocab_size": 30522,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "hidden_act": "gelu",
        "type_vocab_size": 2,
        "max_position_embeddings": 512,
        "layer_norm_eps": 1e-12,
        "initializer_range": 0.02,
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "pad_token_id": 0,
        "tie_word_embeddings": True,
    }
)


def standard_spec(
    config: Mapping[str, Any],
    *,
    keys: Mapping[str, str] = MappingProxyType({}),
    defaults: Mapping[str, Any] = MappingProxyType({}),
    layer: Mapping[str, Any] = MappingProxyType({}),
    each_layer: Callable[[int, LayerSpec], LayerSpec] = lambda index, layer: layer,
    position_embedding_type: str = "absolute",
    **choices: Any,
) -> EncoderSpec:
    """Return the spec of a config that uses BERT's keys.

    Args:
        config: as in config.json.
        keys: the family's own names for BERT's keys, as in ConfigReader.
        defaults: values for absent keys that override DEFAULTS.
        layer: attributes of the LayerSpec that override the keys.
        each_layer: (index, the layers' common spec) -> the spec of one layer, if layers differ.
        position_embedding_type: the only value that the key of this name may have in the family.
        choices: attributes of the EncoderSpec that override the keys; also num_layers. With longest_text there is no
            position table.

    Raises:
        ValueError: for a wrong key of the config; the message names it and what was expected.
        TypeError: for an unknown default or choice.
    """
    unknown = set(defaults) - set(DEFAULTS)
    if unknown:
        raise TypeError(f"defaults has {', '.join(sorted(unknown))}, known are {', '.join(DEFAULTS)}")
    read = ConfigReader(config, DEFAULTS | defaults, keys)
    read.require(position_embedding_type=position_embedding_type)
    read.require(is_decoder=False, add_cross_attention=False)
    hidden_size, vocab_size = read.size("hidden_size"), read.size("vocab_size")
    num_layers = choices.pop("num_layers", None) or read.size("num_hidden_layers", most=MOST_LAYERS)
    common = _layer_spec(read, hidden_size, layer)
    values = {
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "embedding_size": hidden_size,
        "layers": tuple(each_layer(index, common) for index in range(num_layers)),
        "type_vocab_size": read.count("type_vocab_size"),
        "max_positions": 0 if "longest_text" in choices else read.size("max_position_embeddings", most=MOST_POSITIONS),
        "layer_norm_eps": common.norm_eps,
        "initializer_range": read.number("initializer_range"),
        "pad_token_id": read.index("pad_token_id", None, vocab_size),
        "tied_decoder": read.flag("tie_word_embeddings"),
        "embedding_dropout": read.rate("hidden_dropout_prob"),
        "classifier_dropout": read.rate("classifier_dropout", common.dropout),
    }
    return EncoderSpec(**(values | choices))


def _layer_spec(read: "ConfigReader", hidden_size: int, layer: Mapping[str, Any]) -> LayerSpec:
    values = {"hidden_size": hidden_size, "num_heads": read.size("num_attention_heads")} | layer
    width, heads = values["hidden_size"], values["num_heads"]
    if values.get("head_dim") is None and width % heads:
        key, of = read.name("hidden_size"), read.name("num_attention_heads")
        raise ValueError(f"config: {key} is {width}, expected a multiple of {of} {heads}")
    if heads % (groups := values.get("num_key_value_heads") or heads):
        raise ValueError(f"config: num_attention_heads is {heads}, expected a multiple of num_key_value_heads {groups}")
    readers = {
        "intermediate_size": lambda: read.size("intermediate_size"),
        "activation": lambda: read.activation("hidden_act"),
        "norm_eps": lambda: read.number("layer_norm_eps"),
        "dropout": lambda: read.rate("hidden_dropout_prob"),
        "attention_dropout": lambda: read.rate("attention_probs_dropout_prob"),
    }
    return LayerSpec(**({name: value() for name, value in readers.items() if name not in values} | values))


# A key of BERT's configs -> its names in other families' configs.
OTHER_NAMES = {
    "hidden_size": ("dim", "d_model", "n_embd"),
    "num_attention_heads": ("n_heads", "n_head", "num_heads"),
    "num_hidden_layers": ("n_layers", "n_layer", "num_layers"),
    "max_position_embeddings": ("n_positions",),
}


class Config(dict[str, Any]):
    """A config as published; its keys are also attributes, as in transformers' configs.

    The attributes `num_labels`, `id2label` and `label2id` exist even without the keys.
    """

    def __getattr__(self, name: str) -> Any:
        found = [key for key in (name, *OTHER_NAMES.get(name, ())) if key in self and not key.startswith("__")]
        if not found:
            near = difflib.get_close_matches(name, self, 1)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(self)}"
            raise AttributeError(f"the config has no {name}; {hint}")
        return self[found[0]]

    def __setattr__(self, name: str, value: object) -> None:
        self[name] = value

    @property
    def num_labels(self) -> int:
        """The number of classes."""
        return ConfigReader(self).num_labels()

    @property
    def id2label(self) -> Mapping[int, str]:
        """The names of the classes, read-only; assign a new mapping to change them."""
        return MappingProxyType(dict(enumerate(ConfigReader(self).label_names())))

    @property
    def label2id(self) -> Mapping[str, int]:
        """The numbers of the classes, read-only, from the config's label2id or else from `id2label`."""
        return MappingProxyType(self.get("label2id") or {name: index for index, name in self.id2label.items()})

    def to_dict(self) -> dict[str, Any]:
        """Return a copy."""
        return copy.deepcopy(dict(self))


class ConfigReader:
    """Read values of a config with checks; errors name the key, its value and what was expected.

    `defaults` are the values of absent keys; a key without one there needs a default in the call. `keys` maps a key to
    the family's own name for it; if the config lacks that name, the key itself is read, as in transformers.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        defaults: Mapping[str, Any] = MappingProxyType({}),
        keys: Mapping[str, str] = MappingProxyType({}),
        *,
        within: str = "",
    ):
        self._config, self._defaults, self._keys, self._within = config, defaults, keys, within

    def section(self, *keys: str) -> "ConfigReader":
        """Return a reader of the object under the first of `keys` that has one; an empty reader if all are absent."""
        key = next((key for key in keys if self._get(key, None)), keys[-1])
        value = self._get(key, {})
        self._check(key, value, isinstance(value, Mapping), "an object")
        return ConfigReader(value, within=f"{self.name(key)}.")

    def sections(self, *keys: str) -> dict[str, "ConfigReader"]:
        """Return readers of the rotary positions of GLOBAL and LOCAL layers; others beside them are refused."""
        whole = self.section(*keys)
        whole.require(rope_type="default", type="default", factor=1.0, rope_theta=None)
        return {kind: whole.section(kind) for kind in (GLOBAL, LOCAL)}

    def choices(self, key: str, default: Sequence[str], *allowed: str) -> tuple[str, ...]:
        """Return the list at `key`: as many of the `allowed` values as `default` has."""
        values = self._get(key, default)
        is_known = isinstance(values, list | tuple) and all(value in allowed for value in values)
        expected = f"a list of {len(default)}, {' or '.join(map(repr, allowed))} each"
        return tuple(self._check(key, values, is_known and len(values) == len(default), expected))

    def names(self, key: str) -> tuple[str, ...]:
        """Return a list of distinct names; empty if the key is absent."""
        values = self._get(key, ())
        is_list = isinstance(values, list | tuple) and all(isinstance(value, str) for value in values)
        is_right = is_list and len(set(values)) == len(values)
        return tuple(self._check(key, values, is_right, "a list of names, each once"))

    def numbers(self, key: str, count: int) -> tuple[float | None, ...]:
        """Return a list of `count` numbers of at least 0, or nulls; empty if the key is absent."""
        values = self._get(key, ())
        is_list = isinstance(values, list | tuple) and len(values) in (0, count)
        if not is_list or not all(value is None or _is_bounded(value, MOST) for value in values):
            raise ValueError(f"config: {self.name(key)} is {values!r:.200}, expected {count} numbers or nulls")
        return tuple(values)

    def size(self, key: str, default: int | None = None, *, most: int = MOST) -> int:
        """Return a positive integer, at most `most`."""
        value = self._get(key, default)
        self._check(key, value, _is_integer(value) and value >= 1, "a positive integer")
        return self._check(key, value, value <= most, f"at most {most}")

    def count(self, key: str, default: int | None = None) -> int:
        return 0 if self._get(key, default) == 0 else self.size(key, default)

    def index(self, key: str, default: int | None, size: int) -> int | None:
        """Return an integer in [0, size), or None."""
        value = self._config.get(self._key_in_config(key), self._defaults.get(key, default))
        is_right = value is None or (_is_integer(value) and 0 <= value < size)
        return self._check(key, value, is_right, f"0 to {size - 1}, or null")

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._get(key, default)
        return self._check(key, value, _is_integer(value), "an integer")

    def number(self, key: str, default: float | None = None) -> float:
        """Return a finite number that is not negative."""
        value = self._get(key, default)
        return float(self._check(key, value, _is_bounded(value, sys.float_info.max), "a finite number of at least 0"))

    def rate(self, key: str, default: float | None = None) -> float:
        """Return a dropout rate, at least 0 and below 1."""
        value = self.number(key, default)
        return self._check(key, value, value < 1, "at least 0 and below 1")

    def flag(self, key: str, default: bool | None = None) -> bool:
        value = self._get(key, default)
        return self._check(key, value, isinstance(value, bool), "true or false")

    def activation(self, key: str, default: str | None = None) -> str:
        """Return the kernels' name for a published activation name."""
        value = self._get(key, default)
        if not isinstance(value, str) or value not in ACTIVATIONS:
            raise ValueError(f"config: {self.name(key)} is {value!r}, known are {', '.join(sorted(ACTIVATIONS))}")
        return ACTIVATIONS[value]

    def choice(self, key: str, default: object, *allowed: object) -> Any:
        value = self._get(key, default)
        if value not in allowed:
            raise ValueError(f"config: {self.name(key)} is {value!r}, supported is {' or '.join(map(repr, allowed))}")
        return value

    def require(self, **values: object) -> None:
        """Raise ValueError if one of these keys has another, unsupported value; an absent key means the value."""
        for key, value in values.items():
            self.choice(key, value, value)

    def _get(self, key: str, default: object) -> Any:
        value = self._config.get(self._key_in_config(key))
        value = value.tolist() if isinstance(value, np.ndarray) else value  # of GGUF
        return self._defaults.get(key, default) if value is None else value

    def _check(self, key: str, value: Any, is_right: bool, expected: str) -> Any:
        """Return `value`. Raises ValueError unless it `is_right`."""
        if not is_right:
            raise ValueError(f"config: {self.name(key)} is {value!r}, expected {expected}")
        return value

    def name(self, key: str) -> str:
        return self._within + self._key_in_config(key)

    def _key_in_config(self, key: str) -> str:
        own = self._keys.get(key, key)
        return key if own not in self._config and key in self._config else own

    @property
    def has_keys(self) -> bool:
        """True if the config has keys."""
        return bool(self._config)

    def num_labels(self) -> int:
        """Return the number of classes: num_labels, or the length of id2label, 2 by default.

        As in transformers, num_labels takes precedence if the two contradict each other.
        """
        labels = self._config.get("id2label")
        if not isinstance(labels, Mapping | None):
            raise ValueError(f"config: id2label is {labels!r:.60}, expected an object of names by number")
        if labels and len(labels) > MOST_LABELS:
            raise ValueError(f"config: id2label has {len(labels)} entries, expected at most {MOST_LABELS}")
        return self.size("num_labels", len(labels or ()) or 2, most=MOST_LABELS)

    def label_names(self) -> list[str]:
        """Return the names of the classes: LABEL_0 and so on unless id2label has as many."""
        count, stated = self.num_labels(), self._config.get("id2label") or {}
        if len(stated) != count:
            stated = {}
        for key in stated:
            if not str(key).isdecimal() or int(key) >= count:
                raise ValueError(f"config: id2label has the key {key!r}, expected numbers of classes, 0 to {count - 1}")
        names = {int(key): str(name) for key, name in stated.items()}
        return [names.get(index, f"LABEL_{index}") for index in range(count)]


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_bounded(value: object, most: float) -> bool:
    return (isinstance(value, float) or _is_integer(value)) and 0 <= value <= most


# rope_type of a published config -> the name of the scaling in `kernels.rotary_tables`.
SCALINGS = {"default": None, "linear": "linear", "ntk": "ntk", "dynamic": "dynamic"}


def rotary_spec(read: ConfigReader, *, head_dim: int, theta: float, trained_length: int) -> RotarySpec:
    """Return the rotary positions of heads that are rotated over their whole width, from rope_parameters.

    `theta` and `trained_length` are the defaults of rope_theta and original_max_position_embeddings. Raises ValueError
    for an unsupported value of a key, or an odd `head_dim`.
    """
    if head_dim % 2:
        raise ValueError(f"config: heads are {head_dim} wide, expected an even width: rotary positions rotate pairs")
    read.require(partial_rotary_factor=1.0, attention_factor=1.0, mixed_b=None)
    kind = read.choice("rope_type", read.choice("type", "default", *SCALINGS), *SCALINGS)
    theta = read.number("rope_theta", theta)
    if theta == 0:
        raise ValueError(f"config: {read.name('rope_theta')} is 0, expected a positive number")
    if kind == "default":
        return RotarySpec(head_dim, theta)
    factor = read.number("factor", 1.0)
    if factor < 1:
        raise ValueError(f"config: {read.name('factor')} is {factor}, expected at least 1")
    trained_length = read.size("original_max_position_embeddings", trained_length, most=MOST_POSITIONS)
    return RotarySpec(head_dim, theta, scaling=SCALINGS[kind], factor=factor, trained_length=trained_length)


GLOBAL, LOCAL = "full_attention", "sliding_attention"  # in layer_types


def by_kind(kinds: Sequence[str], ropes: Mapping[str, ConfigReader], thetas: Mapping[str, float],
            window: tuple[int, int] | None, longest: int) -> Callable[[int, LayerSpec], LayerSpec]:  # fmt: skip
    """Return `each_layer` of standard_spec: rotary positions by the kind of a layer, and the window of LOCAL layers."""

    def of_its_kind(index: int, layer: LayerSpec) -> LayerSpec:
        kind = kinds[index]
        rotary = rotary_spec(ropes[kind], head_dim=layer.head_size, theta=thetas[kind], trained_length=longest)
        return replace(layer, rotary=rotary, window=window if kind == LOCAL else None)

    return of_its_kind


def rotary_of_all_layers(read: ConfigReader, theta: float) -> Callable[[int, LayerSpec], LayerSpec]:
    """Return `each_layer` of standard_spec: the rotary positions that all layers of a config share.

    They are read from rope_parameters or, before transformers 5, from rope_scaling and rope_theta. `theta` is the
    default of rope_theta.
    """
    how = {"theta": read.number("rope_theta", theta)}
    how["trained_length"] = read.size("max_position_embeddings", most=MOST_POSITIONS)
    section = read.section("rope_scaling", "rope_parameters")
    return lambda index, layer: replace(layer, rotary=rotary_spec(section, head_dim=layer.head_size, **how))


def rope_parameters(rotary: RotarySpec) -> dict[str, Any]:
    """Return rotary positions in transformers' spelling.

    NTK's static rule is its "linear" with a larger theta: theta times the factor, and every angle divided by
    factor^(2 / rotary_dim).
    """
    theta, factor = rotary.theta, rotary.factor
    if rotary.scaling == "ntk":
        return {"rope_type": "linear", "rope_theta": theta * factor, "factor": factor ** (2 / rotary.rotary_dim)}
    if rotary.scaling is None:
        return {"rope_type": "default", "rope_theta": theta}
    parameters = {"rope_type": rotary.scaling, "rope_theta": theta, "factor": factor}
    return parameters | ({"original_max_position_embeddings": rotary.trained_length} if rotary.trained_length else {})


def without_older_keys(
    config: Mapping[str, Any], spec: EncoderSpec, older: frozenset[str], **new: object
) -> Mapping[str, Any]:
    """Return the config without the `older` keys, as `Family.config_to_save` does.

    Transformers does not know these keys; `new` and rope_parameters replace them. A config without them is returned
    unchanged.
    """
    if older.isdisjoint(config):
        return config
    kept = {key: value for key, value in config.items() if key not in older}
    return kept | new | {"rope_parameters": rope_parameters(spec.layers[0].rotary)}
