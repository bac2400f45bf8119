"""Random bits as a function of a seed and a position: Philox 4x32-10, a counter-based generator.

The bits have no sequence, so that any thread can compute the bits of any position, in any order, and a backward
recomputes them instead of keeping them. Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".

One counter gives four words of 32 bits. Rows of a matrix are divided into blocks of 64 columns, which 16 counters fill,
so that neighbouring lanes belong to neighbouring counters in vectors of up to 16 lanes.
"""

import numpy as np

MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
KEY_STEPS = 0x9E3779B9, 0xBB67AE85
ROUNDS = 10
COUNTERS = 16  # of a block
BLOCK = 4 * COUNTERS
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox(counter: np.ndarray, seed: int) -> np.ndarray:
    """Return the four words of each counter, (..., 4) uint32, for counters (..., 4) uint32; `seed` has 64 bits."""
    first, second, third, fourth = (counter[..., word].astype(np.uint64) for word in range(4))
    keys = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(ROUNDS):
        even, odd = first * np.uint64(MULTIPLIERS[0]), third * np.uint64(MULTIPLIERS[1])
        first, second, third, fourth = (
            (odd >> _HALF) ^ second ^ np.uint64(keys[0]),
            odd & _LOW,
            (even >> _HALF) ^ fourth ^ np.uint64(keys[1]),
            even & _LOW,
        )
        keys = [(key + step) & 0xFFFFFFFF for key, step in zip(keys, KEY_STEPS, strict=True)]
    return np.stack([first, second, third, fourth], axis=-1).astype(np.uint32)


def random_bits(seed: int, rows: np.ndarray, columns: int) -> np.ndarray:
    """Return 32 random bits for each of `columns` columns of the rows with these numbers, (rows, columns) uint32.

    Column c of row r has word c // 16 % 4 of the counter (c // 64 * 16 + c % 16, low half of r, high half of r, 0).
    """
    blocks = -(-columns // BLOCK)
    counters = np.arange(blocks * COUNTERS, dtype=np.uint64)
    rows = np.asarray(rows, np.uint64)[:, None]
    counter = np.zeros((len(rows), len(counters), 4), np.uint64)
    counter[..., 0], counter[..., 1], counter[..., 2] = counters, rows & _LOW, rows >> _HALF
    words = philox(counter, seed).reshape(len(rows), blocks, COUNTERS, 4)
    return words.swapaxes(2, 3).reshape(len(rows), blocks * BLOCK)[:, :columns]


def threshold(p: float) -> int:
    """Return the bound for dropout with probability `p`: elements whose bits are below it are dropped."""
    return min(round(p * 2**32), 2**32 - 1)
