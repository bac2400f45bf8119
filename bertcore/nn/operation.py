"""Operations of models, with their gradient rules."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bertcore.kernels.deferred import computed
from bertcore.tape import Pullback, Tensor, Variable

if TYPE_CHECKING:
    from bertcore.execution import Pass


class Operation:
    """One operation of models; called with the pass, with arrays in positions and options by keyword.

    Without a tape a call runs `forward`. If a tape records the pass and an array is a Variable, it runs
    `with_pullback`, and the tape records that. While a program is recorded, arrays may be Deferred: an operation that
    has a step (or gives a view) takes them as they are, any other one has them computed first.

    Attributes:
        with_pullback: returns (output, pullback); the pullback returns one gradient, or None, for each array. If the
            output is a tuple, the pullback receives one gradient, or None, per element.
        forward: returns the output alone.
        has_step: whether it takes Deferred arrays.
    """

    def __init__(self, with_pullback: Callable[..., tuple[Any, Pullback]], *, has_step: bool):
        functools.update_wrapper(self, with_pullback)
        self.with_pullback, self.has_step = with_pullback, has_step
        self.forward: Callable[..., Any] | None = None

    def inference(self, forward: Callable[..., Any]) -> Operation:
        """Decorate a function of the same arguments that returns the output alone, where that costs less."""
        self.forward = forward
        return self

    def __call__(self, run: Pass, *arrays: Tensor, **options: Any) -> Tensor:
        if run.tape is not None:
            values, tape = [], None
            for array in arrays:
                if type(array) is Variable:
                    tape = array.tape
                    if tape is None:
                        raise RuntimeError(
                            f"{self.__name__} got an array that was made within tape.checkpoint: only the block's "
                            "output can be used outside of it; make what several blocks share before them"
                        )
                    array = array.value
                values.append(array)
            if tape is not None:
                output, pullback = self.with_pullback(run, *values, **options)
                return tape.record(output, arrays, pullback)
        elif run.is_noted and not self.has_step:
            arrays = tuple(map(computed, arrays))
        if self.forward is None:
            return self.with_pullback(run, *arrays, **options)[0]
        return self.forward(run, *arrays, **options)


def operation(*, has_step: bool = False) -> Callable[[Callable[..., tuple[Any, Pullback]]], Operation]:
    """Decorate the definition of an operation: a function that returns (output, pullback); see `Operation`."""
    return functools.partial(Operation, has_step=has_step)
