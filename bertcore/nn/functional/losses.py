"""Losses, each a mean in a scalar array, with its gradient rule; in float32 for scores of lower precision."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.kernels.arrays import NativeArray
from bertcore.kernels.cross_entropy import CROSS_ENTROPY
from bertcore.kernels.linear import LINEAR
from bertcore.nn.functional.rows import widened
from bertcore.nn.operation import operation
from bertcore.passes import Pass
from bertcore.tape import Addend, Tensor

IGNORED = -100
CHUNK = 1024  # rows whose scores exist at once: 63 MB for 30,000 words in 16 bits


@operation()
def cross_entropy(run: Pass, logits: Tensor, *, labels: NativeArray, label_smoothing: float = 0.0,
                  class_weights: NativeArray | None = None) -> Tensor:  # fmt: skip
    """Return the mean cross entropy over the rows whose label is not -100; see `kernels.cross_entropy`.

    With `label_smoothing` e (Szegedy et al. 2016, arXiv:1512.00567, section 7) and `class_weights` w, (classes,), the
    loss of a row is, as in torch.nn.functional.cross_entropy, (1 - e) w_label CE_label + e / classes sum_c w_c CE_c,
    where CE_c = -log softmax(logits)_c, and the mean is their sum divided by the sum of w_label.
    """
    if label_smoothing or class_weights is not None:
        loss, pullback = _weighted_cross_entropy(run, widened(logits), labels, label_smoothing, class_weights)
        return loss, lambda grad: (_narrowed(pullback(grad)[0], logits),)
    loss, saved = CROSS_ENTROPY.forward(run.backend, logits, labels, IGNORED, save=True)

    def plain_pullback(grad):
        return (CROSS_ENTROPY.backward(run.backend, grad, saved),)

    return loss, plain_pullback


@operation()
def decoded_cross_entropy(
    run: Pass, input: Any, weight: Any, bias: Any, *, labels: Any, needs_weight: bool = True, chunk: int | None = None
) -> Tensor:
    """Return the mean cross entropy of the scores linear(input, weight, bias), computed in chunks.

    `chunk` rows of scores (CHUNK by default) exist at a time. All rows have a label, and `weight` may have no gradient.
    Gradients are computed with the scores, to avoid computing these twice, and in their memory. They are gradients of
    the sum, which float16 represents better than those of the mean. The weight's is summed in float32.
    """
    xp, total, of_weight, of_bias = kernels.array_module(input), 0.0, None, None
    of_input = xp.empty(input.shape, input.dtype)
    for rows in _chunks(input, chunk):
        # The scores, later overwritten by their gradient.
        grad, saved = LINEAR.forward(run.backend, input[rows], weight, bias, None, None, save=True)
        loss, of_loss = CROSS_ENTROPY.forward(run.backend, grad, labels[rows], IGNORED, "sum", save=True)
        CROSS_ENTROPY.backward(run.backend, xp.ones((), loss.dtype), of_loss, grad)
        of_input[rows], _, part = LINEAR.backward(run.backend, grad, saved, False, input.dtype)
        if needs_weight:
            into = {"dtype": loss.dtype, "add_to": of_weight, "backend": run.backend}
            of_weight = kernels.linear_weight_gradient(grad, input[rows], **into)
        if part is not None:
            of_bias = widened(part) if of_bias is None else of_bias + part
        total = total + loss
        del grad  # before the next chunk's

    def pullback(grad):
        factor = widened(grad) / len(input)
        of_parameters = (None if part is None else _Scaled(part, factor, input.dtype) for part in (of_weight, of_bias))
        return _narrowed(widened(of_input) * factor, input), *of_parameters

    return total / len(input), pullback


@dataclass(frozen=True)
class _Scaled(Addend):
    """A parameter's gradient, in float32, times a factor; in `dtype` unless another is requested."""

    gradient: NativeArray
    factor: NativeArray
    dtype: np.dtype

    def added_to(self, array: Any | None, dtype: np.dtype | None = None) -> NativeArray:
        scaled = self.gradient * self.factor
        if array is None:
            return scaled.astype(dtype or self.dtype, copy=False)
        array += scaled
        return array


@decoded_cross_entropy.inference
def _decoded_cross_entropy_forward(run, input, weight, bias, *, labels, needs_weight=True, chunk=None):
    total = 0.0
    for rows in _chunks(input, chunk):
        scores = kernels.linear(input[rows], weight, bias, backend=run.backend)
        total = total + kernels.cross_entropy(scores, labels[rows], reduction="sum", backend=run.backend)
        del scores  # before the next chunk's
    return total / len(input)


def _chunks(input, chunk):
    chunk = CHUNK if chunk is None else chunk
    return [slice(first, first + chunk) for first in range(0, len(input), chunk)]


def _narrowed(grad, array):
    return grad.astype(array.dtype, copy=False)


def _weighted_cross_entropy(run, logits, labels, label_smoothing, class_weights):
    """Return (loss, pullback) with only the plain loss's softmax, as CE_c = CE_label + logit_label - logit_c."""
    xp, wide, rows = kernels.array_module(logits), "float64", kernels.array_module(logits).arange(len(logits))
    share = label_smoothing / logits.shape[1]
    counts = labels != IGNORED
    known = xp.where(counts, labels, 0)
    weights = counts.astype(wide) if class_weights is None else counts * class_weights.astype(wide)[known]
    total_weight, own = weights.sum(), (1 - label_smoothing) * weights
    plain, saved = CROSS_ENTROPY.forward(run.backend, logits, labels, IGNORED, "none", save=True)
    plain = plain.astype(wide)
    losses = own * plain
    all_weights = float(logits.shape[1]) if class_weights is None else class_weights.astype(wide).sum()
    if label_smoothing:
        of_all = plain + logits[rows, known].astype(wide)
        summed = logits.sum(axis=1, dtype=wide) if class_weights is None else (logits @ class_weights).astype(wide)
        losses = losses + share * counts * (all_weights * of_all - summed)

    def pullback(grad):
        scale = grad.astype(wide) / total_weight
        of_rows = scale * (own + share * all_weights * counts)  # the factor of softmax(logits) in the gradient
        grads = of_rows.astype(logits.dtype)
        found = CROSS_ENTROPY.backward(run.backend, grads, saved)
        found[rows, known] += (of_rows - scale * own).astype(logits.dtype)
        if label_smoothing:
            shared = (scale * share * counts).astype(logits.dtype)[:, None]
            found -= shared if class_weights is None else shared * class_weights
        return (found,)

    with np.errstate(invalid="ignore"):  # without any label the mean is NaN
        return xp.asarray(losses.sum() / total_weight, logits.dtype), pullback


@operation()
def mean_squared_error(run: Pass, predictions: Tensor, *, labels: NativeArray) -> Tensor:
    """Return the mean of (predictions - labels)^2; both have the same shape."""
    difference = widened(predictions - labels)
    loss = (difference * difference).mean()
    return loss, lambda grad: (_narrowed(difference * (2 * grad / max(difference.size, 1)), predictions),)


@operation()
def binary_cross_entropy(run: Pass, logits: Tensor, *, labels: NativeArray) -> Tensor:
    """Return the mean cross entropy of labels in [0, 1] and sigmoid(logits); both have the same shape."""
    xp, wide = kernels.array_module(logits), widened(logits)
    small = xp.exp(-xp.abs(wide))  # log(1 + exp(x)) without overflow

    def pullback(grad):
        probability = xp.exp(xp.minimum(wide, 0)) / (1 + small)
        return (_narrowed((probability - labels) * (grad / max(logits.size, 1)), logits),)

    return (xp.maximum(wide, 0) - wide * labels + xp.log1p(small)).mean(), pullback


@operation()
def log_softmax(run: Pass, scores: Tensor) -> Tensor:
    """Return the logarithm of the softmax over the last axis, in float32 for `scores` of lower precision."""
    wide = widened(scores)
    xp, shifted = kernels.array_module(wide), wide - wide.max(axis=-1, keepdims=True)
    logarithms = shifted - xp.log(xp.exp(shifted).sum(axis=-1, keepdims=True))

    def pullback(grad):
        of_scores = grad - xp.exp(logarithms) * grad.sum(axis=-1, keepdims=True)
        return (of_scores.astype(scores.dtype, copy=False),)

    return logarithms, pullback


@operation()
def soft_cross_entropy(run: Pass, logits: Tensor, *, labels: NativeArray) -> Tensor:
    """Return the mean over rows of the cross entropy of softmax(logits) and probabilities of the same shape."""
    logarithms = log_softmax.with_pullback(run, logits)[0]

    def pullback(grad):
        weights = widened(labels).sum(axis=-1, keepdims=True)
        probabilities = kernels.array_module(logarithms).exp(logarithms)
        return (_narrowed((probabilities * weights - labels) * (grad / max(len(logits), 1)), logits),)

    return -(logarithms * labels).sum(axis=-1).mean(), pullback
