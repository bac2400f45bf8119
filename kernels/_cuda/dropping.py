"""What kernels drop by, as arguments of a launch (the kernels' side: philox.cuh)."""

import numpy as np

from ..philox import threshold


def dropping(p, seed):
    """The address of the seed, or null, the seed as a number, the threshold of the bits, and what is kept times what.

    `seed`: an integer, or an array of one uint64, which the kernel reads when it runs.
    """
    at, number = (None, seed) if isinstance(seed, int) else (seed, 0)
    return at, np.uint64(number).view(np.int64), np.uint32(threshold(p) if p else 0), np.float32(1 / (1 - p))
