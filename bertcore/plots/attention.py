"""Figures of a text's tokens: attention of each head, the terms of DeBERTa's scores, and masking by epoch."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from bertcore import kernels
from bertcore.arguments import check_count
from bertcore.drawing import AMBER, BLUE, ORANGE, label_ticks, new_figure, shortened, style
from bertcore.kernels import checks
from bertcore.models.model import Model
from bertcore.tokenization.tokenizer import Tokenizer
from bertcore.training.collators import Masking, Words

TERMS = ("content to content", "content to position", "position to content", "sum of the terms")
MOST_TOKENS = 512  # a figure of more is unreadable
Look = Mapping[str, Any]  # options of matplotlib


@style()
def attention_maps(
    model: Model,
    tokenizer: Tokenizer,
    text: str,
    layer: int | None = None,
    *,
    head: int | None = None,
    special_tokens: bool = True,
) -> Figure:
    """Draw the attention probabilities of one head, or of several as small maps with one colour scale.

    The scale ends at the largest probability of a key that is not a special token, as these often get almost all of it.

    Args:
        model: a model with attention over all pairs of tokens.
        tokenizer: the model's.
        text: at most 512 tokens.
        layer: one layer, counted from 1; by default all.
        head: one head, counted from 1; by default all.
        special_tokens: whether to show special tokens such as [CLS]; the other probabilities do not change.

    Raises:
        TypeError: if text is not a string, or layer or head not an integer.
        ValueError: if there is no such layer or head, if the model does not return a probability for each pair of
            tokens, or if the text has too many tokens or none to show.
    """
    ids, output = output_for(model, tokenizer, text, output_attentions=True)
    attentions, count = output.attentions, len(ids)
    if not attentions or any(each is None or tuple(each.shape[2:]) != (count, count) for each in attentions):
        expected = "one whose attentions are (tokens, tokens)"
        raise ValueError(f"model is of type {model.family.model_type!r}, expected {expected}")
    layers = _chosen("layer", layer, len(attentions))
    panels = {index: kernels.to_host(attentions[index])[0].astype(np.float32) for index in layers}
    heads = _chosen("head", head, max(map(len, panels.values())))
    shown = _shown(tokenizer, ids, special_tokens)
    is_word = ~np.isin(np.array(ids)[shown], tokenizer.all_special_ids)
    names = [(index + 1, number + 1) for index in layers for number in heads]
    maps = [panels[index][number][np.ix_(shown, shown)] for index in layers for number in heads]
    words = max(float(each[:, is_word].max(initial=0)) for each in maps)
    most = max(float(each.max()) for each in maps)
    look = {"cmap": "Blues", "vmin": 0, "vmax": words or most or 1}
    bar = {"label": "attention probability", "extend": "max" if most > words > 0 else "neither"}
    if len(layers) > 1 and len(heads) > 1:
        return _thumbnails(maps, len(layers), look, bar)
    tokens = tokenizer.convert_ids_to_tokens(np.array(ids)[shown].tolist())
    return _maps(maps, [f"layer {index}, head {number}" for index, number in names], tokens, look, bar)


@style()
def attention_components(
    model: Any, tokenizer: Tokenizer, text: str, layer: int = 1, *, head: int | None = None, special_tokens: bool = True
) -> Figure:
    """Draw the terms of DeBERTa's attention scores in a layer, and their sum, with the mean absolute value of each.

    The maps show one head's values, or by default the absolute values averaged over all heads. The colours end at the
    largest value between words.

    Arguments and errors as for `attention_maps`; also ValueError if the model is not a DeBERTa.
    """
    if not model.family.model_type.startswith("deberta"):
        raise ValueError(f"model is of type {model.family.model_type!r}, expected a DeBERTa")
    ids, output = output_for(model, tokenizer, text, output_attention_components=True)
    layers = output.attention_components
    terms = layers[_chosen("layer", layer, len(layers))[0]]
    shown = _shown(tokenizer, ids, special_tokens)
    held = ((title, kernels.to_host(term)) for title, term in zip(TERMS, terms, strict=False) if term is not None)
    found = {title: term[0].astype(np.float32)[:, shown][:, :, shown] for title, term in held}
    found[TERMS[3]] = np.sum(list(found.values()), axis=0)
    heads = _chosen("head", head, len(found[TERMS[3]]))
    sizes = {title: np.abs(scores[heads]) for title, scores in found.items()}
    panels = [size.mean(axis=0) if head is None else found[title][heads[0]] for title, size in sizes.items()]
    is_word = ~np.isin(np.array(ids)[shown], tokenizer.all_special_ids)
    words = max(float(np.abs(panel[is_word][:, is_word]).max(initial=0)) for panel in panels)
    most = max(float(np.abs(panel).max()) for panel in panels)
    is_clipped, end = most > words > 0, words or most or 1
    titles = [f"{title}\nmean absolute value {size.mean():.3g}" for title, size in sizes.items()]
    tokens = tokenizer.convert_ids_to_tokens(np.array(ids)[shown].tolist())
    if head is None:
        bar = {"label": f"absolute score, mean of {len(heads)} heads of layer {layer}"}
        bar["extend"] = "max" if is_clipped else "neither"
        return _maps(panels, titles, tokens, {"cmap": "Blues", "vmin": 0, "vmax": end}, bar, columns=2)
    bar = {"label": f"score, layer {layer}, head {head}", "extend": "both" if is_clipped else "neither"}
    return _maps(panels, titles, tokens, {"cmap": "RdBu_r", "vmin": -end, "vmax": end}, bar, columns=2)


def _chosen(name: str, number: int | None, count: int) -> list[int]:
    """Return the indices of the chosen layers or heads: of one counted from 1, or of all."""
    if number is None:
        return list(range(count))
    if not 1 <= check_count(name, number) <= count:
        raise ValueError(f"{name} is {number}, expected 1 to {count}")
    return [number - 1]


def _shown(tokenizer: Tokenizer, ids: Sequence[int], special_tokens: bool) -> np.ndarray:
    """Return the indices of the tokens to show."""
    found = np.flatnonzero(checks.boolean("special_tokens", special_tokens) | ~np.isin(ids, tokenizer.all_special_ids))
    if not len(found):
        raise ValueError("text has only special tokens, expected others to show")
    return found


def _maps(
    panels: Sequence[np.ndarray], titles: Sequence[str], tokens: Sequence[str], look: Look, bar: Look, columns: int = 4
) -> Figure:
    rows = -(-len(panels) // columns)
    columns = -(-len(panels) // rows)  # 6 panels make two rows of 3, not 4 and 2
    least, most = ((3.0, 7.5), (2.6, 4.5), (1.9, 3.2))[0 if columns == 1 else 1 if columns == 2 else 2]
    side = min(max(least, 0.16 * len(tokens)), most)
    figure = new_figure(side * columns + 2.0, (side + 0.35) * rows + 0.9)
    axes = figure.subplots(rows, columns, squeeze=False)
    drawn = list(axes.flat[: len(panels)])
    for place, panel, title in zip(drawn, panels, titles, strict=True):
        place.imshow(panel, interpolation="nearest", **look)
        place.set_title(title)
        place.set(xticks=[], yticks=[])
        place.tick_params(length=2)
        place.spines[:].set_visible(False)
    for place in axes.flat[len(panels) :]:
        place.remove()
    figure.colorbar(drawn[0].images[0], ax=drawn, shrink=0.8 if rows == 1 else 0.5, aspect=25, **bar)
    figure.supxlabel("key token")
    figure.supylabel("query token")
    labelled = [place.yaxis for place in drawn[::columns]] + [place.xaxis for place in drawn[-columns:]]
    label_ticks(figure, labelled, [shortened(token, 16) for token in tokens])
    return figure


def _thumbnails(panels: Sequence[np.ndarray], rows: int, look: Look, bar: Look) -> Figure:
    """Draw maps without tokens, a row for each layer and a column for each head."""
    columns = len(panels) // rows
    side = min(1.0, 12 / max(rows, columns))
    figure = new_figure(max(4.0, side * columns + 1.7), max(3.0, side * rows + 1.0))
    axes = figure.subplots(rows, columns, squeeze=False)
    for place, panel in zip(axes.flat, panels, strict=True):
        place.imshow(panel, interpolation="nearest", **look)
        place.set(xticks=[], yticks=[])
        place.spines[:].set_visible(True)
    for number, place in enumerate(axes[0], 1):
        place.set_title(number)
    for number, place in enumerate(axes[:, 0], 1):
        place.set_ylabel(number, rotation=0, ha="right", va="center")
    figure.colorbar(axes[0, 0].images[0], ax=axes, shrink=0.6, aspect=30, **bar)
    figure.suptitle("head")
    figure.supylabel("layer")
    figure.supxlabel("in each map: key tokens across, query tokens down")
    return figure


def tokens_of(tokenizer: Tokenizer, text: str, longest: int | None = None) -> dict[str, list[int]]:
    """Tokenize a text without cutting it.

    Raises TypeError unless `text` is a string, ValueError for more tokens than MOST_TOKENS or `longest`.
    """
    if not isinstance(text, str):
        raise TypeError(f"text is {type(text).__name__}, expected a string")
    encoded = dict(tokenizer(text))
    count, most = len(encoded["input_ids"]), min(MOST_TOKENS, longest or MOST_TOKENS)
    if count > most:
        raise ValueError(f"text has {count} tokens, expected at most {most}")
    return encoded


def output_for(model: Model, tokenizer: Tokenizer, text: str, **options: Any) -> tuple[list[int], Any]:
    """Return a text's token ids and the model's output; raises as `tokens_of`."""
    encoded = tokens_of(tokenizer, text, model.spec.longest_sequence)
    rows: dict[str, Any] = {name: [row] for name, row in encoded.items()}
    return encoded["input_ids"], model(**rows, **options)


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
