"""Round weights to int8 with the help of their inputs on sample texts.

Two methods improve the precision of int8, and both use a layer's inputs. Input columns of large numbers widen the
rounding steps of all others: if that helps the layer, they are divided by factors by which the weight is multiplied
(SmoothQuant, Xiao et al. 2023, arXiv:2211.10438). And if columns are correlated, later weights can compensate for the
rounding error of earlier ones (GPTQ, Frantar et al. 2022, arXiv:2210.17323). The kernels do not change.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from bertcore import kernels
from bertcore.nn.functional.dense import ObservedWeight, Weight
from bertcore.nn.parameter import Block, Parameter
from bertcore.passes import Pass

# The exponent of the inputs in a column's factor. Choosing it for each weight among 0.5, 0.6 and 0.7 by the error of
# its outputs moved MiniLM's embeddings further from float32: cosines of 0.99938 instead of 0.99951 (three samples of 50
# texts).
EXPONENT = 0.6
WORTHWHILE = 0.9  # use factors, which cost time, only below this ratio of the error with them to the error without
DAMPING = 0.01  # share of the mean second moment that is added to each
BLOCK = 64  # columns
TINY = np.finfo(np.float32).tiny
ROWS_PER_PASS, SAMPLE_ROWS = 16, 512


class RoundedWeight(NamedTuple):
    """An int8 weight: values (rows, columns), scale (rows,), and input_scale (columns,) or None.

    See `kernels.prepare_weight`.
    """

    values: np.ndarray
    scale: np.ndarray
    input_scale: np.ndarray | None


class InputStatistics:
    """Statistics of the inputs of a weight, and a sample of them."""

    version = 0  # a `Parameter` reads it from its adapter

    def __init__(self, columns: int):
        self.moments = np.zeros((columns, columns), np.float32)  # the sum of x x^T over all inputs x
        self.peaks = np.zeros(columns, np.float32)  # the greatest magnitude of each column
        self.rows = 0  # the number of inputs
        self._sample: list[np.ndarray] = []
        self._sampled = 0

    def weight(self, run: Pass, base: Weight) -> ObservedWeight:
        """Return the weight `base` after adding its inputs to the statistics."""
        return ObservedWeight(base, self.add)

    def add(self, inputs: np.ndarray) -> None:
        rows = inputs.reshape(-1, inputs.shape[-1])
        if not len(rows):
            return
        with np.errstate(invalid="ignore", over="ignore"):  # inf and NaN raise an error when the weight is rounded
            self.moments += rows.T @ rows
        np.maximum(self.peaks, np.abs(rows).max(axis=0), out=self.peaks)
        self.rows += len(rows)
        some = rows[:: max(len(rows) // ROWS_PER_PASS, 1)][: min(ROWS_PER_PASS, SAMPLE_ROWS - self._sampled)]
        self._sampled += len(some)
        self._sample.append(some.copy())

    @property
    def sample(self) -> np.ndarray:
        return np.concatenate(self._sample)


@contextmanager
def observed_inputs(model: Block) -> Iterator[dict[Parameter, InputStatistics]]:
    """Within the block, let passes of `model` on backend numpy add to the statistics of the weights they use.

    Raises ValueError if the model's weights already have adapters.
    """
    weights = list(dict.fromkeys(weight for weight in model.token_weights() if weight.uses == {"weight"}))
    if any(weight.adapter is not None for weight in weights):
        raise ValueError("model has adapters: merge them into its weights first")
    found = {weight: InputStatistics(weight.shape[1]) for weight in weights}
    try:
        for weight, statistics in found.items():
            weight.adapt(statistics)
        with kernels.use_backend("numpy"):
            yield found
    finally:
        for weight in weights:
            weight.adapt(None)


def rounded_weight(weight: np.ndarray, statistics: InputStatistics, parts: int = 1) -> RoundedWeight:
    """Return a float32 weight in int8, in the form with the least output error on the sample.

    If it joins several weights with equally many rows (query, key and value), each error is relative to its outputs.

    Raises ValueError if the weight or its inputs hold inf or NaN, or if there are no inputs.
    """
    if not statistics.peaks.any() or not np.isfinite(statistics.moments).all():
        raise ValueError("the inputs of this weight are all 0, or hold inf or NaN")
    sample = statistics.sample
    exact = sample @ weight.T

    def error(form: RoundedWeight) -> float:
        prepared = kernels.prepare_weight(*form, backend="numpy")
        squares = np.square(kernels.linear(sample, prepared, backend="numpy") - exact)
        return sum(
            float(own.sum() / max(np.square(whole).sum(), TINY))
            for own, whole in zip(split(squares), split(exact), strict=True)
        )

    def split(outputs: np.ndarray) -> list[np.ndarray]:
        return np.split(outputs, parts, axis=1)

    plain = _rounded(weight, statistics.moments, None)
    smooth = _rounded(weight, statistics.moments, _factors(weight, statistics.peaks))
    return smooth if error(smooth) < WORTHWHILE * error(plain) else plain


def _factors(weight: np.ndarray, peaks: np.ndarray) -> np.ndarray:
    """Return the factor of each input column: 1 for a column of zeros."""
    own = np.abs(weight).max(axis=0, initial=0)
    usable = (own > 0) & (peaks > 0)
    factors = np.where(usable, own, 1) ** (1 - EXPONENT) / np.where(usable, peaks, 1) ** EXPONENT
    return np.where(usable, factors, 1).astype(np.float32)


def _rounded(weight: np.ndarray, moments: np.ndarray, factors: np.ndarray | None) -> RoundedWeight:
    """Round column by column (GPTQ), those with the largest inputs first, and correct the remaining ones."""
    wide = np.asarray(weight if factors is None else weight / factors, np.float64)
    _, scale = kernels.quantize_weight(wide.astype(np.float32))
    inputs = moments.astype(np.float64) if factors is None else moments * np.outer(factors, factors).astype(np.float64)
    inputs[np.diag_indices(len(inputs))] += DAMPING * np.diag(inputs).mean()
    order = np.argsort(-np.diag(inputs), kind="stable")
    upper = np.linalg.cholesky(np.linalg.inv(inputs[np.ix_(order, order)])).T
    values = np.empty(weight.shape, np.int8)
    values[:, order] = _rounded_columns(wide[:, order], np.where(scale > 0, scale, 1).astype(np.float64), upper)
    return RoundedWeight(values, scale, factors)


def _rounded_columns(weight: np.ndarray, scale: np.ndarray, upper: np.ndarray) -> np.ndarray:
    """Return the columns' int8 values; overwrites `weight`. `upper` is the Cholesky factor of the inverse moments."""
    values = np.empty(weight.shape, np.int8)
    for first in range(0, weight.shape[1], BLOCK):
        last = min(first + BLOCK, weight.shape[1])
        errors = np.empty((len(weight), last - first))
        for j in range(first, last):
            values[:, j] = np.clip(np.rint(weight[:, j] / scale), -127, 127)
            errors[:, j - first] = (weight[:, j] - values[:, j] * scale) / upper[j, j]
            weight[:, j + 1 : last] -= np.outer(errors[:, j - first], upper[j, j + 1 : last])
        weight[:, last:] -= errors @ upper[first:last, last:]
    return values
