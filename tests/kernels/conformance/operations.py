"""Calls each operation forward and backward through its public functions and names what comes out.

Each function takes the public arguments of the forward, `grad` (from an output to the gradient that comes in) and
`backend`; it yields (name, array), the forward results first. Names of gradients begin with "grad".
"""

from dataclasses import fields

from bertcore import kernels
from bertcore.kernels.cross_entropy import REDUCTIONS
from bertcore.kernels.precision import working_dtype


def softmax(arguments, grad, backend):
    output = kernels.softmax(**arguments, backend=backend)
    yield "output", output
    yield "grad_input", kernels.softmax_backward(grad(output), output, arguments["dim"], backend=backend)


def layer_norm(arguments, grad, backend):
    output = kernels.layer_norm(**arguments, backend=backend)
    yield "output", output
    gradients = kernels.layer_norm_backward(grad(output), **arguments, backend=backend)
    yield from zip(("grad_input", "grad_weight", "grad_bias"), gradients, strict=True)


def rms_norm(arguments, grad, backend):
    output = kernels.rms_norm(**arguments, backend=backend)
    yield "output", output
    gradients = kernels.rms_norm_backward(grad(output), **arguments, backend=backend)
    yield from zip(("grad_input", "grad_weight"), gradients, strict=True)


def gelu(arguments, grad, backend):
    output = kernels.gelu(**arguments, backend=backend)
    yield "output", output
    gradients = kernels.gelu_backward(grad(output), **arguments, backend=backend)
    yield from zip(("grad_input", "grad_bias"), gradients, strict=True)


def activation(arguments, grad, backend):
    output = kernels.activation(**arguments, backend=backend)
    yield "output", output
    yield "grad_input", kernels.activation_backward(grad(output), **arguments, backend=backend)


def gated_activation(arguments, grad, backend):
    output = kernels.gated_activation(**arguments, backend=backend)
    yield "output", output
    yield "grad_input", kernels.gated_activation_backward(grad(output), **arguments, backend=backend)


def linear(arguments, grad, backend):
    output = kernels.linear(**arguments, backend=backend)
    yield "output", output
    prepared = arguments | {"weight": kernels.prepare_weight(arguments["weight"], backend=backend)}
    yield "output of a prepared weight", kernels.linear(**prepared, backend=backend)
    for name, given in (("", arguments), (" of a prepared weight", prepared)):
        shared = {name: value for name, value in given.items() if name not in ("residual", "activation")}
        gradients = kernels.linear_backward(grad(output), **shared, backend=backend)
        names = (f"grad_input{name}", f"grad_weight{name}", f"grad_bias{name}")
        yield from zip(names, gradients, strict=True)


def rotary(arguments, grad, backend):
    tables = {name: arguments[name].astype(working_dtype(arguments["input"].dtype)) for name in ("cos", "sin")}
    options = arguments | tables
    output = kernels.rotary(options.pop("input"), **options, backend=backend)
    yield "output", output
    yield "grad_input", kernels.rotary_backward(grad(output), **options, backend=backend)


def embedding(arguments, grad, backend):
    output = kernels.embedding(**arguments, backend=backend)
    if arguments["weight"].dtype.name == "bfloat16" and backend != "cupy":
        assert output.dtype.name == "float32"  # the same values
        output = output.astype(arguments["weight"].dtype)
    yield "output", output
    ids, rows = arguments["input"], arguments["weight"].shape[0]
    yield "grad_weight", kernels.embedding_backward(grad(output), ids, rows, backend=backend)


def cross_entropy(arguments, grad, backend):
    outputs = {name: kernels.cross_entropy(**arguments, reduction=name, backend=backend) for name in REDUCTIONS}
    yield from outputs.items()
    for name, output in outputs.items():
        gradient = kernels.cross_entropy_backward(grad(output), **arguments, reduction=name, backend=backend)
        yield f"grad_input of {name}", gradient


def attention(arguments, grad, backend):
    """The fields of `RelativePositions` stand among the arguments, flat."""
    arguments = dict(arguments)
    of_relative = [field.name for field in fields(kernels.RelativePositions)]
    terms = {name: arguments.pop(name) for name in of_relative if name in arguments}
    if terms:
        arguments["relative"] = kernels.RelativePositions(**terms)
    yield "output alone", kernels.attention(**arguments, backend=backend)
    asked = {"return_lse": True, "return_probs": True, "return_components": backend != "cupy"}
    output, lse, probs, *components = kernels.attention(**arguments, **asked, backend=backend)
    yield from (("output", output), ("lse", lse), ("probabilities", probs))
    for given in components:
        yield from zip(("content", "content to position", "position to content"), given, strict=True)
    inputs = {name: arguments[name] for name in ("query", "key", "value")}
    options = {name: value for name, value in arguments.items() if name not in inputs}
    gradients = kernels.attention_backward(grad(output), **inputs, output=output, lse=lse, **options, backend=backend)
    yield from zip(("grad_query", "grad_key", "grad_value", "grad_bias"), gradients[:4], strict=True)
    if terms:
        yield from ((f"grad_{name}", gradient) for name, gradient in vars(gradients.relative).items())
