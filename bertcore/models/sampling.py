"""Words drawn from a language model's scores."""

from typing import Any

import numpy as np

from bertcore import kernels

BLOCK = 256  # words whose probabilities are summed at once


def sample_words(scores: Any, draws: np.ndarray) -> np.ndarray:
    """A word for each row of `scores`, (rows, words): the one at which the running sum of the softmax passes that row's
    draw, a number from 0 to below 1, (rows,). Integers in host memory, (rows,).

    The inverse of the distribution function takes one draw and one pass over the row, where the largest of scores with
    Gumbel noise takes a draw and two logarithms for each word. A word's probability has to be above 0 to be drawn.
    """
    probabilities = kernels.softmax(scores)
    if not isinstance(probabilities, np.ndarray):
        probabilities = probabilities.get()
    starts = np.arange(0, probabilities.shape[1], BLOCK)
    sums = np.add.reduceat(probabilities, starts, axis=1) if len(draws) else np.zeros((0, len(starts)))
    block, rest = _passed(sums, draws)
    width = min(BLOCK, probabilities.shape[1])
    first = np.minimum(starts[block], probabilities.shape[1] - width)  # the last block begins early
    columns = first[:, None] + np.arange(width)
    inside = np.take_along_axis(probabilities, columns, axis=1)
    inside[columns < starts[block][:, None]] = 0
    return first + _passed(inside, rest)[0]


def _passed(shares: np.ndarray, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each row the number of the share that its draw falls into, and how far into it, from 0 to below 1.

    A share of 0 is never chosen, however sums are rounded.
    """
    sums = np.cumsum(shares, axis=1, dtype=np.float64)
    total = sums[:, -1:]
    target = draws[:, None] * total
    found = np.minimum((sums <= target).sum(axis=1), (sums < total).sum(axis=1))
    before = np.take_along_axis(np.pad(sums, [(0, 0), (1, 0)]), found[:, None], axis=1)
    size = np.take_along_axis(sums, found[:, None], axis=1) - before
    with np.errstate(invalid="ignore"):  # scores that are NaN have no word
        into = np.clip((target - before) / size, 0, np.nextafter(1, 0))
    return found, into[:, 0]


def restricted_scores(scores: np.ndarray, temperature: float, top_k: int | None, top_p: float) -> np.ndarray:
    """Scores (rows, words), float64, divided by the temperature, and -inf for words that are not to be drawn.

    top_k: the words with the highest scores, and those that equal the last of them; None for all. top_p: of these the
    fewest whose probabilities sum to at least this (Holtzman et al. 2020, arXiv:1904.09751); at least one word.
    """
    scores = scores.astype(np.float64) / temperature
    if top_k is not None and top_k < scores.shape[1]:
        least = np.partition(scores, -top_k, axis=1)[:, -top_k]
        scores[scores < least[:, None]] = -np.inf
    if top_p < 1:
        order = np.argsort(-scores, axis=1, kind="stable")
        weights = np.exp(np.take_along_axis(scores, order, axis=1) - scores.max(axis=1, keepdims=True))
        probabilities = weights / weights.sum(axis=1, keepdims=True)
        is_beyond = np.cumsum(probabilities, axis=1) - probabilities >= top_p  # those before it are enough
        is_beyond[:, 0] = False
        np.put_along_axis(
            scores, order, np.where(is_beyond, -np.inf, np.take_along_axis(scores, order, axis=1)), axis=1
        )
    return scores
