"""Predictions for a masked word at several temperatures of distillation."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from bertcore import kernels
from bertcore.plots.attention import output_for
from bertcore.tasks.sequence_scores import softmax


def distillation_temperature(
    model: Any, tokenizer: Any, text: str, *, temperatures: Sequence[float], words: int = 12
) -> Figure:
    """Draw the most probable words of the first mask, softmax(logits / T), for each temperature T.

    Raises ValueError for a text that is too long or has no mask token, temperatures that are not above 0, and a model
    without a trained head.
    """
    if model.newly_initialised:
        raise ValueError(f"the model lacks {model.newly_initialised[0]}: expected a masked language model")
    if not temperatures or not all(0 < temperature < np.inf for temperature in temperatures):
        raise ValueError(f"temperatures is {temperatures}, expected numbers above 0")
    ids, output = output_for(model, tokenizer, text)
    if tokenizer.mask_token_id not in ids:
        raise ValueError(f"the text has no {tokenizer.mask_token} token, so there is nothing to predict")
    place = ids.index(tokenizer.mask_token_id)
    logits = kernels.to_host(output.logits)[0, place, : len(tokenizer)].astype(np.float64)
    best = np.argsort(-logits, kind="stable")[:words]
    figure = Figure(figsize=(2.3 * len(temperatures) + 1.2, 0.26 * words + 1.4), layout="constrained")
    axes = figure.subplots(1, len(temperatures), sharex=True, sharey=True, squeeze=False)[0]
    for place, temperature in zip(axes, temperatures, strict=True):
        chances = softmax(logits / temperature)
        place.barh(range(len(best)), chances[best], color="#3b6ea5")
        rest = 1 - chances[best].sum()
        place.set_title(f"T = {temperature:g}\nother words {rest:.0%}", fontsize=10)
        place.set_xlabel("probability")
    axes[0].set_yticks(range(len(best)), tokenizer.convert_ids_to_tokens(best.tolist()))
    axes[0].invert_yaxis()
    return figure
