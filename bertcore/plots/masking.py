"""Masked tokens in each epoch, with static and with dynamic masking."""

from typing import Any

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from bertcore.plots.attention import tokens_of
from bertcore.training.masking import Masking, Words

KINDS = {
    "not predicted": "#e8e8e8",
    "the mask": "#3b6ea5",
    "a random word": "#c0504d",
    "kept and predicted": "#e0a030",
}


def masking(tokenizer: Any, text: str, *, epochs: int, seed: int = 0) -> Figure:
    """Draw a row per epoch and a column per token: static masking above, dynamic below.

    Raises ValueError for a text that is too long.
    """
    ids, words = np.array(tokens_of(tokenizer, text)["input_ids"]), Words.of(tokenizer)
    tokens = tokenizer.convert_ids_to_tokens(ids.tolist())
    size = (0.32 * len(tokens) + 1.5, 0.32 * 2 * epochs + 2.2)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(2, 1, sharex=True)
    for place, is_static in zip(axes, (True, False), strict=True):
        rng = np.random.default_rng(seed)
        rows = [_kinds(ids, *Masking(is_static=is_static).apply(ids, words, rng), words) for _ in range(epochs)]
        colors = ListedColormap(list(KINDS.values()))
        place.pcolormesh(np.array(rows), cmap=colors, vmin=-0.5, vmax=3.5, edgecolors="white", linewidth=1.5)
        place.invert_yaxis()
        place.set_yticks(np.arange(epochs) + 0.5, range(1, epochs + 1))
        place.set_ylabel("epoch")
        place.set_title("static: the same every time" if is_static else "dynamic: drawn anew every time", fontsize=10)
        place.tick_params(length=0)
    axes[1].set_xticks(np.arange(len(tokens)) + 0.5, tokens, rotation=90, fontsize=8)
    handles = [Patch(color=color, label=kind) for kind, color in KINDS.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    return figure


def _kinds(ids: np.ndarray, replaced: np.ndarray, labels: np.ndarray, words: Words) -> np.ndarray:
    """Return the index in KINDS of each token's treatment."""
    is_asked = labels >= 0
    return np.select([~is_asked, replaced == words.mask, replaced != ids], [0, 1, 2], 3)
