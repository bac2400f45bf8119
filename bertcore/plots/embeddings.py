"""Embeddings of texts in two dimensions."""

import importlib
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from bertcore.arguments import check_count, check_numbers, required
from bertcore.drawing import BLUE, COLORS, GREY, SMALL, listed, new_figure, shortened, style

METHODS = ("pca", "umap", "tsne")
LABELLED = 40  # most texts to label: more would hide the points
GROUPS = 18  # most groups with a colour and marker of their own; the others share one
MARKERS = "os^DvPX*"
# Positions of a text beside its point: offset in points, alignment.
PLACES = (
    *((5, 0, "left", "center"), (-5, 0, "right", "center"), (0, 5, "center", "bottom"), (0, -5, "center", "top")),
    *((4, 4, "left", "bottom"), (4, -4, "left", "top"), (-4, 4, "right", "bottom"), (-4, -4, "right", "top")),
)


@style()
def embeddings_in_two_dimensions(
    texts: Sequence[str],
    embeddings: Sequence[Sequence[float]] | np.ndarray,
    *,
    labels: Sequence[Any] | None = None,
    clusters: int | None = None,
    method: str = "pca",
    seed: int = 0,
) -> Figure:
    """Draw texts as points, coloured by label or cluster; up to 40 are labelled with their text where it fits.

    Args:
        texts: at least three.
        embeddings: (texts, dim).
        labels: a label for each text; the legend has their counts. Beyond 18 labels, the rarest share a colour.
        clusters: in place of labels, the number of k-means clusters (needs scikit-learn).
        method: "pca", the first two principal components; "umap" (needs umap-learn) or "tsne" (needs scikit-learn),
            which keep neighbours together but whose distances and axes have no meaning.
        seed: the seed of k-means, UMAP and t-SNE.

    Raises:
        ImportError: if a package is missing; the message names it.
        TypeError, ValueError: for other arguments, lengths that differ, or embeddings with inf or NaN.
    """
    texts, rows = listed("texts", texts), check_numbers("embeddings", embeddings).astype(np.float64)
    if len(texts) < 3:
        raise ValueError(f"texts has {len(texts)}, expected at least 3")
    if rows.ndim != 2 or len(rows) != len(texts) or not rows.shape[1]:
        raise ValueError(f"embeddings has shape {rows.shape}, expected ({len(texts)}, dim)")
    if not np.isfinite(rows).all():
        raise ValueError("embeddings holds inf or NaN, expected finite numbers")
    if labels is not None and clusters is not None:
        raise ValueError("labels and clusters are both given, expected one of them")
    labels = labels if labels is None else listed("labels", labels)
    if labels is not None and len(labels) != len(texts):
        raise ValueError(f"labels has {len(labels)}, expected one for each of {len(texts)} texts")
    check_count("seed", seed, least=0, most=2**32 - 1)
    groups = labels if clusters is None else _clusters(rows, check_count("clusters", clusters, 2, len(texts)), seed)
    points, axes = _projected(rows, method, seed)
    figure = new_figure(8.5 if groups is not None else 7.5, 5.8)
    place = figure.subplots()
    _scatter(figure, place, points, groups, "cluster" if clusters else "label")
    place.margins(x=0.12, y=0.06)
    place.set(xlabel=axes[0], ylabel=axes[1])
    if method == "pca":
        place.set(aspect="equal", adjustable="datalim")
        place.grid(visible=True)
    else:
        place.set(xticks=[], yticks=[])
    figure.draw_without_rendering()
    _annotate(figure, place, points, texts)
    return figure


def _clusters(rows: np.ndarray, count: int, seed: int) -> list[str]:
    """Return the cluster of each text, numbered from 1 by size."""
    found = required("sklearn.cluster").KMeans(count, n_init=10, random_state=seed).fit_predict(rows)
    ranks = {cluster: rank for rank, (cluster, _) in enumerate(Counter(found.tolist()).most_common(), 1)}
    return [str(ranks[cluster]) for cluster in found.tolist()]


def _projected(rows: np.ndarray, method: str, seed: int) -> tuple[np.ndarray, tuple[str, str]]:
    """Return points, (texts, 2), and the names of the axes."""
    if method == "pca":
        left, sizes, _ = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
        points, shares = np.zeros((len(rows), 2)), np.zeros(2)
        points[:, : len(sizes)] = (left * sizes)[:, :2]
        shares[: len(sizes)] = (sizes**2 / max(float((sizes**2).sum()), np.finfo(np.float64).tiny))[:2]
        return points, (f"first principal component ({shares[0]:.0%} of the variance)", f"second ({shares[1]:.0%})")
    if method not in METHODS:
        raise ValueError(f"method is {method!r}, expected one of {', '.join(METHODS)}")
    if method == "tsne":
        options = {"perplexity": min(30.0, (len(rows) - 1) / 3), "init": "random", "random_state": seed}
        return required("sklearn.manifold").TSNE(**options).fit_transform(rows), ("t-SNE, first", "t-SNE, second")
    if find_spec("umap") is None:
        raise ImportError("method is 'umap', which needs umap-learn: pip install umap-learn")
    neighbours = {"n_neighbors": min(15, len(rows) - 1), "init": "spectral" if len(rows) > 20 else "random"}
    umap = importlib.import_module("umap").UMAP
    return umap(random_state=seed, n_jobs=1, **neighbours).fit_transform(rows), ("UMAP, first", "UMAP, second")


def _scatter(figure: Figure, place: Axes, points: np.ndarray, groups: Sequence[Any] | None, title: str) -> None:
    """Draw the points, each group in its colour and marker, with a legend."""
    if groups is None:
        place.scatter(points[:, 0], points[:, 1], s=24, color=BLUE, linewidth=0)
        return
    names = [str(group) for group in groups]
    order = [name for name, _ in Counter(names).most_common()]
    handles: dict[Any, str] = {}
    own = order if len(order) <= GROUPS else order[: GROUPS - 1]
    for rank, name in enumerate([*own, None] if len(own) < len(order) else own):
        is_in = np.array([each == name if name is not None else each not in own for each in names])
        color, marker = (COLORS[rank % len(COLORS)], MARKERS[rank % len(MARKERS)]) if name is not None else (GREY, ".")
        drawn = place.scatter(points[is_in, 0], points[is_in, 1], s=30, color=color, marker=marker, linewidth=0)
        handles[drawn] = f"{'others' if name is None else shortened(name, 22)} ({is_in.sum()})"
    figure.legend(list(handles), list(handles.values()), loc="outside right upper", title=f"{title} (texts)")


def _annotate(figure: Figure, place: Axes, points: np.ndarray, texts: Sequence[str]) -> None:
    """Write texts beside points far from each other first, where they hide no other text or point."""
    pixels, box = place.transData.transform(points), place.get_window_extent()
    half = 3 * figure.dpi / 72
    markers = [Bbox.from_extents(x - half, y - half, x + half, y + half) for x, y in pixels]
    taken: list[Bbox] = []
    far = np.full(len(points), np.inf)
    for _ in range(min(LABELLED, len(points))):
        index = int(far.argmax())
        far = np.minimum(far, ((pixels - pixels[index]) ** 2).sum(axis=1))
        far[index] = -1
        look: dict[str, Any] = {"textcoords": "offset points", "fontsize": SMALL, "color": "#333333"}
        label = place.annotate(shortened(texts[index], 40), points[index], xytext=(0, 0), **look)
        label.set_in_layout(False)
        for dx, dy, across, up in PLACES:
            label.set(position=(dx, dy), ha=across, va=up)
            found = label.get_window_extent()
            is_inside = box.x0 <= found.x0 and found.x1 <= box.x1 and box.y0 <= found.y0 and found.y1 <= box.y1
            if is_inside and not found.count_overlaps([*taken, *markers]):
                taken.append(found.padded(1))
                break
        else:
            label.remove()
