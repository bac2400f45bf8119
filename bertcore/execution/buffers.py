"""The integers of a batch side by side in one array on the GPU: one copy takes them there.

The array has capacity for more tokens and sequences than the batch: the next of a few sizes, so that batches of other
sizes have the same layout, and one captured pass serves them. In inference nothing reads the entries behind the
batch. In training they take part in sums, multiplied by zero: they must be finite numbers, so the tokens behind the
batch are also cut into sequences, which every kernel computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bertcore.kernels.arrays import NativeArray
from bertcore.passes import Pass

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
    """The integers of a batch in one array.

    Attributes:
        array: int32, all the integers.
        parts: where each array stands, by its name.
    """

    array: Any
    parts: Mapping[str, Slot]

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
