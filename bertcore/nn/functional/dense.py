"""Linear maps, normalisation and activations, each with its gradient rule."""

from typing import Any

from bertcore import kernels
from bertcore.nn.operation import operation


@operation(has_step=True)
def linear(input: Any, weight: Any, bias: Any, residual: Any = None, *, activation: str | None = None) -> Any:
    """activation(input @ weight.T + bias) + residual; see `kernels.linear`."""
    before = kernels.linear(input, weight, bias)  # kept: the activation's gradient needs it
    output = before if activation is None else kernels.activation(before, activation)

    def pullback(grad):
        grad_before = grad if activation is None else kernels.activation_backward(grad, before, activation)
        return *kernels.linear_backward(grad_before, input, weight, bias), None if residual is None else grad

    return output if residual is None else output + residual, pullback


@linear.inference
def _linear(input, weight, bias, residual=None, *, activation=None):
    return kernels.linear(input, weight, bias, activation=activation, residual=residual)


@operation(has_step=True)
def layer_norm(input: Any, weight: Any, bias: Any, residual: Any = None, *, eps: float) -> Any:
    """Layer normalisation of input + residual over the last axis; see `kernels.layer_norm`."""

    def pullback(grad):
        grads = kernels.layer_norm_backward(grad, input, weight, bias, eps, residual=residual)
        return *grads, None if residual is None else grads[0]

    return kernels.layer_norm(input, weight, bias, eps, residual=residual), pullback


@operation(has_step=True)
def rms_norm(input: Any, weight: Any, residual: Any = None, *, eps: float) -> Any:
    """Root-mean-square normalisation of input + residual over the last axis; see `kernels.rms_norm`."""

    def pullback(grad):
        grads = kernels.rms_norm_backward(grad, input, weight, eps, residual=residual)
        return *grads, None if residual is None else grads[0]

    return kernels.rms_norm(input, weight, eps, residual=residual), pullback


@operation(has_step=True)
def affine(input: Any, weight: Any, bias: Any, residual: Any = None) -> Any:
    """(input + residual) * weight + bias; see `kernels.affine`."""

    def pullback(grad):
        grads = kernels.affine_backward(grad, input, weight, bias, residual=residual)
        return *grads, None if residual is None else grads[0]

    return kernels.affine(input, weight, bias, residual=residual), pullback


@operation(has_step=True)
def gated_activation(input: Any, *, name: str, gate: str) -> Any:
    """The half of (tokens, 2 * width) that `gate` says, through an activation, times the other half, (tokens, width);
    see `kernels.gated_activation`."""

    def pullback(grad):
        return (kernels.gated_activation_backward(grad, input, name, gate=gate),)

    return kernels.gated_activation(input, name, gate=gate), pullback


@operation()
def activation(input: Any, *, name: str) -> Any:
    """An activation by its name in `kernels.activation`."""
    return kernels.activation(input, name), lambda grad: (kernels.activation_backward(grad, input, name),)


@operation()
def dropout(input: Any, residual: Any = None, *, p: float, seed: int) -> Any:
    """`input` with elements dropped, plus `residual`; see `kernels.dropout`."""

    def pullback(grad):
        return kernels.dropout_backward(grad, p, seed), None if residual is None else grad

    return kernels.dropout(input, p, seed, residual=residual), pullback
