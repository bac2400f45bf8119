"""The integers of a batch side by side in one array on the GPU: one copy takes them there.

The array has room for more tokens and sequences than the batch: the next of a few sizes, so that batches of other sizes
have the same layout, which is what a pass that is kept as a CUDA graph reads (kernels/program/graph_cache.py). In
inference nobody looks at what stands behind the batch. In training it has a part in sums, to which it adds zero times
whatever stands there: these must be numbers, so that the tokens behind are cut into sequences as well, which every
kernel computes; they are fewer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bertcore import kernels

FEWEST_TOKENS, FEWEST_SEQUENCES = 16, 1
PER_LINE = 64  # integers of a part are rounded up to whole lines of 256 bytes


def room_for(count: int, fewest: int) -> int:
    """The least of `fewest` times 1, 1.5, 2, 3, 4, 6, 8, ... that is not below `count`."""
    room = fewest
    while room < count:
        room *= 2
    middle = room * 3 // 4
    return middle if fewest < room and middle >= count else room


def close_room_for(count: int) -> int:
    """The least number that is not below `count` and a multiple of an eighth of the power of two below: at most an
    eighth more."""
    step = max(1, 1 << max(count - 1, 0).bit_length() >> 4)
    return -(-count // step) * step


def rooms_for(tokens: int, sequences: int, *, in_training: bool) -> tuple[int, int]:
    """For how many tokens and for how many sequences there is room."""
    if in_training:
        return close_room_for(tokens), close_room_for(sequences + -(-sequences // 8))
    return room_for(tokens, FEWEST_TOKENS), room_for(sequences, FEWEST_SEQUENCES)


def offsets_behind(offsets: np.ndarray, room: int, last: int) -> np.ndarray:
    """What stands behind offsets up to their room: those of sequences of nearly one length, up to the token `last`."""
    return np.linspace(offsets[-1], last, room - len(offsets) + 1)[1:]


class Part(NamedTuple):
    """Where an array stands: the first of its integers, how many of them are the batch's, and for how many there is
    room."""

    first: int
    count: int
    room: int


@dataclass(frozen=True)
class JoinedIntegers:
    """Attributes:
    array: int32, all the integers.
    parts: where each array stands, by its name.
    """

    array: Any
    parts: Mapping[str, Part]

    @classmethod
    def of(
        cls, arrays: Mapping[str, np.ndarray | None], sequences: int, *, in_training: bool = False
    ) -> JoinedIntegers:
        """The integers of arrays (tokens,), "cu_seqlens" (sequences + 1,) and "first_tokens" and "last_tokens", of at
        most `sequences`; what is None has no part.

        Beyond the batch's tokens and sequences stand zeros, and offsets of empty sequences; in training of sequences of
        all tokens that there is room for, none longer than the batch's longest.
        """
        offsets = arrays["cu_seqlens"]
        tokens, most = rooms_for(int(offsets[-1]), sequences, in_training=in_training)
        special = {"cu_seqlens": most + 1, "first_tokens": most, "last_tokens": most}
        rooms = {name: special.get(name, tokens) for name in arrays}
        last = tokens if in_training else int(offsets[-1])
        return cls.with_rooms(arrays, rooms, {"cu_seqlens": offsets_behind(offsets, most + 1, last)})

    @classmethod
    def with_rooms(
        cls, arrays: Mapping[str, np.ndarray | None], rooms: Mapping[str, int], behind: Mapping[str, Any]
    ) -> JoinedIntegers:
        """The integers of arrays for which there are so many `rooms`; beyond them stands what is `behind`, or zeros."""
        parts, first = dict[str, Part](), 0
        for name, array in arrays.items():
            if array is not None:
                parts[name] = Part(first, len(array), rooms[name])
                first += -(-rooms[name] // PER_LINE) * PER_LINE
        joined = np.zeros(first, np.int32)
        for name, (start, count, room) in parts.items():
            joined[start : start + count] = arrays[name]
            joined[start + count : start + room] = behind.get(name, 0)
        return cls(kernels.to_backend(joined), parts)

    def views(self) -> dict[str, Any]:
        """The batch's arrays by name."""
        return {name: self.array[first : first + count] for name, (first, count, _) in self.parts.items()}

    @property
    def rooms(self) -> tuple[tuple[str, int], ...]:
        """For how many integers each array has room: the layout."""
        return tuple((name, part.room) for name, part in self.parts.items())

    def with_room(self, array: Any) -> dict[str, Any]:
        """The arrays of this layout in another joined array, as long as there is room for."""
        return {name: array[first : first + room] for name, (first, _, room) in self.parts.items()}
