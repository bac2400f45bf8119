"""The command `python -m bench.gpu`."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from bench import machine
from bench.gpu import checks, timings
from bench.report import Column, append_csv, table
from bertcore import kernels

DEFAULT_CSV = Path(__file__).parents[1] / "results" / "gpu.csv"
COLUMNS = ("kind", "name", "dtype", "status", "cases", "median_s", "spread", "gb_per_s", "tflop_per_s", "note")
TABLE = (
    Column("kind", "kind"),
    Column("name", "name"),
    Column("dtype", "dtype"),
    Column("status", "status"),
    Column("cases", "cases", "d"),
    Column("median_s", "ms", ".3f", 1e3),
    Column("spread", "±%", ".0f", 50),  # half the distance between the quartiles
    Column("gb_per_s", "GB/s", ".0f"),
    Column("tflop_per_s", "TFLOP/s", ".1f"),
    Column("note", "note"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Check, time, print the table, write the CSV; 1 if something is wrong, 2 without a GPU."""
    options = _parse(arguments)
    reason = kernels.unavailable_reason("cupy")
    if reason is not None:
        print(f"python -m bench.gpu: {reason}", file=sys.stderr)
        return 2
    described = machine.describe()
    print("\n".join(f"{name}: {value}" for name, value in described.items() if value != ""), end="\n\n", flush=True)
    rows = []
    for found in _rows(options.quick):
        row = {column: found.get(column) for column in COLUMNS}
        print(f"{row['kind']} {row['name']} {row['dtype']}: {row['status']}", file=sys.stderr, flush=True)
        append_csv(options.csv, [row], described)  # row by row: an interrupted run keeps what it has
        rows.append(row)
    print(table(rows, TABLE), f"added to {options.csv}", sep="\n\n")
    return 1 if any(row["status"] == "wrong" for row in rows) else 0


def _rows(is_quick: bool) -> Iterator[dict[str, Any]]:
    for check in chain(checks.kernel_checks(every=40 if is_quick else 1), checks.model_checks()):
        yield {"status": check.status, **check._asdict()}
    size, seconds = ("tiny", 0.0) if is_quick else ("base", 1.0)
    for dtype in ("float16", "float32"):
        for row in timings.operation_timings(size, dtype, seconds):
            yield {"kind": "timing", "status": "ok", **row}
        for batch, length in ((2, 3),) if is_quick else ((1, 16), (32, 128), (8, 512)):
            yield {"kind": "timing", "status": "ok", **timings.model_timing(batch, length, dtype, seconds, is_quick)}


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description="Check and time the GPU at hand.")
    parser.add_argument("--csv", type=Path, default=DEFAULT_CSV, help="file to append the results to")
    parser.add_argument("--quick", action="store_true", help="few cases and tiny sizes: see that the command works")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
