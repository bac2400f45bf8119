"""Late interaction: losses over scores between the token vectors of queries and of documents.

A batch has one more axis than a model's: input_ids, attention_mask (tokens that others attend to) and scoring_mask
(tokens with a vector) are (examples, columns, length), the query first. Labels are there if the objective has them.
Names, arguments and values follow sentence-transformers' losses of multi-vector encoders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.arguments import check_number, naming_nearest
from bertcore.gradients import TrainedModel
from bertcore.kernels import checks
from bertcore.kernels.arrays import Array, NativeArray
from bertcore.models.outputs import ModelOutput
from bertcore.nn.packing import PackedBatch
from bertcore.nn.parameter import Parameter
from bertcore.passes import Pass
from bertcore.tokenization.tokenizer import Tokenizer
from bertcore.training.objectives.embeddings import ChunkedObjective, WithParts, WithTemperatures, checked_labels
from bertcore.training.objectives.objective import Batch
from bertcore.training.objectives.similarity import margin_error, ranking_loss
from bertcore.training.objectives.text_examples import EncoderCollator

MASKS = ("attention_mask", "scoring_mask")
EMPTY_DOCUMENT = -1e9  # the score of a document without vectors, as in sentence-transformers


@dataclass(eq=False, kw_only=True)
class TokenVectors(ModelOutput):
    """The output of an encoder and its head: vectors (texts, length, dim), zero where a token has none."""

    token_embeddings: Any = None


class WithHead(WithParts):
    """An encoder with its head, as one model."""

    def __call__(self, input_ids: NativeArray, attention_mask: NativeArray, scoring_mask: NativeArray) -> TokenVectors:
        """Return the vectors of texts; all arguments are (texts, length)."""
        seen, scored = (kernels.to_host(mask) != 0 for mask in (attention_mask, scoring_mask))
        stays, ids = seen | scored, kernels.to_host(input_ids)
        rows, shown = ([array[kept] for array, kept in zip(each, stays, strict=True)] for each in (ids, seen))
        with kernels.on_device_of(input_ids):
            hidden, _ = self.model.packed_states(rows, None if (seen == stays).all() else shown)
            run = Pass.begin(input_ids)
            vectors = PackedBatch(stays, scored, keeps_padding=True).pad(run, self.beside[0](run, hidden))
        return TokenVectors(token_embeddings=vectors)


class LateCollator(EncoderCollator):
    """Batches of queries and documents with the masks of late interaction."""

    def token_rows(self, texts: list[str], task: str, prompt: str) -> Iterable[tuple[Any, bool]]:
        return self.encoder.token_rows(texts, prompt, task)

    def arrays(self, rows: list[Any], columns: int) -> Mapping[str, np.ndarray]:
        batch = {name: np.zeros((len(rows), max(map(len, rows))), np.int64) for name in ("input_ids", *MASKS)}
        for place, row in enumerate(rows):
            for name, values in zip(batch, (row.ids, row.seen, row.scored), strict=True):
                batch[name][place, : len(row)] = values
        return batch


class MultiVectorObjective(ChunkedObjective):
    """Base of objectives of late interaction; subclasses define their loss in `of_scores`.

    The trainer trains `encoder.model` with the encoder's head; save both with `encoder.save_pretrained`.

    Args:
        model: a `MultiVectorEncoder`.
        similarity_fn_name: "maxsim", or "meanmaxsim", its mean over query vectors; by default the encoder's.
        mini_batch_size: the number of texts that pass through the model at once in training; all by default.
    """

    model_class = "AutoModel"
    field = "token_embeddings"
    targets = ("labels", "scoring_mask")
    columns = (2, None)
    has_labels: bool | None = True
    in_batch = False  # whether a query is scored with the documents of the other examples, too

    @naming_nearest()
    def __init__(self, model: Any, *, similarity_fn_name: str | None = None, mini_batch_size: int | None = None):
        super().__init__(model, mini_batch_size=mini_batch_size)
        if not hasattr(model, "head"):
            raise TypeError(f"model is {type(model).__name__}, expected a MultiVectorEncoder")
        name = model.similarity_fn_name if similarity_fn_name is None else similarity_fn_name
        checks.choice("similarity_fn_name", name, ("maxsim", "meanmaxsim"))
        self.is_mean = name == "meanmaxsim"

    def of_scores(self, scores: Array, labels: Array) -> tuple[Array, Array]:
        """Return the loss and the gradient of the scores, (examples, documents), in float64."""
        raise NotImplementedError(f"{type(self).__name__} does not define its loss")

    def parameters(self, model: TrainedModel) -> list[Parameter]:
        return list(self.encoder.head.parameters())

    def collator(self, tokenizer: Tokenizer, *, seed: int = 0) -> LateCollator:
        return LateCollator(self.encoder)

    def whole(self, model: TrainedModel | WithParts) -> WithHead:
        return model if isinstance(model, WithHead) else WithHead(model, [self.encoder.head])

    def prepared(self, batch: Batch) -> tuple[dict[str, Any], Callable[[Array], tuple[Array, Array]]]:
        (examples, columns), labels = self.checked_columns(batch)
        shape = np.shape(batch["input_ids"])
        checks.shape(shape, **{name: np.asarray(batch.get(name, ())) for name in MASKS})
        flat = {name: batch[name].reshape(-1, shape[2]) for name in ("input_ids", *MASKS)}
        checked = None if labels is None else checked_labels(labels, examples)
        places = np.arange(examples * columns).reshape(examples, columns)
        groups = [(places[:, 0], places[:, 1:].T.ravel())] if self.in_batch else [(row[:1], row[1:]) for row in places]
        scored = kernels.to_host(flat["scoring_mask"]) != 0
        return flat, lambda vectors: self._of_vectors(vectors, scored, groups, checked)

    def _of_vectors(self, vectors: Array, scored: np.ndarray, groups: list, labels: Array) -> tuple[Array, Array]:
        """Return the loss and the gradient of vectors, (texts, length, dim); a group has queries and documents."""
        xp, flat, kept = kernels.array_module(vectors), vectors.reshape(-1, vectors.shape[2]), []
        tokens, counts = np.arange(scored.size).reshape(scored.shape), scored.sum(axis=1)
        for group in groups:
            where = [xp.asarray(tokens[texts][scored[texts]]) for texts in group]
            ends = [xp.asarray(np.cumsum([0, *counts[texts]]), np.int32) for texts in group]
            found, saved = kernels.maxsim(flat[where[0]], flat[where[1]], ends[1], cu_seqlens_q=ends[0], save=True)
            kept.append((where, found, saved))
        queries, documents = (np.concatenate([group[side] for group in groups]) for side in (0, 1))
        divisors = xp.asarray(np.maximum(counts[queries], 1) if self.is_mean else np.ones(len(queries)))[:, None]
        scores = xp.concatenate([found for _, found, _ in kept]).astype("float64") / divisors
        is_empty = (counts[documents] == 0).reshape(-1, scores.shape[1])  # with in_batch, one row is for all queries
        scores = xp.where(xp.asarray(is_empty), EMPTY_DOCUMENT, scores)
        value, grad = self.of_scores(scores, None if labels is None else xp.asarray(labels))
        grad, total = (grad / divisors).astype(vectors.dtype), xp.zeros_like(flat)
        parts = xp.split(grad, len(groups))
        for (where, _, saved), part in zip(kept, parts, strict=True):
            total[where[0]], total[where[1]] = kernels.maxsim_backward(xp.ascontiguousarray(part), saved)
        return xp.asarray(value, vectors.dtype), total.reshape(vectors.shape)


class MultiVectorMultipleNegativesRankingLoss(MultiVectorObjective):
    """Each query ranks its own document, the second text, above all other documents of the batch.

    The loss is the mean cross entropy of softmax(scale * score); texts from the third column on are negatives of every
    example (Henderson et al. 2017, arXiv:1705.00652, section 4.4).

    Args:
        model: a `MultiVectorEncoder`.
        scale: the factor on scores: 1 / temperature.
    """

    has_labels = False
    in_batch = True

    def __init__(self, model: Any, scale: float = 1.0, **more: Any):
        super().__init__(model, **more)
        self.scale = check_number("scale", scale, above_zero=True)

    def of_scores(self, scores: Array, labels: Array) -> tuple[Array, Array]:
        value, grad = ranking_loss(self.scale * scores)
        return value, self.scale * grad


class CachedMultiVectorMultipleNegativesRankingLoss(MultiVectorMultipleNegativesRankingLoss):
    """`MultiVectorMultipleNegativesRankingLoss` whose `mini_batch_size` is 32 by default."""

    mini_batch_size = 32


class MultiVectorMarginMSELoss(MultiVectorObjective):
    """The difference of two scores of a query approaches a teacher's: the mean squared error.

    Labels are the differences of the second text's score and each later one's, (examples, negatives), or all scores,
    (examples, 1 + negatives) (Hofstätter et al. 2020, arXiv:2010.02666).
    """

    columns = (3, None)

    def of_scores(self, scores: Array, labels: Array) -> tuple[Array, Array]:
        return margin_error(scores, labels)


class MultiVectorDistillKLDivLoss(WithTemperatures, MultiVectorObjective):
    """The distribution of a query's scores approaches a teacher's: the Kullback-Leibler divergence (ColBERTv2).

    The loss is student_temperature^2 times the mean over queries of KL(softmax(labels / teacher_temperature) ||
    softmax(scores / student_temperature)); labels are (examples, documents) (Santhanam et al. 2022, arXiv:2112.01488).

    Args:
        model: a `MultiVectorEncoder`.
        temperature: of both distributions.
        student_temperature, teacher_temperature: of one distribution; by default `temperature`.
        normalize_scores: scale each query's scores, not the teacher's, to the range from 0 to 1 first, as PyLate does.
    """

    columns = (3, None)

    def __init__(self, model: Any, *more: Any, normalize_scores: bool = False, **options: Any):
        super().__init__(model, *more, **options)
        self.normalize_scores = checks.boolean("normalize_scores", normalize_scores)

    def of_scores(self, scores: Array, labels: Array) -> tuple[Array, Array]:
        if not self.normalize_scores:
            return super().of_scores(scores, labels)
        rows = kernels.array_module(scores).arange(len(scores))
        least, greatest = scores.argmin(axis=1), scores.argmax(axis=1)
        lowest = scores[rows, least][:, None]
        size = scores[rows, greatest][:, None] - lowest + 1e-8  # equal scores become 0
        scaled = (scores - lowest) / size
        value, grad = super().of_scores(scaled, labels)
        grad = grad / size
        total, along = grad.sum(axis=1), (grad * scaled).sum(axis=1)
        grad[rows, greatest] -= along
        grad[rows, least] += along - total
        return value, grad
