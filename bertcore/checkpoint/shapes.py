"""Which shapes of tensors a file may name."""

import math
from collections.abc import Sequence

MOST_DIMENSIONS = 8
LARGEST = 2**48  # elements; beyond any file, and far from what overflows 64 bits


def could_be_array(shape: Sequence[int]) -> bool:
    """Whether NumPy can make an array of that shape. It counts an axis of size 0 as 1, too."""
    return len(shape) <= MOST_DIMENSIONS and math.prod(size for size in shape if size) <= LARGEST
