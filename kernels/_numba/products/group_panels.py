"""Panels of int8 in groups: 32 neighbours along the depth of a column have a scale, in bfloat16, ahead of them.

A panel is a sequence of blocks, each of the scales of two groups, (2, width) bfloat16, and their values, (64, width)
int8. In rows of `width` words, as all panels are counted, that is one row and 16: BLOCK_WORDS. The dtype is uint8,
which tells them from panels of int8 that are multiplied as such.
"""

import numpy as np

from ..memory import aligned_empty

GROUPS = 2  # in a block
GROUP = 32  # values
BLOCK = GROUPS * GROUP
BLOCK_WORDS = 1 + BLOCK // 4


def pack_groups(values, scale, width):
    """The panels, (panels, words, 4 * width) uint8, of int8 values (columns, depth) and their scales (columns, groups)
    in bfloat16."""
    columns, depth = values.shape
    count, blocks = -(-columns // width), max(-(-depth // BLOCK), 1)
    panels = aligned_empty((count, blocks * BLOCK_WORDS, 4 * width), np.uint8)
    for p in range(count):
        own = slice(p * width, (p + 1) * width)
        for part, source in zip(_parts(panels[p], width), (scale.view(np.uint16), values), strict=True):
            filled = np.zeros((width, blocks * part.shape[1]), source.dtype)
            filled[: len(source[own]), : source.shape[1]] = source[own]
            part[...] = filled.T.reshape(part.shape)
    return panels


def unpack_groups(panels, columns, depth):
    """(values, scale) as `pack_groups` took them, the scale as uint16."""
    width = panels.shape[2] // 4
    count = len(panels)
    groups = -(-depth // GROUP)
    values, scale = np.empty((count * width, depth), np.int8), np.empty((count * width, groups), np.uint16)
    for p in range(count):
        for part, target in zip(_parts(panels[p], width), (scale, values), strict=True):
            target[p * width : (p + 1) * width] = part.reshape(-1, width).T[:, : target.shape[1]]
    return values[:columns], scale[:columns]


def _parts(panel, width):
    """Views of a panel's scales, (blocks, 2, width) uint16, and of its values, (blocks, 64, width) int8."""
    blocks = panel.reshape(-1, BLOCK_WORDS * 4 * width)
    scales, values = blocks[:, : 4 * width].view(np.uint16), blocks[:, 4 * width :].view(np.int8)
    return scales.reshape(-1, GROUPS, width), values.reshape(-1, BLOCK, width)
