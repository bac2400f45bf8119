"""What examples share that are run with several seeds: their options, and a line of JSON for each run.

A seed decides the first weights, the order of the examples and their masks; what is held out is the same for all. So
several seeds are several processes that may run side by side, each on a thread of its own:

    for seed in 0 1 2; do OMP_NUM_THREADS=1 python examples/entities.py --seed $seed --json entities.jsonl; done
    python examples/spread.py entities.jsonl
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from bertcore.training import Trainer


def options(description: str, *, seconds: float, out: str) -> argparse.ArgumentParser:
    """The parser of an example, with the options that all have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=seconds, help="of each training (default: %(default)g)")
    parser.add_argument("--seed", type=int, default=0, help="of weights, order and masks (default: 0)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append a line for each run, which spread.py reads")
    parser.add_argument("--texts", type=_count, help="to learn from and to measure with (default: all)")
    parser.add_argument(
        "--out", default=Path(out), type=Path, help="a folder for what is trained (default: %(default)s)"
    )
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r}, expected a whole number of at least 1")
    return int(text)


def report(given: argparse.Namespace, run: str, *, curve: list[tuple[float, float]] = (), **figures: Any) -> None:
    """Print the figures of a run, and append them to the file of --json if there is one."""
    print(f"{run}, seed {given.seed}: " + ", ".join(f"{name} {shown(figures[name])}" for name in figures), flush=True)
    if given.json is not None:
        line = json.dumps({"run": run, "seed": given.seed, **figures, "curve": list(curve)})
        with given.json.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def shown(value: float) -> str:
    """A number of things, or a share."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.3f}"


def curve_of(trainer: Trainer) -> list[tuple[float, float]]:
    """(seconds, loss) of each line of a trainer's log."""
    return [(line["seconds"], line["loss"]) for line in trainer.state.log_history if "loss" in line]
