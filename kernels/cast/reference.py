"""Arrays rounded to another dtype: output = array, to nearest even."""

from ..arrays import ieee_arithmetic


@ieee_arithmetic
def cast(sets):
    """Round arrays into outputs; `sets` has (array, output) of each."""
    for array, output in sets:
        output[...] = array
