"""The command `python -m bench.models.plot` (needs matplotlib): the last runs in the CSV as a plot.

One panel per batch and precision: milliseconds of each member, ours and transformers on PyTorch.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.peers.plot import COLOURS, FOLDER, last_runs, pyplot_without_screen, run

CSV = FOLDER / "models.csv"
LIBRARIES = ("bertcore", "torch")


def draw(source: Path, target: Path) -> None:
    """Plot the last runs of the CSV `source` into the PNG `target`. Raises ValueError if nothing was timed in it."""
    rows, pyplot = last_runs(source), pyplot_without_screen()
    groups = list(dict.fromkeys((row["shape"], row["precision"]) for row in rows))
    models = list(dict.fromkeys(row["model"] for row in rows))
    size = (6 * len(groups) + 2, 0.5 * len(models) + 1.5)
    figure, panels = pyplot.subplots(1, len(groups), figsize=size, squeeze=False, sharey=True)
    for panel, (shape, precision) in zip(panels[0], groups, strict=True):
        chosen = [row for row in rows if (row["shape"], row["precision"]) == (shape, precision)]
        _bars(panel, models, chosen)
        panel.set(title=f"{shape} {precision}", xlabel="ms")
    panels[0][0].invert_yaxis()
    panels[0][0].legend(frameon=False)
    figure.suptitle(f"{rows[0]['cpu']}, {rows[0]['threads']} threads, {rows[0]['date'][:10]}")
    figure.tight_layout()
    figure.savefig(target, dpi=120)
    pyplot.close(figure)


def _bars(panel: Any, models: Sequence[str], rows: Sequence[dict[str, str]]) -> None:
    for offset, library in zip((-0.2, 0.2), LIBRARIES, strict=True):
        medians = {row["model"]: 1e3 * float(row["median_s"]) for row in rows if row["library"] == library}
        places = [index + offset for index, model in enumerate(models) if model in medians]
        panel.barh(places, list(medians.values()), 0.4, color=COLOURS[library], label=library)
    panel.set_yticks(range(len(models)), models)


def main(arguments: Sequence[Any] | None = None) -> str:
    """Draw; returns what to say at the end."""
    return run(arguments, CSV, draw, "milliseconds of each member, one panel per batch and precision")


if __name__ == "__main__":
    print(main())
