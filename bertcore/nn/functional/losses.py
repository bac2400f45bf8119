"""Losses, each a mean and a scalar array, with its gradient rule."""

from typing import Any

from bertcore import kernels
from bertcore.nn.functional.rows import widened
from bertcore.nn.operation import operation


@operation()
def cross_entropy(logits: Any, *, labels: Any) -> Any:
    """The mean cross entropy over the rows whose label is not -100; see `kernels.cross_entropy`."""
    loss = kernels.cross_entropy(logits, labels)
    return loss, lambda grad: (kernels.cross_entropy_backward(grad, logits, labels),)


@operation()
def mean_squared_error(predictions: Any, *, labels: Any) -> Any:
    """The mean of (predictions - labels)^2, of one shape."""
    difference = predictions - labels
    loss = (difference * difference).mean()
    return loss, lambda grad: (difference * (2 * grad / max(difference.size, 1)),)


@operation()
def binary_cross_entropy(logits: Any, *, labels: Any) -> Any:
    """The mean cross entropy of labels in [0, 1] and the logistic function of `logits`, of one shape."""
    xp = kernels.array_module(logits)
    small = xp.exp(-xp.abs(logits))  # log(1 + exp(x)) without overflow

    def pullback(grad):
        probability = xp.exp(xp.minimum(logits, 0)) / (1 + small)
        return ((probability - labels) * (grad / max(logits.size, 1)),)

    return (xp.maximum(logits, 0) - logits * labels + xp.log1p(small)).mean(), pullback


@operation()
def log_softmax(scores: Any) -> Any:
    """The logarithm of the softmax over the last axis, in float32 if that of `scores` is of lower precision."""
    wide = widened(scores)
    xp, shifted = kernels.array_module(wide), wide - wide.max(axis=-1, keepdims=True)
    logarithms = shifted - xp.log(xp.exp(shifted).sum(axis=-1, keepdims=True))

    def pullback(grad):
        of_scores = grad - xp.exp(logarithms) * grad.sum(axis=-1, keepdims=True)
        return (of_scores.astype(scores.dtype, copy=False),)

    return logarithms, pullback


@operation()
def soft_cross_entropy(logits: Any, *, labels: Any) -> Any:
    """The mean over rows of the cross entropy of the softmax of `logits` and probabilities `labels`, of one shape."""
    logarithms = log_softmax(logits)

    def pullback(grad):
        weights = widened(labels).sum(axis=-1, keepdims=True)
        probabilities = kernels.array_module(logarithms).exp(logarithms)
        grad_logits = (probabilities * weights - labels) * (grad / max(len(logits), 1))
        return (grad_logits.astype(logits.dtype, copy=False),)

    return -(logarithms * labels).sum(axis=-1).mean().astype(logits.dtype, copy=False), pullback
