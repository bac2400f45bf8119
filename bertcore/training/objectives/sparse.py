"""Sparse embeddings: losses over the vectors of a SparseEncoder, and regularizers that keep them sparse.

Names, arguments and values follow sentence-transformers' losses of sparse encoders. A batch has one array more than for
sentence embeddings: columns, (examples, columns, 1), the number of each text's column. With a Router, the
first column takes the route of queries, the others the route of documents.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.arguments import check_count, check_number
from bertcore.gradients import TrainedModel
from bertcore.kernels import checks
from bertcore.kernels.arrays import Array, NativeArray
from bertcore.models.outputs import ModelOutput
from bertcore.nn import functional
from bertcore.nn.operation import operation
from bertcore.nn.parameter import Block, Parameter
from bertcore.passes import Pass
from bertcore.tape import Tensor
from bertcore.tasks.sparse_modules import activated
from bertcore.tokenization.tokenizer import Tokenizer
from bertcore.training.objectives.embedding_losses import AnglELoss, DistillKLDivLoss, MSELoss
from bertcore.training.objectives.embeddings import (
    ChunkedObjective,
    EmbeddingObjective,
    MarginMSELoss,
    MultipleNegativesRankingLoss,
    TextEncoder,
    WithParts,
    WrappingObjective,
    check_inner,
)
from bertcore.training.objectives.pairs_and_triplets import CoSENTLoss, CosineSimilarityLoss, TripletLoss
from bertcore.training.objectives.similarity import squared_error
from bertcore.training.objectives.text_examples import EncoderCollator

USED = 1e-5  # an entry of a code above it counts as used
PARTS = 5  # vectors beside the code in an autoencoder's rows


@dataclass(eq=False, kw_only=True)
class SparseVectors(ModelOutput):
    """The output of a sparse encoder: vectors, (texts, dim); for an autoencoder, the result of `codes`."""

    sentence_embedding: Tensor | None = None


class WithRoutes(WithParts):
    """A sparse encoder's model with the heads of its routes, as one model."""

    def __init__(self, encoder: Any, model: Any):
        self.readers = [encoder.routed(task) if encoder.routes else encoder for task in ("query", "document")]
        super().__init__(model, heads(self.readers))

    def __call__(self, input_ids: NativeArray, attention_mask: NativeArray, columns: NativeArray) -> SparseVectors:
        """Return the vectors of texts; input_ids and attention_mask are (texts, length), columns (texts, 1)."""
        given, run = (attention_mask, input_ids, columns), Pass.begin(input_ids)
        real, ids, columns = map(kernels.to_host, given)
        query, document = self.readers
        sides = np.zeros(len(ids), int) if query is document else np.minimum(columns[:, 0], 1)
        parts, places = [], []
        with kernels.on_device_of(input_ids):
            for side in np.unique(sides):
                which = np.flatnonzero(sides == side)
                rows = [ids[text][real[text] != 0] for text in which]
                parts.append(self._vectors(run, self.readers[side], rows, columns[which, 0]))
                places.append(which)
            order = np.argsort(np.concatenate(places), kind="stable")
            found = parts[0] if len(parts) == 1 else functional.concatenate(run, *parts)
            order = kernels.array_module(input_ids).asarray(order)
            return SparseVectors(sentence_embedding=functional.take_rows(run, found, rows=order))

    def _vectors(self, run: Pass, reader: Any, rows: list[np.ndarray], columns: np.ndarray) -> Tensor:
        head, settings = reader.head, reader.settings
        if settings.is_static:
            return token_weights(run, head.weight.value(run), rows=rows)
        hidden, cu_seqlens = self.model.packed_states(rows)
        if settings.dense is None:
            how = {"strategy": settings.strategy, "activation": settings.activation}
            return splade_vectors(run, self.model.heads[0](run, hidden), cu_seqlens=cu_seqlens, **how)
        if settings.dense.pooling == ("cls",):
            vectors = functional.take_rows(run, hidden, rows=run.to_backend(cu_seqlens[:-1]))
        else:
            vectors = functional.average_sequences(run, hidden, cu_seqlens=cu_seqlens)
        vectors = functional.unit_rows(run, vectors) if settings.dense.normalize else vectors
        arrays = (head.encoder.weight.value(run), head.encoder.bias.value(run), head.pre_bias.value(run))
        return codes(run, vectors, *arrays, head=head, columns=columns)


def heads(readers: Any) -> list[Block]:
    """Return the distinct heads of encoders."""
    return list({id(reader.head): reader.head for reader in readers if reader.head is not None}.values())


@operation()
def token_weights(run: Pass, weight: Array, *, rows: list[np.ndarray]) -> Tensor:
    """Return the weights of the distinct tokens of each text, (texts, vocabulary)."""
    xp = kernels.array_module(weight)
    present = np.zeros((len(rows), len(weight)), bool)
    for text, ids in enumerate(rows):
        present[text, ids] = True
    present = xp.asarray(present)
    return present * weight, lambda grad: ((grad * present).sum(axis=0),)


@operation()
def splade_vectors(run: Pass, logits: Array, *, cu_seqlens: np.ndarray, strategy: str, activation: str) -> Tensor:
    """Return each text's "max" or "sum" of log(1 + relu(logits)): (texts, vocabulary) from (tokens, vocabulary).

    There must be a text.
    """
    xp, width, places = kernels.array_module(logits), logits.shape[1], []
    for first, last in itertools.pairwise(cu_seqlens.tolist()):
        if strategy == "max" and first < last:
            places.append((first + logits[first:last].argmax(axis=0), xp.arange(width)))
        else:
            places.append(slice(first, last))

    def slopes(values):
        relu = xp.maximum(values, 0)
        slope = (values > 0) / (1 + relu)
        return slope / (1 + xp.log1p(relu)) if activation == "log1p_relu" else slope

    def pullback(grad):
        total = xp.zeros_like(logits)
        for place, of_text in zip(places, grad, strict=True):
            total[place] = of_text * slopes(logits[place])
        return (total,)

    found = [activated(logits[place], activation).reshape(-1, width).sum(axis=0) for place in places]
    return xp.stack(found), pullback


@operation()
def codes(run: Pass, vectors: Array, weight: Array, bias: Array, pre_bias: Array, *, head: Any, columns: Any) -> Tensor:
    """Return an autoencoder's code of vectors (texts, width) and the arrays that its loss compares, side by side.

    (texts, hidden_dim + 5 * width): the code of k entries; the vectors; the vectors decoded from k entries, from 4 k
    and from unused entries; the first of these without the bias, which has no gradient. Use of entries is counted
    column by column.
    """
    xp = kernels.array_module(vectors)
    means, deviations, inner = 0, 1, vectors
    if head.normalize:
        means, deviations = vectors.mean(axis=1, keepdims=True), vectors.std(axis=1, keepdims=True, ddof=1)
        inner = (vectors - means) / (deviations + head.eps)
    centred = inner - pre_bias
    values = centred @ weight.T + bias
    masks = [_greatest(values, count) for count in (head.k, 4 * head.k)] + [xp.zeros(values.shape, bool)]
    for column in np.unique(columns):
        which = np.flatnonzero(columns == column)
        for number, mask in enumerate(masks[:2]):
            if run.tape is not None:
                used = kernels.to_host((mask[which] & (values[which] > USED)).any(axis=0))
                head.unused[:] = np.where(used, 0, head.unused) + 1
            if number == 0 and head.k_aux:
                dead = xp.asarray(head.unused > head.dead_threshold)
                masks[2][which] = _greatest(values[which] * dead, head.k_aux) & dead
    masks = [mask & (values > 0) for mask in masks]
    sparse = [values * mask for mask in masks]
    decoded = [part @ weight + pre_bias for part in sparse]
    made = [decoded[0] * deviations + means, decoded[1] * deviations + means, decoded[2] * deviations]
    output = xp.concatenate([sparse[0], vectors, *made, made[0] - pre_bias * deviations], axis=1)

    def pullback(grad):
        width = vectors.shape[1]
        own, *parts = xp.split(grad, [values.shape[1] + n * width for n in range(PARTS)], axis=1)
        direct, parts = parts[0], parts[1:4]
        scaled = [part * deviations for part in parts]
        of_values = sum((part @ weight.T) * mask for part, mask in zip(scaled, masks, strict=True)) + own * masks[0]
        of_weight = sum(each.T @ part for each, part in zip(sparse, scaled, strict=True)) + of_values.T @ centred
        of_inner = of_values @ weight
        of_pre_bias = (sum(scaled) - of_inner).sum(axis=0)
        of_vectors = direct + of_inner
        if head.normalize:
            away = vectors - means
            spread = sum(part * each for part, each in zip(parts, decoded, strict=True))
            spread = spread - of_inner * away / (deviations + head.eps) ** 2
            centre = of_inner / (deviations + head.eps)
            centre = centre + spread.sum(axis=1, keepdims=True) * away / ((width - 1) * deviations)
            of_means = (parts[0] + parts[1]).sum(axis=1, keepdims=True) / width
            of_vectors = direct + centre - centre.mean(axis=1, keepdims=True) + of_means
        return of_vectors, of_weight, of_values.sum(axis=0), of_pre_bias

    return output, pullback


def _greatest(values: Array, count: int) -> Array:
    """Return which entries of each row are its `count` greatest."""
    xp = kernels.array_module(values)
    found = xp.zeros(values.shape, bool)
    xp.put_along_axis(found, xp.argsort(-values, axis=1, kind="stable")[:, :count], True, axis=1)
    return found


class SparseCollator(EncoderCollator):
    """Batches of queries and documents with the column of each text."""

    def token_rows(self, texts: list[str], task: str, prompt: str) -> Iterable[tuple[Any, bool]]:
        return self.encoder.routed(task).token_rows(texts, prompt)

    def arrays(self, rows: list[Any], columns: int) -> Mapping[str, np.ndarray]:
        shape = len(rows), max([1, *map(len, rows)])
        batch = {name: np.zeros(shape, np.int64) for name in ("input_ids", "attention_mask")}
        for place, row in enumerate(rows):
            batch["input_ids"][place, : len(row)] = row
            batch["attention_mask"][place, : len(row)] = 1
        return batch | {"columns": (np.arange(len(rows)) % columns)[:, None]}


class SparseObjective(EmbeddingObjective):
    """Base of objectives of sparse encoders.

    The trainer trains the encoder's model with its heads; save both with `encoder.save_pretrained`.

    Args:
        model: a `SparseEncoder`.
        loss: an objective of embeddings; this one adds to its loss.
        mini_batch_size: the number of texts that pass through the model at once in training; by default that of `loss`.
    """

    field = "sentence_embedding"
    targets = ("labels", "columns")

    def __init__(self, model: Any, loss: EmbeddingObjective, *, mini_batch_size: int | None = None):
        if not hasattr(model, "head") or not hasattr(model, "routes"):
            raise TypeError(f"model is {type(model).__name__}, expected a SparseEncoder")
        check_inner(loss, model, None)
        base = loss.inner if isinstance(loss, WrappingObjective) else loss
        if type(base).collator is not EmbeddingObjective.collator:
            expected = "expected a loss of embeddings and labels alone, such as SparseMultipleNegativesRankingLoss"
            raise TypeError(f"loss is {type(base).__name__}, {expected}")
        if loss.encoder is None and (loss.pooling != "mean" or loss.max_length is not None):
            found = f"pooling {loss.pooling!r} and max_length {loss.max_length}"
            raise ValueError(f"loss has {found}, expected neither: those of model apply")
        super().__init__(mini_batch_size=loss.mini_batch_size if mini_batch_size is None else mini_batch_size)
        self.encoder, self.inner = model, loss
        self.columns, self.has_labels, self.label_axes = loss.columns, loss.has_labels, loss.label_axes
        for dense in filter(None, (reader.settings.dense for reader in self._readers())):
            if dense.pooling not in (("mean",), ("cls",)) or dense.maps or not dense.include_prompt:
                found = f"the pooling {', '.join(dense.pooling)} and {len(dense.maps)} modules after it"
                expected = "mean or cls pooling that includes prompts, and no modules after it"
                raise ValueError(f"model has {found}, expected {expected}")
        self.model_class = "AutoModel" if any(r.settings.dense for r in self._readers()) else "AutoModelForMaskedLM"

    def _readers(self) -> list[Any]:
        return [*self.encoder.readers.values()] or [self.encoder]

    def parameters(self, model: TrainedModel) -> list[Parameter]:
        return [parameter for head in heads(self._readers()) for parameter in head.parameters()]

    def collator(self, tokenizer: Tokenizer, *, seed: int = 0) -> SparseCollator:
        return SparseCollator(self.encoder)

    def whole(self, model: TrainedModel | WithParts) -> WithRoutes:
        return model if isinstance(model, WithRoutes) else WithRoutes(self.encoder, model)

    def rows_of(self, out: ModelOutput, texts: Mapping[str, Any]) -> tuple[Array, Callable[[Array], Array]]:
        return ChunkedObjective.rows_of(self, out, texts)


SparseAnglELoss, SparseCoSENTLoss, SparseCosineSimilarityLoss = AnglELoss, CoSENTLoss, CosineSimilarityLoss
SparseMarginMSELoss, SparseMSELoss, SparseTripletLoss = MarginMSELoss, MSELoss, TripletLoss


class SparseMultipleNegativesRankingLoss(MultipleNegativesRankingLoss):
    """`MultipleNegativesRankingLoss` by dot products, not cosines; `scale` is 1 by default."""

    def __init__(self, model: Any = None, scale: float = 1.0, similarity_fct: Any = "dot_score", **more: Any):
        super().__init__(model, scale, similarity_fct, **more)


class SparseDistillKLDivLoss(DistillKLDivLoss):
    """The distribution of a query's dot products approaches a teacher's; `temperature` is 2 by default."""

    def __init__(self, model: TextEncoder | None = None, temperature: float = 2.0, **more: Any):
        super().__init__(model, temperature, **more)


class FlopsLoss(EmbeddingObjective):
    """The sum of squares of the mean vector, which is small for sparse vectors (Paria et al. 2020, arXiv:2004.05665).

    Args:
        model: as for `EmbeddingObjective`.
        threshold: vectors with at most this many entries count as zero (arXiv:2504.14839); by default all count.
    """

    columns = (1, None)

    def __init__(self, model: TextEncoder | None = None, threshold: int | None = None):
        super().__init__(model)
        self.threshold = None if threshold is None else check_count("threshold", threshold, 0)

    def of_embeddings(self, embeddings: Array, labels: Array | None) -> tuple[Array, Array]:
        flat = embeddings.reshape(-1, embeddings.shape[2])
        counted = kernels.array_module(flat).ones((len(flat), 1))
        if self.threshold is not None:
            counted = ((flat != 0).sum(axis=1, keepdims=True) > self.threshold).astype(flat.dtype)
        mean = (flat * counted).mean(axis=0)
        return (mean**2).sum(), (counted * (2 * mean / len(flat))).reshape(embeddings.shape)


class SpladeLoss(SparseObjective):
    """A loss of embeddings, and regularizers that keep them sparse (Formal et al. 2022, arXiv:2205.04733).

    Args:
        model: a `SparseEncoder`.
        loss: a `SparseMultipleNegativesRankingLoss`, `SparseMarginMSELoss`, `SparseDistillKLDivLoss`, ...
        document_regularizer_weight: the weight of `FlopsLoss` of all texts but the first of an example.
        query_regularizer_weight: the same for the first texts; None for none, as for queries read without a model.
        document_regularizer_threshold, query_regularizer_threshold: of `FlopsLoss`.
        use_document_regularizer_only: treat all texts as documents.
        mini_batch_size: as for `SparseObjective`.

    Attributes:
        regularizer_share: the factor on both weights, which a trainer raises from 0 to 1.
    """

    regularizer_share = 1.0

    def __init__(
        self,
        model: Any,
        loss: EmbeddingObjective,
        document_regularizer_weight: float,
        query_regularizer_weight: float | None = None,
        *,
        document_regularizer_threshold: int | None = None,
        query_regularizer_threshold: int | None = None,
        use_document_regularizer_only: bool = False,
        mini_batch_size: int | None = None,
    ):
        super().__init__(model, loss, mini_batch_size=mini_batch_size)
        only = checks.boolean("use_document_regularizer_only", use_document_regularizer_only)
        if not only and loss.columns[1] == 1:
            expected = "expected use_document_regularizer_only=True: examples have no document beside the query"
            raise ValueError(f"loss is {type(loss).__name__} of one text, {expected}")
        self.columns = self.columns if only else (max(2, loss.columns[0]), loss.columns[1])
        weight = check_number("document_regularizer_weight", document_regularizer_weight)
        flops = FlopsLoss(threshold=document_regularizer_threshold)
        self.regularizers = [(slice(0 if only else 1, None), weight, flops)]
        flops = FlopsLoss(threshold=query_regularizer_threshold)
        if query_regularizer_weight is not None and not only:
            weight = check_number("query_regularizer_weight", query_regularizer_weight)
            self.regularizers.append((slice(1), weight, flops))

    def of_embeddings(self, embeddings: Array, labels: Array | None) -> tuple[Array, Array]:
        value, grad = self.inner.of_embeddings(embeddings, labels)
        grad = grad.copy()
        for columns, weight, flops in self.regularizers:
            weight *= self.regularizer_share
            more, part = flops.of_embeddings(embeddings[:, columns], None)
            value, grad[:, columns] = value + weight * more, grad[:, columns] + weight * part
        return value, grad


class CachedSpladeLoss(SpladeLoss):
    """`SpladeLoss` whose `mini_batch_size` is 32 by default."""

    mini_batch_size = 32


class CSRLoss(SparseObjective):
    """A loss of an autoencoder's codes, and of the vectors decoded from them (Wen et al. 2025, arXiv:2503.01776).

    Args:
        model: a `SparseEncoder` with an autoencoder behind mean or cls pooling.
        loss: by default `SparseMultipleNegativesRankingLoss()`.
        beta: the weight of the loss of unused entries.
        gamma: the weight of `loss`.
    """

    def __init__(self, model: Any, loss: EmbeddingObjective | None = None, beta: float = 0.1, gamma: float = 1.0):
        super().__init__(model, SparseMultipleNegativesRankingLoss() if loss is None else loss)
        if any(reader.settings.dense is None for reader in self._readers()):
            raise ValueError(f"model is {model!r}, expected one with an autoencoder")
        self.beta, self.gamma = check_number("beta", beta), check_number("gamma", gamma)

    def of_embeddings(self, embeddings: Array, labels: Array | None) -> tuple[Array, Array]:
        xp, hidden = kernels.array_module(embeddings), self.encoder.embedding_dimension
        width, columns = (embeddings.shape[2] - hidden) // PARTS, embeddings.shape[1]
        starts = [hidden + number * width for number in range(PARTS)]
        own, vectors, least, most, unused, plain = xp.split(embeddings, starts, axis=2)
        total, grad_own = self.inner.of_embeddings(own, labels)
        total, grads = self.gamma * total, [xp.zeros_like(vectors) for _ in range(PARTS)]
        for place, (made, weight) in enumerate(((least, 1.0), (most, 1 / 8)), 1):
            value, grad = squared_error(made, vectors)
            total, grads[place] = total + weight * value, weight * grad
            grads[0] = grads[0] - weight * grad
        for column in range(columns if self._readers()[0].head.k_aux else 0):
            left, made = vectors[:, column] - plain[:, column], unused[:, column]
            value, grad, of_left = _relative_error(made, left)
            total = total + self.beta * value / columns
            grads[3][:, column] = self.beta * grad / columns
            grads[0][:, column] += self.beta * of_left / columns
        return total, xp.concatenate([self.gamma * grad_own, *grads], axis=2)


def _relative_error(made: Array, wanted: Array) -> tuple[Array, Array, Array]:
    """Return the mean squared error of `made` over the variance of `wanted`, and the gradients of both."""
    error, grad = squared_error(made, wanted)
    away = wanted - wanted.mean(axis=0)
    variance = (away**2).mean()
    if variance == 0 or (wanted == wanted[:1]).all():
        return error, grad, -grad
    of_variance = 2 * away / away.size
    return error / variance, grad / variance, -grad / variance - error / variance**2 * of_variance
