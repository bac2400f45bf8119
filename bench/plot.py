"""Plot the last runs in a benchmark's CSV: python -m bench.plot [CSV] [PNG] (needs matplotlib)

bench.peers, bench.encode: a panel for each model and precision, GFLOP/s of each library and batch, and the FMA limit.
bench.models: a panel for each batch and precision, milliseconds of each model, ours and transformers on PyTorch.
"""

import argparse
import importlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.report import read_csv

FOLDER = Path(__file__).parent / "results"
COLOURS = {
    "bertcore": "tab:red",
    "torch": "tab:orange",
    "onnxruntime": "tab:blue",
    "openvino": "tab:purple",
    "openvino-dynamic": "tab:pink",
    "ctranslate2": "tab:green",
    "fastembed": "tab:cyan",
}
Rows = Sequence[dict[str, str]]


def unavailable_reason() -> str | None:
    """Return why plots cannot be drawn, or None."""
    if importlib.util.find_spec("matplotlib") is None:
        return "no plot: matplotlib is not installed (pip install matplotlib, then python -m bench.plot)"
    return None


def last_runs(path: Path) -> list[dict[str, str]]:
    """Return the timed rows with the commit and the CPU of the CSV's last line; raises ValueError without any."""
    rows = read_csv(path)
    commit, cpu = rows[-1]["commit"], rows[-1]["cpu"]
    timed = [row for row in rows if (row["commit"], row["cpu"], row["status"]) == (commit, cpu, "ok")]
    if not timed:
        raise ValueError(f"{path}: the last runs have no times to plot")
    return timed


def draw(source: Path, target: Path) -> None:
    """Plot the last runs of the CSV `source` into the PNG `target`. Raises ValueError if it has no times."""
    rows = last_runs(source)
    importlib.import_module("matplotlib").use("Agg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    figure = _members(pyplot, rows) if "time_vs_our_bert" in rows[0] else _libraries(pyplot, rows)
    figure.suptitle(f"{rows[0]['cpu']}, {rows[0]['threads']} threads, {rows[0]['date'][:10]}")
    figure.savefig(target, dpi=120)
    pyplot.close(figure)


def _distinct(rows: Rows, *keys: str) -> list[Any]:
    return list(dict.fromkeys(row[keys[0]] if len(keys) == 1 else tuple(row[key] for key in keys) for row in rows))


def _libraries(pyplot: Any, rows: Rows) -> Any:
    models, precisions = _distinct(rows, "model"), _distinct(rows, "precision")
    size = (5 * len(precisions) + 1, 3 * len(models) + 1)
    figure, panels = pyplot.subplots(
        len(models), len(precisions), figsize=size, squeeze=False, sharey="row", layout="tight"
    )
    for i, model in enumerate(models):
        for j, precision in enumerate(precisions):
            panels[i][j].set_title(f"{model} {precision}")
            speed_bars(panels[i][j], [row for row in rows if (row["model"], row["precision"]) == (model, precision)])
        panels[i][0].set_ylabel("GFLOP/s of real work")
    panels[0][0].legend(frameon=False, fontsize="small")
    return figure


def speed_bars(panel: Any, rows: Rows) -> None:
    """Draw GFLOP/s of each library, beside each other for each batch, and the FMA limit."""
    shapes = _distinct(rows, "shape")
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


def _members(pyplot: Any, rows: Rows) -> Any:
    groups, models = _distinct(rows, "shape", "precision"), _distinct(rows, "model")
    size = (6 * len(groups) + 2, 0.5 * len(models) + 1.5)
    figure, panels = pyplot.subplots(1, len(groups), figsize=size, squeeze=False, sharey=True, layout="tight")
    for panel, (shape, precision) in zip(panels[0], groups, strict=True):
        time_bars(panel, models, [row for row in rows if (row["shape"], row["precision"]) == (shape, precision)])
        panel.set(title=f"{shape} {precision}", xlabel="ms")
    panels[0][0].invert_yaxis()
    panels[0][0].legend(frameon=False)
    return figure


def time_bars(panel: Any, models: Sequence[str], rows: Rows) -> None:
    """Draw milliseconds of each model, ours above PyTorch's."""
    for offset, library in ((-0.2, "bertcore"), (0.2, "torch")):
        medians = {row["model"]: 1e3 * float(row["median_s"]) for row in rows if row["library"] == library}
        places = [index + offset for index, model in enumerate(models) if model in medians]
        panel.barh(places, list(medians.values()), 0.4, color=COLOURS[library], label=library)
    panel.set_yticks(range(len(models)), models)


def main(arguments: Sequence[Any] | None = None) -> str:
    """Draw, and return a final message."""
    parser = argparse.ArgumentParser(prog="python -m bench.plot", description="Plot the last runs of a CSV.")
    parser.add_argument("csv", nargs="?", type=Path, default=FOLDER / "peers.csv", help="default: bench.peers' CSV")
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


if __name__ == "__main__":
    print(main())
