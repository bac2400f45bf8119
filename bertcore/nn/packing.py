"""Padding is stripped at a model's door and restored on the way out: inside, a batch is one axis of real tokens."""

from typing import Any

import numpy as np

from bertcore import kernels


class PackedBatch:
    """The real tokens of a padded batch, one sequence after the other.

    Positions count from a sequence's first real token, so that padding on the left, on the right or none at all gives
    the same result. (transformers counts BERT's positions from the first column, padding or not; the two agree but for
    left padding, where its results change with the padding.)

    Some padding may stay, as tokens that no other token sees.

    Attributes:
        shape: (sequences, length) of the padded batch.
        stays: which columns stay as tokens, (sequences, length) booleans.
        is_real: which columns hold real tokens, of the same shape.
        keeps_padding: whether all padding was asked to stay.
        cu_seqlens: int32 offsets of the sequences on the packed axis, (sequences + 1,).
        position_ids: int32 position of each token in its sequence, (tokens,).
    """

    def __init__(self, attention_mask: np.ndarray, is_real: np.ndarray | None = None, *, keeps_padding: bool = False):
        """Take which columns stay, (sequences, length) booleans, and which of those are real: all by default."""
        self.shape = attention_mask.shape
        self.stays = attention_mask
        self.is_real = attention_mask if is_real is None else is_real
        self.keeps_padding = keeps_padding
        self.lengths = attention_mask.sum(axis=1)
        self.cu_seqlens = np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int32)
        self._sequence, self._column = np.nonzero(attention_mask)
        first_column = self.is_real.argmax(axis=1) if attention_mask.size else np.zeros(self.shape[0], np.int64)
        # Padding that stays before the first real token has that token's position: it must not shift the others'.
        self.position_ids = np.maximum(self._column - first_column[self._sequence], 0).astype(np.int32)

    @property
    def is_full(self) -> bool:
        """True if the batch has no padding."""
        return self._sequence.size == self.shape[0] * self.shape[1]

    @property
    def has_tokens(self) -> np.ndarray:
        """Which sequences have a token at all, (sequences,) booleans."""
        return self.lengths > 0

    def key_mask(self) -> np.ndarray | None:
        """Which tokens may be seen, booleans (sequences, 1, 1, longest); None if all may."""
        real = self.strip(self.is_real)
        if real.all():
            return None
        mask = np.zeros((self.shape[0], 1, 1, self.lengths.max(initial=0)), bool)
        mask[self._sequence, 0, 0, np.arange(real.size) - self.cu_seqlens[self._sequence]] = real
        return mask

    def strip(self, padded: np.ndarray) -> np.ndarray:
        """(sequences, length, ...) in host memory -> (tokens, ...)."""
        return padded[self._sequence, self._column]

    def pad(self, packed: Any) -> Any:
        """(tokens, ...) -> (sequences, length, ...), zero where there is padding."""
        if self.is_full and self.is_real.all():
            return packed.reshape(*self.shape, *packed.shape[1:])
        xp = kernels.array_module(packed)
        padded = xp.zeros((*self.shape, *packed.shape[1:]), packed.dtype)
        padded[xp.asarray(self._sequence), xp.asarray(self._column)] = packed
        padded[xp.asarray(~self.is_real)] = 0
        return padded

    def pad_sequences(self, packed: Any) -> Any:
        """(sequences that have tokens, ...) -> (sequences, ...), zero for those that have none."""
        if self.has_tokens.all():
            return packed
        xp = kernels.array_module(packed)
        padded = xp.zeros((self.shape[0], *packed.shape[1:]), packed.dtype)
        padded[xp.asarray(self.has_tokens)] = packed
        return padded

    def pad_attention(self, probabilities: Any, memory: int = 0) -> Any:
        """(sequences, heads, longest, memory + longest) -> (sequences, heads, length, memory + length), zero where
        there is padding; all queries see the columns of the memory, which come first."""
        xp = kernels.array_module(probabilities)
        sequences, length = self.shape
        padded = xp.zeros((sequences, probabilities.shape[1], length, memory + length), probabilities.dtype)
        before = np.arange(memory)
        for index, count in enumerate(self.lengths):
            columns = self._column[self.cu_seqlens[index] : self.cu_seqlens[index + 1]]
            keys = np.concatenate([before, memory + columns])
            where = xp.ix_(xp.asarray([index]), xp.arange(padded.shape[1]), xp.asarray(columns), xp.asarray(keys))
            padded[where] = probabilities[index : index + 1, :, :count, : memory + count]
        if self.is_real is not self.stays:
            padded *= xp.asarray(self.is_real[:, None, :, None])
        return padded

    def rows(self) -> np.ndarray:
        """The packed index of each column, (sequences, length), -1 where padding was stripped."""
        rows = np.full(self.shape, -1, np.int64)
        rows[self._sequence, self._column] = np.arange(self._sequence.size)
        return rows

    def first_tokens(self) -> np.ndarray:
        """The packed index of the first token of each sequence that has one; a real one if there is any."""
        return (self.cu_seqlens[:-1] + self._padding_kept(self.is_real))[self.has_tokens]

    def last_tokens(self) -> np.ndarray:
        """The packed index of the last token of each sequence that has one; a real one if there is any."""
        return (self.cu_seqlens[1:] - 1 - self._padding_kept(self.is_real[:, ::-1]))[self.has_tokens]

    def real_tokens(self) -> tuple[np.ndarray | None, np.ndarray]:
        """The packed indices of the real tokens, None where all are, and the offsets of the sequences among them."""
        real = self.strip(self.is_real)
        counts = np.concatenate([[0], np.cumsum(self.is_real.sum(axis=1))]).astype(np.int32)
        return None if real.all() else np.flatnonzero(real), counts

    def _padding_kept(self, is_real: np.ndarray) -> Any:
        """How many tokens of each sequence stand before its first real one."""
        return is_real.argmax(axis=1).astype(np.int32) if self.keeps_padding and is_real.size else 0
