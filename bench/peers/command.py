"""What the commands that compare whole models have in common."""

import argparse
import contextlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench import machine
from bench.peers.compare import FAILED, WRONG, Plan
from bench.report import append_csv

Rows = list[dict[str, Any]]


def compare_and_report(
    options: argparse.Namespace,
    libraries: Sequence[str],
    compare: Callable[[argparse.Namespace, Path, Plan], Iterable[Rows]],
    told: Callable[[Rows], Iterable[str]],
    plot: Callable[[Sequence[Any]], str],
) -> int:
    """Compare, print, write the CSV and the plot; 1 if something failed or was wrong, else 0.

    Args:
        options: as `options.parse` gives them.
        libraries: those whose versions are told.
        compare: yields the rows of one case after the other, of the options, a folder for checkpoints and the plan.
        told: what is printed of all rows, part by part.
        plot: draws a CSV into a PNG; returns what to say of it.
    """
    machine.set_threads(options.threads)
    about = described(options.threads, libraries)
    plan = Plan(options.threads, options.rounds, options.seconds, about["fma_limit_gflop_per_s"] * 1e9)
    print("\n".join(f"{name}: {value}" for name, value in about.items() if value != ""), flush=True)
    rows: Rows = []
    with workdir(options.workdir) as folder:
        for compared in compare(options, folder, plan):
            if options.csv is not None:
                append_csv(options.csv, compared, about)  # case by case: an interrupted run keeps what it has
            rows += compared
    print("", *told(rows), sep="\n\n")
    if options.csv is not None:
        print(f"\nadded to {options.csv}", plot([options.csv]), sep="\n")
    return 1 if any(row["status"] in (FAILED, WRONG) for row in rows) else 0


def described(threads: int, libraries: Sequence[str]) -> dict[str, Any]:
    """The machine, what its vector units do at best, and the versions of these libraries."""
    versions = {name: machine.version(name) for name in libraries}
    limit = machine.fma_limit(threads) / 1e9
    return {**machine.describe(), **versions, "fma_limit_gflop_per_s": round(limit, 1)}


@contextlib.contextmanager
def workdir(chosen: Path | None) -> Iterator[Path]:
    """The chosen folder, or one that is gone afterwards."""
    if chosen is not None:
        yield chosen
        return
    with tempfile.TemporaryDirectory(prefix="bertcore-peers-") as folder:
        yield Path(folder)
