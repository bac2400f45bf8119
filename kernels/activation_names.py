"""Activation functions by name; the index of a name is its code in compiled kernels (pointwise.py, activations.cuh).

ROUGH_GELU is a code without a name, of products on the CPU only.
"""

ACTIVATIONS = ("relu", "tanh", "silu", "gelu", "gelu_tanh")
NO_ACTIVATION = -1
ROUGH_GELU = len(ACTIVATIONS)  # gelu after products of rounded rows


def activation_code(name: str | None) -> int:
    """Return the code of an activation, NO_ACTIVATION for None."""
    return NO_ACTIVATION if name is None else ACTIVATIONS.index(name)
