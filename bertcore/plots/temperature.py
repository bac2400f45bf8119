"""Predictions at several distillation temperatures, of a classifier or for a masked word."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from bertcore import kernels
from bertcore.arguments import check_count, check_number
from bertcore.drawing import BLUE, listed, new_figure, shortened, style
from bertcore.plots.attention import output_for
from bertcore.tasks.sequence_scores import softmax

MOST = 12  # temperatures


@style()
def distillation_temperature(
    model: Any, tokenizer: Any, text: str, *, temperatures: Sequence[float], words: int = 12
) -> Figure:
    """Draw the most probable answers, softmax(logits / T), for each temperature T.

    The answers are a sequence classifier's classes, or a masked language model's words for the first mask in the text.

    Args:
        model: a masked language model, or a classifier with one label per text and at least two classes.
        tokenizer: the model's.
        text: at most 512 tokens, with a mask token for a language model.
        temperatures: 1 to 12 numbers above 0.
        words: the number of words or classes to draw, at most 40.

    Raises TypeError or ValueError for other arguments.
    """
    numbers = [check_number("temperatures", each, above_zero=True) for each in listed("temperatures", temperatures)]
    if not 1 <= len(numbers) <= MOST:
        raise ValueError(f"temperatures has {len(numbers)} numbers, expected 1 to {MOST}")
    check_count("words", words, most=40)
    ids, output = output_for(model, tokenizer, text)
    scores, names = _classes(model, output) if np.ndim(output.logits) == 2 else _words(tokenizer, ids, output)
    best = np.argsort(-scores, kind="stable")[:words]
    columns = min(len(numbers), 6)
    rows = math.ceil(len(numbers) / columns)
    figure = new_figure(1.9 * columns + 1.6, rows * (0.23 * len(best) + 0.8) + 0.5)
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for place, temperature in zip(axes.flat, numbers, strict=False):
        chances = softmax(scores / temperature)
        place.barh(range(len(best)), chances[best], color=BLUE)
        rest = f"\nothers {1 - chances[best].sum():.0%}" if len(best) < len(scores) else ""
        place.set_title(f"T = {temperature:g}{rest}")
        place.grid(axis="x")
        place.tick_params(axis="y", length=0)
        place.xaxis.get_major_locator().set_params(nbins=4)
    for place in axes.flat[len(numbers) :]:
        place.remove()
    axes[0, 0].set(xlim=(0, None), yticks=range(len(best)), yticklabels=[shortened(names[index], 20) for index in best])
    axes[0, 0].invert_yaxis()
    figure.supxlabel("probability")
    return figure


def _classes(model: Any, output: Any) -> tuple[np.ndarray, list[str]]:
    """Return the logits of a classifier and the names of its classes."""
    scores, kind = kernels.to_host(output.logits)[0].astype(np.float64), model.config.get("problem_type")
    if len(scores) < 2 or kind in ("regression", "multi_label_classification"):
        stated = f" and the problem_type {kind}" if kind else ""
        raise ValueError(f"model has {len(scores)} outputs{stated}, expected a classifier with one label for a text")
    return scores, list(model.config.id2label.values())


def _words(tokenizer: Any, ids: list[int], output: Any) -> tuple[np.ndarray, Any]:
    """Return the logits at the first mask, and the tokens in the order of their ids."""
    if tokenizer.mask_token_id not in ids:
        raise ValueError(f"text has no {tokenizer.mask_token} token, so there is nothing to predict")
    logits = kernels.to_host(output.logits)[0, ids.index(tokenizer.mask_token_id), : len(tokenizer)]
    if len(logits) < len(tokenizer):
        raise ValueError(f"model has {len(logits)} outputs for a token, expected a masked language model")
    return logits.astype(np.float64), tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
