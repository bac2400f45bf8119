"""Arrays on the GPU, as many sets of them as it takes to have left the cache when the first comes again."""

import importlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from bertcore import kernels
from tests.kernels.arrays import DTYPES

DRAWN = 1 << 20  # numbers; larger arrays repeat them


def normal(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Any:
    """Normally distributed numbers."""
    count = math.prod(shape)
    drawn = np.random.default_rng(seed).standard_normal(min(count, DRAWN), np.float32).astype(DTYPES[dtype])
    return on_gpu(np.resize(drawn, shape))


def on_gpu(array: np.ndarray) -> Any:
    with kernels.use_backend("cupy"):
        return kernels.to_backend(array)


def sets(make: Callable[[int], dict[str, Any]], least: int = 2, most: int = 32) -> list[dict[str, Any]]:
    """make(0), make(1), ...: so many that they hold twice as much as the L2 cache."""
    made = [make(0)]
    nbytes = sum(array.nbytes for array in made[0].values() if hasattr(array, "nbytes"))
    count = min(most, max(least, math.ceil(2 * _cache_bytes() / nbytes)))
    return made + [make(seed) for seed in range(1, count)]


def _cache_bytes() -> int:
    cuda = importlib.import_module("cupy").cuda
    return cuda.Device().attributes["L2CacheSize"]
