"""Further losses of sentence embeddings: classes, contrasts, layers, and learning from other models.

Names, arguments and values follow sentence-transformers' losses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.arguments import check_count, check_number, naming_nearest, older_names, warn_caller
from bertcore.gradients import TrainedModel, with_loss
from bertcore.kernels import checks
from bertcore.kernels.arrays import Array
from bertcore.models import losses
from bertcore.models.outputs import EncoderOutput, ModelOutput
from bertcore.nn.layers import Linear
from bertcore.nn.operation import operation
from bertcore.nn.parameter import Parameter
from bertcore.passes import Pass
from bertcore.tape import Tensor
from bertcore.tokenization.tokenizer import Tokenizer
from bertcore.training.objectives import similarity
from bertcore.training.objectives.embeddings import EmbeddingObjective, TextEncoder, WithTemperatures, WrappingObjective
from bertcore.training.objectives.objective import Batch
from bertcore.training.objectives.pairs_and_triplets import CoSENTLoss
from bertcore.training.objectives.similarity import divergence_of_scores
from bertcore.training.objectives.text_examples import ColumnCollator


class AnglELoss(CoSENTLoss):
    """`CoSENTLoss` of the angle between two vectors of complex numbers instead of their cosine.

    The halves of a vector are real and imaginary parts (Li and Li 2024, "AoE: Angle-optimized Embeddings for Semantic
    Textual Similarity"). With more than two texts, each later one makes a pair with the first. The first pair has
    the example's label (1 without labels), the other pairs have 1 minus that.
    """

    columns = (2, None)
    has_labels = None

    def of_embeddings(self, embeddings: Array, labels: Array | None) -> tuple[Array, Array]:
        xp, (count, columns, dim) = kernels.array_module(embeddings), embeddings.shape
        if labels is None and columns == 2:
            raise ValueError("batch has no labels, expected some for AnglELoss of two texts")
        labels = xp.ones(count) if labels is None else labels
        others = embeddings[:, 1:].transpose(1, 0, 2).reshape(-1, dim)
        scores, pullback = similarity.angles(xp.tile(embeddings[:, 0], (columns - 1, 1)), others)
        value, grad = self.of_cosines(scores, xp.concatenate([labels, *[1 - labels] * (columns - 2)]))
        of_first, of_others = (part.reshape(columns - 1, count, dim) for part in pullback(grad))
        return value, xp.stack([of_first.sum(axis=0), *of_others], axis=1)


class ContrastiveLoss(EmbeddingObjective):
    """Pairs with label 1 get near, pairs with label 0 get at least a margin apart (Hadsell et al. 2006, section 2.1).

    The loss of a pair is (label * distance^2 + (1 - label) * max(0, margin - distance)^2) / 2.

    Args:
        model, more: as for `EmbeddingObjective`.
        distance_metric: "cosine" (1 - cosine), "euclidean" or "manhattan", or a member of `SiameseDistanceMetric`.
        margin: in units of the distance.
        size_average: whether the loss is the mean over pairs rather than the sum.
    """

    has_labels = True

    def __init__(
        self,
        model: TextEncoder | None = None,
        distance_metric: str = "cosine",
        margin: float = 0.5,
        size_average: bool = True,
        **more: Any,
    ):
        super().__init__(model, **more)
        checks.choice("distance_metric", distance_metric, similarity.DISTANCES)
        self.distance_metric, self.margin = distance_metric, check_number("margin", margin)
        self.size_average = checks.boolean("size_average", size_average)

    def of_embeddings(self, embeddings: Array, labels: Array | None) -> tuple[Array, Array]:
        distances, pullback = similarity.DISTANCES[self.distance_metric](embeddings[:, 0], embeddings[:, 1])
        xp = kernels.array_module(embeddings)
        near, far, factor = self.weights(distances, labels)
        missing = xp.maximum(self.margin - distances, 0)
        grad = 2 * factor * (near * distances - far * missing)
        return factor * (near * distances**2 + far * missing**2).sum(), xp.stack(pullback(grad), axis=1)

    def weights(self, distances: Array, labels: Array) -> tuple[Array, Array, float]:
        """Return each pair's weight as a near pair and as a far pair, and the factor on all."""
        if (wrong := (labels != 0) & (labels != 1)).any():
            row = int(wrong.argmax())
            raise ValueError(f"labels[{row}] is {float(labels[row])}, expected 0 or 1 for ContrastiveLoss")
        return labels, 1 - labels, 0.5 / len(labels) if self.size_average else 0.5


class OnlineContrastiveLoss(ContrastiveLoss):
    """`ContrastiveLoss` of only the hard pairs of a batch, summed, without the factor 1/2.

    Hard pairs with label 1 are farther than the nearest pair with label 0; those with label 0 are nearer than the
    farthest pair with label 1. If one label does not occur, the limit is the mean of the other label's pairs.
    """

    def __init__(
        self, model: TextEncoder | None = None, distance_metric: str = "cosine", margin: float = 0.5, **more: Any
    ):
        super().__init__(model, distance_metric, margin, **more)

    def weights(self, distances: Array, labels: Array) -> tuple[Array, Array, float]:
        is_near, is_far = labels == 1, labels == 0
        if not (is_near | is_far).all():
            warn_caller("labels has numbers other than 0 and 1: pairs with these do not count")
        near, far = distances[is_near], distances[is_far]
        if len(near):
            is_near &= distances > (far.min() if len(far) else near.mean())
        if len(far):
            is_far &= distances < (near.max() if len(near) else far.mean())
        return is_near, is_far, 1.0


class MSELoss(EmbeddingObjective):
    """The embeddings approach a teacher's, which are the labels: the mean squared error.

    Labels are (examples, dim), the same for all texts of an example (a sentence and its translations), or (examples,
    columns, dim) (Reimers and Gurevych 2020, arXiv:2004.09813).
    """

    columns = (1, None)
    has_labels = True
    label_axes = 3
    labels_are_vectors = True

    def of_embeddings(self, embeddings: Array, labels: Array | None) -> tuple[Array, Array]:
        count, columns, dim = embeddings.shape
        if labels.size not in (count * dim, count * columns * dim):
            expected = f"({count}, {dim}) or ({count}, {columns}, {dim})"
            raise ValueError(f"labels has shape {labels.shape}, expected {expected}")
        return similarity.squared_error(embeddings, labels.reshape(count, -1, dim))


class DistillKLDivLoss(WithTemperatures, EmbeddingObjective):
    """The softmax of a first text's dot products with the others approaches a teacher's (Lin et al. 2020).

    The loss is student_temperature^2 times the mean over examples of KL(softmax(labels / teacher_temperature) ||
    softmax(dot products / student_temperature)). Labels are (examples, columns - 1). Source: arXiv:2010.11386.

    Args:
        model, more: as for `EmbeddingObjective`.
        temperature: of both distributions.
        student_temperature, teacher_temperature: of one distribution; by default `temperature`.
    """

    columns = (3, None)
    has_labels = True
    label_axes = 2

    def of_embeddings(self, embeddings: Array, labels: Array | None) -> tuple[Array, Array]:
        scores, pullback = similarity.first_with_others(embeddings)
        value, grad = self.of_scores(scores, labels)
        return value, pullback(grad)


class GISTEmbedLoss(EmbeddingObjective):
    """`MultipleNegativesRankingLoss` without the candidates that a guide finds nearer than the right one.

    An example has an anchor, a positive and perhaps a negative. The candidates of an anchor are all positives,
    negatives and other anchors; its positive is also compared with the others (Solatorio 2024, arXiv:2402.16829).
    Labels are the guide's embeddings, (examples, columns, dim); the collator computes them.

    Args:
        model, more: as for `EmbeddingObjective`.
        guide: a `SentenceEncoder`; it reads the texts themselves.
        temperature: the divisor of cosines.
        margin_strategy: a candidate is left out if the guide's cosine for it is above c - margin ("absolute") or
            c - margin * abs(c) ("relative"), where c is the guide's cosine for the right one.
        margin: see `margin_strategy`; below 0 it keeps candidates that are a little nearer, too.
        contrast_anchors, contrast_positives: whether anchors and positives are compared among themselves.
    """

    columns = (2, 3)
    has_labels = True
    label_axes = 3

    def __init__(
        self,
        model: TextEncoder,
        guide: Any,
        temperature: float = 0.01,
        margin_strategy: str = "absolute",
        margin: float = 0.0,
        contrast_anchors: bool = True,
        contrast_positives: bool = True,
        **more: Any,
    ):
        super().__init__(model, **more)
        if not hasattr(guide, "encode") or isinstance(guide, str):
            raise TypeError(f"guide is {type(guide).__name__}, expected a SentenceEncoder")
        checks.choice("margin_strategy", margin_strategy, ("absolute", "relative"))
        self.guide, self.margin_strategy, self.margin = guide, margin_strategy, checks.finite_number("margin", margin)
        self.temperature = check_number("temperature", temperature, above_zero=True)
        self._among = [(0, 0)] * checks.boolean("contrast_anchors", contrast_anchors)
        self._among += [(1, 1)] * checks.boolean("contrast_positives", contrast_positives)

    def collator(self, tokenizer: Tokenizer, *, seed: int = 0) -> ColumnCollator:
        return _Guided(tokenizer, self)

    def of_embeddings(self, embeddings: Array, labels: Array | None) -> tuple[Array, Array]:
        xp, (count, columns, _) = kernels.array_module(embeddings), embeddings.shape
        if labels.shape[:-1] != (count, columns):
            expected = f"({count}, {columns}, dim), the guide's embeddings"
            raise ValueError(f"labels has shape {labels.shape}, expected {expected}")
        compared = [(0, 1), *self._among, *([(0, 2)] if columns == 3 else [])]
        made = [similarity.all_cosines(embeddings[:, left], embeddings[:, right]) for left, right in compared]
        scores = xp.concatenate([block for block, _ in made], axis=1) / self.temperature
        by_guide = [similarity.all_cosines(labels[:, left], labels[:, right])[0] for left, right in compared]
        guided = xp.concatenate(by_guide, axis=1)
        right = guided.diagonal()[:, None]
        too_near = guided > right - (self.margin if self.margin_strategy == "absolute" else abs(right) * self.margin)
        too_near[:, :count] &= ~xp.eye(count, dtype=bool)
        value, grad = similarity.ranking_loss(xp.where(too_near, -xp.inf, scores))
        total = xp.zeros_like(embeddings)
        parts = xp.split(grad / self.temperature, len(compared), axis=1)
        for (left, other), (_, pullback), part in zip(compared, made, parts, strict=True):
            of_left, of_other = pullback(part)
            total[:, left] += of_left
            total[:, other] += of_other
        return value, total


class CachedGISTEmbedLoss(GISTEmbedLoss):
    """`GISTEmbedLoss` whose `mini_batch_size` is 32 by default."""

    mini_batch_size = 32


class _Guided(ColumnCollator):
    """A `ColumnCollator` whose labels are the embeddings of a guide."""

    def __init__(self, tokenizer: Tokenizer, loss: GISTEmbedLoss):
        super().__init__(tokenizer, loss.max_length, loss.encoder)
        self._guide = loss.guide

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
        batch = super().__call__(examples)
        if "labels" in batch:
            raise ValueError("examples has labels, expected none for GISTEmbedLoss")
        texts = [text for example in examples for text in example.values()]
        found = np.asarray(self._guide.encode(texts, show_progress_bar=False))
        if found.ndim != 2 or len(found) != len(texts):
            raise ValueError(f"guide returned shape {found.shape}, expected ({len(texts)}, dim)")
        return batch | {"labels": found.reshape(*batch["input_ids"].shape[:2], -1)}


class SoftmaxLoss(EmbeddingObjective):
    """A linear classifier of two texts' embeddings, trained beside the model (Reimers and Gurevych 2019, section 3).

    Labels are classes, (examples,). Source: arXiv:1908.10084.

    Args:
        model: as for `EmbeddingObjective`.
        embedding_dimension: the length of an embedding, which the model has, too.
        num_labels: the number of classes.
        concatenation_sent_rep: whether the classifier reads both embeddings.
        concatenation_sent_difference: whether it reads the absolute values of their difference.
        concatenation_sent_multiplication: whether it reads their elementwise product.
        more: as for `EmbeddingObjective`, without mini_batch_size: examples do not depend on each other.
    """

    has_labels = True

    @older_names(sentence_embedding_dimension="embedding_dimension")
    def __init__(
        self,
        model: TextEncoder | None = None,
        embedding_dimension: int | None = None,
        num_labels: int | None = None,
        *,
        concatenation_sent_rep: bool = True,
        concatenation_sent_difference: bool = True,
        concatenation_sent_multiplication: bool = False,
        **more: Any,
    ):
        super().__init__(model, **more)
        if self.mini_batch_size is not None:
            expected = "expected None: use smaller batches and accumulate them"
            raise ValueError(f"mini_batch_size is {self.mini_batch_size}, {expected}")
        own = None if embedding_dimension is None else check_count("embedding_dimension", embedding_dimension)
        self.embedding_dimension = own
        self.num_labels = check_count("num_labels", num_labels)
        flags = {"rep": concatenation_sent_rep, "difference": concatenation_sent_difference}
        flags["multiplication"] = concatenation_sent_multiplication
        self.parts = tuple(checks.boolean(f"concatenation_sent_{name}", flag) for name, flag in flags.items())
        if not any(self.parts):
            raise ValueError("concatenation_sent_rep, _difference and _multiplication are False, expected at least one")
        self._model: TrainedModel | None = None
        self._classifier: Any = None

    def parameters(self, model: TrainedModel) -> Sequence[Parameter]:
        if self._model is not model:
            hidden = model.spec.hidden_size
            if self.embedding_dimension not in (None, hidden):
                raise ValueError(f"embedding_dimension is {self.embedding_dimension}, expected {hidden}, the model's")
            width = hidden * (sum(self.parts) + self.parts[0])
            self._classifier = Linear("softmax.classifier", in_features=width, out_features=self.num_labels)
            for parameter in self._classifier.parameters():
                parameter.initialise(np.random.default_rng(0), (3 * width) ** -0.5, model.dtype)
            self._model = model
        return list(self._classifier.parameters())

    def predictions(self, vectors: Array) -> Array:
        """Return the classifier's logits, (pairs, num_labels), for embeddings: the pairs' texts in turn."""
        if self._classifier is None:
            raise ValueError("SoftmaxLoss has no classifier yet: train with it first")
        features = _features(kernels.array_module(vectors), vectors, self.parts)
        return self._classifier(Pass.begin(features), features)

    def loss(self, model: TrainedModel, batch: Batch) -> ModelOutput:
        texts, _, labels = self.checked(batch)
        self.parameters(model)
        out, run = model(**texts), Pass.begin(texts["input_ids"])
        mask = texts.get("attention_mask")
        features = _features_of_pairs(run, out.last_hidden_state, mask=mask, vectors=self.vectors, parts=self.parts)
        classes = labels.astype("int64")
        if (classes != labels).any():
            raise ValueError("labels holds fractions, expected classes")
        out.loss = losses.sequence_loss(run, self._classifier(run, features), classes, self.num_labels)
        return out


def _features(xp: Any, vectors: Array, parts: tuple[bool, bool, bool]) -> Array:
    first, second = vectors[::2], vectors[1::2]
    every = first, second, abs(first - second), first * second
    kept = (parts[0], parts[0], *parts[1:])
    return xp.concatenate([each for each, is_kept in zip(every, kept, strict=True) if is_kept], axis=1)


@operation()
def _features_of_pairs(run: Pass, hidden: Array, *, mask: Any, vectors: Any, parts: tuple[bool, bool, bool]) -> Tensor:
    """Return (pairs, features): two neighbours, their absolute difference and their product, as `parts` asks."""
    xp, (vectors, spread) = kernels.array_module(hidden), vectors(hidden, mask)
    first, second = vectors[::2], vectors[1::2]
    kept = (parts[0], parts[0], *parts[1:])

    def pullback(grad):
        given = iter(xp.split(grad, sum(kept), axis=1))
        of_first, of_second, of_size, of_product = (next(given) if is_kept else 0 for is_kept in kept)
        of_size = of_size * xp.sign(first - second)
        both = of_first + of_size + of_product * second, of_second - of_size + of_product * first
        return (spread(xp.stack(both, axis=1).reshape(vectors.shape)),)

    return _features(xp, vectors, parts), pullback


class AdaptiveLayerLoss(WrappingObjective):
    """The sum of another objective's losses over the vectors of several layers, so that layers can be cut off.

    Each training step takes some of the layers before the last one, chosen at random, and adds the Kullback-Leibler
    divergence of their vectors' softmax from the last layer's (Li et al. 2024, arXiv:2402.14776, section 3).

    Args:
        model: the encoder of `loss`, or None.
        loss: an `EmbeddingObjective`, such as `CoSENTLoss(model)`.
        n_layers_per_step: how many earlier layers a step takes; all, unless it is from 1 to one less than all. The
            embeddings before the first layer count as a layer.
        last_layer_weight, prior_layers_weight, kl_div_weight: factors on the last layer's loss, on the mean of the
            others' and on the divergences.
        kl_temperature: of both softmaxes; 0 for no divergence.
    """

    @naming_nearest()
    def __init__(
        self,
        model: TextEncoder | None,
        loss: EmbeddingObjective,
        n_layers_per_step: int = 1,
        last_layer_weight: float = 1.0,
        prior_layers_weight: float = 1.0,
        kl_div_weight: float = 1.0,
        kl_temperature: float = 0.3,
    ):
        super().__init__(model, loss)
        if self.mini_batch_size is not None:
            raise ValueError(f"loss has mini_batch_size {self.mini_batch_size}, expected None")
        self.n_layers_per_step = check_count("n_layers_per_step", n_layers_per_step, -1)
        factors = {"last_layer_weight": last_layer_weight, "prior_layers_weight": prior_layers_weight}
        factors["kl_div_weight"] = kl_div_weight
        self.weights = tuple(check_number(name, factor) for name, factor in factors.items())
        self.kl_temperature = check_number("kl_temperature", kl_temperature)

    def loss(self, model: Any, batch: Batch) -> ModelOutput:
        texts, of_rows = self.inner.prepared(batch)
        heat, mask, number = self.kl_temperature, texts.get("attention_mask"), model.passes

        def of_output(out: EncoderOutput) -> tuple[Any, Mapping[str, Any]]:
            final, spread = self.vectors(out.last_hidden_state, mask)
            layers = np.arange(len(out.hidden_states) - 1)
            if 0 < self.n_layers_per_step < len(layers):
                layers = np.random.default_rng(number).permutation(layers)[: self.n_layers_per_step]
            last, prior, divergence = self.weights
            prior, divergence = prior / max(len(layers), 1), divergence / len(final)
            total, grad = of_rows(final)
            total, of_last, of_layers = last * total, spread(last * grad), [None] * len(out.hidden_states)
            for layer in layers.tolist():
                vectors, spread = self.vectors(out.hidden_states[layer], mask)
                value, grad = of_rows(vectors)
                total, grad = total + prior * value, prior * grad
                if heat:
                    value, slope = divergence_of_scores(vectors / heat, final / heat)
                    total, grad = total + divergence * heat * value, grad + divergence * slope
                of_layers[layer] = spread(grad)
            return total, {"last_hidden_state": of_last, "hidden_states": tuple(of_layers) if len(layers) else None}

        return with_loss(model(**texts, output_hidden_states=True), of_output)
