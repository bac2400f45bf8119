"""Operations: the record that a plain call, the tape and a program read alike."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from bertcore.kernels.deferred import Deferred
from bertcore.tape import Pullback, Variable, value_of


class Operation:
    """One operation of models; called with arrays in positions and options by keyword.

    Without a tape a call runs `forward`. If an array is a Variable, it runs `with_pullback`, and the tape records that.
    While a program is noted, arrays may be Deferred: an operation that has a step (or gives a view) takes them as they
    are, any other one has them computed first.

    Attributes:
        with_pullback: gives (output, pullback); the pullback returns one gradient, or None, for each positional
            argument. An output that is a tuple is several, of which the pullback is given a gradient, or None, each.
        forward: gives the output alone.
        has_step: whether it takes Deferred arrays.
    """

    def __init__(self, with_pullback: Callable[..., tuple[Any, Pullback]], *, has_step: bool):
        functools.update_wrapper(self, with_pullback)
        self.with_pullback = with_pullback
        self.forward: Callable[..., Any] = lambda *arrays, **options: with_pullback(*arrays, **options)[0]
        self.has_step = has_step

    def inference(self, forward: Callable[..., Any]) -> Operation:
        """Decorates a function of the same arguments that gives the output alone, where that costs less."""
        self.forward = forward
        return self

    def __call__(self, *arrays: Any, **options: Any) -> Any:
        for array in arrays:
            kind = type(array)
            if kind is Variable:
                return self._recorded(array, arrays, options)
            if kind is Deferred and not self.has_step:
                arrays = tuple(item.result() if type(item) is Deferred else item for item in arrays)
                break  # no Variable: programs are noted without a tape
        return self.forward(*arrays, **options)

    def _recorded(self, variable: Variable, arrays: tuple[Any, ...], options: dict[str, Any]) -> Any:
        tape = variable.tape
        if tape is None:
            raise RuntimeError(
                f"{self.__name__} got an array that was made within tape.checkpoint: only the block's output can be "
                "used outside of it; make what several blocks share before them"
            )
        output, pullback = self.with_pullback(*map(value_of, arrays), **options)
        return tape.record(output, arrays, pullback)


def operation(*, has_step: bool = False) -> Callable[[Callable[..., tuple[Any, Pullback]]], Operation]:
    """Decorates the definition of an operation: a function that returns (output, pullback); see `Operation`."""
    return functools.partial(Operation, has_step=has_step)
