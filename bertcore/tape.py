"""Reverse-mode differentiation over the operations that models are made of.

Model code is written once, over the operations of bertcore.nn.functional. Without a tape they get plain arrays and
call the kernels directly. While a tape records, a parameter yields a Variable instead of its array; an operation that
meets a Variable runs its recording form, which returns the output and a pullback: the function that turns the gradient
of the output into the gradients of the inputs. `Tape.gradients` walks the records backwards.

A Variable supports no arithmetic of its own, so that an expression outside the recorded operations fails loudly instead
of losing its gradient.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from contextvars import ContextVar
from typing import Any

_current: ContextVar[Tape | None] = ContextVar("bertcore_tape", default=None)

Pullback = Callable[[Any], tuple[Any, ...]]


class Variable:
    """An array whose gradient is wanted."""

    __slots__ = ("tape", "value")

    def __init__(self, value: Any, tape: Tape):
        self.value = value
        self.tape = tape


class Tape:
    """Records the operations called inside its `with` block."""

    def __init__(self) -> None:
        self._leaves: dict[Hashable, Variable] = {}
        self._records: list[tuple[Variable, tuple[Variable | None, ...], Pullback]] = []

    def __enter__(self) -> Tape:
        self._token = _current.set(self)
        return self

    def __exit__(self, *error: object) -> None:
        _current.reset(self._token)

    def leaf(self, key: Hashable, make: Callable[[], Any]) -> Variable:
        """The Variable that stands for `key` (a parameter); its array comes from `make` the first time."""
        if key not in self._leaves:
            self._leaves[key] = Variable(make(), self)
        return self._leaves[key]

    def record(self, output: Any, inputs: tuple[Any, ...], pullback: Pullback) -> Variable:
        """Append one operation; `pullback` maps the output's gradient to those of `inputs`, in their order."""
        variable = Variable(output, self)
        sources = tuple(item if isinstance(item, Variable) else None for item in inputs)
        self._records.append((variable, sources, pullback))
        return variable

    def gradients(self, output: Variable, seed: Any) -> dict[Hashable, Any]:
        """The gradients of the leaves that `output` depends on, by their keys; `seed` is the gradient of `output`.

        The records are used up: what an operation kept for its pullback is let go as soon as it has run.
        """
        pending = {id(output): seed}
        while self._records:
            variable, sources, pullback = self._records.pop()
            gradient = pending.pop(id(variable), None)
            if gradient is None:
                continue
            # not strict: arguments left out at the end have no source
            for source, part in zip(sources, pullback(gradient), strict=False):
                if source is not None and part is not None:
                    known = pending.get(id(source))
                    pending[id(source)] = part if known is None else known + part
        return {key: pending[id(leaf)] for key, leaf in self._leaves.items() if id(leaf) in pending}


def current_tape() -> Tape | None:
    """The tape that records here, if any."""
    return _current.get()


def value_of(item: Any) -> Any:
    """The plain array behind `item`."""
    return item.value if type(item) is Variable else item


def differentiable(pullback_form: Callable[..., tuple[Any, Pullback]]) -> Callable[[Callable], Callable]:
    """Give an operation its recording form.

    `pullback_form` takes the operation's arguments and returns (output, pullback). Arrays are positional arguments,
    options are keyword arguments; the pullback returns one gradient, or None, for each positional argument.
    """

    def decorate(operation: Callable) -> Callable:
        @functools.wraps(operation)
        def call(*arrays: Any, **options: Any) -> Any:
            for item in arrays:
                if type(item) is Variable:
                    output, pullback = pullback_form(*map(value_of, arrays), **options)
                    return item.tape.record(output, arrays, pullback)
            return operation(*arrays, **options)

        return call

    return decorate
