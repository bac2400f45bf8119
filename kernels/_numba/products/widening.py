"""Panels of low precision that are widened by the first tile of a task, as it multiplies them, for the other tiles.

    rows      panels                                                          widened to
    float32   bfloat16 (dtype uint16), on CPUs that do not multiply it faster  float32
    float32   int8 in groups (uint8, see group_panels.py)                      float32
    uint16    int8, on CPUs that multiply pairs of 16 bits (see dot.py)        int16, as uint16

A word of a panel is two of the wide words, as the rows beside it have them; groups are counted in blocks.
"""

from numba import types

from ..compile import by_types
from ..simd import lanes
from .group_panels import BLOCK, BLOCK_WORDS
from .tile import WEIGHT_PANEL_VECTORS, WEIGHT_TILE_ROWS, make_widening_tile

_tile = make_widening_tile(WEIGHT_TILE_ROWS, WEIGHT_PANEL_VECTORS)
_row_tile = make_widening_tile(1, WEIGHT_PANEL_VECTORS)


def are_widened(a, panels):
    """Whether panels of this type are widened beside rows of that one."""
    beside = {types.float32: (types.uint16, types.uint8), types.uint16: (types.int8,)}
    return panels.dtype in beside.get(a.dtype, ())


def are_grouped(panels):
    return panels.dtype == types.uint8


@by_types
def words_of(a, panels, depth):
    """The words of panels that so many words, a multiple of BLOCK, take as they are multiplied beside a."""
    if not are_widened(a, panels):
        return lambda a, panels, depth: depth
    if are_grouped(panels):
        return lambda a, panels, depth: depth // BLOCK * BLOCK_WORDS
    return lambda a, panels, depth: depth // 2


@by_types
def depth_of(panels, words):
    """The wide words that so many words of panels make."""
    if are_grouped(panels):
        return lambda panels, words: words // BLOCK_WORDS * BLOCK
    return lambda panels, words: 2 * words


@by_types
def multiply_and_widen(x, row, count, panel, depth, sums, is_added, wide, ahead, step):
    """sums (+)= the product of `count` rows of x with a panel, which is written to `wide`.

    `row` and `depth` are in wide words, even ones of panels whose words are two of them; so is `step`, the bytes to be
    fetched for each from `ahead` on.
    """
    per_word = 1 if are_grouped(panel) else 2

    def widen(x, row, count, panel, depth, sums, is_added, wide, ahead, step):
        width, words = WEIGHT_PANEL_VECTORS * lanes(sums), depth // per_word
        row, step = row // per_word, step * per_word
        if count > 1:
            _tile(x, row, 1, count - 1, panel, width, words, sums, width, is_added, ahead, step, wide)
        else:
            _row_tile(x, row, 1, 0, panel, width, words, sums, width, is_added, ahead, step, wide)

    return widen
