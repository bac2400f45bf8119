"""Lengths of texts as they come in practice."""

import math
from statistics import NormalDist


def ragged_lengths(texts: int = 32, mean: float = 33, longest: int = 128, sigma: float = 0.8) -> tuple[int, ...]:
    """Log-normal lengths in tokens, the longest being `longest`: evenly spaced quantiles in a fixed scattered order."""
    normal = NormalDist(math.log(mean) - sigma**2 / 2, sigma)
    lengths = [math.exp(normal.inv_cdf((rank + 0.5) / texts)) for rank in range(texts)]
    lengths = [max(1, min(longest, round(length))) for length in lengths]
    lengths[-1] = longest
    return tuple(sorted(lengths, key=lambda length: math.sin(12.9898 * length)))
