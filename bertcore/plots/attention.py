"""Attention probabilities of a model's heads, and the terms of DeBERTa's attention scores."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from bertcore import kernels

TITLES = ("content to content", "content to position", "position to content", "their sum")


def attention_maps(model: Any, tokenizer: Any, text: str, layer: int) -> Figure:
    """Draw the attention probabilities of each head of a layer, counted from 1.

    The colours end at the greatest probability of a key that is not a special token: those often get nearly all.

    Raises ValueError if the layer does not exist, the model returns no attentions, or the text is too long.
    """
    ids, output = output_for(model, tokenizer, text, output_attentions=True)
    attentions = output.attentions
    if not attentions or attentions[0] is None:
        raise ValueError(f"models of type {model.family.model_type!r} do not return attentions")
    heads = kernels.to_host(attentions[_checked(layer, len(attentions))])[0]
    titles = [f"layer {layer}, head {number}" for number in range(1, len(heads) + 1)]
    most = heads[:, :, ~np.isin(ids, tokenizer.all_special_ids)].max(initial=0) or 1
    return maps(list(heads), titles, tokenizer.convert_ids_to_tokens(ids), columns=4, cmap="Blues", vmin=0, vmax=most)


def attention_components(model: Any, tokenizer: Any, text: str, layer: int) -> Figure:
    """Draw the terms of DeBERTa's attention scores in a layer, counted from 1, and their sum: means over the heads.

    Raises ValueError if the layer does not exist, the model is not a DeBERTa, or the text is too long.
    """
    if not model.family.model_type.startswith("deberta"):
        raise ValueError(f"the model is of type {model.family.model_type!r}, expected a DeBERTa")
    ids, output = output_for(model, tokenizer, text, output_attention_components=True)
    layers = output.attention_components
    terms = layers[_checked(layer, len(layers))]
    found = {
        title: kernels.to_host(term)[0].mean(axis=0)
        for title, term in zip(TITLES, terms, strict=False)
        if term is not None
    }
    found[TITLES[3]] = np.sum(list(found.values()), axis=0)
    most = max(float(np.abs(panel).max()) for panel in found.values())
    tokens = tokenizer.convert_ids_to_tokens(ids)
    return maps(list(found.values()), list(found), tokens, columns=2, cmap="RdBu_r", vmin=-most, vmax=most)


def _checked(layer: int, count: int) -> int:
    if not 1 <= layer <= count:
        raise ValueError(f"layer is {layer}, expected 1 to {count}")
    return layer - 1


def maps(
    panels: Sequence[np.ndarray], titles: Sequence[str], tokens: Sequence[str], *, columns: int, **look: Any
) -> Figure:
    """Return a figure of maps (queries, keys) in a grid, on one colour scale.

    Args:
        panels: the maps, (tokens, tokens) each.
        titles: titles of the panels.
        tokens: labels of the axes.
        columns: number of panels in a row.
        look: options of matplotlib's imshow: cmap, vmin, vmax.
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
    figure.supxlabel("key", fontsize=9)
    figure.supylabel("query", fontsize=9)
    return figure


MOST_TOKENS = 128  # a larger figure cannot be read and takes gigabytes


def tokens_of(tokenizer: Any, text: str, longest: int | None = None) -> dict[str, list[int]]:
    """Tokenize a text without cutting it.

    Raises ValueError for more than MOST_TOKENS tokens, and for more than `longest`, the model's limit.
    """
    encoded = dict(tokenizer(text))
    count, most = len(encoded["input_ids"]), min(MOST_TOKENS, longest or MOST_TOKENS)
    if count > most:
        raise ValueError(f"text has {count} tokens, expected at most {most}")
    return encoded


def output_for(model: Any, tokenizer: Any, text: str, **options: Any) -> tuple[list[int], Any]:
    """Return the token ids of a text and the model's output; raises as `tokens_of`."""
    encoded = tokens_of(tokenizer, text, model.spec.longest_sequence)
    return encoded["input_ids"], model(**{name: [row] for name, row in encoded.items()}, **options)
