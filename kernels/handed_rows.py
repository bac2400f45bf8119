"""Rows in low precision, handed from the step of a program that computes them to the products that read them.

A product with a weight of low precision rounds its input first. What stood noted before it may have written it rounded
at once, or another product may have rounded the same input already; where nothing else reads the float32, that is not
written at all. `_numba/rounded_rows.py` says how such rows lie; here is noted who writes them and who asks.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from .deferred import Deferred

Rounded = tuple[Any, Any, Any]  # rows, zeros, steps (RoundedRows)


class HandedRows:
    """The rounded forms of the rows of one Deferred.

    Args:
        program: notes the steps.
        shape: (rows, width) of the Deferred, however it is shaped.
        step: which step computes it, if that can write `rounded` as well.
        rounded: room for that.
        depth: elements of a row of it.
    """

    def __init__(self, program: Any, shape: tuple[int, int], step: Any = None, rounded: Any = None, depth: int = 0):
        self.shape = shape
        self._program, self._step, self._room, self._depth = program, step, rounded, depth
        self._forms: list[tuple[Any, Rounded]] = []  # by the factors of the columns
        self._handed: tuple[int, ...] | None = None  # what the step writes

    def find(self, factors: Any) -> Rounded | None:
        """The rows, times the factors (an array or None), if an earlier step has them or can be made to."""
        for known, rounded in self._forms:
            if known is factors:
                return rounded
        if self._room is None or self._handed is not None:
            return None
        addresses = (self._program.address(array) for array in (*self._room, factors))
        handed = *addresses, self._depth
        if not self._program.amend(self._step, "handed", (*handed, False)):
            return None
        self._handed = handed
        self.add(factors, self._room)
        return self._room

    def add(self, factors: Any, rounded: Rounded) -> None:
        """Rows that a product has rounded, for later ones."""
        self._forms.append((factors, rounded))

    def are_all(self) -> None:
        """Nobody reads the float32: the step need not write it."""
        if self._handed is not None:
            self._program.amend(self._step, "handed", (*self._handed, True))


def offer_rows(program: Any, output: Deferred, width: int, make: Callable[..., Rounded] | None) -> None:
    """Let products have the rows of `output` rounded by the step noted last, which has a field `handed` (HANDED)."""
    output.memory.is_read = False
    if make is not None:
        shape = output.size // width, width
        rounded = make(program.empty, *shape)
        output.memory.rounded = HandedRows(program, shape, program.last_step(), rounded, rounded[0].shape[1])


def rounded_input(program: Any, input: Any, factors: Any, make: Callable[..., Rounded]) -> tuple[Rounded, bool]:
    """(rounded rows of an input (rows, width), times the factors of its columns; whether a step before writes them)."""
    if type(input) is not Deferred or not _is_whole(input):
        return make(program.empty, *input.shape), False
    memory = input.memory
    if memory.rounded is None or memory.rounded.shape != input.shape:
        memory.rounded = HandedRows(program, input.shape)
    found = memory.rounded.find(factors)
    if found is not None:
        return found, True
    rounded = make(program.empty, *input.shape)
    memory.rounded.add(factors, rounded)
    return rounded, False


def _is_whole(array: Deferred) -> bool:
    """Whether a Deferred is its memory from the first byte on, in C order, as computed."""
    begin = array.memory.block.__array_interface__["data"][0]
    return array.array.flags.c_contiguous and array.dtype == np.float32 and begin == _address(array.array)


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]
