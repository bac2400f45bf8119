"""All that an operation gives: the calls of bench/ops/operations.py, and what only some can be asked for."""

from bench.ops import operations
from bertcore import kernels


def everything(operation, arguments, grad, backend):
    """(name, array) of results and gradients; `grad` makes the gradient of an output, None asks for no gradients."""
    if operation in MORE:
        yield from MORE[operation](arguments, grad, backend)
    if grad is None:
        yield "output", operations.forward(operation, arguments, backend)
    else:
        yield from operations.training(operation, arguments, grad, backend)


def more_of_linear(arguments, grad, backend):
    """Fused activations and residuals, and prepared weights."""
    prepared = arguments | {"weight": kernels.prepare_weight(arguments["weight"], backend=backend)}
    fused = operations.forward("linear", arguments, backend)
    yield "fused output", fused
    yield "fused output of a prepared weight", operations.forward("linear", prepared, backend)
    if grad is not None:
        for name, array in operations.training("linear", prepared, grad, backend):
            yield f"{name} of a prepared weight", array
        given = grad(fused), arguments["input"]
        yield "grad_weight alone", kernels.linear_weight_gradient(*given, backend=backend)
        wide = {"dtype": "float32"} if fused.dtype.itemsize == 2 else {}
        total = kernels.linear_weight_gradient(*given, **wide, backend=backend)
        yield "grad_weight that is not rounded", 1 * total
        kernels.linear_weight_gradient(*given, add_to=total, backend=backend)
        yield "grad_weight that is not rounded, twice", total
        _, saved = kernels.linear(**arguments, save=True, backend=backend)
        grad_input, frozen, grad_bias = kernels.linear_backward(given[0], saved, needs_weight=False, backend=backend)
        assert frozen is None
        yield from (("grad_input beside a frozen weight", grad_input), ("grad_bias beside it", grad_bias))


def more_of_embedding(arguments, grad, backend):
    """A gradient that is added to an array."""
    output, saved = kernels.embedding(**arguments, save=True, backend=backend)
    if grad is not None:
        given = grad(output), saved
        total = 1 + 0 * kernels.embedding_backward(*given, backend=backend)
        kernels.embedding_backward(*given, add_to=total, backend=backend)
        yield "grad_weight added to 1", total


def more_of_attention(arguments, grad, backend):
    """The output alone, and all that can be asked for beside it."""
    yield "output alone", operations.forward("attention", arguments, backend)
    asked = {"return_lse": True, "return_probs": True, "return_components": backend != "cupy"}
    output, lse, probs, *components = kernels.attention(**arguments, **asked, backend=backend)
    yield from (("output beside others", output), ("lse", lse), ("probabilities", probs))
    for given in components:
        yield from zip(("content", "content to position", "position to content"), given, strict=True)


MORE = {"linear": more_of_linear, "attention": more_of_attention, "embedding": more_of_embedding}
