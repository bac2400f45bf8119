"""Cross-encoders: losses over the scores of pairs of texts, alone or in lists of documents for one query.

A batch is a sequence classifier's; `labels` has a number for each pair, and `lists` the number of each pair's query, in
order. Names, arguments and values follow sentence-transformers' losses for cross-encoders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from bertcore import kernels
from bertcore.arguments import check_count, check_number, naming_nearest
from bertcore.kernels import checks
from bertcore.kernels.arrays import Array, NativeArray
from bertcore.models.inputs import refuse_where
from bertcore.tokenization.tokenizer import Tokenizer
from bertcore.training.objectives.embeddings import ChunkedObjective, checked_labels
from bertcore.training.objectives.objective import Batch
from bertcore.training.objectives.similarity import log_sums, margin_error, ranking_loss, softplus, squared_error
from bertcore.training.objectives.text_examples import PairCollator

if TYPE_CHECKING:
    from bertcore.tasks.cross_encoder import CrossEncoder

ACTIVATIONS: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Any]]] = {  # and derivatives, by value
    "identity": (lambda logits: logits, lambda found: 1.0),
    "sigmoid": (lambda logits: softplus(logits)[1], lambda found: found * (1 - found)),
    "tanh": (np.tanh, lambda found: 1 - found**2),
    "relu": (lambda logits: logits.clip(0), lambda found: found > 0),
}


class CrossEncoderObjective(ChunkedObjective):
    """Base of objectives of cross-encoders; subclasses define their loss in `of_scores`.

    Subclasses take these arguments beside their own.

    Args:
        model: the `CrossEncoder` that is trained; or None for a model alone, to which `max_length` applies.
        activation_fn: the function applied to the logits first: "identity", "sigmoid", "tanh" or "relu", or PyTorch's
            module of this name.
        mini_batch_size: the number of pairs that pass through the model at once in training; all by default.
        max_length: where the collator cuts pairs, in tokens; see `PairCollator`.
    """

    model_class = "AutoModelForSequenceClassification"
    field = "logits"
    targets = ("labels", "lists")
    num_labels: int | None = 1  # None for any number
    has_labels = True
    is_of_lists = False

    @naming_nearest()
    def __init__(
        self,
        model: CrossEncoder | None = None,
        *,
        activation_fn: str | Callable[..., Any] = "identity",
        mini_batch_size: int | None = None,
        max_length: int | None = None,
    ):
        if model is not None and not hasattr(model, "predict"):
            raise TypeError(f"model is {type(model).__name__}, expected a CrossEncoder")
        super().__init__(model, mini_batch_size=mini_batch_size, max_length=max_length)
        self.activation_fn = activation_fn if isinstance(activation_fn, str) else type(activation_fn).__name__.lower()
        checks.choice("activation_fn", self.activation_fn, ACTIVATIONS)

    def of_scores(self, scores: Array, labels: NativeArray, lists: list[slice]) -> tuple[Array, Array]:
        """Return the loss and its gradient with respect to the scores, (pairs,), in float64; `lists` are slices."""
        raise NotImplementedError(f"{type(self).__name__} does not define its loss")

    def collator(self, tokenizer: Tokenizer, *, seed: int = 0) -> PairCollator:
        return PairCollator(tokenizer, self.max_length, self.encoder)

    def weight(self, batch: Batch) -> float:
        return float(len(_spans(batch)) if self.is_of_lists else len(batch["input_ids"]))

    def prepared(self, batch: Batch) -> tuple[dict[str, Any], Callable[[Array], tuple[Array, Array]]]:
        labels, lists = batch.get("labels"), _spans(batch)
        self.check_has_labels(labels)
        activate, derivative = ACTIVATIONS[self.activation_fn]

        def of_rows(logits: Array) -> tuple[Array, Array]:
            if self.num_labels not in (None, logits.shape[1]):
                name = type(self).__name__
                raise ValueError(f"model has {logits.shape[1]} labels, expected {self.num_labels} for {name}")
            xp, scores = kernels.array_module(logits), activate(logits.astype("float64"))
            given = None if labels is None else xp.asarray(self.checked(labels, len(logits)))
            value, grad = self.of_scores(scores[:, 0] if self.num_labels == 1 else scores, given, lists)
            grad = grad.reshape(scores.shape) * derivative(scores)
            return xp.asarray(value, logits.dtype), grad.astype(logits.dtype)

        return {name: array for name, array in batch.items() if name not in self.targets}, of_rows

    def checked(self, labels: NativeArray, count: int) -> NativeArray:
        return checked_labels(labels, count)


class BinaryCrossEntropyLoss(CrossEncoderObjective):
    """The mean binary cross entropy of labels from 0 to 1.

    `pos_weight`, a number or an array or tensor of one, is the factor on the loss of label 1.
    """

    def __init__(self, model: CrossEncoder | None = None, *, pos_weight: Any = 1.0, **more: Any):
        super().__init__(model, **more)
        is_one = hasattr(pos_weight, "item") and np.prod(pos_weight.shape) == 1
        pos_weight = pos_weight.item() if is_one else pos_weight
        self.pos_weight = check_number("pos_weight", pos_weight, above_zero=True)

    def checked(self, labels: NativeArray, count: int) -> NativeArray:
        array = super().checked(labels, count)
        refuse_where((array < 0) | (array > 1), "labels", array, "0 to 1")
        return array

    def of_scores(self, scores: Array, labels: NativeArray, lists: list[slice]) -> tuple[Array, Array]:
        ones, zeros = self.pos_weight * labels, 1 - labels
        value, share = softplus(scores)
        return ((ones + zeros) * value - ones * scores).mean(), ((ones + zeros) * share - ones) / len(scores)


class CrossEntropyLoss(CrossEncoderObjective):
    """The mean cross entropy of classes, (pairs,), or of probabilities of classes, (pairs, classes)."""

    num_labels = None

    def of_scores(self, scores: Array, labels: NativeArray, lists: list[slice]) -> tuple[Array, Array]:
        if labels.ndim == 1:
            classes = scores.shape[1]
            is_wrong = (labels < 0) | (labels >= classes) | (labels % 1 != 0)
            refuse_where(is_wrong, "labels", labels, f"a class from 0 to {classes - 1}")
            labels = kernels.array_module(scores).eye(classes)[labels.astype("int64")]
        value, grad = _cross_entropy(scores, labels)
        return value / len(scores), grad / len(scores)


class MSELoss(CrossEncoderObjective):
    """The mean squared error of scores and labels."""

    def of_scores(self, scores: Array, labels: NativeArray, lists: list[slice]) -> tuple[Array, Array]:
        return squared_error(scores, labels)


class MarginMSELoss(CrossEncoderObjective):
    """The difference of the first document's score and each later one's approaches a teacher's: the mean squared error.

    All lists have the same length. Labels are the differences of each list in turn, or all scores (Hofstätter et al.
    2020, arXiv:2010.02666).
    """

    is_of_lists = True

    def checked(self, labels: NativeArray, count: int) -> NativeArray:
        return super().checked(labels, len(labels))

    def of_scores(self, scores: Array, labels: NativeArray, lists: list[slice]) -> tuple[Array, Array]:
        if len(lengths := {rows.stop - rows.start for rows in lists}) > 1:
            found = ", ".join(map(str, sorted(lengths)))
            raise ValueError(f"examples have {found} documents, expected the same number for MarginMSELoss")
        value, grad = margin_error(scores.reshape(len(lists), -1), labels)
        return value, grad.reshape(-1)


class _Lists(CrossEncoderObjective):
    """Base of losses that are sums over lists, divided by the sum of the lists' counts (1 each for a mean)."""

    is_of_lists = True

    def of_scores(self, scores: Array, labels: NativeArray, lists: list[slice]) -> tuple[Array, Array]:
        grad, total, count = kernels.array_module(scores).zeros_like(scores), 0.0, 0
        for rows in lists:
            value, grad[rows], counted = self.of_list(scores[rows], None if labels is None else labels[rows])
            total, count = total + value, count + counted
        return total / max(count, 1), grad / max(count, 1)

    def of_list(self, scores: Array, labels: NativeArray) -> tuple[Array, Array, int]:
        raise NotImplementedError


class MultipleNegativesRankingLoss(_Lists):
    """Each query ranks its first document above the others of its list: the mean cross entropy of their softmax.

    The collator makes the lists: an example's first text is the query and the second the right document; the others are
    wrong ones, as are some documents of the batch's other examples.

    Args:
        model: as for `CrossEncoderObjective`.
        num_negatives: how many of the latter, drawn at random; None for all.
        scale: the factor on scores.
        more: likewise.
    """

    has_labels = False

    def __init__(
        self,
        model: CrossEncoder | None = None,
        num_negatives: int | None = 4,
        scale: float = 10.0,
        activation_fn: str | Callable[..., Any] = "sigmoid",
        **more: Any,
    ):
        super().__init__(model, activation_fn=activation_fn, **more)
        self.num_negatives = None if num_negatives is None else check_count("num_negatives", num_negatives, 0)
        self.scale = check_number("scale", scale, above_zero=True)

    def collator(self, tokenizer: Tokenizer, *, seed: int = 0) -> PairCollator:
        return _InBatch(tokenizer, self, seed)

    def of_list(self, scores: Array, labels: NativeArray) -> tuple[Array, Array, int]:
        value, grad = ranking_loss(self.scale * scores[None])
        return value, self.scale * grad[0], 1


class CachedMultipleNegativesRankingLoss(MultipleNegativesRankingLoss):
    """`MultipleNegativesRankingLoss` whose `mini_batch_size` is 32 by default."""

    mini_batch_size = 32


class ListNetLoss(_Lists):
    """The cross entropy of softmax(labels) and softmax(scores), the mean over lists (Cao et al. 2007)."""

    def of_list(self, scores: Array, labels: NativeArray) -> tuple[Array, Array, int]:
        return *_cross_entropy(scores, kernels.softmax(labels)), 1


def position_weights(documents: int) -> Array:
    """Return 2^(documents - rank) - 1 for ranks from 1, scaled down for more documents than float32 can hold."""
    beyond = max(documents - 127, 0)
    return 2.0 ** (documents - np.arange(1, documents + 1) - beyond) - 2.0**-beyond


class PListMLELoss(_Lists):
    """The negative log-probability of the right order, position by position: the mean over lists (Lan et al. 2014).

    Args:
        model, more: as for `CrossEncoderObjective`.
        lambda_weight: the function from the number of documents to the weights of positions, which are scaled to a sum
            of 1; None for 1 each (Xia et al. 2008).
        respect_input_order: whether documents come in the right order; otherwise their labels give the order.
    """

    def __init__(
        self,
        model: CrossEncoder | None = None,
        lambda_weight: Callable[[int], Any] | None = position_weights,
        *,
        respect_input_order: bool = True,
        **more: Any,
    ):
        super().__init__(model, **more)
        if lambda_weight is not None and not callable(lambda_weight):
            raise TypeError(f"lambda_weight is {lambda_weight!r:.60}, expected a function of the number of documents")
        self.lambda_weight = lambda_weight
        self.respect_input_order = checks.boolean("respect_input_order", respect_input_order)

    def of_list(self, scores: Array, labels: NativeArray) -> tuple[Array, Array, int]:
        xp, count = kernels.array_module(scores), len(scores)
        order = xp.arange(count) if self.respect_input_order else (-labels).argsort(kind="stable")
        ranked, weights = scores[order], xp.ones(count)
        if self.lambda_weight is not None:
            weights = xp.asarray(self.lambda_weight(count), "float64")
            weights = weights / (weights.sum() + 1e-10)
        left = xp.where(xp.tri(count, dtype=bool).T, ranked, -xp.inf)  # row i: the scores from position i on
        normalisers, shares = log_sums(left)
        grad = xp.empty_like(scores)
        grad[order] = weights @ shares - weights
        return (weights * (normalisers - ranked)).sum(), grad, 1


class ListMLELoss(PListMLELoss):
    """`PListMLELoss` with a weight of 1 for each position (Xia et al. 2008)."""

    def __init__(self, model: CrossEncoder | None = None, *, respect_input_order: bool = True, **more: Any):
        super().__init__(model, None, respect_input_order=respect_input_order, **more)


def _differences(rows: Array) -> Array:
    return abs(rows[:, None] - rows)


def _ndcg_2(gain: Array, discount: Array, mu: float) -> Array:
    xp = kernels.array_module(gain)
    apart = _differences(xp.arange(len(gain)))
    inverse = 1 / discount
    return xp.where(apart > 0, abs(inverse[apart - 1] - inverse[apart]), 0) * _differences(gain)


# Functions of the gains and discounts of a list's documents, (documents,), in the order of their scores.
WEIGHTING_SCHEMES: dict[str, Callable[[Array, Array, float], Any]] = {
    "NoWeightingScheme": lambda gain, discount, mu: 1.0,
    "NDCGLoss1Scheme": lambda gain, discount, mu: (gain / discount)[:, None],
    "NDCGLoss2Scheme": _ndcg_2,
    "LambdaRankScheme": lambda gain, discount, mu: _differences(1 / discount) * _differences(gain),
}
WEIGHTING_SCHEMES["NDCGLoss2PPScheme"] = lambda gain, discount, mu: (
    mu * _ndcg_2(gain, discount, mu) + WEIGHTING_SCHEMES["LambdaRankScheme"](gain, discount, mu)
)


class LambdaLoss(_Lists):
    """Documents with a higher label get a higher score, pair by pair: the mean over such pairs (Wang et al. 2018).

    The loss of a pair is its weight times -log2 sigmoid(sigma * (score_i - score_j)). Labels are from 0 on. Source:
    "The LambdaLoss Framework for Ranking Metric Optimization", CIKM 2018.

    Args:
        model, more: as for `CrossEncoderObjective`.
        weighting_scheme: the weight of a pair: "NDCGLoss2PPScheme", "NDCGLoss2Scheme", "LambdaRankScheme",
            "NDCGLoss1Scheme", which takes all pairs, or "NoWeightingScheme".
        k: pairs without a document among the k best scores are left out; all count by default.
        sigma: the factor on differences.
        eps: the least ideal gain of a list, a divisor.
        reduction_log: "binary" or "natural".
        mu: the factor of "NDCGLoss2PPScheme" on "NDCGLoss2Scheme".
    """

    def __init__(
        self,
        model: CrossEncoder | None = None,
        weighting_scheme: str | None = "NDCGLoss2PPScheme",
        *,
        k: int | None = None,
        sigma: float = 1.0,
        eps: float = 1e-10,
        reduction_log: str = "binary",
        mu: float = 10.0,
        **more: Any,
    ):
        super().__init__(model, **more)
        self.weighting_scheme = "NoWeightingScheme" if weighting_scheme is None else weighting_scheme
        checks.choice("weighting_scheme", self.weighting_scheme, WEIGHTING_SCHEMES)
        checks.choice("reduction_log", reduction_log, ("binary", "natural"))
        self.k = None if k is None else check_count("k", k)
        self.sigma, self.eps = check_number("sigma", sigma), check_number("eps", eps, above_zero=True)
        self.mu, self.base = check_number("mu", mu), np.log(2) if reduction_log == "binary" else 1.0

    def checked(self, labels: NativeArray, count: int) -> NativeArray:
        array = super().checked(labels, count)
        refuse_where(array < 0, "labels", array, "at least 0")
        return array

    def of_list(self, scores: Array, labels: NativeArray) -> tuple[Array, Array, int]:
        xp, count = kernels.array_module(scores), len(scores)
        order = (-scores).argsort(kind="stable")
        ranked, wanted = scores[order], labels[order]
        discount = xp.log2(2.0 + xp.arange(count))
        ideal = ((2 ** -xp.sort(-labels).clip(None, 0) - 1) / discount)[: self.k].sum()
        gain = (2 ** wanted.clip(0) - 1) / max(ideal, self.eps)
        is_pair = wanted[:, None] > wanted
        if self.weighting_scheme == "NDCGLoss1Scheme":
            is_pair = xp.ones_like(is_pair)
        if self.k is not None:
            is_pair[self.k :, self.k :] = False
        weights = is_pair * WEIGHTING_SCHEMES[self.weighting_scheme](gain, discount, self.mu) / self.base
        lead = self.sigma * (ranked[:, None] - ranked)
        value, share = softplus(-lead)
        pull = self.sigma * weights * share
        grad = xp.empty_like(scores)
        grad[order] = pull.sum(axis=0) - pull.sum(axis=1)
        return (weights * value).sum(), grad, int(is_pair.sum())


class RankNetLoss(LambdaLoss):
    """`LambdaLoss` without weights (Burges et al. 2005)."""

    def __init__(self, model: CrossEncoder | None = None, **more: Any):
        super().__init__(model, None, **more)


class ADRMSELoss(_Lists):
    """The squared error of smooth ranks and the labels' ranks, divided by log2(1 + rank): the mean over documents.

    A document's smooth rank is 1 plus the sum over the others of sigmoid(alpha * (their score - its own)); documents
    with equal labels share the mean of their ranks (Schlatt et al. 2024, arXiv:2405.07920).

    Args:
        model, more: as for `CrossEncoderObjective`.
        alpha: the factor on differences: smooth ranks approach true ones as it grows.
    """

    is_of_lists = False  # the weight of a batch is its number of documents

    def __init__(self, model: CrossEncoder | None = None, alpha: float = 1.0, **more: Any):
        super().__init__(model, **more)
        self.alpha = check_number("alpha", alpha, above_zero=True)

    def of_list(self, scores: Array, labels: NativeArray) -> tuple[Array, Array, int]:
        above, same = labels > labels[:, None], labels == labels[:, None]
        ranks = above.sum(axis=1) + (same.sum(axis=1) + 1) / 2
        shares = softplus(self.alpha * (scores - scores[:, None]))[1]
        error = 0.5 + shares.sum(axis=1) - ranks  # of the 1, a half is in the sum: the document's own share
        slopes, discount = self.alpha * shares * (1 - shares), kernels.array_module(scores).log2(1 + ranks)
        pull = 2 * error / discount
        return (error**2 / discount).sum(), pull @ slopes - pull * slopes.sum(axis=1), len(scores)


def _cross_entropy(scores: Array, targets: Array) -> tuple[Array, Array]:
    """Return the sum over rows of the cross entropy of `targets` and softmax(scores), and its gradient."""
    sums, shares = log_sums(scores)
    return (targets * (sums[..., None] - scores)).sum(), shares * targets.sum(axis=-1, keepdims=True) - targets


def _spans(batch: Batch) -> list[slice]:
    """Return the pairs of each list; without `lists`, each pair is a list."""
    count = len(batch["input_ids"])
    lists = kernels.to_host(batch.get("lists", np.arange(count)))
    if lists.shape != (count,):
        raise ValueError(f"lists has shape {lists.shape}, expected ({count},): one for each pair")
    starts = [*np.flatnonzero(np.diff(lists, prepend=lists[:1] - 1)).tolist(), count]
    return [slice(*ends) for ends in pairwise(starts)]


class _InBatch(PairCollator):
    """A `PairCollator` that adds documents of other examples after the right one of each."""

    def __init__(self, tokenizer: Tokenizer, loss: MultipleNegativesRankingLoss, seed: int):
        super().__init__(tokenizer, loss.max_length, loss.encoder)
        self._num_negatives, self.rng = loss.num_negatives, np.random.default_rng(seed)

    def lists(self, documents: Sequence[list[str]]) -> Iterator[list[str]]:
        for index, (right, *wrong) in enumerate(documents):
            others = [text for other, texts in enumerate(documents) if other != index for text in texts]
            if self._num_negatives is not None and self._num_negatives < len(others):
                chosen = self.rng.choice(len(others), self._num_negatives, replace=False)
                others = [others[place] for place in chosen.tolist()]
            yield [right, *others, *wrong]
