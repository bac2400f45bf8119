"""Operations of models, with their gradient rules."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from bertcore.kernels.arrays import NativeArray
from bertcore.kernels.deferred import computed
from bertcore.kernels.operation import Operation
from bertcore.passes import Pass
from bertcore.tape import Pullback, Tensor, Variable


class ModelOperation:
    """An operation of models; called with the pass, positional arrays, and options by keyword.

    Without a tape a call runs `forward`. If a tape records the pass and an array is a Variable, it runs
    `with_pullback`, and the tape records that. While a program is recorded, arrays may be Deferred: an operation that
    has a step (or returns a view) takes them as they are; for any other they are computed first.

    `with_pullback` returns (output, pullback); the pullback returns one gradient, or None, for each array. If the
    output is a tuple, the pullback receives one gradient, or None, per element. `forward` returns only the output.
    """

    def __init__(self, with_pullback: Callable[..., tuple[Any, Pullback]], *, has_step: bool):
        functools.update_wrapper(self, with_pullback)
        self.with_pullback, self.has_step = with_pullback, has_step
        self.forward: Callable[..., Any] | None = None

    def inference(self, forward: Callable[..., Any]) -> ModelOperation:
        """Decorate a function with the same arguments that returns only the output, if that costs less."""
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
                            "output can be used outside of it; compute shared arrays before the blocks"
                        )
                    array = array.value
                values.append(array)
            if tape is not None:
                output, pullback = self.with_pullback(run, *values, **options)
                return tape.record(output, arrays, pullback)
        elif run.is_deferred:
            if run.graph is not None:
                return run.graph.call(self, run, arrays, options)
            if not self.has_step:
                arrays = tuple(map(computed, arrays))
        if self.forward is None:
            return self.with_pullback(run, *arrays, **options)[0]
        return self.forward(run, *arrays, **options)


def operation(*, has_step: bool = False) -> Callable[[Callable[..., tuple[Any, Pullback]]], ModelOperation]:
    """Decorate the definition of an operation: a function that returns (output, pullback); see `ModelOperation`."""
    return functools.partial(ModelOperation, has_step=has_step)


def differentiable(record: Operation, *arrays: str, has_step: bool = False) -> ModelOperation:
    """Return a kernel's operation: it computes without checks, and its pullback is the kernel's backward.

    `arrays` names the positional arguments of a call; arrays omitted at the end are None. All other arguments of the
    record are given by keyword.
    """
    places = [arrays.index(name) if name in arrays else name for name in record.arguments]
    sources = [record.same_gradient.get(name, name) for name in arrays]
    gradient_of = [-1 if name == "grad_output" else record.gradients.index(name) for name in sources]
    takes_dtype = "dtype" in record.options

    def forward(run: Pass, *given: NativeArray | None, save: bool = False, **options: Any) -> Any:
        values, count = [], len(given)
        for place in places:
            values.append(options[place] if type(place) is str else given[place] if place < count else None)
        return record.forward(run.backend, *values, save=save)

    def with_pullback(run: Pass, *given: NativeArray | None, **options: Any) -> tuple[Any, Pullback]:
        output, saved = forward(run, *given, save=True, **options)

        def pullback(grad: NativeArray) -> tuple[Any, ...]:
            of_backward = (parameter_dtype(given[0]),) if takes_dtype else ()
            found, gradients = record.backward(run.backend, grad, saved, *of_backward), []
            for array, place in zip(given, gradient_of, strict=False):
                part = grad if place < 0 else found[place] if type(found) is not type(grad) else found
                gradients.append(None if array is None else part)
            return tuple(gradients)

        return output, pullback

    with_pullback.__name__, with_pullback.__doc__ = record.name, f"See `kernels.{record.name}`."
    return ModelOperation(with_pullback, has_step=has_step).inference(forward)


def parameter_dtype(input: NativeArray) -> np.dtype:
    """Return the dtype of parameter gradients: float32 for 16-bit inputs, so that sums are not rounded."""
    return np.dtype(np.float32) if input.dtype.itemsize < 4 else input.dtype
