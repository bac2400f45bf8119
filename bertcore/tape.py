"""Reverse-mode differentiation over the operations that models are made of.

Model code is written once, over the operations of bertcore.nn.functional. Without a tape they get plain arrays and
call the kernels directly. While a tape records, a parameter yields a Variable instead of its array; an operation that
meets a Variable (bertcore.nn.operation) also makes a pullback: the function that turns the gradient of the output into
the gradients of the inputs. `Tape.gradients` walks the records backwards.

A Variable supports no arithmetic of its own, so that an expression outside the recorded operations fails loudly instead
of losing its gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextvars import ContextVar, Token, copy_context
from dataclasses import dataclass
from typing import Any

_current: ContextVar[Tape | None] = ContextVar("bertcore_tape", default=None)

current_tape: Callable[[], Tape | None] = _current.get
"""The tape that records here, if any."""

Pullback = Callable[..., tuple[Any, ...]]


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
        self._leaves: dict[Hashable, dict[str, Variable]] = {}  # by key and form
        self._records: list[_Record | _Checkpoint] = []
        self._tokens: list[Token] = []

    def __enter__(self) -> Tape:
        self._tokens.append(_current.set(self))
        return self

    def __exit__(self, *error: object) -> None:
        _current.reset(self._tokens.pop())

    def leaf(self, key: Hashable, make: Callable[[], Any], form: str = "array") -> Variable:
        """The Variable that stands for `key` (a parameter) in one of its forms; `make` gives its value the first time.

        The gradients of all forms of one key are summed.
        """
        forms = self._leaves.setdefault(key, {})
        if form not in forms:
            forms[form] = Variable(make(), self)
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

        The records are used up: what an operation kept for its pullback is let go as soon as it has run.
        """
        pending: dict[int, Any] = {id(output): seed}
        while self._records:
            record = self._records.pop()
            parts = tuple(pending.pop(id(output), None) for output in record.outputs)
            if all(part is None for part in parts):
                continue
            if type(record) is _Checkpoint:
                sources = record.run()  # the block's operations are the last records now
            else:
                sources, parts = record.inputs, record.pullback(*parts)
            for source, part in zip(sources, parts, strict=False):  # arguments left out at the end have no source
                if source is not None and part is not None:
                    known = pending.get(id(source))
                    pending[id(source)] = part if known is None else known + part
        found = self._of_leaves(pending)
        self._leaves.clear()
        return found

    def _of_leaves(self, pending: dict[int, Any]) -> dict[Hashable, Any]:
        found: dict[Hashable, Any] = {}
        for key, forms in self._leaves.items():
            for leaf in forms.values():
                if id(leaf) in pending:
                    part = pending[id(leaf)]
                    found[key] = found[key] + part if key in found else part
        return found


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
