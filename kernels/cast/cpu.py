"""Rounding on the CPU: NumPy's conversion is one pass over memory already."""

from . import reference


def cast(arrays, outputs):
    """Write the arrays into the outputs."""
    reference.cast(arrays, outputs)
