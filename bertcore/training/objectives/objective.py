"""What a model learns from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from bertcore.gradients import Gradients, differentiate

Batch = Mapping[str, Any]
Collator = Callable[..., dict[str, Any]]


class Objective:
    """How a loss is made of a model's outputs, and what that loss is a mean over.

    A new one says what its loss is in `loss`, of operations that have gradients (bertcore.nn.functional), or of NumPy
    with gradients of its own (bertcore.value_and_grad); what it learns from in `examples` and `collator`.

    Attributes:
        model_class: the name in `bertcore` of the class with the head it needs; None for any that has a loss.
    """

    model_class: str | None = None

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
        return differentiate(model, lambda: self.loss(model, batch))

    def weight(self, batch: Batch) -> float:
        """How many labels (tokens, sequences, pairs) the loss of a batch is a mean over: its weight among others."""
        raise NotImplementedError(f"{type(self).__name__} does not say what its loss is a mean over")
