"""Predicted probabilities: how well a classifier is calibrated, and predictions at distillation temperatures."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from bertcore import kernels
from bertcore.arguments import check_count, check_number
from bertcore.drawing import BLUE, GREY, ORANGE, listed, new_figure, shortened, style
from bertcore.kernels.arrays import ArrayLike
from bertcore.models.model import Model
from bertcore.models.outputs import LogitsOutput
from bertcore.plots.attention import output_for
from bertcore.tasks.calibration import reliability
from bertcore.tasks.sequence_scores import softmax
from bertcore.tokenization.tokenizer import Tokenizer

MOST = 12  # temperatures


@style()
def reliability_diagram(probabilities: ArrayLike, labels: ArrayLike, *, bins: int = 15) -> Figure:
    """Draw accuracy by predicted probability with the diagonal of perfect calibration, and the texts of each bin below.

    The title gives the expected calibration error. Arguments and errors as for `reliability`; at most 100 bins.
    """
    found = reliability(probabilities, labels, bins=check_count("bins", bins, most=100))
    figure = new_figure(4.6, 5.2)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    width, left = np.diff(found.edges), found.edges[:-1]
    look = {"align": "edge", "edgecolor": "white", "linewidth": 0.6}
    above.bar(left, np.nan_to_num(found.accuracy), width, color=BLUE, label="accuracy", **look)
    above.plot([0, 1], [0, 1], color="black", linestyle="--", linewidth=1, label="perfect calibration")
    above.plot(found.confidence, found.accuracy, "o", color=ORANGE, markeredgecolor="white", label="mean of the bin")
    count = int(found.counts.sum())
    title = f"expected calibration error {found.error:.3f}, {count:,} text{'s' * (count != 1)}"
    above.set(ylim=(0, 1.02), ylabel="accuracy", title=title)
    above.legend(loc="upper left")
    below.bar(left, found.counts, width, color=GREY, **look)
    below.yaxis.get_major_locator().set_params(integer=True, nbins=4)
    below.set(xlim=(0, 1), xlabel="probability of the predicted class", ylabel="texts")
    for place in (above, below):
        place.grid(axis="y")
    return figure


@style()
def distillation_temperature(
    model: Model, tokenizer: Tokenizer, text: str, *, temperatures: Sequence[float], words: int = 12
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


def _classes(model: Model, output: LogitsOutput) -> tuple[np.ndarray, list[str]]:
    """Return the logits of a classifier and the names of its classes."""
    scores, kind = kernels.to_host(output.logits)[0].astype(np.float64), model.config.get("problem_type")
    if len(scores) < 2 or kind in ("regression", "multi_label_classification"):
        stated = f" and the problem_type {kind}" if kind else ""
        raise ValueError(f"model has {len(scores)} outputs{stated}, expected a classifier with one label for a text")
    return scores, list(model.config.id2label.values())


def _words(tokenizer: Tokenizer, ids: list[int], output: LogitsOutput) -> tuple[np.ndarray, Any]:
    """Return the logits at the first mask, and the tokens in the order of their ids."""
    if tokenizer.mask_token_id not in ids:
        raise ValueError(f"text has no {tokenizer.mask_token} token, so there is nothing to predict")
    logits = kernels.to_host(output.logits)[0, ids.index(tokenizer.mask_token_id), : len(tokenizer)]
    if len(logits) < len(tokenizer):
        raise ValueError(f"model has {len(logits)} outputs for a token, expected a masked language model")
    return logits.astype(np.float64), tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
