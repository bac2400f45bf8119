"""Activation functions by name; the place of a name is its code in compiled kernels (pointwise.py, activations.cuh)."""

ACTIVATIONS = ("relu", "tanh", "silu", "gelu", "gelu_tanh")
NO_ACTIVATION = -1


def activation_code(name: str | None) -> int:
    """The code of an activation; that of None is NO_ACTIVATION."""
    return NO_ACTIVATION if name is None else ACTIVATIONS.index(name)
