"""Models side by side: sizes, FLOPs, measurements and published accuracy."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from bertcore.arguments import check_number
from bertcore.drawing import BLUE, GREEN, SKY, SMALL, label_ticks, listed, new_figure, shortened, style
from bertcore.kernels import checks

Row = Mapping[str, Any]


class Panel(NamedTuple):
    """A number for each model, drawn as a bar from zero or (is_dot) a dot on an axis that may start elsewhere.

    `parts` are functions of a model's row, by name; a bar is their sum. An unknown value, None, has no bar.
    """

    name: str
    parts: Mapping[str, Callable[[Row], float | None]]
    is_dot: bool = False


PARAMETERS = {
    "layers": lambda row: (row["parameters"] - row["embeddings"]) / 1e6,
    "embeddings": lambda row: row["embeddings"] / 1e6,
}
SIZES = (
    Panel("parameters, millions", PARAMETERS),
    Panel("FLOPs per token, millions", {"FLOPs": lambda row: row["flops_per_token"] / 1e6}),
    Panel("MNLI-m accuracy, %, as published", {"MNLI-m": lambda row: row["mnli_m"]}, is_dot=True),
)
MEASURED = (
    Panel("latency, ms, median of the rounds", {"latency": lambda row: row["latency"] * 1e3}),
    Panel("resident memory, MB", {"resident": lambda row: row["resident"]}),
    Panel("weights on disk, MB", {"disk": lambda row: row["on_disk"]}),
)
TRAINED = (
    Panel("peak memory of a training step, MB", {"peak": lambda row: row["peak"]}),
    Panel("with gradient checkpointing, MB", {"peak": lambda row: row["checkpointed_peak"]}),
    Panel("training speed, tokens/s", {"speed": lambda row: row["tokens_per_second"]}),
)


@style()
def models_side_by_side(rows: Sequence[Row], panels: Sequence[Panel] = SIZES, *, log: bool = False) -> Figure:
    """Draw a row for each model: bars from zero in each panel, or dots on logarithmic axes.

    Args:
        rows: for each model its "name" and the keys that the panels read, as `bertcore compare --json` prints them.
        panels: SIZES, MEASURED, TRAINED, or your own.
        log: whether to draw dots on logarithmic axes in place of bars; published accuracy does not change.

    Raises ValueError if `rows` is empty or a value is not a finite number of at least 0.
    """
    rows = listed("rows", rows)
    if not rows:
        raise ValueError("rows is empty, expected at least one model")
    checks.boolean("log", log)
    widths = [1.5 if panel.is_dot else 2 for panel in panels]
    figure = new_figure(1.9 * sum(widths) + 2, 0.21 * len(rows) + 1.1)
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False, width_ratios=widths)[0]
    for place, panel in zip(axes, panels, strict=True):
        values = {part: [_value(row, panel, read) for row in rows] for part, read in panel.parts.items()}
        totals = [None if None in parts else math.fsum(parts) for parts in zip(*values.values(), strict=True)]
        (_dots if log or panel.is_dot else _bars)(place, values, totals)
        if log and not panel.is_dot:
            place.set_xscale("log")
            place.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
            place.xaxis.set_major_formatter("{x:,.6g}")
            place.minorticks_off()
        place.set_xlabel(panel.name)
        place.grid(axis="x")
        place.tick_params(axis="y", length=0)
    axes[0].set_ylim(len(rows) - 0.4, -0.6)
    label_ticks(figure, [axes[0].yaxis], [shortened(row["name"], 32) for row in rows])
    return figure


def _value(row: Row, panel: Panel, read: Callable[[Row], float | None]) -> float | None:
    try:
        name, value = row["name"], read(row)
    except KeyError as error:
        raise ValueError(f"rows has a model without {error}, which {panel.name!r} needs") from error
    return None if value is None else check_number(f"{panel.name} of {name}", value)


def _bars(place: Axes, values: Mapping[str, list[float | None]], totals: Sequence[float | None]) -> None:
    known = [index for index, total in enumerate(totals) if total is not None]
    left = [0.0] * len(known)
    for (part, column), color in zip(values.items(), (BLUE, SKY, GREEN), strict=False):
        widths = [column[index] or 0.0 for index in known]
        place.barh(known, widths, left=left, height=0.72, color=color, label=part)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    for index, total in zip(known, left, strict=True):
        label = f" {total:,.0f}" if total >= 100 else f" {total:.3g}"
        place.text(total, index, label, va="center", fontsize=SMALL, color="#333333")
    place.set_xlim(0, 1.22 * max(left, default=1) or 1)
    if len(values) > 1:
        place.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=len(values), borderaxespad=0.2)


def _dots(place: Axes, values: Mapping[str, list[float | None]], totals: Sequence[float | None]) -> None:
    known = [(total, index) for index, total in enumerate(totals) if total]
    if known:
        place.plot(*zip(*known, strict=True), "o", color=GREEN, markersize=5)
        place.margins(x=0.08)
