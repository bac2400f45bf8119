"""From the hidden states of texts' tokens to one vector for each."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.kernels.pooling import MODES as POOLING  # the names that sentence-transformers gives them

__all__ = ["POOLING", "pool"]


def pool(hidden: Any, cu_seqlens: np.ndarray, modes: Sequence[str], skipped: int = 0) -> Any:
    """The pooled vectors of packed texts, several modes side by side; zeros for a text without tokens.

    Args:
        hidden: (tokens, hidden), any floating dtype; half precision is pooled in float32.
        cu_seqlens: offsets of the texts in host memory, (texts + 1,).
        modes: names from POOLING.
        skipped: how many of the first tokens of each text do not count.

    Returns:
        (texts, hidden * modes) in the memory of `hidden`, float32 or float64.
    """
    xp = kernels.array_module(hidden)
    if hidden.dtype.itemsize < 4 and isinstance(hidden, np.ndarray):  # in which Numba does not compute
        hidden = hidden.astype(np.float32)
    dtype = np.promote_types(hidden.dtype, np.float32)
    offsets = xp.asarray(cu_seqlens)
    parts = [kernels.pooling(hidden, offsets, mode, skipped=skipped, dtype=dtype) for mode in modes]
    return parts[0] if len(parts) == 1 else xp.concatenate(parts, axis=1)
