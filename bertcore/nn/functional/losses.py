"""Losses, each a mean and a scalar array, with its gradient rule; in float32 where scores are of lower precision."""

from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.nn.functional.rows import widened
from bertcore.nn.operation import operation

IGNORED = -100
CHUNK = 1024  # rows whose scores exist at once: 63 MB of 30,000 words in 16 bits


@operation()
def cross_entropy(logits: Any, *, labels: Any, label_smoothing: float = 0.0, class_weights: Any = None) -> Any:
    """The mean cross entropy over the rows whose label is not -100; see `kernels.cross_entropy`.

    With `label_smoothing` e (Szegedy et al. 2016, arXiv:1512.00567, section 7) and `class_weights` w, (classes,), the
    loss of a row is, as torch.nn.functional.cross_entropy has it, (1 - e) w_label CE_label + e / classes sum_c w_c
    CE_c, where CE_c = -log softmax(logits)_c; and the mean is their sum over the sum of w_label.
    """
    if label_smoothing or class_weights is not None:
        loss, pullback = _weighted_cross_entropy(widened(logits), labels, label_smoothing, class_weights)
        return loss, lambda grad: (_narrowed(pullback(grad)[0], logits),)
    loss, lse = kernels.cross_entropy(widened(logits), labels, return_lse=True)

    def pullback(grad):
        return (_narrowed(kernels.cross_entropy_backward(grad, widened(logits), labels, lse=lse), logits),)

    return loss, pullback


@operation()
def decoded_cross_entropy(
    input: Any, weight: Any, bias: Any, *, labels: Any, needs_weight: bool = True, chunk: int | None = None
) -> Any:
    """The mean cross entropy of the scores linear(input, weight, bias), of which `chunk` rows (CHUNK by default) exist
    at a time.

    All rows have a label, and `weight` may be one that has no gradient. The gradients are made with the scores, which
    would be made twice otherwise; they are those of the sum, which float16 holds better than those of the mean.
    """
    total, of_input, of_parameters = 0.0, [], None
    for rows, scores in _scores_in_chunks(input, weight, bias, chunk):
        loss, lse = kernels.cross_entropy(widened(scores), labels[rows], reduction="sum", return_lse=True)
        one = kernels.array_module(loss).ones((), loss.dtype)
        options = {"lse": lse, "reduction": "sum"}
        grad = _narrowed(kernels.cross_entropy_backward(one, widened(scores), labels[rows], **options), scores)
        grads = kernels.linear_backward(grad, input[rows], weight, bias, needs_weight=needs_weight)
        total = total + loss
        of_input.append(grads[0])
        some = [None if part is None else widened(part) for part in grads[1:]]
        of_parameters = some if of_parameters is None else list(map(_added, of_parameters, some))

    def pullback(grad):
        factor = widened(grad) / len(input)
        whole = kernels.array_module(input).concatenate(of_input)
        parts = (whole, input), *zip(of_parameters, (weight, input), strict=True)
        return tuple(None if part is None else _narrowed(widened(part) * factor, like) for part, like in parts)

    return total / len(input), pullback


@decoded_cross_entropy.inference
def _decoded_cross_entropy_forward(input, weight, bias, *, labels, needs_weight=True, chunk=None):
    total = 0.0
    for rows, scores in _scores_in_chunks(input, weight, bias, chunk):
        total = total + kernels.cross_entropy(widened(scores), labels[rows], reduction="sum")
    return total / len(input)


def _scores_in_chunks(input, weight, bias, chunk):
    chunk = CHUNK if chunk is None else chunk
    for first in range(0, len(input), chunk):
        rows = slice(first, first + chunk)
        yield rows, kernels.linear(input[rows], weight, bias)


def _added(known, part):
    if known is not None:
        known += part
    return known


def _narrowed(grad, array):
    """A gradient in the dtype of what it is of."""
    return grad.astype(array.dtype, copy=False)


def _weighted_cross_entropy(logits, labels, label_smoothing, class_weights):
    """Sums of CE_c need no softmax beside that of the plain loss: CE_c = CE_label + logit_label - logit_c."""
    xp, wide, rows = kernels.array_module(logits), "float64", kernels.array_module(logits).arange(len(logits))
    share = label_smoothing / logits.shape[1]
    counts = labels != IGNORED
    known = xp.where(counts, labels, 0)
    weights = counts.astype(wide) if class_weights is None else counts * class_weights.astype(wide)[known]
    total_weight, own = weights.sum(), (1 - label_smoothing) * weights
    plain, lse = kernels.cross_entropy(logits, labels, reduction="none", return_lse=True)
    plain = plain.astype(wide)
    losses = own * plain
    all_weights = float(logits.shape[1]) if class_weights is None else class_weights.astype(wide).sum()
    if label_smoothing:
        of_all = plain + logits[rows, known].astype(wide)
        summed = logits.sum(axis=1, dtype=wide) if class_weights is None else (logits @ class_weights).astype(wide)
        losses = losses + share * counts * (all_weights * of_all - summed)

    def pullback(grad):
        scale = grad.astype(wide) / total_weight
        of_rows = scale * (own + share * all_weights * counts)  # of what is softmax(logits) in the gradient
        grads = of_rows.astype(logits.dtype)
        found = kernels.cross_entropy_backward(grads, logits, labels, lse=lse, reduction="none")
        found[rows, known] += (of_rows - scale * own).astype(logits.dtype)
        if label_smoothing:
            shared = (scale * share * counts).astype(logits.dtype)[:, None]
            found -= shared if class_weights is None else shared * class_weights
        return (found,)

    with np.errstate(invalid="ignore"):  # over no label at all the mean is NaN
        return xp.asarray(losses.sum() / total_weight, logits.dtype), pullback


@operation()
def mean_squared_error(predictions: Any, *, labels: Any) -> Any:
    """The mean of (predictions - labels)^2, of one shape."""
    difference = widened(predictions - labels)
    loss = (difference * difference).mean()
    return loss, lambda grad: (_narrowed(difference * (2 * grad / max(difference.size, 1)), predictions),)


@operation()
def binary_cross_entropy(logits: Any, *, labels: Any) -> Any:
    """The mean cross entropy of labels in [0, 1] and the logistic function of `logits`, of one shape."""
    xp, wide = kernels.array_module(logits), widened(logits)
    small = xp.exp(-xp.abs(wide))  # log(1 + exp(x)) without overflow

    def pullback(grad):
        probability = xp.exp(xp.minimum(wide, 0)) / (1 + small)
        return (_narrowed((probability - labels) * (grad / max(logits.size, 1)), logits),)

    return (xp.maximum(wide, 0) - wide * labels + xp.log1p(small)).mean(), pullback


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
        return (_narrowed((probabilities * weights - labels) * (grad / max(len(logits), 1)), logits),)

    return -(logarithms * labels).sum(axis=-1).mean(), pullback
