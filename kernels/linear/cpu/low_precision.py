"""How rows and weights of low precision are multiplied: by tiles where this CPU has them; and how rows are rounded."""

from ..._numba import LEVEL, helper
from ..._numba.low_precision.rounded_rows import quantize_row_to, round_row_to
from ..._numba.simd import pointer

if LEVEL.tiles:
    from .by_tiles import PANEL_WORDS, run_bfloat16, run_int8
else:
    from .by_vectors import PANEL_WORDS, run_bfloat16, run_int8

__all__ = ["PANEL_WORDS", "quantize_rows", "round_rows", "run_bfloat16", "run_int8"]


@helper
def round_rows(x, rounded, first, last):
    for i in range(first, last):
        round_row_to(pointer(x, i * x.shape[1]), x.shape[1], pointer(rounded, 0), rounded.shape[1], i)


@helper
def quantize_rows(x, factors, rounded, first, last):
    levels, zeros, steps = rounded
    target = pointer(levels, 0), pointer(zeros, 0), pointer(steps, 0), levels.shape[1]
    for i in range(first, last):
        quantize_row_to(pointer(x, i * x.shape[1]), x.shape[1], pointer(factors, 0), factors.size > 0, *target, i)
