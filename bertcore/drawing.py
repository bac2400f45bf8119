"""The style of all figures: colours, fonts, labels that fit, and files whose bytes depend on their content alone.

The colours are those of Okabe and Ito (2008), which colour-blind readers can tell apart.
"""

import os
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager

from bertcore.arguments import check_path, printable, warn_caller

BLUE, ORANGE, GREEN, PINK = "#0072b2", "#d55e00", "#009e73", "#cc79a7"
SKY, AMBER, GREY = "#56b4e9", "#e69f00", "#8c8c8c"
COLORS = (BLUE, ORANGE, GREEN, AMBER, PINK, SKY)
SUFFIXES = (".png", ".svg")
SMALL = 7.5  # points, the smallest font
# DejaVu Sans comes with matplotlib; the others, where installed, have the characters that it lacks.
FONTS = ("Noto Sans CJK JP", "Noto Sans CJK SC", "Noto Sans Devanagari", "Noto Emoji", "WenQuanYi Micro Hei", "Unifont")
GLYPH = re.compile(r"Glyph (\d+) .*missing from font")  # matplotlib's warning, for each character
STYLE: dict[Any, Any] = {
    "figure.constrained_layout.h_pad": 0.06, "figure.constrained_layout.w_pad": 0.06, "figure.dpi": 150,
    "font.size": 9, "figure.labelsize": 9, "figure.titlesize": 9, "axes.titlesize": 9.5, "axes.labelsize": 9,
    "xtick.labelsize": 8.5, "ytick.labelsize": 8.5, "legend.fontsize": 8.5, "legend.frameon": False,
    "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": "#666666", "axes.axisbelow": True,
    "grid.color": "#dddddd", "grid.linewidth": 0.7, "xtick.color": "#333333", "ytick.color": "#333333",
    "text.parse_math": False,  # a text with two dollar signs is not a formula
    "text.hinting": "none",  # a text is as wide in a PNG as in an SVG
    "svg.hashsalt": "bertcore",
}  # fmt: skip


@contextmanager
def style() -> Iterator[None]:
    """Return a block, also a decorator, in which figures have this project's style and not the user's own."""
    installed = {font.name for font in fontManager.ttflist}
    with matplotlib.rc_context(), warnings.catch_warnings(record=True) as found:
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        matplotlib.rcParams["font.family"] = ["DejaVu Sans", *(font for font in FONTS if font in installed)]
        yield
    lacking = {chr(int(code[1])) for each in found if (code := GLYPH.match(str(each.message)))}
    for each in found:
        if not GLYPH.match(str(each.message)):
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
    if lacking:
        warn_caller(f"no font here has {''.join(sorted(lacking))[:40]}: install one of {', '.join(FONTS)}")


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of this size in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def shortened(text: object, most: int = 24) -> str:
    """Return a text as a label: in one line, without control characters, of at most `most` characters."""
    label = printable(" ".join(str(text).split())) or "(empty)"
    return label if len(label) <= most else label[: most - 1] + "…"


def listed(name: str, values: object) -> list[Any]:
    """Return an iterable as a list. Raises TypeError for a string and for anything else that is not one."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise TypeError(f"{name} is {values!r:.60}, expected a list")
    return list(values)


def label_ticks(figure: Figure, axes: Iterable[Any], labels: Sequence[str], *, offset: float = 0) -> None:
    """Label the positions `offset`, `offset` + 1, ... of axes, or each second, third, ..., as there is space.

    Call it when everything else that takes space is drawn.
    """
    axes, longest = list(axes), max(labels, key=len)
    for axis in axes:
        axis.set_ticks([offset], [longest], fontsize=SMALL, rotation=90 if axis.axis_name == "x" else 0)
    figure.draw_without_rendering()
    for axis in axes:
        box, ends = axis.axes.get_window_extent(), axis.get_view_interval()
        pixels = (box.width if axis.axis_name == "x" else box.height) / abs(ends[1] - ends[0])
        step = -int(-SMALL * 1.3 // (72 * pixels / figure.dpi))
        places, shown = [offset + index for index in range(0, len(labels), step)], labels[::step]
        axis.set_ticks(places, shown, fontsize=SMALL, rotation=90 if axis.axis_name == "x" else 0)


@style()
def save_figure(figure: Figure, target: str | os.PathLike[str] | BinaryIO, kind: str | None = None) -> None:
    """Write a figure as PNG or SVG; the same figure gives the same bytes.

    Args:
        figure: from a function of `bertcore.plots`.
        target: a file named *.png or *.svg, or a binary stream.
        kind: ".png" or ".svg"; by default the file's suffix.

    Raises TypeError unless `figure` is one, ValueError for another kind.
    """
    if not isinstance(figure, Figure):
        raise TypeError(f"figure is {type(figure).__name__}, expected a figure of matplotlib")
    found = str(kind if kind is not None or hasattr(target, "write") else check_path("target", target).suffix).lower()  # type: ignore[arg-type]
    if found not in SUFFIXES:
        raise ValueError(f"the kind of the figure's file is {found!r}, expected one of {', '.join(SUFFIXES)}")
    metadata = {"Software": None} if found == ".png" else {"Date": None, "Creator": None}
    figure.savefig(target, format=found[1:], metadata=metadata)  # type: ignore[arg-type]
