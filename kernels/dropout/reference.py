"""Dropout: each element is 0 with probability p, else divided by 1 - p.

    output_i = input_i / (1 - p) + residual_i   if bits_i >= p * 2^32, else residual_i

with bits_i the 32 random bits that `philox.random_bits` gives for column i of one row. A dropped element is 0, even if
it was infinite or NaN. The gradient of the input is the same function of that of the output, without a residual.

Source: Srivastava et al. 2014, "Dropout: a simple way to prevent neural networks from overfitting".
"""

import numpy as np

from ..arrays import ieee_arithmetic, widen
from ..philox import random_bits, threshold


@ieee_arithmetic
def dropout(input, p, seed, residual):
    """Return `input` with elements dropped, plus `residual`."""
    wide = widen(input)
    is_kept = random_bits(seed, np.zeros(1), input.size).reshape(input.shape) >= threshold(p)
    output = np.where(is_kept, wide * wide.dtype.type(1 / (1 - p)), 0)
    return np.asarray(output if residual is None else output + widen(residual), input.dtype)


def dropout_backward(grad_output, p, seed):
    """Return the gradient of the dropout input from the gradient of its output."""
    return dropout(grad_output, p, seed, None)
