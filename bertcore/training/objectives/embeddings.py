"""Sentence embeddings: losses over the vectors of several texts that belong together, by columns.

A batch is a model's with one more axis: input_ids are (examples, columns, length). Labels, if the objective has them,
are (examples,). The texts of all columns go through the model together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from bertcore import kernels
from bertcore.arguments import check_count, check_list, check_number, naming_nearest
from bertcore.gradients import Gradients, TrainedModel, vjp, with_loss
from bertcore.kernels import checks
from bertcore.kernels.arrays import Array
from bertcore.models.outputs import ModelOutput
from bertcore.nn.parameter import Block
from bertcore.tokenization.tokenizer import Tokenizer
from bertcore.training.objectives import similarity
from bertcore.training.objectives.objective import Batch, Objective
from bertcore.training.objectives.text_examples import ColumnCollator

if TYPE_CHECKING:  # a loss for a model alone needs no encoder
    from bertcore.tasks.sentence_encoder import SentenceEncoder
    from bertcore.tasks.sparse_encoder import SparseEncoder

    TextEncoder: TypeAlias = SentenceEncoder | SparseEncoder
else:
    TextEncoder = Any


class ChunkedObjective(Objective):
    """Base of objectives whose loss is a function of one array of the model's output, a row for each text.

    Subclasses define `prepared`; `field` is the output's array. With `mini_batch_size`, training passes that many texts
    through the model at once. All rows are computed first, then the gradient of the loss with respect to them, then the
    parameters' gradients chunk by chunk (Gao et al. 2021, arXiv:2101.06983, "GradCache"). This takes one more forward
    pass and the memory of one chunk; the gradients are the same.

    Attributes:
        encoder: the encoder that the loss was made for, or None.
        columns: the fewest and the most texts per example, in batches of columns; None for any number.
    """

    field = ""
    encoder: Any = None
    mini_batch_size: int | None = None
    columns: tuple[int, int | None] = (2, 2)
    has_labels: bool | None = False  # whether batches have labels; None if they may

    def __init__(self, encoder: Any = None, *, mini_batch_size: int | None = None, max_length: int | None = None):
        if encoder is not None and max_length is not None:
            raise TypeError("model and max_length are both given, expected model alone, whose length applies")
        self.encoder = encoder
        if mini_batch_size is not None:
            self.mini_batch_size = check_count("mini_batch_size", mini_batch_size)
        self._max_length = max_length

    @property
    def max_length(self) -> int | None:
        """The length that the collator cuts texts to, in tokens: the given one, or the encoder's."""
        return self._max_length if self.encoder is None else self.encoder.max_seq_length

    def prepared(self, batch: Batch) -> tuple[dict[str, Any], Callable[[Array], tuple[Array, Array]]]:
        """Return the model's batch, and the function from the rows of its output to the loss and their gradient."""
        raise NotImplementedError(f"{type(self).__name__} does not define its loss")

    def rows_of(self, out: ModelOutput, texts: Mapping[str, Any]) -> tuple[Array, Callable[[Array], Array]]:
        """Return the rows of an output, and the function from their gradient to the field's."""
        return getattr(out, self.field), lambda grad: grad

    def whole(self, model: TrainedModel | WithParts) -> Any:
        """Return the model with the blocks that its output needs beside it, as one model."""
        return model

    def weight(self, batch: Batch) -> float:
        return float(len(batch["input_ids"]))

    def loss(self, model: TrainedModel, batch: Batch) -> ModelOutput:
        model, (texts, of_rows) = self.whole(model), self.prepared(batch)

        def of_output(out: ModelOutput) -> tuple[Any, Mapping[str, Any]]:
            rows, spread = self.rows_of(out, texts)
            value, grad = of_rows(rows)
            return value, {self.field: spread(grad)}

        return with_loss(model(**texts), of_output)

    def value_and_grad(self, model: TrainedModel, batch: Batch) -> tuple[Any, Gradients]:
        whole = self.whole(model)
        if self.mini_batch_size is None:
            return super().value_and_grad(whole, batch)
        texts, of_rows = self.prepared(batch)
        if self.mini_batch_size >= len(texts["input_ids"]):
            return super().value_and_grad(whole, batch)
        size = self.mini_batch_size
        starts = range(0, len(texts["input_ids"]), size)
        chunks = [{name: array[start : start + size] for name, array in texts.items()} for start in starts]
        before = whole.passes
        rows = [self.rows_of(whole(**chunk), chunk)[0] for chunk in chunks]
        value, grad = of_rows(kernels.array_module(rows[0]).concatenate(rows))
        whole.passes = before  # the second pass repeats the first one's dropout
        total = Gradients()
        for start, chunk in zip(starts, chunks, strict=True):
            out, pullback = vjp(whole)(**chunk)
            _, spread = self.rows_of(out, chunk)
            total.accumulate(pullback({self.field: spread(grad[start : start + size])}))
        return type(out)(**{self.field: None}, loss=value), total  # the outputs of all texts are not kept

    def checked_columns(self, batch: Batch) -> tuple[tuple[int, int], Any]:
        """Return the numbers of examples and columns of a batch, and its labels or None."""
        shape, (fewest, most), labels = np.shape(batch["input_ids"]), self.columns, batch.get("labels")
        if len(shape) != 3 or not fewest <= shape[1] <= (most or shape[1]) or not shape[0]:
            count = f"at least {fewest}" if most is None else " to ".join(dict.fromkeys([str(fewest), str(most)]))
            expected = f"(examples, columns, length) with {count} columns for {type(self).__name__}"
            raise ValueError(f"input_ids has shape {shape}, expected {expected}")
        self.check_has_labels(labels)
        return shape[:2], labels

    def check_has_labels(self, labels: object) -> None:
        """Raise ValueError for a batch without the labels that the loss needs, or with others."""
        if self.has_labels not in (None, labels is not None):
            state, wanted = ("no labels", "some") if self.has_labels else ("labels", "none")
            raise ValueError(f"batch has {state}, expected {wanted} for {type(self).__name__}")


class WithTemperatures(ChunkedObjective):
    """Base of objectives that compare the distribution of scores with a teacher's, each with a temperature."""

    def __init__(
        self,
        model: Any = None,
        temperature: float = 1.0,
        student_temperature: float | None = None,
        teacher_temperature: float | None = None,
        **more: Any,
    ):
        super().__init__(model, **more)
        own = check_number("temperature", temperature, above_zero=True)
        given = {"student_temperature": student_temperature, "teacher_temperature": teacher_temperature}
        self.temperatures = tuple(
            own if each is None else check_number(name, each, above_zero=True) for name, each in given.items()
        )

    def of_scores(self, scores: Array, labels: Array) -> tuple[Array, Array]:
        """Return the loss and the gradient of the scores, (examples, documents); labels are the teacher's scores."""
        checks.shape(scores.shape, labels=labels)
        student, teacher = self.temperatures
        value, grad = similarity.divergence_of_scores(scores / student, labels / teacher)
        return value * student**2 / len(scores), grad * student / len(scores)


class WithParts(Block):
    """An encoder with the blocks beside it, as one model."""

    def __init__(self, model: Any, beside: list[Block]):
        self.model, self.beside = model, beside

    @property
    def passes(self) -> int:
        return self.model.passes

    @passes.setter
    def passes(self, count: int) -> None:
        self.model.passes = count


class EmbeddingObjective(ChunkedObjective):
    """Base of objectives of sentence encoders; subclasses define their loss in `of_embeddings`.

    Subclasses take these arguments beside their own.

    Args:
        model: the `SentenceEncoder` that is trained, with mean or cls pooling and perhaps a Normalize after it; or None
            for a model alone, to which the next arguments apply.
        pooling: "mean" of a text's last hidden states (default), or "cls", the first of them.
        max_length: where the collator cuts texts, in tokens; see `ColumnCollator`.
        mini_batch_size: the number of texts that pass through the model at once in training; all by default.
    """

    model_class = "AutoModel"
    field = "last_hidden_state"
    label_axes = 1  # the most axes of labels
    labels_are_vectors = False  # of texts; of them MatryoshkaLoss compares prefixes, too

    @naming_nearest()
    def __init__(
        self,
        model: TextEncoder | None = None,
        *,
        pooling: str | None = None,
        max_length: int | None = None,
        mini_batch_size: int | None = None,
    ):
        if model is not None and pooling is not None:
            raise TypeError("model and pooling are both given, expected model alone, whose pooling applies")
        settings = getattr(model, "settings", None)
        if model is not None and (not hasattr(model, "encode") or isinstance(model, str)):
            raise TypeError(f"model is {type(model).__name__}, expected a SentenceEncoder")
        super().__init__(model, mini_batch_size=mini_batch_size, max_length=max_length)
        self.normalize = getattr(settings, "normalize", False)
        if hasattr(settings, "pooling"):
            is_plain = settings.pooling in (("mean",), ("cls",)) and not settings.maps and settings.include_prompt
            if not is_plain or settings.is_static or self.encoder.routes is not None:
                expected = "only Transformer, Pooling (mean or cls, of prompts, too) and Normalize"
                found = ", ".join(settings.pooling or ["none"])
                raise ValueError(f"model is {model!r} with pooling {found}, expected {expected}")
            pooling = settings.pooling[0]
        self.pooling = pooling or "mean"
        checks.choice("pooling", self.pooling, POOLING)

    def of_embeddings(self, embeddings: Array, labels: Array | None) -> tuple[Array, Array]:
        """Return the loss and its gradient with respect to the embeddings, (examples, columns, dim), in float64."""
        raise NotImplementedError(f"{type(self).__name__} does not define its loss")

    def collator(self, tokenizer: Tokenizer, *, seed: int = 0) -> ColumnCollator:
        return ColumnCollator(tokenizer, self.max_length, self.encoder)

    def prepared(self, batch: Batch) -> tuple[dict[str, Any], Callable[[Array], tuple[Array, Array]]]:
        texts, shape, labels = self.checked(batch)

        def of_rows(vectors: Array) -> tuple[Array, Array]:
            xp = kernels.array_module(vectors)
            wide = vectors.astype("float64").reshape(*shape, -1)
            value, grad = self.of_embeddings(wide, None if labels is None else xp.asarray(labels))
            return xp.asarray(value, vectors.dtype), grad.reshape(vectors.shape).astype(vectors.dtype)

        return texts, of_rows

    def rows_of(self, out: Any, texts: Mapping[str, Any]) -> tuple[Array, Callable[[Array], Array]]:
        return self.vectors(out.last_hidden_state, texts.get("attention_mask"))

    def vectors(self, hidden: Array, mask: Array | None) -> tuple[Array, Callable[[Array], Array]]:
        """Return the embeddings of hidden states, (texts, dim), and the function from their gradient to the states'."""
        found, spread = pooled(hidden, mask, self.pooling)
        if not self.normalize:
            return found, spread
        unit, pullback = similarity.normalized(found)
        return unit, lambda grad: spread(pullback(grad))

    def checked(self, batch: Batch) -> tuple[dict[str, Any], tuple[int, int], Any]:
        """Return the model's batch, (examples * columns, ...); the numbers of both; the labels or None."""
        shape, labels = self.checked_columns(batch)
        flat = {name: _flat(name, array, shape) for name, array in batch.items() if name != "labels"}
        return flat, shape, None if labels is None else checked_labels(labels, shape[0], self.label_axes)


SIMILARITIES = {"cos_sim": similarity.all_cosines, "dot_score": similarity.all_products}


class MultipleNegativesRankingLoss(EmbeddingObjective):
    """Each first text ranks its own second text above all others of the batch, by cosine.

    The loss is the mean cross entropy of softmax(scale * cosine) over all texts of the other columns; those from the
    third column on are negatives of every example (Henderson et al. 2017, arXiv:1705.00652, section 4.4; van den Oord
    et al. 2018, arXiv:1807.03748).

    Args:
        model: as for `EmbeddingObjective`.
        scale: the factor on similarities: 1 / temperature.
        similarity_fct: `util.cos_sim` or `util.dot_score`, or its name.
        more: as for `EmbeddingObjective`.
    """

    columns = (2, None)
    is_symmetric = False

    def __init__(
        self, model: TextEncoder | None = None, scale: float = 20.0, similarity_fct: Any = "cos_sim", **more: Any
    ):
        super().__init__(model, **more)
        self.scale = check_number("scale", scale, above_zero=True)
        name = getattr(similarity_fct, "__name__", similarity_fct)
        checks.choice("similarity_fct", name, SIMILARITIES)
        self.similarities = SIMILARITIES[name]

    def of_embeddings(self, embeddings: Array, labels: Array | None) -> tuple[Array, Array]:
        count, _, dim = embeddings.shape
        candidates = embeddings[:, 1:].transpose(1, 0, 2).reshape(-1, dim)
        scores, pullback = self.similarities(embeddings[:, 0], candidates)
        value, grad = similarity.ranking_loss(self.scale * scores)
        if self.is_symmetric:
            back, grad_back = similarity.ranking_loss(self.scale * scores[:, :count].T)
            value, grad = (value + back) / 2, grad / 2
            grad[:, :count] += grad_back.T / 2
        of_anchors, of_candidates = pullback(self.scale * grad)
        of_candidates = of_candidates.reshape(-1, count, dim).transpose(1, 0, 2)
        return value, kernels.array_module(grad).concatenate([of_anchors[:, None], of_candidates], axis=1)


class CachedMultipleNegativesRankingLoss(MultipleNegativesRankingLoss):
    """`MultipleNegativesRankingLoss` whose `mini_batch_size` is 32 by default."""

    mini_batch_size = 32


class MultipleNegativesSymmetricRankingLoss(MultipleNegativesRankingLoss):
    """The mean of `MultipleNegativesRankingLoss` and of the same loss with first and second texts exchanged."""

    is_symmetric = True


class CachedMultipleNegativesSymmetricRankingLoss(MultipleNegativesSymmetricRankingLoss):
    """`MultipleNegativesSymmetricRankingLoss` whose `mini_batch_size` is 32 by default."""

    mini_batch_size = 32


class MarginMSELoss(EmbeddingObjective):
    """The difference of two similarities approaches a teacher's: the mean squared error of dot products.

    The similarities are those of the first text with the second and with the third (Hofstätter et al. 2020,
    arXiv:2010.02666). Labels are the differences, (examples,), or (examples, negatives) with several negatives; or all
    similarities, (examples, 1 + negatives), the second text's first.
    """

    columns = (3, None)
    has_labels = True
    label_axes = 2

    def of_embeddings(self, embeddings: Array, labels: Array | None) -> tuple[Array, Array]:
        scores, pullback = similarity.first_with_others(embeddings)
        value, grad = similarity.margin_error(scores, labels)
        return value, pullback(grad)


class WrappingObjective(EmbeddingObjective):
    """Base of objectives that compute another one, `inner`, over parts of vectors; its options apply."""

    def __init__(self, model: TextEncoder | None, loss: EmbeddingObjective):
        check_inner(loss, model)
        self.inner, self.encoder = loss, model
        self.pooling, self.normalize, self.columns = loss.pooling, loss.normalize, loss.columns
        self.mini_batch_size = loss.mini_batch_size
        self.has_labels, self.label_axes = loss.has_labels, loss.label_axes

    def collator(self, tokenizer: Tokenizer, *, seed: int = 0) -> ColumnCollator:
        return self.inner.collator(tokenizer, seed=seed)


class MatryoshkaLoss(WrappingObjective):
    """The sum of another objective's losses over prefixes of each vector, so that vectors can be cut.

    Source: Kusupati et al. 2022, arXiv:2205.13147. Cut vectors are scaled to length 1, and compared with as
    long prefixes of labels that are vectors (`MSELoss`).

    Args:
        model: the encoder of `loss`, or None.
        loss: an `EmbeddingObjective`, such as `MultipleNegativesRankingLoss(model)`.
        matryoshka_dims: the lengths of the prefixes, at most the model's hidden size.
        matryoshka_weights: of the losses; 1 each by default.
    """

    @naming_nearest()
    def __init__(
        self,
        model: TextEncoder | None,
        loss: EmbeddingObjective,
        matryoshka_dims: Sequence[int],
        matryoshka_weights: Sequence[float] | None = None,
    ):
        super().__init__(model, loss)
        name, dims = "matryoshka_dims", check_list("matryoshka_dims", matryoshka_dims, "numbers")
        dims = [check_count(f"{name}[{index}]", dim) for index, dim in enumerate(dims)]
        name, weights = "matryoshka_weights", [1.0] * len(dims)
        weights = weights if matryoshka_weights is None else check_list(name, matryoshka_weights, "numbers")
        weights = [check_number(f"{name}[{index}]", weight) for index, weight in enumerate(weights)]
        if not dims or len(weights) != len(dims):
            found = f"matryoshka_dims has {len(dims)} and {name} {len(weights)} entries"
            raise ValueError(f"{found}, expected equal numbers above 0")
        self.dims, self.weights = tuple(dims), tuple(weights)

    def of_embeddings(self, embeddings: Array, labels: Array | None) -> tuple[Array, Array]:
        total, grads = 0.0, kernels.array_module(embeddings).zeros_like(embeddings)
        for dim, weight in zip(self.dims, self.weights, strict=True):
            if dim > embeddings.shape[2]:
                expected = f"expected 1 to {embeddings.shape[2]}, the length of a vector"
                raise ValueError(f"matryoshka_dims has {dim}, {expected}")
            cut, pullback = similarity.normalized(embeddings[:, :, :dim])
            is_cut = self.inner.labels_are_vectors and labels.shape[-1] == embeddings.shape[2]
            value, grad = self.inner.of_embeddings(cut, labels[..., :dim] if is_cut else labels)
            total = total + weight * value
            grads[:, :, :dim] += weight * pullback(grad)
        return total, grads


def check_inner(loss: object, model: TextEncoder | None, *others: object) -> None:
    """Raise TypeError unless `loss` is a function of embeddings, ValueError unless it is of `model` or of `others`."""
    if not isinstance(loss, EmbeddingObjective) or type(loss).of_embeddings is EmbeddingObjective.of_embeddings:
        raise TypeError(f"loss is {loss!r:.60}, expected a loss of embeddings alone, such as CoSENTLoss(model)")
    if not any(loss.encoder is each for each in (model, *others)):
        raise ValueError(f"model is {model!r}, expected the model of loss, {loss.encoder!r}")


def _flat(name: str, array: Array, shape: tuple[int, int]) -> Array:
    """Reshape (examples, columns, ...) to (examples * columns, ...)."""
    array = np.asarray(array) if kernels.array_module(array) is np else array
    if array.shape[:2] != shape:
        raise ValueError(f"{name} has shape {array.shape}, expected the first axes of input_ids, {shape}")
    return array.reshape(-1, *array.shape[2:])


def checked_labels(labels: Array, count: int, most_axes: int = 2) -> Array:
    """Return labels of `count` examples in float64; a second axis of length 1 is dropped."""
    array = np.asarray(labels) if kernels.array_module(labels) is np else labels
    if array.dtype.kind not in "biuf":
        raise TypeError(f"labels holds {array.dtype}, expected numbers")
    array = array[:, 0] if array.shape[1:2] == (1,) else array
    if array.shape[:1] != (count,) or array.ndim > most_axes:
        raise ValueError(f"labels has shape {array.shape}, expected ({count},): one for each example")
    array = array.astype("float64")
    if not np.isfinite(array).all():
        raise ValueError("labels holds inf or NaN, expected finite numbers")
    return array


POOLING = ("mean", "cls")


def pooled(hidden: Array, mask: Array | None, mode: str) -> tuple[Array, Callable[[Array], Array]]:
    """Return a vector for each text, and the function from its gradient to the hidden states' gradient.

    Args:
        hidden: (texts, length, features), zeros at padding.
        mask: 1 for real tokens, (texts, length); None if all are.
        mode: "mean" of the real tokens, or "cls", the first of them; as bertcore.tasks.sentence_encoder pools.

    Returns:
        (texts, features), zeros for a text without tokens; and a function that takes and returns arrays of these
        shapes.
    """
    xp = kernels.array_module(hidden)
    is_real = xp.ones(hidden.shape[:2], bool) if mask is None else xp.asarray(mask) != 0
    if mode == "cls":
        rows, has_tokens = xp.arange(len(hidden)), is_real.any(axis=1)[:, None].astype(hidden.dtype)
        first = is_real.argmax(axis=1)

        def spread(grad):
            whole = xp.zeros(hidden.shape, grad.dtype)
            whole[rows, first] = grad * has_tokens
            return whole

        return hidden[rows, first] * has_tokens, spread
    counts = xp.maximum(is_real.sum(axis=1), 1).astype(hidden.dtype)[:, None]
    real = is_real[:, :, None].astype(hidden.dtype)
    return hidden.sum(axis=1) / counts, lambda grad: real * (grad / counts)[:, None]
