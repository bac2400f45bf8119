"""Products of rows with weights in bfloat16 and int8, on tiles or in vectors, and the rounding of the rows.

For tiles, rows are stored in strips, and panels are as wide as two tiles. For vectors, rows follow one another in words
of 32 bits, and panels are as wide as those of float32.

Gradients need panels of words of two bfloat16 from float32 matrices whose products sum over their rows, and transposed
panels. A word joins two rows of one column (low_precision/operands.py), so that no transpose of the matrix is made.
Training packs in each step, which in bfloat16 takes about a tenth of a product's time.
"""

import numpy as np

from ..._numba import (
    LEVEL,
    aligned_empty,
    as_kernel_array,
    empty,
    helper,
    inline_helper,
    num_threads,
    parallel_kernel,
)
from ..._numba.compile.isa import WORD_BYTES, has_pair_dot
from ..._numba.low_precision import DEPTH_WORDS, STRIP_ROWS, quantize_row_to, round_row_to
from ..._numba.low_precision.operands import as_words, lay_depth
from ..._numba.products import WEIGHT_PANEL_VECTORS, run_product
from ..._numba.products.epilogue import epilogue_pointers
from ..._numba.products.tile import group_rows, transpose_block
from ..._numba.rows import share
from ..._numba.simd import broadcast, lanes, pointer, store
from ...activation_names import ROUGH_GELU, activation_code

GROUP_ROWS = group_rows(4)  # of words
_LEVELS_PER_WORD = 2 if has_pair_dot() else WORD_BYTES  # two if panels are widened to pairs
HAS_PAIRS = WORD_BYTES == 4  # elsewhere a word has four bfloat16
CHUNK = 32  # rows at once: the depth of a tile in bfloat16
_STORAGE = np.uint16(0)


def code_of_rounded(activation):
    """Return the code of an activation after a product of rounded rows."""
    return ROUGH_GELU if activation == "gelu" else activation_code(activation)


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


if LEVEL.tiles:
    from ..._numba.amx.product import PANEL_COLUMNS, multiply_strips_bfloat16, multiply_strips_int8

    PANEL_WORDS = PANEL_COLUMNS  # in a row of a panel, one for each column

    @helper
    def run_bfloat16(rounded, panels, output, epilogue, counter, sums):
        words, epilogue = rounded.shape[1] // 2, epilogue_pointers(epilogue)
        multiply_strips_bfloat16(rounded, words, panels, output, epilogue, None, counter, sums)

    @helper
    def run_int8(rounded, weight, output, epilogue, counter, sums):
        levels, zeros, steps = rounded
        panels, scales, column_sums = weight
        scaling = pointer(zeros, 0), pointer(steps, 0), pointer(scales, 0), pointer(column_sums, 0)
        multiply_strips_int8(
            levels, levels.shape[1] // 4, panels, output, epilogue_pointers(epilogue), scaling, counter, sums
        )

else:
    PANEL_WORDS = WEIGHT_PANEL_VECTORS * LEVEL.vector_bytes // 4

    @inline_helper
    def _strides(words):
        """Return the strides for `run_product` of rounded rows with this number of words."""
        if STRIP_ROWS > 1:
            return 1, GROUP_ROWS, words * GROUP_ROWS
        return words, 1, words * GROUP_ROWS

    @helper
    def run_bfloat16(rounded, panels, output, epilogue, counter, sums):
        strides = _strides(rounded.shape[1] // (WORD_BYTES // 2))
        run_product(rounded, strides, panels, output, epilogue_pointers(epilogue), None, counter, sums)

    @helper
    def run_int8(rounded, weight, output, epilogue, counter, sums):
        levels, zeros, steps = rounded
        panels, scales, column_sums = weight
        scaling = pointer(zeros, 0), pointer(steps, 0), pointer(scales, 0), pointer(column_sums, 0)
        strides = _strides(levels.shape[1] // _LEVELS_PER_WORD)
        run_product(levels, strides, panels, output, epilogue_pointers(epilogue), scaling, counter, sums)


def pack_columns(x, width, as_strips=False):
    """Return float32 x (rows, n) as panels of bfloat16, (panels, words, 2 * width) uint16, `width` whole vectors.

    With `as_strips`, on CPUs with tiles, the columns become rows of a product on tiles: `width` are a strip.
    """
    rows, columns = x.shape
    words = max(-(-rows // (2 * DEPTH_WORDS)), 1) * DEPTH_WORDS
    panels = empty((-(-columns // width), words, width), np.float32)
    if panels.size:
        tasks = min(num_threads(), -(-words * 2 // CHUNK))
        _pack_columns(as_kernel_array(x), panels, as_strips and LEVEL.tiles is not None, tasks)
    return panels.view(np.uint16)


def transposed_pairs(panels, out_features, in_features):
    """Return the panels of the transpose of a bfloat16 weight given by its panels."""
    depth = max(-(-out_features // (2 * DEPTH_WORDS)), 1) * DEPTH_WORDS
    result = aligned_empty((-(-in_features // PANEL_WORDS), depth, PANEL_WORDS), np.float32)
    tasks = min(num_threads(), max(len(result), 1))
    scratch = empty((tasks, PANEL_WORDS, PANEL_WORDS), np.float32)
    _transpose(panels.view(np.float32), out_features, result, scratch, tasks)
    return result.view(np.uint16)


# --- kernels ----------------------------------------------------------------------------------------


@parallel_kernel
def _pack_columns(x, panels, as_strips, task, tasks):
    """Write the task's chunks of rows to all panels; whole rows are read in memory order."""
    count, words, width = panels.shape
    chunks = (2 * words + CHUNK - 1) // CHUNK
    for k in range(share(chunks, task, tasks) * CHUNK, share(chunks, task + 1, tasks) * CHUNK, CHUNK):
        depth, own = max(min(CHUNK, len(x) - k), 0), min(CHUNK // 2, words - k // 2)
        for p in range(count):
            target = pointer(panels, (p * words + k // 2) * width)
            columns = min(width, x.shape[1] - p * width)
            lay_depth(pointer(x, k * x.shape[1] + p * width), x.shape[1], depth, columns, target, width, _STORAGE)
            _zero(target, (depth + 1) // 2 * width, own * width)
            if as_strips:
                transpose_block(target, width, width - 1, target, width)  # it reads the whole block before it writes


@helper
def _zero(target, first, end):
    for i in range(first, end, lanes(target)):
        store(target, i, broadcast(target, 0.0))


@parallel_kernel
def _transpose(panels, out_features, result, scratch, task, tasks):
    """Write the task's panels of the transpose, from blocks of as many output features and words as a panel is wide."""
    count, words, width = result.shape
    half, rows = width // 2, pointer(scratch[task], 0)
    for q in range(share(count, task, tasks), share(count, task + 1, tasks)):
        for p in range(len(panels)):
            source = pointer(panels, (p * panels.shape[1] + q * half) * width)
            _transpose_words(source, width, min(half, panels.shape[1] - q * half), rows)
            target = pointer(result, (q * words + p * half) * width)
            _join_rows(rows, min(width, out_features - p * width), width, target)
        written = (out_features + 1) // 2 * width
        _zero(pointer(result, q * words * width), written, words * width)


@helper
def _transpose_words(source, width, depth, rows):
    """Write a (depth, width) block of words as (width, depth), in rows of `width` words."""
    for c in range(0, width, lanes(source)):
        for k in range(0, depth, lanes(source)):
            last = min(lanes(source), depth - k) - 1
            transpose_block(pointer(source, k * width + c), width, last, pointer(rows, c * width + k), width)


@helper
def _join_rows(rows, count, width, target):
    """Write `count` rows of `width` bfloat16, 2 * width apart, as words of two rows; an odd last row gets zeros."""
    source, joined = as_words(rows, _STORAGE), as_words(target, _STORAGE)
    for i in range(0, count, 2):
        for j in range(width):
            joined[i * width + 2 * j] = source[2 * i * width + j]
        for j in range(width):
            joined[i * width + 2 * j + 1] = source[2 * (i + 1) * width + j] if i + 1 < count else 0
