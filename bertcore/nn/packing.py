"""Packed batches: padding is stripped at a model's entry and restored on the way out; inside, tokens are one axis."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.nn.operation import operation
from bertcore.passes import Pass
from bertcore.tape import Tensor


class PackedBatch:
    """The real tokens of a padded batch, one sequence after the other.

    Positions count from a sequence's first real token, so that left padding, right padding and no padding give the same
    result. (transformers counts BERT's positions from the first column, padding or not; its results differ only for
    left padding, with which they change.)

    Some padding may stay, as tokens that no other token attends to.

    Attributes:
        shape: (sequences, length) of the padded batch.
        stays: which columns stay as tokens, booleans (sequences, length).
        is_real: which columns are real tokens, booleans of the same shape.
        keeps_padding: whether all padding stays on request.
        lengths: the number of tokens of each sequence, (sequences,).
        has_tokens: which sequences have a token, booleans (sequences,).
        cu_seqlens: int32 offsets of the sequences on the packed axis, (sequences + 1,).
        position_ids: int32 position of each token in its sequence, (tokens,).
    """

    def __init__(self, attention_mask: np.ndarray, is_real: np.ndarray | None = None, *, keeps_padding: bool = False):
        """Set which columns stay, booleans (sequences, length), and which of them are real tokens (all by default)."""
        self.shape = attention_mask.shape
        self.stays = attention_mask
        self.is_real = attention_mask if is_real is None else is_real
        self.keeps_padding = keeps_padding
        self.lengths = attention_mask.sum(axis=1)
        self.has_tokens = self.lengths > 0
        self.cu_seqlens = np.concatenate([[0], self.lengths.cumsum()]).astype(np.int32)
        self._sequence, self._column = attention_mask.nonzero()
        first_column = self.is_real.argmax(axis=1) if attention_mask.size else np.zeros(self.shape[0], np.int64)
        # Padding that stays before the first real token has that token's position, so that it does not shift others.
        self.position_ids = np.maximum(self._column - first_column[self._sequence], 0).astype(np.int32)

    @property
    def is_full(self) -> bool:
        """True if the batch has no padding."""
        return self._sequence.size == self.shape[0] * self.shape[1]

    def key_mask(self) -> np.ndarray | None:
        """Return a mask of tokens that may be attended to, booleans (sequences, 1, 1, longest); None for all."""
        real = self.strip(self.is_real)
        if real.all():
            return None
        mask = np.zeros((self.shape[0], 1, 1, self.lengths.max(initial=0)), bool)
        mask[self._sequence, 0, 0, np.arange(real.size) - self.cu_seqlens[self._sequence]] = real
        return mask

    def strip(self, padded: np.ndarray) -> np.ndarray:
        """Map (sequences, length, ...) in host memory to (tokens, ...)."""
        return padded[self._sequence, self._column]

    def pad(self, run: Pass, packed: Tensor) -> Tensor:
        """Map (tokens, ...) to (sequences, length, ...), zero at padding; has a gradient."""
        return _padded(run, packed, batch=self)

    def pad_sequences(self, run: Pass, packed: Tensor) -> Tensor:
        """Map (sequences that have tokens, ...) to (sequences, ...), zero for empty ones; has a gradient."""
        return packed if self.has_tokens.all() else _padded_sequences(run, packed, has_tokens=self.has_tokens)

    def pad_attention(self, run: Pass, probabilities: Tensor, memory: int = 0) -> Tensor:
        """Map (sequences, heads, longest, memory + longest) to (sequences, heads, length, memory + length).

        Zero at padding; all queries attend to the memory's columns, which come first. Has a gradient.
        """
        return _padded_attention(run, probabilities, batch=self, memory=memory)

    def corners(self, heads: int, memory: int) -> Iterator[tuple[Any, Any]]:
        """Yield the indices of each sequence's probabilities in a padded batch and in a packed one."""
        before = np.arange(memory)
        for index, count in enumerate(self.lengths):
            columns = self._column[self.cu_seqlens[index] : self.cu_seqlens[index + 1]]
            padded = np.ix_([index], np.arange(heads), columns, np.concatenate([before, memory + columns]))
            yield padded, (slice(index, index + 1), slice(None), slice(count), slice(memory + count))

    def rows(self) -> np.ndarray:
        """Return the packed index of each column, (sequences, length), -1 for stripped padding."""
        rows = np.full(self.shape, -1, np.int64)
        rows[self._sequence, self._column] = np.arange(self._sequence.size)
        return rows

    def first_tokens(self) -> np.ndarray:
        """Return the packed index of the first token, a real one if possible, of each sequence that has tokens."""
        first = self.cu_seqlens[:-1]
        return (first + self._padding_kept(self.is_real) if self.keeps_padding else first)[self.has_tokens]

    def last_tokens(self) -> np.ndarray:
        """Return the packed index of the last token, a real one if possible, of each sequence that has tokens."""
        last = self.cu_seqlens[1:] - 1
        return (last - self._padding_kept(self.is_real[:, ::-1]) if self.keeps_padding else last)[self.has_tokens]

    def real_tokens(self) -> tuple[np.ndarray | None, np.ndarray]:
        """Return the packed indices of the real tokens, None for all, and the offsets of the sequences among them."""
        real = self.strip(self.is_real)
        counts = np.concatenate([[0], np.cumsum(self.is_real.sum(axis=1))]).astype(np.int32)
        return None if real.all() else np.flatnonzero(real), counts

    def _padding_kept(self, is_real: np.ndarray) -> Tensor:
        """Return the number of tokens before each sequence's first real token."""
        return is_real.argmax(axis=1).astype(np.int32) if is_real.size else 0


@operation()
def _padded(run: Pass, packed: Tensor, *, batch: PackedBatch) -> Tensor:
    """Compute `PackedBatch.pad`."""
    if batch.is_full and batch.is_real.all():
        shape = packed.shape
        return packed.reshape(*batch.shape, *shape[1:]), lambda grad: (grad.reshape(shape),)
    xp = kernels.array_module(packed)
    where = xp.asarray(batch._sequence), xp.asarray(batch._column)
    hidden = np.flatnonzero(~batch.strip(batch.is_real))  # indices, as a GPU would have to count a mask first
    kept_padding = xp.asarray(hidden) if hidden.size else None

    def pullback(grad):
        part = grad[where]
        if kept_padding is not None:
            part[kept_padding] = 0
        return (part,)

    padded = xp.zeros((*batch.shape, *packed.shape[1:]), packed.dtype)
    padded[where] = packed
    if kept_padding is not None:
        padded[where[0][kept_padding], where[1][kept_padding]] = 0
    return padded, pullback


@operation()
def _padded_sequences(run: Pass, packed: Tensor, *, has_tokens: np.ndarray) -> Tensor:
    """Compute `PackedBatch.pad_sequences`."""
    xp = kernels.array_module(packed)
    rows = xp.asarray(np.flatnonzero(has_tokens))
    padded = xp.zeros((len(has_tokens), *packed.shape[1:]), packed.dtype)
    padded[rows] = packed
    return padded, lambda grad: (grad[rows],)


@operation()
def _padded_attention(run: Pass, probabilities: Tensor, *, batch: PackedBatch, memory: int) -> Tensor:
    """Compute `PackedBatch.pad_attention`."""
    xp, heads, (sequences, length) = kernels.array_module(probabilities), probabilities.shape[1], batch.shape
    is_real = 1 if batch.is_real is batch.stays else xp.asarray(batch.is_real[:, None, :, None])

    def pullback(grad):
        grad, part = grad * is_real, xp.zeros(probabilities.shape, probabilities.dtype)
        for padded_at, packed_at in batch.corners(heads, memory):
            part[packed_at] = grad[tuple(map(xp.asarray, padded_at))]
        return (part,)

    padded = xp.zeros((sequences, heads, length, memory + length), probabilities.dtype)
    for padded_at, packed_at in batch.corners(heads, memory):
        padded[tuple(map(xp.asarray, padded_at))] = probabilities[packed_at]
    return padded * is_real if batch.is_real is not batch.stays else padded, pullback
