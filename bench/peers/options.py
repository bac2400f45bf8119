"""The options of the commands that compare whole models."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def add_common(parser: argparse.ArgumentParser, full: Mapping[str, Any], quick_means: str) -> None:
    """Declare --threads, --rounds, --seconds, --workdir, --csv and --quick; `full` has the values that `parse` gives
    to those that are not given, and `quick_means` says what --quick leaves."""
    csv = "/".join(full["csv"].parts[-3:])
    parser.add_argument("--threads", type=int, default=2, help="of every library (default: 2)")
    parser.add_argument("--rounds", type=int, help=f"samples of each, at most (default: {full['rounds']})")
    seconds = f"after which a case ends with fewer, but 5 (default: {full['seconds']:g})"
    parser.add_argument("--seconds", type=float, help=seconds)
    parser.add_argument("--workdir", type=Path, help="where checkpoints are kept (default: a temporary folder)")
    parser.add_argument("--csv", type=Path, help=f"to append to; the plot goes beside it (default: {csv})")
    parser.add_argument("--quick", action="store_true", help=f"see that all works: {quick_means}, no default CSV")


def parse(
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
    full: Mapping[str, Any],
    quick: Mapping[str, Any],
) -> argparse.Namespace:
    """The options; those that are not given have their values in `full`, or with --quick in `quick`."""
    options = parser.parse_args(arguments)
    for name, default in (quick if options.quick else full).items():
        if getattr(options, name) is None:
            setattr(options, name, default)
    return options
