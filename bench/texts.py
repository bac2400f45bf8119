"""Realistic texts: lengths for ragged batches, and short texts."""

import math
import random
from collections.abc import Iterator
from statistics import NormalDist

WORDS = """
how many people live in the old town by a river and who built its bridge market station where can we buy good bread
fresh water cheap tickets before noon after rain they said that prices fell again while trains ran late most children
like warm summer days cat sat quietly under this small garden table reading letters from home
"""


MEAN, LONGEST, SIGMA = 33, 128, 0.8  # of ragged_lengths, in tokens; SIGMA of their logarithms


def ragged_lengths(texts: int = 32) -> tuple[int, ...]:
    """Return log-normal lengths in tokens, up to LONGEST: evenly spaced quantiles in a fixed scattered order."""
    normal = NormalDist(math.log(MEAN) - SIGMA**2 / 2, SIGMA)
    lengths = [math.exp(normal.inv_cdf((rank + 0.5) / texts)) for rank in range(texts)]
    lengths = [max(1, min(LONGEST, round(length))) for length in lengths]
    lengths[-1] = LONGEST
    return tuple(sorted(lengths, key=lambda length: math.sin(12.9898 * length)))


def short_texts(count: int, seed: int = 0) -> Iterator[str]:
    """Yield distinct texts of 3 to 20 words, 9 on average."""
    draw, words = random.Random(seed), WORDS.split()
    for number in range(count):
        length = 3 + round(17 * draw.betavariate(1.5, 2.8))
        yield f"{' '.join(draw.choices(words, k=length - 1))} {number}"
