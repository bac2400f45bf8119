"""Make a table of several seeds' results (mean, least and largest), and a plot of the losses.

    python examples/spread.py RESULTS.jsonl [--plot curves.png]

The other examples append the lines with --json. The last column compares results with trivial guesses: yes if every
seed's result is above its guess by more than the results of the seeds differ.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import mean
from typing import Any

from runs import shown

Runs = dict[str, list[dict[str, Any]]]  # the lines of each run
COLUMNS_OF_PLOT = 3


def read(file: Path) -> Runs:
    """Read the lines, by the names of their runs. Raises SystemExit if a run has a seed twice."""
    runs: Runs = {}
    for line in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
        runs.setdefault(line["run"], []).append(line)
    for name, lines in runs.items():
        seeds = [line["seed"] for line in lines]
        if len(set(seeds)) < len(seeds):
            raise SystemExit(f"{file}: {name!r} has the seeds {seeds}, expected each once")
    return runs


def table(runs: Runs) -> str:
    """Return rows of a Markdown table, one for each run."""
    beside = ("run", "seed", "curve")
    columns = list(dict.fromkeys(name for lines in runs.values() for name in lines[0] if name not in beside))
    compared = ["above the trivial guess"] if "trivial" in columns else []
    rows = [["run", "seeds", *columns, *compared]]
    rows.append(["---"] * len(rows[0]))
    for name, lines in runs.items():
        cells = [spread([line[column] for line in lines]) if column in lines[0] else "" for column in columns]
        rows.append([name, str(len(lines)), *cells, *([is_above(lines)] if compared else [])])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def spread(values: list[float]) -> str:
    """Return the mean, and the least and largest value if they differ."""
    average = round(mean(values)) if isinstance(values[0], int) else mean(values)
    ends = f" ({shown(min(values))} to {shown(max(values))})" if min(values) < max(values) else ""
    return shown(average) + ends


def is_above(lines: list[dict[str, Any]]) -> str:
    """Return whether results exceed trivial guesses by more than they differ, in words; "" for a single seed."""
    if "trivial" not in lines[0] or len(lines) < 2:
        return ""
    figures = [line["figure"] for line in lines]
    margin = min(line["figure"] - line["trivial"] for line in lines)
    return "yes" if margin > max(figures) - min(figures) else "no"


def plot(runs: Runs, file: Path) -> None:
    """Plot the loss over time, each run in its own axes: losses of different objectives cannot be compared."""
    from matplotlib.figure import Figure

    learnt = {name: lines for name, lines in runs.items() if lines[0]["curve"]}
    rows = -(-len(learnt) // COLUMNS_OF_PLOT)
    figure = Figure(figsize=(9, 2.4 * rows), layout="constrained")
    for number, (name, lines) in enumerate(learnt.items(), start=1):
        axes = figure.add_subplot(rows, COLUMNS_OF_PLOT, number)
        for line in lines:
            axes.plot(*zip(*line["curve"], strict=True), linewidth=1, label=f"seed {line['seed']}")
        axes.set_title(name, fontsize="small")
        axes.set(xlabel="seconds", ylabel="loss")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="x-small")
    figure.savefig(file, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="where to save the losses as an image")
    given = parser.parse_args()
    runs = read(given.results)
    print(table(runs))
    if given.plot is not None:
        plot(runs, given.plot)


if __name__ == "__main__":
    main()
