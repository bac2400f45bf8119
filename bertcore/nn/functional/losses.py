"""Losses, each with its gradient rule: the mean over rows, a scalar array."""

from typing import Any

from bertcore import kernels
from bertcore.nn.functional.rows import widened
from bertcore.tape import differentiable


def _cross_entropy_with_pullback(logits, *, labels):
    def pullback(grad):
        return (kernels.cross_entropy_backward(grad, logits, labels),)

    return kernels.cross_entropy(logits, labels), pullback


@differentiable(_cross_entropy_with_pullback)
def cross_entropy(logits: Any, *, labels: Any) -> Any:
    """The mean cross entropy over the rows whose label is not -100; see `kernels.cross_entropy`."""
    return kernels.cross_entropy(logits, labels)


def _mean_squared_error_with_pullback(predictions, *, labels):
    difference = predictions - labels

    def pullback(grad):
        return (difference * (2 * grad / max(difference.size, 1)),)

    return (difference * difference).mean(), pullback


@differentiable(_mean_squared_error_with_pullback)
def mean_squared_error(predictions: Any, *, labels: Any) -> Any:
    """The mean of (predictions - labels)^2, of one shape."""
    return ((predictions - labels) ** 2).mean()


def _binary_cross_entropy(logits, labels):
    xp = kernels.array_module(logits)
    # log(1 + exp(x)) without overflow
    return (xp.maximum(logits, 0) - logits * labels + xp.log1p(xp.exp(-xp.abs(logits)))).mean()


def _binary_cross_entropy_with_pullback(logits, *, labels):
    def pullback(grad):
        xp = kernels.array_module(logits)
        probability = xp.exp(xp.minimum(logits, 0)) / (1 + xp.exp(-xp.abs(logits)))
        return ((probability - labels) * (grad / max(logits.size, 1)),)

    return _binary_cross_entropy(logits, labels), pullback


@differentiable(_binary_cross_entropy_with_pullback)
def binary_cross_entropy(logits: Any, *, labels: Any) -> Any:
    """The mean cross entropy of labels in [0, 1] and the logistic function of `logits`, of one shape."""
    return _binary_cross_entropy(logits, labels)


def log_softmax(scores: Any) -> Any:
    """The logarithm of the softmax over the last axis of a plain array, in float32 if that is of lower precision."""
    wide = widened(scores)
    xp, shifted = kernels.array_module(wide), wide - wide.max(axis=-1, keepdims=True)
    return shifted - xp.log(xp.exp(shifted).sum(axis=-1, keepdims=True))


def _soft_cross_entropy(logits, labels):
    return -(log_softmax(logits) * labels).sum(axis=-1).mean().astype(logits.dtype, copy=False)


def _soft_cross_entropy_with_pullback(logits, *, labels):
    def pullback(grad):
        probabilities = kernels.array_module(logits).exp(log_softmax(logits))
        weights = widened(labels).sum(axis=-1, keepdims=True)
        grad_logits = (probabilities * weights - labels) * (grad / max(len(logits), 1))
        return (grad_logits.astype(logits.dtype, copy=False),)

    return _soft_cross_entropy(logits, labels), pullback


@differentiable(_soft_cross_entropy_with_pullback)
def soft_cross_entropy(logits: Any, *, labels: Any) -> Any:
    """The mean over rows of the cross entropy of the softmax of `logits` and probabilities `labels`, of one shape."""
    return _soft_cross_entropy(logits, labels)
