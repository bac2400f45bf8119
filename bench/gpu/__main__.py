"""The command `python -m bench.gpu`."""

import argparse
import importlib
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench import machine
from bench.gpu import checks, models, operations, peers, products, sizes
from bench.gpu.timings import Step
from bench.report import Column, append_csv, table
from bertcore import kernels

DEFAULT_CSV = Path(__file__).parents[1] / "results" / "gpu.csv"
COLUMNS = (
    "kind", "name", "dtype", "status", "cases", "method", "median_s", "spread", "gb_per_s", "tflop_per_s",
    "against", "against_s", "against_method", "ratio", "goal", "note",
)  # fmt: skip
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
    Column("against", "beside"),
    Column("ratio", "times as fast", ".2f"),
    Column("goal", "goal", ".2f"),
    Column("note", "note"),
)
# By when each part has to be done, as a share of the whole time; what one does not need is the next one's.
ENDS = {
    "kernel": 0.3,
    "family": 0.45,
    "products": 0.5,
    "rows": 0.62,
    "attention": 0.74,
    "model": 0.88,
    "training": 1.0,
}
BAD = ("wrong", "failed")


def main(arguments: Sequence[str] | None = None, peer: peers.Torch | None = None) -> int:
    """Check, time, print the table, write the CSV; 1 if something is wrong, 2 without a GPU.

    Tests give a `peer` that stands for PyTorch on the GPU.
    """
    options = _parse(arguments)
    reason = kernels.unavailable_reason("cupy")
    if reason is not None:
        print(f"python -m bench.gpu: {reason}", file=sys.stderr)
        return 2
    described = machine.describe()
    print("\n".join(f"{name}: {value}" for name, value in described.items() if value != ""), end="\n\n", flush=True)
    peer = peer or _torch()
    rows = []
    for row in _rows(list(_steps(options.quick, peer)), 60 * options.minutes, peer):
        print(_progress(row), file=sys.stderr, flush=True)
        append_csv(options.csv, [row], described)  # row by row: an interrupted run keeps what it has
        rows.append(row)
    print(table(rows, TABLE), f"added to {options.csv}", sep="\n\n")
    return 1 if any(row["status"] in BAD for row in rows) else 0


def _torch() -> peers.Torch | None:
    reason = peers.torch_unavailable_reason()
    if reason is not None:
        print(f"nothing is compared with PyTorch: {reason}", file=sys.stderr)
        return None
    peer = peers.Torch()
    if not peer.has_transformers():
        print("no model is compared: transformers is not installed", file=sys.stderr)
    return peer


def _steps(is_quick: bool, peer: peers.Torch | None) -> Iterator[Step]:
    yield from checks.steps(every=40 if is_quick else 1)
    size = sizes.tiny() if is_quick else sizes.full()
    yield from products.steps(size, peer)
    yield from operations.steps(size, peer)
    yield from models.steps(size, peer)


def _rows(steps: Sequence[Step], seconds: float, peer: peers.Torch | None) -> Iterator[dict[str, Any]]:
    """The rows of all steps; of each that was not begun before its part's end, one that says so."""
    start = time.perf_counter()
    for step in steps:
        known = dict.fromkeys(COLUMNS) | {"kind": step.kind, "name": step.name, "dtype": step.dtype, "status": "ok"}
        if time.perf_counter() - start > ENDS[step.kind] * seconds:
            yield known | {"status": "not run", "note": "the time of its part was over"}
            continue
        try:
            for row in step.run():
                yield known | row
        except Exception as error:  # what fails must not hide the rest
            yield known | {"status": "failed", "note": checks.line(error)}
        importlib.import_module("cupy").get_default_memory_pool().free_all_blocks()
        if peer is not None:
            peer.free()


def _progress(row: dict[str, Any]) -> str:
    line = f"{row['kind']} {row['name']} {row['dtype']}: {row['status']}"
    if row["median_s"] is not None:
        line += f", {row['median_s'] * 1e3:.3f} ms"
    if row["ratio"] is not None:
        line += f", {row['ratio']:.2f} times as fast as {row['against']} (goal {row['goal']})"
    return f"{line} {row['note'] or ''}".rstrip()


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description="Check and time the GPU at hand.")
    parser.add_argument("--csv", type=Path, default=DEFAULT_CSV, help="file to append the results to")
    parser.add_argument("--minutes", type=float, default=6.5, help="when the last step may begin (default 6.5)")
    parser.add_argument("--quick", action="store_true", help="few cases and tiny sizes: see that the command works")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
