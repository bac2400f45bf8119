"""Reverse-mode differentiation over the operations that models are made of.

Model code is written once, over the operations of bertcore.nn.functional. Without a tape they get plain arrays and
call the kernels directly. While a tape records, a parameter yields a Variable instead of its array; an operation that
meets a Variable (bertcore.nn.operation) also makes a pullback: the function that turns the gradient of the output into
the gradients of the inputs. `Tape.gradients` walks the records backwards.

A Variable supports no arithmetic of its own, so that an expression outside the recorded operations fails loudly instead
of losing its gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token, copy_context
from dataclasses import dataclass
from typing import Any

from bertcore import kernels

_current: ContextVar[Tape | None] = ContextVar("bertcore_tape", default=None)

current_tape: Callable[[], Tape | None] = _current.get
"""The tape that records here, if any."""

Pullback = Callable[..., tuple[Any, ...]]


@contextmanager
def unrecorded() -> Iterator[None]:
    """A block that no tape records: parameters yield their arrays, as in inference."""
    token = _current.set(None)
    try:
        yield
    finally:
        _current.reset(token)


class Addend:
    """A gradient that is no array yet, which a pullback may give for an input where most of the array is zeros."""

    def added_to(self, array: Any | None, dtype: Any = None) -> Any:
        """The array with this gradient added to it, in place; where there is none, the gradient as an array. It is of
        `dtype`, or of the gradient's own."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class OwnGradient(Addend):
    """A gradient in an array that nobody else has: a leaf need not look for who shares it."""

    array: Any

    def added_to(self, array: Any | None, dtype: Any = None) -> Any:
        if array is None:
            return self.array if dtype is None else self.array.astype(dtype, copy=False)
        array += self.array
        return array


class Variable:
    """An array whose gradient is wanted."""

    __slots__ = ("tape", "value")

    def __init__(self, value: Any, tape: Tape):
        self.value = value
        self.tape: Tape | None = tape  # None once a checkpoint has let its record go


@dataclass(slots=True)
class _Record:
    """An operation: its outputs, where its inputs came from (None: no gradient is wanted), and its pullback."""

    outputs: tuple[Variable, ...]
    inputs: tuple[Variable | None, ...]
    pullback: Pullback


@dataclass(slots=True)
class _Checkpoint:
    """A block of operations that is run again in the backward: its outputs, and a function that runs it for them."""

    outputs: tuple[Variable, ...]
    run: Callable[[], tuple[Variable, ...]]


class Tape:
    """Records the operations called inside its `with` block."""

    def __init__(self) -> None:
        self._leaves: dict[Hashable, dict[Hashable, Variable]] = {}  # by key and form
        self._keys: dict[int, tuple[Hashable, Any]] = {}  # (key, dtype of the gradient) of leaves, by their identity
        self._records: list[_Record | _Checkpoint] = []
        self._tokens: list[Token] = []

    def __enter__(self) -> Tape:
        self._tokens.append(_current.set(self))
        return self

    def __exit__(self, *error: object) -> None:
        _current.reset(self._tokens.pop())

    def leaf(self, key: Hashable, make: Callable[[], Any], form: Hashable = "array", dtype: Any = None) -> Variable:
        """The Variable that stands for `key` (a parameter) in one of its forms; `make` gives its value the first time.

        The gradients of all forms of one key are summed, in `dtype` if it is given.
        """
        forms = self._leaves.setdefault(key, {})
        if form not in forms:
            forms[form] = Variable(make(), self)
            self._keys[id(forms[form])] = key, dtype
        return forms[form]

    def record(self, output: Any, inputs: tuple[Any, ...], pullback: Pullback) -> Any:
        """Append one operation; `pullback` maps the output's gradient to those of `inputs`, in their order.

        Of several outputs, in a tuple, it is given the gradient of each, None for one that nothing depends on.
        """
        several = type(output) is tuple
        variables = tuple(Variable(each, self) for each in (output if several else (output,)))
        sources = tuple(item if type(item) is Variable else None for item in inputs)
        self._records.append(_Record(variables, sources, pullback))
        return variables if several else variables[0]

    def checkpoint(self, block: Callable[[], Any]) -> Any:
        """What `block()` returns; see the function `checkpoint`."""
        first, context = len(self._records), copy_context()
        made = block()
        if len(self._records) == first:
            return made
        for record in self._records[first:]:
            for variable in record.outputs:
                variable.tape = None
        outputs = tuple(Variable(variable.value, self) for variable in _variables(made))
        self._records[first:] = [_Checkpoint(outputs, lambda: _variables(context.run(block)))]
        given = iter(outputs)
        if type(made) is tuple:
            return tuple(next(given) if type(item) is Variable else item for item in made)
        return outputs[0]

    def gradients(self, output: Variable, seed: Any) -> dict[Hashable, Any]:
        """The gradients of the leaves that `output` depends on, by their keys; `seed` is the gradient of `output`.

        The records are used up: what an operation kept for its pullback is freed once that has run, and the leaves are
        freed at the end.
        """
        pending: dict[int, Any] = {id(output): seed}
        found: dict[Hashable, Any] = {}
        if id(output) in self._keys:
            return {self._keys[id(output)][0]: seed}
        while self._records:
            record = self._records.pop()
            passed_on = parts = tuple(pending.pop(id(output), None) for output in record.outputs)
            if all(part is None for part in parts):
                continue
            if type(record) is _Checkpoint:
                sources = record.run()  # the block's operations are the last records now
            else:
                sources, parts = record.inputs, record.pullback(*passed_on)
            for source, part in zip(sources, parts, strict=False):  # arguments left out at the end have no source
                if source is None or part is None:
                    continue
                if id(source) in self._keys:
                    key, dtype = self._keys[id(source)]
                    found[key] = _added(found.get(key), part, (*passed_on, *parts), dtype)
                else:
                    part, known = _as_array(part), pending.get(id(source))
                    pending[id(source)] = part if known is None else known + part
        self._leaves.clear()  # they refer to the tape: their memory would wait for the collector of cycles
        self._keys.clear()
        return found


def _as_array(part: Any) -> Any:
    return part.added_to(None) if isinstance(part, Addend) else part


def _added(known: Any, part: Any, around: tuple[Any, ...], dtype: Any) -> Any:
    """The gradient of a leaf, `known` so far, with one more part: an array that is this leaf's alone, to be added to.

    A pullback may pass on the array that it got, or views of it, and may give one array twice; those are `around`.
    """
    if isinstance(part, Addend):
        return part.added_to(known, dtype)
    if dtype is not None and part.dtype != dtype:
        part, around = part.astype(dtype), ()
    if known is not None:
        known += part
        return known
    may_share, users = kernels.array_module(part).may_share_memory, 0
    for other in around:
        if other is part:
            users += 1
        elif other is not None and not isinstance(other, Addend):
            users += may_share(part, other)
    return part if users <= 1 else part.copy()  # the one is itself


def checkpoint(block: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """block(*args, **options), keeping no intermediate result: the backward runs the block again.

    A layer that is called so costs one more forward, and only its output stays in memory (Chen et al. 2016,
    arXiv:1604.06174). The gradients have the same bits. Without a tape it is a call of the block.

    `block` returns one Variable, or a tuple with some. It runs twice, so that it must compute the same both times (what
    is random takes its seed from its arguments). Only its output may be used outside; using anything else that it made
    is an error.
    """
    tape = current_tape()
    if tape is None:
        return block(*args, **options)
    return tape.checkpoint(lambda: block(*args, **options))


def _variables(made: Any) -> tuple[Variable, ...]:
    return tuple(item for item in (made if type(made) is tuple else (made,)) if type(item) is Variable)


def value_of(item: Any) -> Any:
    """The plain array behind `item`."""
    return item.value if type(item) is Variable else item
