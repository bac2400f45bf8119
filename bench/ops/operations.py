"""Calls of each operation through its public functions, forward and backward, and the names of the results.

The benchmarks time these calls, and tests/kernels checks them. Arguments are those of the public forward, by name;
gradients are called "grad_" and the name of the argument.
"""

from collections.abc import Callable, Iterator
from typing import Any

from bertcore import kernels
from bertcore.kernels.arrays import working_dtype
from bertcore.kernels.attention.positions import OF_RELATIVE, TERMS
from bertcore.kernels.operation import OPERATIONS

Named = Iterator[tuple[str, Any]]
Grad = Callable[[Any], Any]  # from the output to the gradient that comes in


def public_arguments(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of the public forward, from arrays of one dtype by name.

    The fields of `RelativePositions` stand among them, flat; tables of rotary become those of the working dtype.
    """
    fields = *OF_RELATIVE, "longest"
    relative, others = {}, {}
    for name, value in given.items():
        (relative if name in fields else others)[name] = value
    if "cos" in others:
        dtype = working_dtype(others["input"].dtype)
        others |= {name: others[name].astype(dtype, copy=False) for name in ("cos", "sin")}
    return others | {"relative": kernels.RelativePositions(**relative)} if relative else others


def folder(operation: str) -> str:
    """The folder, and the function of it, that implements an operation; gelu's is activation."""
    return getattr(kernels, operation).__module__.rpartition(".")[2]


def forward(operation: str, arguments: dict[str, Any], backend: str) -> Any:
    """The output, as inference asks for it."""
    return getattr(kernels, operation)(**arguments, backend=backend)


def training(operation: str, arguments: dict[str, Any], grad: Grad, backend: str) -> Named:
    """Yield ("output", array), then the gradients by name: a training step of the operation."""
    record = OPERATIONS[operation]
    output, saved = getattr(kernels, operation)(**arguments, save=True, backend=backend)
    yield "output", output
    found = getattr(kernels, f"{operation}_backward")(grad(output), saved, backend=backend)
    gradients = dict(zip(record.gradients, _flat(found), strict=False))
    for name, gradient in gradients.items():
        yield f"grad_{name}", gradient
    for name, source in record.same_gradient.items():
        if arguments.get(name) is not None and source in gradients:  # a backward does not return grad_output
            yield f"grad_{name}", gradients[source]


def _flat(gradients: Any) -> tuple[Any, ...]:
    """Return what a backward returns as a tuple, the fields of `RelativePositions` at its end."""
    if isinstance(gradients, kernels.AttentionGradients):
        *others, relative = gradients
        return *others, *[getattr(relative, name) for name in TERMS if relative is not None]
    return gradients if isinstance(gradients, tuple) else (gradients,)
