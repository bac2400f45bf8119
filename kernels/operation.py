"""The record of an operation: its arguments, the fields that its forward saves for the backward, and both functions.

A contract (kernels/<name>/__init__.py) declares one record, with constraints from arguments.py, and its public
functions:

    class SoftmaxSaved(NamedTuple):
        output: Array
        dim: int

    SOFTMAX = Operation(
        __package__,
        "softmax",
        {"input": Floats("..."), "dim": Axis(of="input")},
        saves=SoftmaxSaved,
        gradients=("input",),
        output="output",
    )

    def softmax(input, dim=-1, *, save=False, backend=None):
        return SOFTMAX.call(backend, save, input, dim)

    def softmax_backward(grad_output, saved, *, backend=None):
        return SOFTMAX.call_backward(backend, grad_output, saved)

The record determines the checks and their errors, the choice of an implementation, recorded programs (Deferred arrays),
PyTorch's autograd function (torch.py), the pullback of bertcore.nn, the benchmark's call and the conformance tests.

An implementation (reference.py, cpu.py, cuda.py) has a function `softmax(input, dim)` with the public arguments in
their order, and `softmax_backward(grad_output, output, dim)`: the gradient, the fields of `saved`, then options. If an
implementation differs, the record has a function that adapts it, given as `forward` or `backward`:

    forward(function, backend, save, *arguments) -> output, or (output, saved) if `save`
    backward(function, backend, grad_output, saved, *options) -> gradient, or a tuple of gradients

`call` and `call_backward` check the arguments. `forward` and `backward` of a record do not: they are for callers with
valid arguments that know the backend, such as a model's pass.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from . import _cuda, checks, dispatch
from .arguments import MISSING, Argument
from .arrays import Array, Operand
from .deferred import Deferred

Function = Callable[..., Any]  # of an implementation: reference.py, cpu.py or cuda.py

OPERATIONS: dict[str, "Operation"] = {}
"""All records by name."""

_PLAIN = frozenset((np.ndarray, Deferred, type(None)))  # these need no conversion


class Operation:
    """One operation.

    Attributes:
        name: the name of the public function; that of the backward is name + "_backward".
        arguments: the constraint on each argument by name, in the order of the public function and the implementations.
        saves: the named tuple that the forward saves for the backward: "output", and arguments by name; None for an
            operation without a backward.
        kept: constraints on the fields of `saves` that are not arguments.
        kept_shapes: a function from the arguments, as attributes, to the shapes of the arrays among `kept`, except
            "output", by name; None for an array that is not saved.
        fields: the constraint on each field of `saves` by name.
        gradients: the names of the arguments whose gradients the backward returns, in its order.
        same_gradient: {argument: another one, or "grad_output"}: arguments whose gradient equals that of another.
        output: the field of `saves` whose shape and dtype the output has; or a function of `saved` that returns the
            required shape and dtype of grad_output, None in the shape for any size.
        options: constraints on further arguments of the backward, after grad_output and saved.
        function: the name of the implementation's function, if it is not `name`.
    """

    def __init__(
        self,
        package: str,
        name: str,
        arguments: Mapping[str, Argument],
        *,
        saves: Any = None,
        kept: Mapping[str, Argument] | None = None,
        kept_shapes: Callable[[Any], dict[str, Any]] = lambda given: {},
        gradients: tuple[str, ...] = (),
        same_gradient: Mapping[str, str] | None = None,
        output: str | Callable[[Any], tuple[Any, Any]] = "",
        options: Mapping[str, Argument] | None = None,
        function: str = "",
        forward: Callable[..., Any] | None = None,
        backward: Callable[..., Any] | None = None,
    ):
        self.package, self.name, self.arguments = package, name, dict(arguments)
        self.saves, self.gradients, self.same_gradient = saves, gradients, dict(same_gradient or {})
        self.options = dict(options or {})
        self.output, self.kept_shapes = output, kept_shapes
        self._forward, self._backward = forward, backward
        self._function = function or name
        self._backward_function = f"{self._function}_backward"
        self._names = tuple(self.arguments)
        self._arrays = tuple(n for n, argument in enumerate(self.arguments.values()) if argument.is_array)
        self._checked = tuple(self.arguments.items())
        fields = () if saves is None else saves._fields
        constraints = self.arguments | dict(kept or {})
        self.fields = {field: constraints.get(field, Argument()) for field in fields}
        self._kept = tuple(-1 if field == "output" else self._names.index(field) for field in fields if not forward)
        OPERATIONS[name] = self

    def open(self, backend: str | None, *values: Any) -> "Call":
        """Return the call with these arguments in their order, converted and checked; `backend` may be None."""
        call = Call(self)
        given = call.given = list(values)
        for place in self._arrays:
            value = given[place]
            if type(value) not in _PLAIN and not isinstance(value, self._checked[place][1].plain):
                call.convert(backend, [n for n in self._arrays if not isinstance(given[n], self._checked[n][1].plain)])
                break
        else:
            call.choose(backend)
        if call.backend == "cupy":
            with dispatch.on_device_of(given[self._arrays[0]]):
                self._check(call)
        else:
            self._check(call)
        return call

    def _check(self, call: "Call") -> None:
        given = call.given
        for place, (name, argument) in enumerate(self._checked):
            given[place] = argument.check(name, given[place], call)

    def call(self, backend: str | None, save: bool, *values: Any) -> Any:
        """Check the arguments and compute: the output, or (output, saved) if `save`."""
        return self.open(backend, *values).run(save)

    def forward(self, backend: str, *values: Any, save: bool = False, is_current: bool = False) -> Any:
        """Compute with checked arguments: the output, or (output, saved) if `save`.

        `is_current`: whether the arrays' GPU is the current one.
        """
        if backend == "cupy" and not is_current:
            with dispatch.on_device_of(values[self._arrays[0]]):
                return self.forward(backend, *values, save=save, is_current=True)
        implementation = dispatch.implementation(self.package, backend)
        function = getattr(implementation, self._function, None) or self._missing(backend, self._function)
        for value in values:
            if type(value) is Deferred:
                function = partial(value.recorder.call, implementation, self._function)
                break
        if self._forward is not None:
            return self._forward(function, backend, save, *values)
        output = function(*values)
        if not save:
            return output
        return output, self.saves(*[output if place < 0 else values[place] for place in self._kept])

    def backward(self, backend: str, grad_output: Operand, saved: Any, *options: Any, is_current: bool = False) -> Any:
        """Compute the gradients from `saved` of `forward`, without checks."""
        if backend == "cupy" and not is_current:
            with dispatch.on_device_of(grad_output):
                return self.backward(backend, grad_output, saved, *options, is_current=True)
        implementation, name = dispatch.implementation(self.package, backend), self._backward_function
        function = getattr(implementation, name, None) or self._missing(backend, name)
        if self._backward is not None:
            return self._backward(function, backend, grad_output, saved, *options)
        return function(grad_output, *saved, *options)

    def open_backward(self, backend: str | None, grad_output: Array, saved: Any, **options: Any) -> "BackwardCall":
        """Return the call of the backward, checked; of arrays in options only that they are arrays."""
        if type(saved) is not self.saves:
            expected = f"expected {self.saves.__name__}, which {self.name} returns with save=True"
            raise TypeError(f"saved is {type(saved).__qualname__}, {expected}")
        for name, value in options.items():
            if name not in self.options and value is not None and not _is_array(value):
                raise TypeError(f"{name} is {type(value).__qualname__}, {MISSING}")
        call = BackwardCall(self, grad_output, saved, options)
        values = grad_output, *saved, *options.values()
        if all(type(value) is np.ndarray or not hasattr(value, "__dlpack__") for value in values):
            call.choose(backend)
        else:
            call.convert_all(backend)
        if call.backend == "cupy":
            with dispatch.on_device_of(call.grad_output):
                self._check_gradient(call)
        else:
            self._check_gradient(call)
        for option, argument in self.options.items():
            call.options[option] = argument.check(option, call.options[option], call)
        return call

    def call_backward(self, backend: str | None, grad_output: Array, saved: Any, **options: Any) -> Any:
        """Check `grad_output` against `saved` and compute the gradients."""
        return self.open_backward(backend, grad_output, saved, **options).run()

    def _check_gradient(self, call: "BackwardCall") -> None:
        grad_output = call.grad_output
        if not hasattr(grad_output, "dtype") or isinstance(grad_output, np.generic):
            raise TypeError(f"grad_output is {type(grad_output).__qualname__}, {MISSING}")
        call.saved = saved = self._check_saved(call)
        like = self.output
        if callable(like):
            shape, dtype = like(saved)
        else:
            array = getattr(saved, like)
            shape, dtype = array.shape, array.dtype
        if dtype is None:
            checks.floating(call.backend, grad_output=grad_output)
        elif grad_output.dtype != dtype:
            raise TypeError(f"grad_output has dtype {grad_output.dtype}, expected {dtype} as the output has")
        if grad_output.shape != shape:
            checks.shape(shape, grad_output=grad_output)

    def _check_saved(self, call: "BackwardCall") -> Any:
        saved, checked = call.saved, []
        if hasattr(saved, "dtype"):
            call.dtype, call.first = checks.floating_dtype("saved.dtype", saved.dtype), "saved.dtype"
        for value, (field, argument) in zip(saved, self.fields.items(), strict=True):
            name = f"saved.{field}"
            if argument.is_array and not (value is None or _is_array(value) or isinstance(value, argument.plain)):
                raise TypeError(f"{name} is {type(value).__qualname__}, {MISSING}")
            checked.append(argument.check(name, value, call))
        return saved._make(checked)

    def _missing(self, backend: str, name: str) -> Callable[..., Any]:
        raise NotImplementedError(f"{name} has no implementation on backend {backend!r} yet")


class Call:
    """One call of an operation.

    Attributes:
        backend: the backend that computes it.
        given: the arguments in their order, as NumPy or CuPy arrays and checked values.
        dtype, first: the dtype of the floating arrays, and the name of the first of them.
        sizes: the sizes of axes by name.
    """

    __slots__ = ("_are_tensors", "_natives", "_originals", "backend", "dtype", "first", "given", "operation", "sizes")

    def __init__(self, operation: Operation):
        self.operation, self.backend, self.given = operation, "", []
        self._are_tensors, self._natives, self._originals = False, (), {}
        self.dtype, self.first, self.sizes = None, "", {}

    def choose(self, backend: str | None) -> None:
        """Choose the backend for arrays in host memory."""
        self.backend = dispatch.resolve_backend(backend, False)
        if self.backend == "cupy" and not _cuda.is_emulated():
            self.convert(backend, list(self.operation._arrays))

    def convert(self, backend: str | None, places: list[int]) -> None:
        """Convert the arguments at these indices to NumPy or CuPy arrays, and choose the backend."""
        self._convert(backend, self.given, self.operation._names, places)

    def _convert(self, backend: str | None, values: list[Any], names: Sequence[str], places: list[int]) -> None:
        arrays = {names[place]: values[place] for place in places if values[place] is not None}
        opened = dispatch.open_call(self.operation.package, backend, **arrays)
        opened.on_device()  # all are on one
        self.backend, self._are_tensors = opened.backend, opened.are_tensors
        self._natives = opened.arrays  # kept alive: `_originals` finds them by their identity
        natives = iter(opened.arrays)
        for place in places:
            if values[place] is not None:
                given, values[place] = values[place], next(natives)
                self._originals[id(values[place])] = given

    def value(self, name: str) -> Any:
        """Return an argument by name."""
        return self.given[self.operation._names.index(name)]

    def run(self, save: bool = False) -> Any:
        """Compute: the output, or (output, saved) if `save`."""
        result = self.operation.forward(self.backend, *self.given, save=checks.boolean("save", save))
        if not self._are_tensors:
            return result
        made: dict[int, Any] = {}
        if not save:
            return as_tensors(result, made)
        result, saved = result  # as tensors: the given ones if their memory was saved unchanged
        result = as_tensors(result, made)
        known = self._originals | made
        fields = [known.get(id(value), value) for value in saved]
        return result, saved._make([as_tensors(value, made) if _is_array(value) else value for value in fields])


class BackwardCall(Call):
    """One call of an operation's backward, with its options by name."""

    __slots__ = ("grad_output", "options", "saved")

    def __init__(self, operation: Operation, grad_output: Any, saved: Any, options: dict[str, Any]):
        super().__init__(operation)
        self.grad_output, self.saved, self.options = grad_output, saved, options

    def choose(self, backend: str | None) -> None:
        self.backend = dispatch.resolve_backend(backend, False)
        if self.backend == "cupy" and not _cuda.is_emulated():
            self.convert_all(backend)

    def value(self, name: str) -> Any:
        """Return a saved argument by name; grad_output, which has its shape, for one that was not saved."""
        return getattr(self.saved, name, self.grad_output)

    def convert_all(self, backend: str | None) -> None:
        """Convert the gradient, the saved fields and the options to NumPy or CuPy arrays."""
        values = [self.grad_output, *self.saved, *self.options.values()]
        names = ["grad_output", *[f"saved.{name}" for name in self.saved._fields], *self.options]
        self._convert(backend, values, names, [n for n, value in enumerate(values) if n == 0 or _is_array(value)])
        self.grad_output, end = values[0], 1 + len(self.saved)
        self.saved = self.saved._make(values[1:end])
        self.options = dict(zip(self.options, values[end:], strict=True))

    def run(self, save: bool = False) -> Any:
        """Compute the gradients."""
        result = self.operation.backward(self.backend, self.grad_output, self.saved, *self.options.values())
        return as_tensors(result, {}) if self._are_tensors else result


def _is_array(value: object) -> bool:
    return hasattr(value, "__dlpack__") and not isinstance(value, np.generic)


def as_tensors(result: Any, made: dict[int, Any]) -> Any:
    """Return arrays, in (named) tuples or single, as tensors, and store each in `made` by its array's identity."""
    if result is None:
        return None
    if isinstance(result, tuple):
        parts = [as_tensors(part, made) for part in result]
        return result._make(parts) if hasattr(result, "_make") else tuple(parts)
    if type(result).__module__.partition(".")[0] == "torch":
        return result
    made[id(result)] = tensor = dispatch.tensor_of(result)
    return tensor
