"""Reverse-mode differentiation over the operations that models are made of.

Model code is written once, over the operations of bertcore.nn.functional. Without a tape they get plain arrays and
call the kernels directly. While a tape records, a parameter yields a Variable instead of its array; an operation that
meets a Variable (bertcore.nn.operation) also makes a pullback: the function that turns the gradient of the output into
the gradients of the inputs. `Tape.gradients` walks the records backwards.

A Variable supports no arithmetic of its own, so that an expression outside the recorded operations fails loudly instead
of losing its gradient.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar, Token, copy_context
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.kernels.arrays import NativeArray

_current: ContextVar[Tape | None] = ContextVar("bertcore_tape", default=None)

current_tape: Callable[[], Tape | None] = _current.get
"""Return the tape that records here, or None."""

Pullback = Callable[..., tuple[Any, ...]]


@contextmanager
def within(variable: ContextVar[Any], value: Any) -> Iterator[Any]:
    """Return a block in which a variable has this value."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)


def unrecorded() -> AbstractContextManager[None]:
    """Return a block that no tape records: parameters yield their arrays, as in inference."""
    return within(_current, None)


class Addend:
    """A gradient that is not an array yet; a pullback may return it if most of the array is zeros."""

    def added_to(self, array: NativeArray | None, dtype: np.dtype | None = None) -> NativeArray:
        """Add this gradient to `array` in place, or make it an array, of `dtype` if given; return the array."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class OwnGradient(Addend):
    """A gradient in an array of its own: a leaf need not look for others that share its memory."""

    array: NativeArray

    def added_to(self, array: NativeArray | None, dtype: np.dtype | None = None) -> NativeArray:
        if array is None:
            return self.array if dtype is None else self.array.astype(dtype, copy=False)
        array += self.array
        return array


class Variable:
    """An array, `value`, whose gradient is wanted.

    `tape` records it, or is None once a checkpoint has let its record go. A leaf has the `key` of its gradient, and
    possibly the gradient's `dtype`.
    """

    __slots__ = ("dtype", "key", "tape", "value")

    def __init__(self, value: NativeArray, tape: Tape, key: Hashable = None, dtype: np.dtype | None = None):
        self.value, self.tape, self.key, self.dtype = value, tape, key, dtype


Tensor = Any
"""An array or a Variable: what model code computes with."""


@dataclass(slots=True)
class _Record:
    """An operation: its outputs, its inputs (Variables are given gradients), and its pullback."""

    outputs: tuple[Variable, ...]
    inputs: Sequence[Any]
    pullback: Pullback

    @property
    def leaves(self) -> list[Hashable]:
        """The keys of the leaves that the operation takes, as often as it takes them."""
        return [source.key for source in self.inputs if type(source) is Variable and source.key is not None]


@dataclass(slots=True)
class _Checkpoint:
    """A block of operations that is run again in the backward: its outputs, a function that runs it, its leaves."""

    outputs: tuple[Variable, ...]
    run: Callable[[], tuple[Variable, ...]]
    leaves: list[Hashable]


class Tape:
    """Record the operations called inside its `with` block."""

    def __init__(self) -> None:
        self._leaves: dict[tuple[Hashable, Hashable], Variable] = {}  # by key and form
        self._records: list[_Record | _Checkpoint] = []
        self._tokens: list[Token] = []

    def __enter__(self) -> Tape:
        self._tokens.append(_current.set(self))
        return self

    def __exit__(self, *error: object) -> None:
        _current.reset(self._tokens.pop())

    def leaf(
        self, key: Hashable, value: NativeArray, form: Hashable = "array", dtype: np.dtype | None = None
    ) -> Variable:
        """Return the Variable for `key` (a parameter) in one of its forms, made of `value` at the first call.

        The gradients of all forms of one key are summed, in `dtype` if it is given.
        """
        known = self._leaves.get((key, form))
        if known is None:
            known = self._leaves[key, form] = Variable(value, self, key, dtype)
        return known

    def record(self, output: Tensor, inputs: Sequence[Any], pullback: Pullback) -> Any:
        """Append one operation; `pullback` maps the output's gradient to the gradients of `inputs`, in order.

        If the output is a tuple, the pullback receives one gradient (or None) per element.
        """
        if type(output) is not tuple:
            variable = Variable(output, self)
            self._records.append(_Record((variable,), inputs, pullback))
            return variable
        variables = tuple([Variable(each, self) for each in output])
        self._records.append(_Record(variables, inputs, pullback))
        return variables

    def checkpoint(self, block: Callable[[], Any]) -> Any:
        """Return block(), keeping only its output; see the function `checkpoint`."""
        first, context = len(self._records), copy_context()
        made = block()
        if len(self._records) == first:
            return made
        for record in self._records[first:]:
            for variable in record.outputs:
                variable.tape = None
        outputs = tuple(Variable(variable.value, self) for variable in _variables(made))
        leaves = [key for record in self._records[first:] for key in record.leaves]
        self._records[first:] = [_Checkpoint(outputs, lambda: _variables(context.run(block)), leaves)]
        given = iter(outputs)
        if type(made) is tuple:
            return tuple(next(given) if type(item) is Variable else item for item in made)
        return outputs[0]

    def gradients(
        self, output: Variable, seed: NativeArray, take: Callable[[Hashable, Any], None] | None = None
    ) -> dict[Hashable, Any]:
        """Return the gradients of the leaves that `output` depends on, by their keys; `seed` is `output`'s gradient.

        The records are used up: arrays that an operation kept for its pullback are freed once it has run, and the
        leaves are freed at the end.

        Given `take`, call it with each key and its gradient as soon as no remaining operation takes the leaf, whose
        value may then change. Return the gradients that were not taken (of an `output` that is a leaf).
        """
        if output.key is not None:
            return {output.key: seed}
        pending: dict[Variable, Any] = {output: seed}
        found: dict[Hashable, Any] = {}
        uses = Counter(key for record in self._records for key in record.leaves) if take is not None else None
        while self._records:
            record = self._records.pop()
            passed_on, is_needed = [], False
            for variable in record.outputs:
                gradient = pending.pop(variable, None)
                passed_on.append(gradient)
                is_needed = is_needed or gradient is not None
            if is_needed:
                if type(record) is _Checkpoint:
                    sources, parts = record.run(), passed_on  # the block's operations are the last records now
                else:
                    sources, parts = record.inputs, record.pullback(*passed_on)
                for source, part in zip(sources, parts, strict=False):  # arguments left out at the end have no source
                    if part is None or type(source) is not Variable:
                        continue
                    if source.key is not None:
                        known = found.get(source.key)
                        found[source.key] = _added(known, part, passed_on, parts, source.dtype)
                        continue
                    if isinstance(part, Addend):
                        part = part.added_to(None)
                    known = pending.get(source)
                    pending[source] = part if known is None else known + part
            if uses is not None and not (is_needed and type(record) is _Checkpoint):
                part = parts = known = None  # they would keep the taken gradients alive
                for key in record.leaves:
                    uses[key] -= 1
                    if not uses[key] and key in found:
                        take(key, found.pop(key))
        self._leaves.clear()  # they refer to the tape: their memory would wait for the collector of cycles
        return found


def _added(
    known: NativeArray | None, part: NativeArray | Addend, passed_on: list, parts: Sequence[Any], dtype: np.dtype | None
) -> NativeArray:
    """Return a leaf's gradient `known` plus one more part, as an array of its own: parts may hold one array twice."""
    if isinstance(part, Addend):
        return part.added_to(known, dtype)
    if known is not None:
        known += part if dtype is None or part.dtype == dtype else part.astype(dtype)
        return known
    if dtype is not None and part.dtype != dtype:
        return part.astype(dtype)
    may_share, users = kernels.array_module(part).may_share_memory, 0
    for others in (passed_on, parts):
        for other in others:
            if other is part:
                users += 1
            elif other is not None and not isinstance(other, Addend):
                users += may_share(part, other)
    return part if users <= 1 else part.copy()  # the one user is the part itself


def checkpoint(block: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Return block(*args, **options), keeping no intermediate result: the backward runs the block again.

    A layer called in this way costs one more forward, and only its output stays in memory (Chen et al. 2016,
    arXiv:1604.06174). The gradients have the same bits. Without a tape it is a call of the block.

    `block` returns one Variable, or a tuple that has some. It runs twice, so it must compute the same both times
    (random numbers take their seed from its arguments). Only its output may be used outside; using anything else that
    it made is an error.
    """
    tape = current_tape()
    return block(*args, **options) if tape is None else tape.checkpoint(lambda: block(*args, **options))


def _variables(made: object) -> tuple[Variable, ...]:
    return tuple(item for item in (made if type(made) is tuple else (made,)) if type(item) is Variable)


def value_of(item: Tensor) -> NativeArray:
    """Return the plain array behind `item`."""
    return item.value if type(item) is Variable else item
