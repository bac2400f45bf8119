"""Masked tokens in each epoch, for static and for dynamic masking."""

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from bertcore.arguments import check_count
from bertcore.drawing import AMBER, BLUE, ORANGE, label_ticks, new_figure, shortened, style
from bertcore.plots.attention import tokens_of
from bertcore.tokenization.tokenizer import Tokenizer
from bertcore.training.masking import Masking, Words

KINDS = {"not predicted": "#e8e8e8", "the mask": BLUE, "a random word": ORANGE, "kept and predicted": AMBER}


@style()
def masking(tokenizer: Tokenizer, text: str, *, epochs: int, seed: int = 0) -> Figure:
    """Draw static masking above and dynamic masking below, with a row per epoch and a column per token.

    Raises TypeError if `epochs` or `seed` is not an integer or `text` not a string, ValueError for more than 100
    epochs, a seed below 0, and a text of more than 512 tokens.
    """
    numbers = [str(epoch) for epoch in range(1, check_count("epochs", epochs, most=100) + 1)]
    check_count("seed", seed, least=0)
    ids, words = np.array(tokens_of(tokenizer, text)["input_ids"]), Words.of(tokenizer)
    tokens = [shortened(token, 16) for token in tokenizer.convert_ids_to_tokens(ids.tolist())]
    figure = new_figure(min(0.3 * len(tokens) + 1.5, 13) + 1.5, min(0.5 * epochs, 8) + 2.4)
    axes = figure.subplots(2, 1, sharex=True)
    for place, is_static in zip(axes, (True, False), strict=True):
        rng = np.random.default_rng(seed)
        rows = [_kinds(ids, *Masking(is_static=is_static).apply(ids, words, rng), words) for _ in numbers]
        look = {"cmap": ListedColormap(list(KINDS.values())), "vmin": -0.5, "vmax": 3.5, "edgecolors": "white"}
        place.pcolormesh(np.array(rows), linewidth=min(1.5, 40 / len(ids)), **look)
        place.invert_yaxis()
        place.set_ylabel("epoch")
        place.set_title("static: the same every time" if is_static else "dynamic: redrawn every time")
        place.tick_params(length=0)
        place.spines[:].set_visible(False)
    handles = [Patch(color=color, label=kind) for kind, color in KINDS.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=4 if len(tokens) > 16 else 2)
    label_ticks(figure, [axes[1].xaxis], tokens, offset=0.5)
    label_ticks(figure, [place.yaxis for place in axes], numbers, offset=0.5)
    return figure


def _kinds(ids: np.ndarray, replaced: np.ndarray, labels: np.ndarray, words: Words) -> np.ndarray:
    """Return the index in KINDS of each token's treatment."""
    is_asked = labels >= 0
    return np.select([~is_asked, replaced == words.mask, replaced != ids], [0, 1, 2], 3)
