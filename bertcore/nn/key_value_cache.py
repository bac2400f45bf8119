"""A cache of the previous tokens' keys and values, so that generation computes only the new token."""

from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.nn import functional
from bertcore.passes import Pass
from bertcore.tape import Tensor


class KeyValueCache:
    """Keys and values of every layer, for `sequences` sequences of at most `capacity` tokens each.

    Every sequence has its own `capacity` rows: a new token's key is written to its row, and nothing is moved. To
    attention, unused rows are sequences of keys without queries.

    Attributes:
        lengths: the number of tokens with keys in each sequence, (sequences,), in host memory.
    """

    def __init__(self, sequences: int, capacity: int):
        self.lengths = np.zeros(sequences, np.int64)
        self._capacity = capacity
        self._layers: dict[int, tuple[Any, Any]] = {}

    def begin(self, run: Pass, counts: np.ndarray) -> None:
        """Reserve counts[s] new tokens of each sequence s; each layer then calls `attend` once.

        Raises:
            ValueError: for more tokens than the capacity, or several for a sequence that already has keys.
        """
        if (self.lengths + counts > self._capacity).any() or (counts[self.lengths > 0] > 1).any():
            raise ValueError(f"counts is {counts} after {self.lengths} tokens, expected 1 each up to {self._capacity}")
        self._is_first = not self.lengths.any()
        starts = np.arange(len(counts)) * self._capacity
        order = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        self._rows = run.to_backend(np.repeat(starts + self.lengths, counts) + order)
        self.lengths = self.lengths + counts
        self._queries = _offsets(run, counts, np.zeros_like(counts))
        self._keys = _offsets(run, self.lengths, self._capacity - self.lengths)
        self._cu_seqlens = run.to_backend(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))

    def reorder(self, run: Pass, order: np.ndarray) -> None:
        """Let sequence i continue sequence order[i]; `order` is (sequences,) in host memory."""
        if np.array_equal(order, np.arange(len(self.lengths))):
            return
        rows = run.to_backend((order[:, None] * self._capacity + np.arange(self._capacity)).reshape(-1))
        self.lengths = self.lengths[order]
        self._layers = {layer: (keys[rows], values[rows]) for layer, (keys, values) in self._layers.items()}

    def attend(
        self, run: Pass, layer: int, qkv: Tensor, *, num_heads: int, scale: float | None, compute_dtype: str | None
    ) -> Tensor:
        """Store the new tokens' keys and values, and return their attention to all keys of their sequences so far.

        Args:
            layer: the number of the layer.
            qkv: concatenated query, key and value of the new tokens, sequence after sequence, (tokens, 3 * hidden).
            num_heads, scale, compute_dtype: as for `functional.self_attention`.

        Returns:
            (tokens, hidden).
        """
        query, key, value = functional.split_heads(qkv, num_heads=num_heads)
        if layer not in self._layers:
            xp, shape = kernels.array_module(qkv), (len(self.lengths) * self._capacity, *key.shape[1:])
            self._layers[layer] = xp.zeros(shape, qkv.dtype), xp.zeros(shape, qkv.dtype)
        keys, values = self._layers[layer]
        keys[self._rows], values[self._rows] = key, value
        options = {"scale": scale, "compute_dtype": compute_dtype}
        if self._is_first:
            where = {"cu_seqlens": self._cu_seqlens, "is_causal": True}
            return functional.self_attention(run, qkv, num_heads=num_heads, **where, **options)
        where = {"cu_seqlens": self._queries, "cu_seqlens_k": self._keys}
        return kernels.attention(query, keys, values, backend=run.backend, **where, **options).reshape(len(query), -1)


def _offsets(run: Pass, counts: np.ndarray, gaps: np.ndarray) -> Any:
    """Return offsets of sequences of `counts` rows, each followed by one of `gaps` rows."""
    both = np.stack([counts, gaps], axis=1).reshape(-1)
    return run.to_backend(np.concatenate([[0], np.cumsum(both)]).astype(np.int32))
