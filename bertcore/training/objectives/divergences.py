"""Divergences of a student's outputs from a teacher's: means as 0-d arrays, each with its gradient rule.

The teacher's arrays are targets, without gradients.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bertcore import kernels
from bertcore.arguments import check_number
from bertcore.kernels import checks
from bertcore.kernels.arrays import Array
from bertcore.nn.functional import sequence_spans
from bertcore.nn.operation import operation
from bertcore.passes import Pass
from bertcore.tape import Tensor
from bertcore.training.objectives.similarity import cosines

CHUNK = 1 << 16  # logits compared at once: intermediate results stay in the second-level cache
SHORT = 512  # columns


@operation()
def soft_target_divergence(run: Pass, logits: Array, *, targets: Array, temperature: float) -> Tensor:
    """Return T^2 times the mean over rows of KL(softmax(targets / T) || softmax(logits / T)), (rows, classes) both.

    Source: Hinton et al. 2015, arXiv:1503.02531, section 2.
    """
    gradient = kernels.array_module(logits).empty_like(logits)
    loss = _soft_targets(logits, targets, temperature, gradient)

    def pullback(grad):
        gradient[...] *= gradient.dtype.type(grad * temperature / max(len(logits), 1))
        return (gradient,)

    return loss, pullback


@soft_target_divergence.inference
def _soft_target_divergence(run, logits, *, targets, temperature):
    return _soft_targets(logits, targets, temperature, None)


def _soft_targets(logits, targets, temperature, gradient):
    """Return the loss; `gradient`, unless None, is filled with the difference of both softmaxes."""
    total, count = 0.0, max(1, CHUNK // max(logits.shape[1], 1))
    for first in range(0, len(logits), count):
        rows = slice(first, first + count)
        out = None if gradient is None else gradient[rows]
        value, _ = divergence_of_scores(logits[rows] / temperature, targets[rows] / temperature, out=out)
        total += value
    return kernels.array_module(logits).asarray(total * temperature**2 / max(len(logits), 1), logits.dtype)


def divergence_of_scores(scores: Array, targets: Array, out: Array | None = None) -> tuple[Array, Array]:
    """Return the sum over rows of KL(softmax(targets) || softmax(scores)), (..., classes) both, and its gradient.

    The gradient is written to `out` if that is given.
    """
    xp, own, wanted = kernels.array_module(scores), kernels.softmax(scores), kernels.softmax(targets)
    losses = _log_sums(scores, own) - _log_sums(targets, wanted)
    losses += xp.einsum("...c,...c->...", wanted, targets - scores)  # faster than a product and its sum in float64
    return losses.sum(dtype="float64"), xp.subtract(own, wanted, out=own if out is None else out)


def checked_temperatures(temperature: float, student: float | None, teacher: float | None) -> tuple[float, float]:
    """Return the student's and the teacher's temperature, by default `temperature`."""
    own = check_number("temperature", temperature, above_zero=True)
    given = {"student_temperature": student, "teacher_temperature": teacher}
    return tuple(own if it is None else check_number(name, it, above_zero=True) for name, it in given.items())


def score_divergence(scores: Array, labels: Array, temperatures: tuple[float, float]) -> tuple[Array, Array]:
    """Return student^2 times the mean of KL(softmax(labels / teacher) || softmax(scores / student)), and its gradient.

    Both are (examples, documents); `temperatures` are the student's and the teacher's.
    """
    checks.shape(scores.shape, labels=labels)
    student, teacher = temperatures
    value, grad = divergence_of_scores(scores / student, labels / teacher)
    return value * student**2 / len(scores), grad * student / len(scores)


def _log_sums(scores, probabilities):
    """Return log(sum(exp(scores))) over the last axis."""
    if scores.shape[-1] > SHORT:  # from the largest score and its probability: NumPy's maximum of short rows is slow
        return scores.max(axis=-1) - np.log(probabilities.max(axis=-1))
    xp, rows = kernels.array_module(scores), scores.reshape(-1, scores.shape[-1])
    _, lse = kernels.cross_entropy(rows, xp.zeros(len(rows), int), reduction="none", return_lse=True)
    return (lse[:, 0] + lse[:, 1]).reshape(scores.shape[:-1])


def squared_error_of_scores(scores: Array, targets: Array) -> tuple[Array, Array]:
    """Return the sum over rows of the mean squared difference, (..., keys) both, and its gradient."""
    difference, keys = scores - targets, scores.shape[-1]
    losses = kernels.array_module(scores).einsum("...k,...k->...", difference, difference)
    difference *= difference.dtype.type(2 / keys)
    return losses.sum(dtype="float64") / keys, difference


@operation()
def cosine_distance(run: Pass, rows: Array, *, targets: Array) -> Tensor:
    """Return the mean over rows of 1 - cosine, (rows, features) both."""
    scores, pullback = cosines(rows, targets)
    count = max(len(scores), 1)
    ones = kernels.array_module(rows).ones_like(scores)
    return 1 - scores.sum() / count, lambda grad: pullback(-grad / count * ones)[:1]


@operation()
def relation_loss(
    run: Pass,
    left: Array,
    right: Array,
    *,
    targets: tuple[Array, Array],
    heads: int,
    scales: tuple[float, float],
    cu_seqlens: np.ndarray,
    compare: Callable[[Array, Array], tuple[Array, Array]],
) -> Tensor:
    """Compare each token's relations to its sequence with a teacher's: the mean over heads and tokens.

    The relations of a head are scale * left @ right.T, (tokens of a sequence, tokens of a sequence): for query and key
    the attention scores, for value and value the relations of MiniLM (Wang et al. 2020, arXiv:2002.10957, section 3).

    Args:
        run: the pass.
        left, right: the student's arrays, (tokens, width), heads side by side.
        targets: the teacher's arrays, (tokens, teacher's width), with as many heads.
        heads: the number of heads.
        scales: the student's and the teacher's scale.
        cu_seqlens: offsets of the sequences, (sequences + 1,).
        compare: a function of both scores, (heads, tokens, tokens), to the sum over their rows and its gradient.
    """
    total, kept, (scale, target_scale) = 0.0, [], scales
    for first, end in sequence_spans(cu_seqlens):
        own = _in_heads(left[first:end], heads), _in_heads(right[first:end], heads)
        wanted = (_in_heads(array[first:end], heads) for array in targets)
        value, gradient = compare(_scores(*own, scale), _scores(*wanted, target_scale))
        total += value
        kept.append((slice(first, end), *own, gradient))
    xp, count = kernels.array_module(left), max(heads * len(left), 1)

    def pullback(grad):
        of_left = xp.empty_like(left)
        of_right = None if right is left else xp.empty_like(right)
        factor = left.dtype.type(grad * scale / count)
        for tokens, own_left, own_right, of_scores in kept:
            of_scores *= factor
            if right is left:  # the gradients of both
                _in_heads(of_left[tokens], heads)[...] = (of_scores + of_scores.transpose(0, 2, 1)) @ own_left
                continue
            _in_heads(of_left[tokens], heads)[...] = of_scores @ own_right
            _in_heads(of_right[tokens], heads)[...] = of_scores.transpose(0, 2, 1) @ own_left
        return of_left, of_right

    return xp.asarray(total / count, left.dtype), pullback


def _in_heads(array, heads):
    """Return (tokens, heads * width) as a view (heads, tokens, width)."""
    return array.reshape(len(array), heads, array.shape[1] // heads).transpose(1, 0, 2)


def _scores(left, right, scale):
    scores = left @ right.transpose(0, 2, 1)
    scores *= scores.dtype.type(scale)
    return scores
