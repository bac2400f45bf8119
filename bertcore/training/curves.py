"""The curves of a training run, from its log."""

import json
import math
import os
from collections.abc import Iterable, Mapping
from numbers import Real
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from bertcore.drawing import BLUE, GREY, ORANGE, listed, new_figure, style

DRAWN = ("step", "loss", "eval_loss", "learning_rate")
Log = str | os.PathLike[str] | Iterable[Mapping[str, Any]]


@style()
def training_curves(log: Log) -> Figure:
    """Draw the losses by step, with a point for each evaluation on held-out data, and below them the learning rate.

    Args:
        log: the log.jsonl of a `Trainer`, or its `state.log_history`.

    Raises ValueError for a log without losses, a file that is not in UTF-8, and, with its number, for a line that is
    not a JSON object or has a non-number.
    """
    if isinstance(log, str | os.PathLike):
        name, entries = os.fspath(log), _read(Path(log))
    else:
        name, entries = "log", [_checked(entry, f"log[{at}]") for at, entry in enumerate(listed("log", log))]
    found = {key: _series(entries, key) for key in DRAWN[1:]}
    if not found["loss"] and not found["eval_loss"]:
        raise ValueError(f"{name} has no line with step and loss, expected the log of a Trainer")
    figure = new_figure(6.5, 4.6 if found["learning_rate"] else 3.6)
    heights = (3, 1) if found["learning_rate"] else (1,)
    above, *below = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    marks = {"marker": "o", "markersize": 5, "markeredgecolor": "white"}
    _draw(above, found["loss"], color=BLUE, label="training", **(marks if len(found["loss"]) < 3 else {}))
    _draw(above, found["eval_loss"], color=ORANGE, label="held out", **marks)
    above.set_ylabel("loss")
    above.legend()
    for place in below:
        _draw(place, found["learning_rate"], color=GREY)
        place.set(ylabel="learning rate", ylim=(0, None))
        place.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))
    for place in (above, *below):
        place.grid(visible=True)
    (below or [above])[-1].set_xlabel("step")
    return figure


def _draw(place: Any, points: list[tuple[float, float]], **look: Any) -> None:
    if points:
        place.plot(*zip(*points, strict=True), **look)


def _read(file: Path) -> list[dict[str, Any]]:
    if file.is_char_device():  # which may never end
        raise ValueError(f"{file} is a device, expected a log.jsonl")
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8 at byte {error.start + 1}, expected a log.jsonl") from error
    entries = []
    for number, line in enumerate(text.splitlines(), 1):
        where = f"{file}, line {number}"
        try:
            entry = json.loads(line) if line else {}
        except (ValueError, RecursionError):
            entry = None
        if not isinstance(entry, dict):
            raise ValueError(f"{where}: {line[:60]!r}, expected a JSON object, as in log.jsonl")
        entries.append(_checked(entry, where))
    return entries


def _checked(entry: object, where: str) -> dict[str, Any]:
    if not isinstance(entry, Mapping):
        raise TypeError(f"{where} is {type(entry).__name__}, expected a mapping, as in log_history")
    for name in DRAWN:
        value = entry.get(name)
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        if value is not None and (not is_number or (isinstance(value, int) and value.bit_length() > 300)):
            raise ValueError(f"{where}: {name} is {value!r:.60}, expected a number")
    return dict(entry)


def _series(entries: list[dict[str, Any]], name: str) -> list[tuple[float, float]]:
    """Return (step, value) of the entries that have both as finite numbers."""
    pairs = [(entry["step"], entry[name]) for entry in entries if None not in (entry.get("step"), entry.get(name))]
    return [pair for pair in pairs if all(map(math.isfinite, pair))]
