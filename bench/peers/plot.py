"""The command `python -m bench.peers.plot` (needs matplotlib): the last runs in the CSV as a plot.

One panel per model and precision, one bar per library and batch: GFLOP/s of real work, with the FMA limit as a line.
"""

import argparse
import importlib
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.peers.compare import OK
from bench.report import read_csv

FOLDER = Path(__file__).parents[1] / "results"
COLOURS = {
    "bertcore": "tab:red",
    "torch": "tab:orange",
    "onnxruntime": "tab:blue",
    "openvino": "tab:purple",
    "openvino-dynamic": "tab:pink",
    "ctranslate2": "tab:green",
}


def unavailable_reason() -> str | None:
    """Why there can be no plot, or None."""
    if importlib.util.find_spec("matplotlib") is None:
        return "no plot: matplotlib is not installed (pip install matplotlib, then python -m bench.peers.plot)"
    return None


def last_runs(path: Path) -> list[dict[str, str]]:
    """The timed rows of the CSV that have the commit and the CPU of its last line; ValueError if there are none."""
    rows = read_csv(path)
    commit, cpu = rows[-1]["commit"], rows[-1]["cpu"]
    timed = [row for row in rows if (row["commit"], row["cpu"], row["status"]) == (commit, cpu, OK)]
    if not timed:
        raise ValueError(f"{path}: the last runs have no times to plot")
    return timed


def pyplot_without_screen() -> Any:
    """matplotlib.pyplot, which draws into files."""
    importlib.import_module("matplotlib").use("Agg")
    return importlib.import_module("matplotlib.pyplot")


def draw(source: Path, target: Path) -> None:
    """Plot the last runs of the CSV `source` into the PNG `target`. Raises ValueError if nothing was timed in it."""
    rows, pyplot = last_runs(source), pyplot_without_screen()
    models, precisions = (list(dict.fromkeys(row[key] for row in rows)) for key in ("model", "precision"))
    size = (5 * len(precisions) + 1, 3 * len(models) + 1)
    figure, panels = pyplot.subplots(len(models), len(precisions), figsize=size, squeeze=False, sharey="row")
    for i, model in enumerate(models):
        for j, precision in enumerate(precisions):
            chosen = [row for row in rows if (row["model"], row["precision"]) == (model, precision)]
            panels[i][j].set_title(f"{model} {precision}")
            _bars(panels[i][j], chosen)
        panels[i][0].set_ylabel("GFLOP/s of real work")
    handles = {label: handle for panel in panels.flat for handle, label in zip(*panel.get_legend_handles_labels())}  # noqa: B905
    columns = min(len(handles), 4 * len(precisions))
    figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=columns, frameon=False)
    figure.suptitle(f"{rows[0]['cpu']}, {rows[0]['threads']} threads, {rows[0]['date'][:10]}")
    figure.tight_layout(rect=(0, 0.12, 1, 1))
    figure.savefig(target, dpi=120)
    pyplot.close(figure)


def _bars(panel: Any, rows: Sequence[dict[str, str]]) -> None:
    shapes = list(dict.fromkeys(row["shape"] for row in rows))
    libraries = [name for name in COLOURS if any(row["library"] == name for row in rows)]
    width = 0.8 / max(1, len(libraries))
    for index, library in enumerate(libraries):
        speeds = {row["shape"]: float(row["gflop_per_s"]) for row in rows if row["library"] == library}
        places = [at + (index - (len(libraries) - 1) / 2) * width for at, shape in enumerate(shapes) if shape in speeds]
        heights = [speeds[shape] for shape in shapes if shape in speeds]
        panel.bar(places, heights, width, color=COLOURS[library], label=library)
    panel.set_xticks(range(len(shapes)), shapes)
    limits = {float(row["fma_limit_gflop_per_s"]) for row in rows}
    if limits:
        panel.axhline(max(limits), color="black", linewidth=0.8, linestyle="--", label="float32 FMA limit")


def run(arguments: Sequence[Any] | None, source: Path, draw: Callable[[Path, Path], None], shown: str) -> str:
    """Draw as the command's arguments say, `source` by default; returns what to say at the end."""
    parser = argparse.ArgumentParser(description=f"Plot the last runs of a CSV: {shown}.")
    parser.add_argument("csv", nargs="?", type=Path, default=source, help=f"default: {source.name} of bench/results")
    parser.add_argument("png", nargs="?", type=Path, help="default: beside the CSV")
    options = parser.parse_args(None if arguments is None else [*map(str, arguments)])
    if not options.csv.is_file():
        parser.error(f"there is no file {options.csv}")
    reason = unavailable_reason()
    if reason is not None:
        return reason
    target = options.png or options.csv.with_suffix(".png")
    draw(options.csv, target)
    return f"plotted to {target}"


def main(arguments: Sequence[Any] | None = None) -> str:
    """Draw; returns what to say at the end."""
    return run(arguments, FOLDER / "peers.csv", draw, "GFLOP/s of each library, one panel per model and precision")


if __name__ == "__main__":
    print(main())
