"""Sizes, work and published quality of models, side by side."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure


def models_side_by_side(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return a figure with a line for each model.

    Args:
        rows: for each model its name, "parameters", "embeddings" (parameters of tables), "flops_per_token" and "mnli_m"
            (the published accuracy, None if it is unknown).
    """
    size = (13, 1.5 + 0.24 * len(rows))
    figure = Figure(figsize=size)
    sizes, work, mnli = figure.subplots(1, 3, sharey=True, width_ratios=(2, 2, 1))
    names = [f"{index}" for index in range(len(rows))]  # a model may be named twice
    tables = [each["embeddings"] / 1e6 for each in rows]
    others = [(each["parameters"] - each["embeddings"]) / 1e6 for each in rows]
    sizes.barh(names, others, color="tab:blue", label="layers")
    sizes.barh(names, tables, left=others, color="tab:cyan", label="embeddings")
    sizes.set_xlabel("parameters, millions")
    sizes.legend(frameon=False)
    work.barh(names, [each["flops_per_token"] / 1e6 for each in rows], color="tab:orange")
    work.set(xlabel="FLOPs per token, millions")
    known = [(name, each["mnli_m"]) for name, each in zip(names, rows, strict=True) if each["mnli_m"] is not None]
    mnli.plot([value for _, value in known], [name for name, _ in known], "o", color="tab:green")
    mnli.set(xlabel="MNLI-m, %, as published", xlim=(80, 93))
    sizes.set_yticks(range(len(rows)), [each["name"] for each in rows], fontsize=8)
    sizes.invert_yaxis()
    for panel in (sizes, work, mnli):
        panel.grid(visible=True, alpha=0.25)
        panel.margins(y=0.01)
    figure.tight_layout()
    return figure
