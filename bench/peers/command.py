"""Common parts of the commands that compare whole models: options, the run, the report."""

import argparse
import contextlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import machine, plot
from bench.options import above_zero, positive
from bench.peers.compare import FAILED, WRONG, Plan
from bench.report import append_csv

Rows = list[dict[str, Any]]


def compare_and_report(
    options: argparse.Namespace,
    libraries: Sequence[str],
    compare: Callable[[argparse.Namespace, Path, Plan], Iterable[Rows]],
    report: Callable[[Rows], Iterable[str]],
) -> int:
    """Compare, print, write the CSV and the plot; return 1 if something failed or was wrong, else 0.

    Args:
        options: the result of `parse`.
        libraries: the libraries whose versions are printed.
        compare: yields the rows of one case after the other, from the options, a folder for checkpoints and the plan.
        report: returns the printed parts, from all rows.
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
    print("", *report(rows), sep="\n\n")
    if options.csv is not None:
        print(f"\nadded to {options.csv}", plot.main([options.csv]), sep="\n")
    return 1 if any(row["status"] in (FAILED, WRONG) for row in rows) else 0


def described(threads: int, libraries: Sequence[str]) -> dict[str, Any]:
    """Return the machine, its FMA limit, and the versions of these libraries."""
    versions = {name: machine.version(name) for name in libraries}
    limit = machine.fma_limit(threads) / 1e9
    return {**machine.describe(), **versions, "fma_limit_gflop_per_s": round(limit, 1)}


@contextlib.contextmanager
def workdir(chosen: Path | None) -> Iterator[Path]:
    """Yield the chosen folder, or a temporary one."""
    if chosen is not None:
        yield chosen
        return
    with tempfile.TemporaryDirectory(prefix="bertcore-peers-") as folder:
        yield Path(folder)


def add_common(parser: argparse.ArgumentParser, full: Mapping[str, Any], quick_means: str) -> None:
    """Declare --threads, --rounds, --seconds, --workdir, --csv and --quick.

    `full` has the defaults of `parse`, `quick_means` says in words what --quick runs.
    """
    csv = "/".join(full["csv"].parts[-3:])
    parser.add_argument("--threads", type=positive, default=2, help="of every library (default: 2)")
    parser.add_argument("--rounds", type=positive, help=f"samples of each, at most (default: {full['rounds']})")
    seconds = f"after which a case ends with fewer, but 5 (default: {full['seconds']:g})"
    parser.add_argument("--seconds", type=above_zero, help=seconds)
    parser.add_argument("--workdir", type=Path, help="where checkpoints are kept (default: a temporary folder)")
    parser.add_argument("--csv", type=Path, help=f"to append to; the plot goes beside it (default: {csv})")
    parser.add_argument("--quick", action="store_true", help=f"see that all works: {quick_means}, no default CSV")


def parse(
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
    full: Mapping[str, Any],
    quick: Mapping[str, Any],
) -> argparse.Namespace:
    """Return the options; defaults are in `full`, or with --quick in `quick`."""
    options = parser.parse_args(arguments)
    for name, default in (quick if options.quick else full).items():
        if getattr(options, name) is None:
            setattr(options, name, default)
    return options
