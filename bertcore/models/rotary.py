"""What configs say of rotary positions: rope_theta, rope_type and what belongs to it."""

from bertcore.models.spec import MOST_POSITIONS, ConfigReader
from bertcore.nn.rotary import RotarySpec

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
    read.unsupported("partial_rotary_factor", 1.0, 1.0)
    read.unsupported("attention_factor", 1.0, 1.0)
    read.unsupported("mixed_b", None, None)
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
