"""Embeddings of texts in two dimensions."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

LABELLED = 40  # texts; labels of more would hide the points
CHARACTERS = 36


def embeddings_in_two_dimensions(texts: Sequence[str], embeddings: np.ndarray) -> Figure:
    """Draw texts along the first two principal components of their embeddings (texts, dim), with up to 40 labels.

    Raises ValueError for fewer than three texts.
    """
    if len(texts) < 3:
        raise ValueError(f"texts has {len(texts)}, expected at least 3")
    centred = embeddings.astype(np.float64) - embeddings.mean(axis=0, dtype=np.float64)
    left, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    points, shares = left[:, :2] * sizes[:2], sizes**2 / max(float((sizes**2).sum()), np.finfo(np.float64).tiny)
    figure = Figure(figsize=(9, 7), layout="constrained")
    place = figure.subplots()
    place.scatter(*points.T, s=22, color="#3b6ea5")
    for rank, index in enumerate(np.argsort(points[:, 1])[:: -(-len(texts) // LABELLED)]):
        text, below = texts[index], rank % 2  # labels of neighbours alternate in height
        shown = text if len(text) <= CHARACTERS else text[: CHARACTERS - 1] + "…"
        place.annotate(shown, points[index], xytext=(4, -9 if below else 3), textcoords="offset points", fontsize=8)
    place.margins(x=0.18, y=0.08)
    place.set(
        xlabel=f"first component, {shares[0]:.0%} of the variance",
        ylabel=f"second component, {shares[1]:.0%}",
        aspect="equal",
        adjustable="datalim",
    )
    place.grid(visible=True, alpha=0.25)
    return figure
