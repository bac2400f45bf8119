"""Linear maps, normalisation and activations, each with its gradient rule."""

from typing import Any

from bertcore import kernels
from bertcore.kernels.deferred import computed
from bertcore.nn.functional.rows import column_sums
from bertcore.tape import differentiable


def _linear_with_pullback(input, weight, bias, residual=None, *, activation=None):
    before = kernels.linear(input, weight, bias)  # kept: the activation's gradient needs it
    output = before if activation is None else kernels.activation(before, activation)

    def pullback(grad):
        grad_before = grad if activation is None else kernels.activation_backward(grad, before, activation)
        return *kernels.linear_backward(grad_before, input, weight, bias), None if residual is None else grad

    return output if residual is None else output + residual, pullback


@differentiable(_linear_with_pullback)
def linear(input: Any, weight: Any, bias: Any, residual: Any = None, *, activation: str | None = None) -> Any:
    """activation(input @ weight.T + bias) + residual; see `kernels.linear`."""
    return kernels.linear(input, weight, bias, activation=activation, residual=residual)


def _layer_norm_with_pullback(input, weight, bias, residual=None, *, eps):
    def pullback(grad):
        grads = kernels.layer_norm_backward(grad, input, weight, bias, eps, residual=residual)
        return *grads, None if residual is None else grads[0]

    return kernels.layer_norm(input, weight, bias, eps, residual=residual), pullback


@differentiable(_layer_norm_with_pullback)
def layer_norm(input: Any, weight: Any, bias: Any, residual: Any = None, *, eps: float) -> Any:
    """Layer normalisation of input + residual over the last axis; see `kernels.layer_norm`."""
    return kernels.layer_norm(input, weight, bias, eps, residual=residual)


def _activation_with_pullback(input, *, name):
    return kernels.activation(input, name), lambda grad: (kernels.activation_backward(grad, input, name),)


@differentiable(_activation_with_pullback)
def activation(input: Any, *, name: str) -> Any:
    """An activation by its name in `kernels.activation`."""
    return kernels.activation(input, name)


def _affine(array, weight, bias, residual):
    array = computed(array)
    return (array if residual is None else array + computed(residual)) * weight + bias


def _affine_with_pullback(array, weight, bias, residual=None):
    total = array if residual is None else array + residual

    def pullback(grad):
        grad_array = grad * weight
        return grad_array, column_sums(grad * total), column_sums(grad), None if residual is None else grad_array

    return total * weight + bias, pullback


@differentiable(_affine_with_pullback)
def affine(array: Any, weight: Any, bias: Any, residual: Any = None) -> Any:
    """(array + residual) * weight + bias: (rows, features) twice, and (features,) twice."""
    return _affine(array, weight, bias, residual)
