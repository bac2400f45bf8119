"""The command `python -m bench.ops`."""

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench import machine
from bench.ops.calls import BACKENDS
from bench.ops.cases import DIRECTIONS, LENGTHS, MODEL_SIZES, OPS, Case, cases
from bench.ops.compare import OK, WRONG, Plan, compare
from bench.options import above_zero, positive
from bench.report import Column, append_csv, table

DEFAULT_CSV = Path(__file__).parents[1] / "results" / "ops.csv"
DTYPES = ("float32", "float64", "float16", "bfloat16")

TABLE = (
    Column("op", "operation"),
    Column("name", "case"),
    Column("size", "size"),
    Column("length", "length"),
    Column("direction", "direction"),
    Column("variant", "variant"),
    Column("median_s", "ms", ".3f", 1e3),
    Column("spread", "±%", ".0f", 50),  # half the distance between the quartiles
    Column("speedup_vs_numpy", "x numpy", ".2f"),
    Column("time_vs_copy", "/ copy", ".2f"),
    Column("time_vs_threaded_copy", "/ threaded copy", ".2f"),
    Column("gb_per_s", "GB/s", ".1f"),
    Column("gflop_per_s", "GFLOP/s", ".0f"),
    Column("status", "status"),
)
LEGEND = (
    "ms: median. ±%: half the distance between the quartiles. x numpy: how many times as fast as the NumPy reference.\n"
    "/ copy: time over that of a copy of as many bytes (1 thread, or all threads; on the GPU for cupy), from 1 MiB on."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print, write the CSV; return 1 if something failed or was wrong, else 0."""
    options = _parse(arguments)
    machine.set_threads(options.threads)
    described = machine.describe()
    chosen = [case for size in options.size for case in cases(size) if _is_chosen(case, options)]
    plan = Plan(options.backend, _dtype(options.dtype), options.rounds, options.seconds, options.peers)
    rows: list[dict[str, Any]] = []
    for number, case in enumerate(chosen, start=1):
        print(f"[{number}/{len(chosen)}] {case.id}", file=sys.stderr, flush=True)
        compared = compare(case, plan)
        if options.csv is not None:
            append_csv(options.csv, compared, described)  # case by case: an interrupted run keeps what it has
        rows += compared
    print("\n".join(f"{name}: {value}" for name, value in described.items() if value != ""), end="\n\n")
    print(table(rows, TABLE), LEGEND, *_failures(rows), sep="\n\n")
    if options.csv is not None:
        print(f"\nadded to {options.csv}")
    return 1 if any(row["status"] == WRONG for row in rows) else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.ops", description="Compare the operations on every backend.")
    _add_choice(parser, "--op", OPS)
    _add_choice(parser, "--size", MODEL_SIZES)
    _add_choice(parser, "--length", LENGTHS, "short: 16 tokens; long: 4096 tokens, or texts of 128 or 512")
    _add_choice(parser, "--direction", DIRECTIONS)
    _add_choice(parser, "--backend", BACKENDS)
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--rounds", type=positive, help="samples of each variant, at most (default 21)")
    parser.add_argument("--seconds", type=above_zero, default=2.0, help="then a case ends with fewer (default 2)")
    parser.add_argument("--threads", type=positive, help="of the kernels and of NumPy's BLAS (default: our choice)")
    parser.add_argument("--peers", action="store_true", help="compare with PyTorch on the CPU too, if it is installed")
    parser.add_argument("--csv", type=Path, help=f"file to append the results to (default {_shown(DEFAULT_CSV)})")
    parser.add_argument(
        "--quick", action="store_true", help="see that all works: mini, short, 3 rounds, no default CSV"
    )
    options = parser.parse_args(arguments)
    if options.quick:
        options.size, options.length = ["mini"], ["short"]
    elif options.csv is None:
        options.csv = DEFAULT_CSV
    options.rounds = options.rounds or (3 if options.quick else 21)
    return options


def _failures(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return failures and wrong results, each reason once."""
    reasons: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        if row["status"] != OK:
            case = " ".join(row[key] for key in ("op", "name", "size", "length", "direction"))
            reasons.setdefault((row["variant"], row["status"], row["note"]), []).append(case)
    return [
        f"{variant} {status} in {len(where)} of the cases, the first being {where[0]}: {note}"
        for (variant, status, note), where in reasons.items()
    ]


def _add_choice(parser: argparse.ArgumentParser, name: str, choices: Any, note: str = "") -> None:
    text = f"one or more of {', '.join(choices)} (default: all)" + (f"; {note}" if note else "")
    parser.add_argument(
        name, nargs="+", choices=list(choices), default=list(choices), metavar=name[2:].upper(), help=text
    )


def _shown(path: Path) -> str:
    return str(path.relative_to(Path(__file__).parents[2]))


def _is_chosen(case: Case, options: argparse.Namespace) -> bool:
    return case.op in options.op and case.length in options.length and case.direction in options.direction


def _dtype(name: str) -> np.dtype:
    if name == "bfloat16":
        return np.dtype(importlib.import_module("ml_dtypes").bfloat16)
    return np.dtype(name)


if __name__ == "__main__":
    sys.exit(main())
