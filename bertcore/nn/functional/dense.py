"""Linear maps, normalisation and activations, each with its gradient rule."""

from typing import Any

from bertcore import kernels
from bertcore.nn.functional.rows import column_sums
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


@layer_norm.inference
def _layer_norm(input, weight, bias, residual=None, *, eps):
    return kernels.layer_norm(input, weight, bias, eps, residual=residual)


@operation(has_step=True)
def rms_norm(input: Any, weight: Any, residual: Any = None, *, eps: float) -> Any:
    """Root-mean-square normalisation of input + residual over the last axis; see `kernels.rms_norm`."""

    def pullback(grad):
        grads = kernels.rms_norm_backward(grad, input, weight, eps, residual=residual)
        return *grads, None if residual is None else grads[0]

    return kernels.rms_norm(input, weight, eps, residual=residual), pullback


@rms_norm.inference
def _rms_norm(input, weight, residual=None, *, eps):
    return kernels.rms_norm(input, weight, eps, residual=residual)


@operation()
def affine(array: Any, weight: Any, bias: Any, residual: Any = None) -> Any:
    """(array + residual) * weight + bias: (rows, features) twice, and (features,) twice."""
    total = array if residual is None else array + residual

    def pullback(grad):
        grad_array = grad * weight
        return grad_array, column_sums(grad * total), column_sums(grad), None if residual is None else grad_array

    return total * weight + bias, pullback


@operation(has_step=True)
def gated_activation(input: Any, *, name: str, gate: str) -> Any:
    """The half of (tokens, 2 * width) that `gate` says, through an activation, times the other half, (tokens, width);
    see `kernels.gated_activation`."""

    def pullback(grad):
        return (kernels.gated_activation_backward(grad, input, name, gate=gate),)

    return kernels.gated_activation(input, name, gate=gate), pullback


@gated_activation.inference
def _gated_activation(input, *, name, gate):
    return kernels.gated_activation(input, name, gate=gate)


@operation()
def activation(input: Any, *, name: str) -> Any:
    """An activation by its name in `kernels.activation`."""
    return kernels.activation(input, name), lambda grad: (kernels.activation_backward(grad, input, name),)
