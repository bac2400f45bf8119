"""Queries, keys and values in bfloat16, handed to attention from the steps of a program that compute them.

Attention by tiles multiplies bfloat16. The product that makes its operands, and the rotation of queries and keys after
it, write them rounded at once, the tokens of a head one after the other, as tiles read keys; float32 that nobody else
reads is not written at all. `_numba/rounded_rows.py` has what compiled code does; here is noted who writes which
columns, and who asks.
"""

from typing import Any

import numpy as np

from .deferred import Deferred, Memory

HEAD_GRAIN = 32  # elements: a row of a tile, and a panel of the product
_SPARE_ROWS = 16  # a tile of keys may reach beyond the last one


class HandedHeads:
    """The heads that stand side by side in the rows of one Deferred, in bfloat16.

    Args:
        program: notes the steps.
        shape: (tokens, width) of all rows.
        steps: those that can write heads, by the first of their columns.
    """

    def __init__(self, program: Any, shape: tuple[int, int], steps: dict[int, Any]):
        self.shape, self.steps, self._program = shape, steps, program
        self._room: Deferred | None = None
        self._asked: dict[int, tuple[int, ...]] = {}  # what steps were told to write

    @property
    def is_asked(self) -> bool:
        """Whether anybody was promised any."""
        return bool(self._asked)

    def find(self, column: int, heads: int, head_dim: int) -> Deferred | None:
        """The heads from a column on as words of two elements, (heads, tokens, head_dim / 2) of float32, if the step
        that computes them can write them."""
        tokens, width = self.shape
        first = max(it for it in self.steps if it <= column)
        end = min((it for it in self.steps if it > first), default=width)
        if column + heads * head_dim > end or any(it % head_dim for it in (first, column, width)):
            return None
        count, words = width // head_dim, head_dim // 2
        if self._room is None:
            earliest = min(self.steps.values(), key=lambda step: step[1])
            self._room = self._program.empty((count * tokens + _SPARE_ROWS, words), np.float32, before=earliest)
        if self._room.shape[1] != words:
            return None
        asked = self._program.address(self._room), first, tokens, head_dim
        if not self._program.amend(self.steps[first], "heads", (*asked, False)):
            return None
        self._asked[first] = asked
        return self._room[: count * tokens].reshape(count, tokens, words)[column // head_dim :][:heads]

    def are_all(self) -> None:
        """Nobody reads the float32: the steps need not write it."""
        for first, asked in self._asked.items():
            self._program.amend(self.steps[first], "heads", (*asked, True))


def offer_heads(program: Any, output: Deferred) -> None:
    """Let attention have the heads in the rows of `output`, (tokens, width), rounded by the step noted last."""
    output.memory.is_read = False
    output.memory.heads = HandedHeads(program, output.shape, {0: program.last_step()})


def can_be_turned(memory: Memory) -> bool:
    """Whether the step that computes some heads can be told to write those alone which a later one does not turn: it is
    a product, and nobody has read anything of it."""
    heads = memory.heads
    return heads is not None and list(heads.steps) == [0] and not heads.is_asked and not memory.is_read


def offer_turned_heads(program: Any, target: Deferred, before: HandedHeads | None) -> None:
    """The same of the heads of `target`, (tokens, ..., heads, head_dim), which the step noted last turned.

    `before` is what the memory had to offer, if they are turned in place and that `can_be_turned`.
    """
    memory, turned, steps = target.memory, target.size // len(target), {0: program.last_step()}
    width = turned if before is None else before.shape[1]
    if before is not None and turned < width:
        steps[turned] = before.steps[0]
    memory.heads = None
    if _first_column(target.array, memory, width) == 0:
        memory.is_read = False
        memory.heads = HandedHeads(program, (len(target), width), steps)


def find_heads(program: Any, array: Any) -> Deferred | None:
    """An operand of attention, (1, heads, tokens, head_dim), as words of two bfloat16, half as many, if a step before
    can write it so."""
    if type(array) is not Deferred or array.recorder is not program or array.memory.heads is None:
        return None
    _, heads, _, head_dim = array.shape
    handed = array.memory.heads
    column = _first_column(array.array[0].transpose(1, 0, 2), array.memory, handed.shape[1])
    if column is None or head_dim % HEAD_GRAIN:
        return None
    found = handed.find(column, heads, head_dim)
    return None if found is None else found[None]


def _first_column(array: np.ndarray, memory: Memory, width: int) -> int | None:
    """At which column of the memory's first row an array (tokens, ...) begins, if it is some of the columns of rows of
    `width` elements, in their order."""
    size = array.itemsize
    for length, stride in zip(array.shape[:0:-1], array.strides[:0:-1], strict=True):
        if length > 1 and stride != size:
            return None
        size *= length
    if len(array) > 1 and array.strides[0] != width * array.itemsize:
        return None
    column = (_address(array) - _address(memory.block)) // array.itemsize
    return column if column * array.itemsize + size <= width * array.itemsize else None


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]
