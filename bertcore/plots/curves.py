"""Curves of a training run, from its log."""

import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

LOSSES = {"loss": "training", "eval_loss": "held out"}
DRAWN = ("step", *LOSSES, "learning_rate")


def training_curves(log: str | Path) -> Figure:
    """Draw losses, and below them the learning rate, by step, from the log.jsonl of a `Trainer`.

    Raises ValueError for a file without losses or not in UTF-8, and, with its number, for a line that is not a JSON
    object or has a non-number.
    """
    try:
        text = Path(log).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{log} is not UTF-8 at byte {error.start + 1}, expected a log.jsonl") from error
    lines = [_entry(line, f"{log}, line {number}") for number, line in enumerate(text.splitlines(), 1) if line]
    found = {name: _series(lines, name) for name in DRAWN[1:]}
    if not found["loss"]:
        raise ValueError(f"{log} has no line with step and loss")
    figure = Figure(figsize=(7, 5), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    for (name, label), color in zip(LOSSES.items(), ("#3b6ea5", "#c0504d"), strict=True):
        if found[name]:
            marks = "o-" if name == "eval_loss" else "-"
            above.plot(*zip(*found[name], strict=True), marks, color=color, label=label, markersize=3.5)
    above.set_ylabel("loss")
    above.legend(frameon=False)
    if found["learning_rate"]:
        below.plot(*zip(*found["learning_rate"], strict=True), color="#888888")
    below.set(xlabel="step", ylabel="learning rate", ylim=(0, None))
    for place in (above, below):
        place.grid(visible=True, alpha=0.25)
    return figure


def _entry(line: str, where: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError:
        entry = None
    if not isinstance(entry, dict):
        raise ValueError(f"{where}: {line[:60]!r}, expected a JSON object, as in log.jsonl")
    for name in DRAWN:
        value = entry.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ValueError(f"{where}: {name} is {value!r:.60}, expected a number")
    return entry


def _series(lines: list[dict[str, Any]], name: str) -> list[tuple[float, float]]:
    """Return (step, value) of the lines that have both; null is a number that JSON cannot hold."""
    return [(line["step"], line[name]) for line in lines if None not in (line.get("step"), line.get(name))]
