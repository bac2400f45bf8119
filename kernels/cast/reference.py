"""Arrays rounded to another dtype: output = array, to nearest even."""

from ..precision import ieee_arithmetic


@ieee_arithmetic
def cast(arrays, outputs):
    """Write the arrays into the outputs."""
    for array, output in zip(arrays, outputs, strict=True):
        output[...] = array
