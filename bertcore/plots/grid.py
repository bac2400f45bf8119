"""Maps of tokens by tokens, as several pictures have them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure


def maps(
    panels: Sequence[np.ndarray], titles: Sequence[str], tokens: Sequence[str], *, columns: int, **look: Any
) -> Figure:
    """A figure of maps (queries, keys) below and beside one another, all of one colour scale.

    Args:
        panels: (tokens, tokens) each.
        titles: of the panels.
        tokens: stand at the axes.
        columns: panels beside one another.
        look: of matplotlib's imshow: cmap, vmin, vmax.
    """
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    side = max(2.0, 0.17 * len(tokens) + 0.6)
    figure = Figure(figsize=(side * columns + 1.2, side * rows + 0.8), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for place, panel, title in zip(axes.flat, panels, titles, strict=False):
        image = place.imshow(panel, **look)
        place.set_title(title, fontsize=9)
        place.set_xticks(range(len(tokens)), tokens, rotation=90, fontsize=7)
        place.set_yticks(range(len(tokens)), tokens, fontsize=7)
    for place in axes.flat[len(panels) :]:
        place.set_visible(False)
    figure.colorbar(image, ax=axes, shrink=0.6, aspect=30)
    figure.supxlabel("token that is looked at", fontsize=9)
    figure.supylabel("token that looks", fontsize=9)
    return figure
