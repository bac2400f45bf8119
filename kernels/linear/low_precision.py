"""How rows and weights of low precision lie in memory and are multiplied: by tiles where this CPU has them."""

from .._numba import LEVEL

if LEVEL.tiles:
    from .by_tiles import DEPTH_WORDS, PANEL_WORDS, ROWS, quantize_rows, round_rows, run_bfloat16, run_int8
else:
    from .by_vectors import DEPTH_WORDS, PANEL_WORDS, ROWS, quantize_rows, round_rows, run_bfloat16, run_int8

__all__ = [
    "DEPTH_WORDS", "PANEL_WORDS", "ROWS", "quantize_rows", "round_rows", "rounded_rows", "run_bfloat16", "run_int8",
]  # fmt: skip


def rounded_rows(rows: int) -> int:
    """How many rows there is room for beside `rows` rounded ones."""
    return -(-rows // ROWS) * ROWS
