"""What a model learns from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from bertcore.gradients import Gradients, differentiate, with_loss
from bertcore.nn import functional
from bertcore.nn.parameter import Parameter

Batch = Mapping[str, Any]
Collator = Callable[..., dict[str, Any]]


class Trained:
    """A model and the parameters that are trained beside it.

    Attributes:
        beside: those parameters.
    """

    def __init__(self, model: Any, beside: Sequence[Parameter]):
        self._model, self.beside = model, beside

    def parameters(self) -> Iterator[Parameter]:
        """All parameters, the model's first."""
        yield from self._model.parameters()
        yield from self.beside


class Objective:
    """How a loss is made of a model's outputs, and what that loss is a mean over.

    A new one says what its loss is in `loss`, of operations that have gradients (bertcore.nn.functional), or of NumPy
    with gradients of its own (bertcore.value_and_grad); what it learns from in `examples` and `collator`.

    Attributes:
        model_class: the name in `bertcore` of the class with the head it needs; None for any that has a loss.
        targets: the names of what a batch has for the loss and the model does not take.
        teacher: a model that the loss compares with, and that a run goes on with; None where there is none.
    """

    model_class: str | None = None
    targets: Sequence[str] = ()
    teacher: Any = None

    def examples(
        self, documents: Iterable[Iterable[str]], tokenizer: Any, *, max_length: int, seed: int = 0
    ) -> Iterator[dict[str, Any]]:
        """What is learned from raw texts: mappings of input_ids and what else there is, one after another.

        Args:
            documents: each an iterable of its sentences (or lines).
            tokenizer: of the texts.
            max_length: the most tokens of an example, special ones included.
            seed: of random choices.
        """
        raise NotImplementedError(f"{type(self).__name__} learns from labelled examples, not from raw texts")

    def collator(self, tokenizer: Any, *, seed: int = 0) -> Collator | None:
        """What makes a batch of examples; None where that is the caller's choice."""
        return None

    def loss(self, model: Any, batch: Batch) -> Any:
        """The model's output with the loss of one batch, an array without axes (under a tape a Variable)."""
        raise NotImplementedError(f"{type(self).__name__} does not say what its loss is")

    def forward(self, model: Any, batch: Batch) -> Any:
        """The model's output with the loss, without gradients. Whether the model drops is left as it is."""
        return self.loss(model, batch)

    def value_and_grad(self, model: Any, batch: Batch) -> tuple[Any, Gradients]:
        """The model's output with the loss, and the gradients of that; see `bertcore.value_and_grad`."""
        return differentiate(self.trained(model), lambda: self.loss(model, batch))

    def parameters(self, model: Any) -> Sequence[Parameter]:
        """What is trained beside the model's own parameters, and kept in checkpoints of a run alone; none by default.

        The same ones at every call for one model.
        """
        return ()

    def trained(self, model: Any) -> Trained:
        """The model and what is trained beside it: what an optimiser is made for."""
        return Trained(model, self.parameters(model))

    def weight(self, batch: Batch) -> float:
        """How many labels (tokens, sequences, pairs) the loss of a batch is a mean over: its weight among others."""
        raise NotImplementedError(f"{type(self).__name__} does not say what its loss is a mean over")

    def __add__(self, other: Objective) -> Objective:
        """The sum of both losses of one batch."""
        return other.added_to(self) if isinstance(other, Objective) else NotImplemented

    def added_to(self, first: Objective) -> Objective:
        """`first + self`."""
        return Sum(first, self)


class Sum(Objective):
    """The sum of two losses of one batch, each with a pass of its own. Examples, collator and weight are the first's.

    One that takes any model, such as `CustomLoss`, goes with every other; put it second. Neither gets the targets that
    are the other's alone, unless the model takes them.

    Raises:
        ValueError: for objectives that need different models.
    """

    def __init__(self, first: Objective, second: Objective):
        if first.model_class != second.model_class and None not in (first.model_class, second.model_class):
            needs = " and ".join(f"{type(each).__name__} needs {each.model_class}" for each in (first, second))
            raise ValueError(f"{needs}: there is no model for their sum")
        self.first, self.second, self.model_class = first, second, first.model_class or second.model_class
        self.targets = (*first.targets, *second.targets)
        self.teacher = first.teacher or second.teacher

    def examples(
        self, documents: Iterable[Iterable[str]], tokenizer: Any, *, max_length: int, seed: int = 0
    ) -> Iterator[dict[str, Any]]:
        return self.first.examples(documents, tokenizer, max_length=max_length, seed=seed)

    def collator(self, tokenizer: Any, *, seed: int = 0) -> Collator | None:
        return self.first.collator(tokenizer, seed=seed)

    def parameters(self, model: Any) -> Sequence[Parameter]:
        return (*self.first.parameters(model), *self.second.parameters(model))

    def loss(self, model: Any, batch: Batch) -> Any:
        out, other = (each.loss(model, part) for each, part in self._parts(model, batch))
        out.loss = functional.add(out.loss, other.loss)
        return out

    def value_and_grad(self, model: Any, batch: Batch) -> tuple[Any, Gradients]:
        """As each of the two does it: in chunks, say."""
        parts = self._parts(model, batch)
        (out, grads), (other, more) = (each.value_and_grad(model, part) for each, part in parts)
        out.loss = out.loss + other.loss
        grads.accumulate(more)
        return out, grads

    def weight(self, batch: Batch) -> float:
        return self.first.weight(batch)

    def _parts(self, model: Any, batch: Batch) -> Iterator[tuple[Objective, Batch]]:
        """Each of the two, and the batch without the targets of the other."""
        for each in (self.first, self.second):
            others = {*self.targets} - {*each.targets, *model.arguments}
            yield each, {name: value for name, value in batch.items() if name not in others}


class CustomLoss(Objective):
    """A loss of the caller's own over a model's outputs.

    Args:
        loss: `loss(out, **targets)` returns the loss and its gradients, as for `bertcore.value_and_grad`.
        targets: the names of what a batch has for the loss and not for the model.
        outputs: further arguments of the model: output_hidden_states=True, ...

    The loss is taken for a mean over the examples of a batch.
    """

    def __init__(self, loss: Callable[..., Any], targets: Sequence[str] = (), **outputs: Any):
        self._loss, self.targets, self._outputs = loss, tuple(targets), outputs

    def loss(self, model: Any, batch: Batch) -> Any:
        targets = {name: batch[name] for name in self.targets}
        rest = {name: value for name, value in batch.items() if name not in self.targets}
        return with_loss(model(**rest, **self._outputs), lambda out: self._loss(out, **targets))

    def weight(self, batch: Batch) -> float:
        return float(len(batch["input_ids"]))
