"""Rotary positions in configs: rope_theta, rope_type and their parameters."""

from collections.abc import Mapping
from typing import Any

from bertcore.models.spec import MOST_POSITIONS, ConfigReader
from bertcore.nn.rotary import RotarySpec
from bertcore.nn.spec import EncoderSpec

# rope_type of a published config -> the name that `kernels.rotary_tables` knows the scaling by.
SCALINGS = {"default": None, "linear": "linear", "ntk": "ntk", "dynamic": "dynamic"}


def rotary_spec(read: ConfigReader, *, head_dim: int, theta: float, trained_length: int) -> RotarySpec:
    """The rotary positions of heads `head_dim` wide, which all turn.

    Args:
        read: of the object that holds the keys (rope_parameters, or one of its sections).
        theta, trained_length: what rope_theta and original_max_position_embeddings mean where they are absent.

    Raises:
        ValueError: for a key that asks for what is not here, or an odd `head_dim`.
    """
    if head_dim % 2:
        raise ValueError(f"config: heads are {head_dim} wide, expected an even width: rotary positions turn pairs")
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


def rotary_of_all_layers(read: ConfigReader, head_dim: int, theta: float) -> RotarySpec:
    """The rotary positions that all layers of a config share: what it says under rope_parameters, or, written before
    transformers 5, under rope_scaling and rope_theta. `theta` is what rope_theta means where it is absent.
    """
    theta = read.number("rope_theta", theta)
    trained = read.size("max_position_embeddings", most=MOST_POSITIONS)
    older, section = read.section("rope_scaling"), read.section("rope_parameters")
    return rotary_spec(older if older.has_keys else section, head_dim=head_dim, theta=theta, trained_length=trained)


def rope_parameters(rotary: RotarySpec) -> dict[str, Any]:
    """Rotary positions as transformers writes them. NTK's static rule is its "linear" with a larger theta: theta times
    the factor, and every angle divided by factor^(2 / rotary_dim)."""
    theta, factor = rotary.theta, rotary.factor
    if rotary.scaling == "ntk":
        return {"rope_type": "linear", "rope_theta": theta * factor, "factor": factor ** (2 / rotary.rotary_dim)}
    if rotary.scaling is None:
        return {"rope_type": "default", "rope_theta": theta}
    parameters = {"rope_type": rotary.scaling, "rope_theta": theta, "factor": factor}
    return parameters | ({"original_max_position_embeddings": rotary.trained_length} if rotary.trained_length else {})


def without_older_keys(
    config: Mapping[str, Any], spec: EncoderSpec, older: frozenset[str], **said: Any
) -> Mapping[str, Any]:
    """`Family.config_to_save`: without the `older` keys, of which transformers knows nothing, and with what is `said`
    and rope_parameters in their place; `config` itself where there are none."""
    if older.isdisjoint(config):
        return config
    kept = {key: value for key, value in config.items() if key not in older}
    return kept | said | {"rope_parameters": rope_parameters(spec.layers[0].rotary)}
