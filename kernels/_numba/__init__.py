"""The machinery that operations share on a CPU: compilation, vectors, matrix products, threads and memory.

Importing this imports Numba: operations import it from their cpu.py, which the dispatcher loads at first use. To write
a kernel start from the docstring of simd/__init__.py.
"""

from ..threads import set_num_threads, thread_count
from .compile import by_types, helper, inline_helper, isa, kernel, parallel_kernel, region
from .compile.cache import cache_folder
from .compile.isa import LEVEL, host_features
from .memory import (
    address_of,
    addresses_of,
    aligned_empty,
    as_addressed_array,
    as_kernel_array,
    empty,
    lasting_empty,
    zeros,
)
from .threads import THREADING_LAYER, num_threads

__all__ = [
    "LEVEL", "THREADING_LAYER", "address_of", "addresses_of", "aligned_empty", "as_addressed_array", "as_kernel_array",
    "by_types", "cache_folder", "empty", "helper", "host_features", "inline_helper", "isa", "kernel", "lasting_empty",
    "num_threads", "parallel_kernel", "region", "set_num_threads", "thread_count", "zeros",
]  # fmt: skip
