"""Batches that depend on their number alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np


class NumberedCollator:
    """A collator whose random choices follow from a seed and the number of the batch.

    So a run that goes on from a checkpoint has the batches of one that was never stopped, and two evaluations have the
    same.

    Args:
        collator: makes a batch of examples; if it has an attribute `rng`, that is what its random choices are drawn
            from; if it has a method `masking_settings`, a run goes on with what that returns, a dictionary for JSON.
        seed: of the run.
        columns: the keys of examples that are kept; None for all.
    """

    def __init__(self, collator: Callable[[Sequence[Any]], Any], seed: int, columns: Collection[str] | None = None):
        self._collator, self._seed, self._columns = collator, seed, columns

    @property
    def masking(self) -> dict[str, Any] | None:
        """What decides how the collator hides words: its `masking_settings()`; None if it has none."""
        settings = getattr(self._collator, "masking_settings", None)
        return None if settings is None else settings()

    def __call__(self, examples: Sequence[Any], number: int) -> Mapping[str, Any]:
        """The batch of that number."""
        if self._columns is not None:
            examples = [self._kept(example) for example in examples]
        if hasattr(self._collator, "rng"):
            self._collator.rng = np.random.default_rng((self._seed, number))
        batch = self._collator(examples)
        if not isinstance(batch, Mapping):
            raise TypeError(f"data_collator returned {type(batch).__name__}, expected a mapping of a model's arguments")
        return batch

    def _kept(self, example: Any) -> Any:
        if not isinstance(example, Mapping):
            return example  # of which the collator tells that it is none
        return {key: example[key] for key in example if key in self._columns}
