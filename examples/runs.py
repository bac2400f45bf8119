"""Shared parts of the examples: options, training arguments, and a line of JSON for each run.

A seed decides the initial weights, the order of the examples and their masks; the held-out texts are the same for all.
Several seeds are several processes that may run side by side, each on one thread:

    for seed in 0 1 2; do OMP_NUM_THREADS=1 python examples/entities.py --seed $seed --json entities.jsonl; done
    python examples/spread.py entities.jsonl
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from bertcore.training import Trainer, TrainingArguments


def options(description: str, *, seconds: float, out: str) -> argparse.ArgumentParser:
    """Return the parser of an example, with the common options."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=seconds, help="time of each training (default: %(default)g)")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights, order and masks (default: 0)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append a line for each run, for spread.py")
    parser.add_argument("--texts", type=count, help="the number of texts (default: all)")
    parser.add_argument("--out", default=Path(out), type=Path, help="folder of the models (default: %(default)s)")
    return parser


def count(text: str) -> int:
    """Return the positive integer of an option."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r}, expected a whole number of at least 1")
    return int(text)


def arguments(folder: Path, seconds: float, seed: int, learning_rate: float, **more: Any) -> TrainingArguments:
    """Return the training arguments of a run that ends after some seconds."""
    common = {"warmup_steps": 0.05, "logging_steps": 20, "save_strategy": "no", "max_seconds": seconds} | more
    return TrainingArguments(output_dir=folder, seed=seed, learning_rate=learning_rate, **common)


def report(given: argparse.Namespace, run: str, *, curve: list[tuple[float, float]] = (), **figures: Any) -> None:
    """Print the results of a run, and append them to the file of --json."""
    print(f"{run}, seed {given.seed}: " + ", ".join(f"{name} {shown(figures[name])}" for name in figures), flush=True)
    if given.json is not None:
        line = json.dumps({"run": run, "seed": given.seed, **figures, "curve": list(curve)})
        with given.json.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def shown(value: float) -> str:
    """Format a count or a share."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.3f}"


def curve_of(trainer: Trainer) -> list[tuple[float, float]]:
    """Return (seconds, loss) of each line of a trainer's log."""
    return [(line["seconds"], line["loss"]) for line in trainer.state.log_history if "loss" in line]
