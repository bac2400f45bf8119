"""The settings that a pass reads when it begins: mixed precision, and how losses treat classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np

AUTOCAST = "bfloat16", "float16"


@dataclass
class ClassOptions:
    """Options of every loss that compares classes with their scores, within `use_class_options`.

    Attributes:
        label_smoothing, class_weights: as for `functional.cross_entropy`; weights in host memory.
        were_used: whether any loss had such labels.
    """

    label_smoothing: float = 0.0
    class_weights: np.ndarray | None = None
    were_used: bool = False

    def weights_for(self, logits: Any, to_backend: Callable[[Any], Any]) -> Any:
        """Return the weights in the dtype and the memory of `logits`, (rows, classes); None if there are none."""
        self.were_used = True
        if self.class_weights is None:
            return None
        if self.class_weights.shape != logits.shape[1:]:
            raise ValueError(f"class_weights has shape {self.class_weights.shape}, expected ({logits.shape[1]},)")
        return to_backend(self.class_weights.astype(logits.dtype))


_dtype: ContextVar[str | None] = ContextVar("bertcore_autocast", default=None)
_options: ContextVar[ClassOptions | None] = ContextVar("bertcore_class_options", default=None)
_scores: ContextVar[list[Any] | None] = ContextVar("bertcore_scores", default=None)

autocast_dtype: Callable[[], str | None] = _dtype.get
current_class_options: Callable[[], ClassOptions | None] = _options.get
current_scores: Callable[[], list[Any] | None] = _scores.get


@contextmanager
def _set(variable: ContextVar[Any], value: Any) -> Iterator[Any]:
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)


@contextmanager
def autocast(dtype: str) -> Iterator[None]:
    """Compute in 16 bits with a model in float32 within a `with` block, for this thread or task alone.

        with autocast("bfloat16"):
            out, grads = value_and_grad(model)(**batch)

    The parameters and their gradients stay float32 (Kalamkar et al. 2019, arXiv:1905.12322). On the CPU, "bfloat16"
    alone, both factors of each product with the weight of a linear map, forward and backward, are rounded, and their
    products summed in float32; all else is float32. A CPU that multiplies bfloat16 faster than float32 gains by it; on
    others the backend numba rounds the weights alone. On a GPU all parameters are rounded, and activations and their
    gradients are of `dtype`; sums of products, norms, softmaxes and losses are float32. Gradients in "float16" may
    vanish: see `TrainingArguments(fp16=True)`.

    Raises:
        ValueError: for another dtype; from a model's call, for "float16" on the CPU.
    """
    if dtype not in AUTOCAST:
        raise ValueError(f"dtype is {dtype!r}, expected {' or '.join(map(repr, AUTOCAST))}")
    with _set(_dtype, dtype):
        yield


def use_class_options(options: ClassOptions) -> Any:
    """Return a block in which models' losses follow `options`."""
    return _set(_options, options)


def kept_scores() -> Any:
    """Return a block that keeps the scores of labelled tokens, (labels, words), that language models make, in a list.

    A loss that compares them need not make them twice.
    """
    return _set(_scores, [])
