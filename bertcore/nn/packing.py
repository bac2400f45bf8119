"""Packed batches: padding is stripped at a model's entry and restored on the way out; inside, tokens are one axis.

On the GPU, the integers of a batch stand side by side in one array, which one copy takes there. The array has capacity
for more tokens and sequences than the batch: the next of a few sizes, so that batches of other sizes have the same
layout, and one captured pass serves them. In inference nothing reads the entries behind the batch. In training they
take part in sums, multiplied by zero: they must be finite numbers, so the tokens behind the batch are also cut into
sequences, which every kernel computes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bertcore import kernels
from bertcore.kernels.arrays import NativeArray
from bertcore.nn.operation import operation
from bertcore.passes import Pass
from bertcore.tape import Tensor


class PackedBatch:
    """The real tokens of a padded batch, one sequence after the other.

    Positions count from a sequence's first real token, so that left padding, right padding and no padding give the same
    result. (transformers counts BERT's positions from the first column, padding or not; its results differ only for
    left padding, with which they change.)

    Some padding may stay, as tokens that no other token attends to.
    """

    def __init__(self, attention_mask: np.ndarray, is_real: np.ndarray | None = None, *, keeps_padding: bool = False):
        """Set which columns stay, booleans (sequences, length), and which of them are real tokens (all by default)."""
        self.shape = attention_mask.shape  # (sequences, length) of the padded batch
        self.stays = attention_mask
        self.is_real = attention_mask if is_real is None else is_real
        self.keeps_padding = keeps_padding  # whether all padding stays on request
        self.lengths = attention_mask.sum(axis=1)  # tokens of each sequence, (sequences,)
        self.has_tokens = self.lengths > 0
        # offsets of the sequences on the packed axis, (sequences + 1,)
        self.cu_seqlens = np.concatenate([[0], self.lengths.cumsum()]).astype(np.int32)
        self._sequence, self._column = attention_mask.nonzero()
        first_column = self.is_real.argmax(axis=1) if attention_mask.size else np.zeros(self.shape[0], np.int64)
        # The position of each token in its sequence. Padding that stays before the first real token has that token's
        # position, so that it does not shift others.
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
    xp = kernels.array_module(packed)
    rows = xp.asarray(np.flatnonzero(has_tokens))
    padded = xp.zeros((len(has_tokens), *packed.shape[1:]), packed.dtype)
    padded[rows] = packed
    return padded, lambda grad: (grad[rows],)


@operation()
def _padded_attention(run: Pass, probabilities: Tensor, *, batch: PackedBatch, memory: int) -> Tensor:
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


FEWEST_TOKENS, FEWEST_SEQUENCES = 16, 1
PER_LINE = 64  # integers of a part are rounded up to whole lines of 256 bytes


def capacity_for(count: int, fewest: int) -> int:
    """Return the least of `fewest` times 1, 1.5, 2, 3, 4, 6, 8, ... that is not below `count`."""
    capacity = fewest
    while capacity < count:
        capacity *= 2
    middle = capacity * 3 // 4
    return middle if fewest < capacity and middle >= count else capacity


def close_capacity_for(count: int) -> int:
    """Return the least capacity of eight steps an octave that holds `count`: at most an eighth more."""
    step = max(1, 1 << max(count - 1, 0).bit_length() >> 4)
    return -(-count // step) * step


def capacities_for(tokens: int, sequences: int, *, in_training: bool) -> tuple[int, int]:
    """Return the capacities for tokens and for sequences."""
    if in_training:
        return close_capacity_for(tokens), close_capacity_for(sequences + -(-sequences // 8))
    return capacity_for(tokens, FEWEST_TOKENS), capacity_for(sequences, FEWEST_SEQUENCES)


def padding_offsets(offsets: np.ndarray, capacity: int, last: int) -> np.ndarray:
    """Return the offsets behind those of a batch, up to the capacity: sequences of nearly one length, up to `last`."""
    return np.linspace(offsets[-1], last, capacity - len(offsets) + 1)[1:]


class Slot(NamedTuple):
    """The place of an array: its first integer, the number of the batch's integers, and the capacity."""

    first: int
    count: int
    capacity: int


@dataclass(frozen=True)
class IntegerBuffer:
    """The integers of a batch in one array."""

    array: NativeArray  # int32, all the integers
    parts: Mapping[str, Slot]  # where each array stands, by its name

    @classmethod
    def of(cls, run: Pass, arrays: Mapping[str, np.ndarray | None], sequences: int) -> IntegerBuffer:
        """Upload arrays (tokens,), "cu_seqlens", "first_tokens" and "last_tokens"; None entries are skipped.

        "cu_seqlens" is (sequences + 1,); first and last tokens are of at most `sequences`. Beyond the batch's tokens
        and sequences stand zeros, and offsets of empty sequences; in training offsets that divide all tokens of the
        capacity into sequences no longer than the batch's longest.
        """
        in_training = run.tape is not None
        offsets = arrays["cu_seqlens"]
        tokens, most = capacities_for(int(offsets[-1]), sequences, in_training=in_training)
        special = {"cu_seqlens": most + 1, "first_tokens": most, "last_tokens": most}
        capacities = {name: special.get(name, tokens) for name in arrays}
        last = tokens if in_training else int(offsets[-1])
        return cls.with_capacities(run, arrays, capacities, {"cu_seqlens": padding_offsets(offsets, most + 1, last)})

    @classmethod
    def with_capacities(
        cls,
        run: Pass,
        arrays: Mapping[str, np.ndarray | None],
        capacities: Mapping[str, int],
        behind: Mapping[str, Any],
    ) -> IntegerBuffer:
        """Upload arrays of these capacities; beyond each array stands its entry of `behind`, or zeros."""
        parts, first = dict[str, Slot](), 0
        for name, array in arrays.items():
            if array is not None:
                parts[name] = Slot(first, len(array), capacities[name])
                first += -(-capacities[name] // PER_LINE) * PER_LINE
        integers = np.zeros(first, np.int32)
        for name, (start, count, capacity) in parts.items():
            integers[start : start + count] = arrays[name]
            integers[start + count : start + capacity] = behind.get(name, 0)
        return cls(run.to_backend(integers), parts)

    def views(self) -> dict[str, Any]:
        """Return the batch's arrays by name."""
        return {name: self.array[first : first + count] for name, (first, count, _) in self.parts.items()}

    @property
    def capacities(self) -> tuple[tuple[str, int], ...]:
        """The capacity of each array: the layout."""
        return tuple((name, part.capacity) for name, part in self.parts.items())

    def with_capacity(self, array: NativeArray) -> dict[str, Any]:
        """Return the arrays of this layout in another array, at full capacity."""
        return {name: array[first : first + capacity] for name, (first, _, capacity) in self.parts.items()}
