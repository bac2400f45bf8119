"""How each operation is called through its public functions, forward and backward, and what its results are called.

The benchmarks time these calls, and tests/kernels checks them. Arguments are those of the public forward, by name;
gradients are called "grad_" and the name of the argument.
"""

from collections.abc import Callable, Iterator
from typing import Any

from bertcore import kernels
from bertcore.kernels.attention.positions import OF_RELATIVE
from bertcore.kernels.precision import working_dtype

Named = Iterator[tuple[str, Any]]
Grad = Callable[[Any], Any]  # from the output to the gradient that comes in


def public_arguments(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of the public forward, from arrays of one dtype by name.

    The fields of `RelativePositions` stand among them, flat; tables of rotary become those of the working dtype.
    """
    relative = {name: array for name, array in given.items() if name in OF_RELATIVE}
    others = {name: it for name, it in given.items() if name not in OF_RELATIVE}
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
    """("output", array), then the gradients by name: a training step of the operation."""
    if operation in _OF_THE_SAME_ARGUMENTS:
        return _of_the_same_arguments(operation, arguments, grad, backend)
    return _TRAINING[operation](arguments, grad, backend)


_OF_THE_SAME_ARGUMENTS = {  # the gradients of operations whose backward takes the arguments of the forward
    "layer_norm": ("grad_input", "grad_weight", "grad_bias"),
    "dropout_layer_norm": ("grad_input", "grad_residual", "grad_weight", "grad_bias"),
    "rms_norm": ("grad_input", "grad_weight"),
    "affine": ("grad_input", "grad_weight", "grad_bias"),
    "gelu": ("grad_input", "grad_bias"),
    "activation": ("grad_input",),
    "gated_activation": ("grad_input",),
    "cross_entropy": ("grad_input",),
}


def _of_the_same_arguments(operation: str, arguments: dict[str, Any], grad: Grad, backend: str) -> Named:
    output = forward(operation, arguments, backend)
    yield "output", output
    found = getattr(kernels, f"{operation}_backward")(grad(output), **arguments, backend=backend)
    gradients = found if isinstance(found, tuple) else (found,)
    yield from zip(_OF_THE_SAME_ARGUMENTS[operation], gradients, strict=True)


def _softmax(arguments: dict[str, Any], grad: Grad, backend: str) -> Named:
    output = kernels.softmax(**arguments, backend=backend)
    yield "output", output
    yield "grad_input", kernels.softmax_backward(grad(output), output, arguments["dim"], backend=backend)


def _dropout(arguments: dict[str, Any], grad: Grad, backend: str) -> Named:
    output = kernels.dropout(**arguments, backend=backend)
    yield "output", output
    yield "grad_input", kernels.dropout_backward(grad(output), arguments["p"], arguments["seed"], backend=backend)


def _linear(arguments: dict[str, Any], grad: Grad, backend: str) -> Named:
    """An activation is computed apart, as its gradient needs what goes in; not beside a residual, which comes after."""
    product = dict(arguments)
    activation, residual = product.pop("activation", None), product.get("residual")
    assert activation is None or residual is None, "a residual is added after the activation"
    inner = kernels.linear(**product, backend=backend)
    output = inner if activation is None else kernels.activation(inner, activation, backend=backend)
    yield "output", output
    gradient = grad(output)
    if activation is not None:
        gradient = kernels.activation_backward(gradient, inner, activation, backend=backend)
    product.pop("residual", None)
    gradients = kernels.linear_backward(gradient, **product, backend=backend)
    yield from zip(("grad_input", "grad_weight", "grad_bias"), gradients, strict=True)


def _attention(arguments: dict[str, Any], grad: Grad, backend: str) -> Named:
    output, lse = kernels.attention(**arguments, return_lse=True, backend=backend)
    yield "output", output
    gradients = kernels.attention_backward(grad(output), **arguments, output=output, lse=lse, backend=backend)
    yield from zip(("grad_query", "grad_key", "grad_value", "grad_bias"), gradients[:4], strict=True)
    if gradients.relative is not None:
        yield from ((f"grad_{name}", gradient) for name, gradient in vars(gradients.relative).items())


def _rotary(arguments: dict[str, Any], grad: Grad, backend: str) -> Named:
    output = kernels.rotary(**arguments, backend=backend)
    yield "output", output
    others = {name: it for name, it in arguments.items() if name != "input"}
    yield "grad_input", kernels.rotary_backward(grad(output), **others, backend=backend)


def _embedding(arguments: dict[str, Any], grad: Grad, backend: str) -> Named:
    output = kernels.embedding(**arguments, backend=backend)
    yield "output", output
    ids, rows = arguments["input"], arguments["weight"].shape[0]
    yield "grad_weight", kernels.embedding_backward(grad(output), ids, rows, backend=backend)


def _pooling(arguments: dict[str, Any], grad: Grad, backend: str) -> Named:
    output = kernels.pooling(**arguments, backend=backend)
    yield "output", output
    yield "grad_input", kernels.pooling_backward(grad(output), **arguments, backend=backend)


_TRAINING = {
    "softmax": _softmax,
    "dropout": _dropout,
    "linear": _linear,
    "attention": _attention,
    "rotary": _rotary,
    "embedding": _embedding,
    "pooling": _pooling,
}
