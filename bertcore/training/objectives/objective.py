"""The base of objectives, sums of objectives, and supervised and custom losses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from types import SimpleNamespace
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.arguments import Described, check_numbers, check_share, check_strings
from bertcore.gradients import Gradients, HasParameters, TrainedModel, differentiate, with_loss
from bertcore.models.outputs import ModelOutput
from bertcore.nn import functional
from bertcore.nn.parameter import Parameter
from bertcore.passes import ClassOptions, Pass, kept_losses, use_class_options, use_loss_factors
from bertcore.tokenization.tokenizer import Tokenizer
from bertcore.training.collators import IGNORED
from bertcore.training.objectives.text_examples import Documents

Batch = Mapping[str, Any]
Examples = Iterator[dict[str, Any]]
Collator = Callable[..., dict[str, Any]]


class Objective(Described):
    """Base of objectives: a loss of a model's outputs, and the number of labels that it is a mean over.

    A subclass defines its loss in `loss`, from operations with gradients (bertcore.nn.functional) or in NumPy with
    gradients of its own (bertcore.value_and_grad), and its data in `examples` and `collator`.

    Attributes:
        model_class: the name in `bertcore` of the class with the required head; None for any class with a loss.
        targets: the names of batch entries that are for the loss and not for the model.
        teacher: a model that the loss compares with, and that a resumed run must keep; or None.
        pairing: the objective of segment pairs that this one is or includes; or None.
        source: the objective that provides examples, collator and weight instead of this one; or None.
    """

    model_class: str | None = None
    targets: Sequence[str] = ()
    teacher: Any = None
    pairing: Objective | None = None
    source: Objective | None = None

    @property
    def kind(self) -> str:
        """The name of the class, which a resumed run must keep."""
        return type(self).__name__

    def examples(self, documents: Documents, tokenizer: Tokenizer, *, max_length: int, seed: int = 0) -> Examples:
        """Yield examples made from raw texts: mappings of input_ids and other inputs.

        Args:
            documents: iterables of sentences (or lines), one per document.
            tokenizer: the tokenizer of the texts.
            max_length: the maximum number of tokens of an example, including special tokens.
            seed: the seed of random choices.
        """
        if self.source is None:
            raise NotImplementedError(f"{type(self).__name__} learns from labelled examples, not from raw texts")
        return self.source.examples(documents, tokenizer, max_length=max_length, seed=seed)

    def collator(self, tokenizer: Tokenizer, *, seed: int = 0) -> Collator | None:
        """Return the collator of the examples; None if the caller chooses it."""
        return None if self.source is None else self.source.collator(tokenizer, seed=seed)

    def loss(self, model: TrainedModel, batch: Batch) -> ModelOutput:
        """Return the model's output with the loss of one batch, a 0-d array (under a tape a Variable)."""
        raise NotImplementedError(f"{type(self).__name__} does not define its loss")

    def forward(self, model: TrainedModel, batch: Batch) -> ModelOutput:
        """Return the model's output with the loss, without gradients. Dropout follows the model's mode."""
        return self.loss(model, batch)

    def value_and_grad(self, model: TrainedModel, batch: Batch) -> tuple[Any, Gradients]:
        """Return the model's output with the loss, and its gradients; see `bertcore.value_and_grad`."""
        return differentiate(self.trained(model), lambda: self.loss(model, batch))

    def parameters(self, model: TrainedModel) -> Sequence[Parameter]:
        """Return the parameters trained beside the model's own and kept only in checkpoints of a run; none by default.

        Every call for the same model returns the same parameters.
        """
        return ()

    def trained(self, model: TrainedModel) -> HasParameters:
        """Return the parameters of the model, then those trained beside it, for an optimiser."""
        beside = self.parameters(model)
        return SimpleNamespace(parameters=lambda: chain(model.parameters(), beside))

    def weight(self, batch: Batch) -> float:
        """Return the number of labels (tokens, sequences, pairs) that a batch's loss is a mean over: its weight."""
        if self.source is None:
            raise NotImplementedError(f"{type(self).__name__} does not define its weight")
        return self.source.weight(batch)

    def counts(self, model: TrainedModel, batch: Batch) -> tuple[float, ...]:
        """Return the number of labels that each summand of the loss is a mean over; by default only `weight`."""
        return (self.weight(batch),)

    def evaluated(self, model: TrainedModel, batch: Batch) -> tuple[Any, list[tuple[Any, float]]]:
        """Return the model's output and a list of (summand of the loss, count), empty without a loss."""
        with kept_losses() as losses:
            out = self.forward(model, batch)
        if getattr(out, "loss", None) is None:
            return out, []
        counts = self.counts(model, batch)
        if len(losses) == len(counts) > 1:
            return out, list(zip(losses, counts, strict=True))
        return out, [(out.loss, self.weight(batch))]

    def in_step(self, model: TrainedModel, batch: Batch, shares: Sequence[float]) -> tuple[Any, Gradients]:
        """Return one batch's part of a step's loss, a float64 0-d array, and its gradients.

        Each summand is multiplied by this batch's share of the summand's count in all batches of the step. Their sum
        over the batches is the mean over all labels, as for one large batch. A summand with share 0 is left out.
        """
        base = next(filter(None, shares))
        with use_loss_factors(tuple(share / base for share in shares) if set(shares) != {base} else ()):
            out, grads = self.value_and_grad(model, batch)
        for array in grads.values() if base != 1 else ():
            array *= array.dtype.type(base)
        xp = kernels.array_module(next(iter(grads.values())))
        return base * xp.asarray(out.loss, np.float64), grads

    def in_backward(self, model: TrainedModel, batch: Batch, take: Callable[[Parameter, Any], None]) -> np.ndarray:
        """Return the loss of the only batch of a step, a float64 0-d array; `take` is as in `differentiate`."""
        shares = tuple(float(count > 0) for count in self.counts(model, batch))
        with use_loss_factors(shares if 0.0 in shares else ()):
            out, _ = differentiate(self.trained(model), lambda: self.loss(model, batch), take)
        return np.asarray(out.loss, np.float64)

    @property
    def is_one_pass(self) -> bool:
        """True if `loss` is differentiated as a whole, so that `in_backward` gives the gradients of `in_step`."""
        methods = (type(self).value_and_grad, Objective.value_and_grad), (type(self).in_step, Objective.in_step)
        return all(own is base for own, base in methods)

    def __add__(self, other: Objective) -> Objective:
        return other.added_to(self) if isinstance(other, Objective) else NotImplemented

    def added_to(self, first: Objective) -> Objective:
        return Sum(first, self)


class Sum(Objective):
    """The sum of two losses of one batch, with a pass for each. Examples, collator and weight are the first's.

    If a step has several batches, each loss is weighted by its own counts.

    An objective for any model, such as `CustomLoss`, combines with every other; put it second. Neither receives targets
    that only the other one uses, unless the model takes them.

    Raises ValueError for objectives that need different models, and for two that learn from pairs of segments: each
    makes its own examples, and no family has the heads of both.
    """

    def __init__(self, first: Objective, second: Objective):
        if first.pairing is not None and second.pairing is not None:
            names = " and ".join(type(each.pairing).__name__ for each in (first, second))
            problem = "make pairs of segments in different ways, and no model has the heads of both: add one of them"
            raise ValueError(f"{names} {problem}")
        if first.model_class != second.model_class and None not in (first.model_class, second.model_class):
            needs = " and ".join(f"{type(each).__name__} needs {each.model_class}" for each in (first, second))
            raise ValueError(f"{needs}: there is no model for their sum")
        self.first, self.second, self.model_class = first, second, first.model_class or second.model_class
        self.source = first
        self.targets = (*first.targets, *second.targets)
        self.teacher, self.pairing = first.teacher or second.teacher, first.pairing or second.pairing

    def parameters(self, model: TrainedModel) -> Sequence[Parameter]:
        return (*self.first.parameters(model), *self.second.parameters(model))

    def loss(self, model: TrainedModel, batch: Batch) -> ModelOutput:
        out, other = (each.loss(model, part) for each, part in self._parts(model, batch))
        out.loss = functional.add(Pass.begin(batch["input_ids"]), out.loss, other.loss)
        return out

    def value_and_grad(self, model: TrainedModel, batch: Batch) -> tuple[Any, Gradients]:
        """Differentiate each summand in its own way (in chunks, say)."""
        parts = self._parts(model, batch)
        (out, grads), (other, more) = (each.value_and_grad(model, part) for each, part in parts)
        out.loss = out.loss + other.loss
        grads.accumulate(more)
        return out, grads

    def counts(self, model: TrainedModel, batch: Batch) -> tuple[float, ...]:
        """Return the counts of both; for a summand that does not define its count, the weight of the sum."""
        return tuple(count for _, _, counts in self._counted(model, batch) for count in counts)

    def evaluated(self, model: TrainedModel, batch: Batch) -> tuple[Any, list[tuple[Any, float]]]:
        parts = self._parts(model, batch)
        (out, losses), (other, more) = (self._evaluated(each, model, part, batch) for each, part in parts)
        if losses and more:
            out.loss = out.loss + other.loss
        return out, losses + more

    def _evaluated(self, each: Objective, model: Any, part: Batch, batch: Batch) -> tuple[Any, list[tuple[Any, float]]]:
        try:
            return each.evaluated(model, part)
        except NotImplementedError:  # it does not define its count
            out = each.forward(model, part)
            return out, [(out.loss, self.weight(batch))]

    def _counted(self, model: TrainedModel, batch: Batch) -> Iterator[tuple[Objective, Batch, tuple[float, ...]]]:
        for each, part in self._parts(model, batch):
            try:
                yield each, part, each.counts(model, part)
            except NotImplementedError:
                yield each, part, (self.weight(batch),)

    def in_step(self, model: TrainedModel, batch: Batch, shares: Sequence[float]) -> tuple[Any, Gradients]:
        """Differentiate each summand in its own way; one without labels in this batch is left out."""
        loss, grads, left = 0.0, Gradients(), list(shares)
        for each, part, counts in self._counted(model, batch):
            own, left = left[: len(counts)], left[len(counts) :]
            if any(own):
                value, some = each.in_step(model, part, own)
                loss = loss + value
                grads.accumulate(some)
        return loss, grads

    def _parts(self, model: TrainedModel, batch: Batch) -> Iterator[tuple[Objective, Batch]]:
        """Yield each summand, and the batch without the targets of the other."""
        for each in (self.first, self.second):
            others = {*self.targets} - {*each.targets, *model.arguments}
            yield each, {name: value for name, value in batch.items() if name not in others}


class CustomLoss(Objective):
    """A custom loss over a model's outputs, treated as a mean over the examples of a batch.

    Args:
        loss: `loss(out, **targets)` returns the loss and its gradients, as for `bertcore.value_and_grad`.
        targets: the names of batch entries that are for the loss and not for the model.
        outputs: additional arguments of the model: output_hidden_states=True, ...
    """

    def __init__(self, loss: Callable[..., Any], targets: Sequence[str] = (), **outputs: Any):
        self._loss, self.targets, self._outputs = loss, tuple(check_strings("targets", targets)), outputs

    def loss(self, model: TrainedModel, batch: Batch) -> ModelOutput:
        targets = {name: batch[name] for name in self.targets}
        rest = {name: value for name, value in batch.items() if name not in self.targets}
        return with_loss(model(**rest, **self._outputs), lambda out: self._loss(out, **targets))

    def weight(self, batch: Batch) -> float:
        return float(len(batch["input_ids"]))


class OwnLoss(Objective):
    """An objective whose loss is `compute_loss(model, batch, return_outputs=True)`: (loss, output) under a tape."""

    def __init__(self, compute_loss: Callable[..., tuple[Any, Any]], source: Objective):
        self._compute, self.source = compute_loss, source
        self.model_class, self.targets, self.teacher = source.model_class, source.targets, source.teacher
        self.pairing = source.pairing

    def parameters(self, model: TrainedModel) -> Sequence[Parameter]:
        return self.source.parameters(model)

    def loss(self, model: TrainedModel, batch: Batch) -> ModelOutput:
        loss, out = self._compute(model, dict(batch), return_outputs=True)
        out.loss = loss
        return out


BESIDE_WORDS = ("entity_labels", "next_sentence_label", "sentence_order_label")
TARGETS = ("labels", "start_positions", *BESIDE_WORDS)


def count_labels(batch: Batch, name: str) -> float:
    """Return the number of labels other than -100."""
    return float(np.count_nonzero(kernels.to_host(batch[name]) != IGNORED))


def real_tokens(batch: Batch) -> np.ndarray:
    """Return which columns hold real tokens, (texts, length) booleans; each choice is a text."""
    mask = batch.get("attention_mask")
    real = np.ones(np.shape(batch["input_ids"]), bool) if mask is None else kernels.to_host(mask) != 0
    return real.reshape(-1, real.shape[-1])


class Supervised(Objective):
    """The model's own loss, as its class documents it for the labels in the batch.

    Args:
        label_smoothing: the share of a label's probability that is spread over all classes, from 0 to 1, as in
            torch.nn.functional.cross_entropy. Labels are classes of tokens or sequences, or probabilities of classes.
        class_weights: the factor on the loss of each class, (classes,), as in torch: they also weight the mean.

    Probabilities of classes are labels of AutoModelForSequenceClassification with
    problem_type="single_label_classification". With these options, a loss without classes raises ValueError.
    """

    def __init__(self, label_smoothing: float = 0.0, class_weights: Sequence[float] | None = None):
        weights = None if class_weights is None else check_numbers("class_weights", class_weights).astype(np.float64)
        if weights is not None and not (weights.ndim == 1 and np.isfinite(weights).all() and (weights >= 0).all()):
            raise ValueError(f"class_weights is {class_weights!r}, expected a finite number from 0 on for each class")
        if weights is not None and not weights.any():
            raise ValueError(f"class_weights is {class_weights!r}, expected at least one number above 0")
        self.label_smoothing, self.class_weights = check_share("label_smoothing", label_smoothing), weights

    def loss(self, model: TrainedModel, batch: Batch) -> ModelOutput:
        if not self.label_smoothing and self.class_weights is None:
            return model(**batch)
        options = ClassOptions(self.label_smoothing, self.class_weights)
        with use_class_options(options):
            out = model(**batch)
        if out.loss is not None and not options.were_used:
            name = "label_smoothing" if self.label_smoothing else "class_weights"
            raise ValueError(f"{name} needs labels that are classes, which this batch's are not")
        return out

    def weight(self, batch: Batch) -> float:
        """Return the number of labels other than -100, of tokens or of sequences, or the sum of their class_weights.

        For question answering it is the number of answers within the batch's length.
        """
        name = next((name for name in TARGETS if batch.get(name) is not None), None)
        if name is None:
            raise ValueError(f"batch has no labels, expected one of {', '.join(TARGETS)}; it has {', '.join(batch)}")
        labels = kernels.to_host(batch[name])
        if name == "start_positions":
            return float(np.count_nonzero(labels < kernels.to_host(batch["input_ids"]).shape[1]))
        counted = labels[labels != IGNORED]
        if self.class_weights is None or counted.dtype.kind == "f":
            return float(counted.size)
        return float(self.class_weights[counted].sum())

    def counts(self, model: TrainedModel, batch: Batch) -> tuple[float, ...]:
        """Return the weight, and the numbers of labels of pairs or entities beside it."""
        names = [name for name in BESIDE_WORDS if batch.get("labels") is not None and batch.get(name) is not None]
        return self.weight(batch), *(count_labels(batch, name) for name in names)
