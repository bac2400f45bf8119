"""The command `python -m bench.training`."""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from bench.measure import Times, Variant, measure, settled_clock
from bench.memory import peak_of
from bench.peers.command import add_common, described, parse, workdir
from bench.report import Column, append_csv, table
from bench.training.cases import (
    CASES,
    IN_BACKWARD,
    IN_BFLOAT16,
    LOOPS,
    OURS,
    TORCH_IN_BFLOAT16,
    Batch,
    Case,
    Loop,
    checkpoint_of,
    find_case,
    set_threads,
)

CSV = Path(__file__).parents[1] / "results" / "training.csv"
OK, WRONG = "ok", "wrong"
TOLERANCE = 1e-3  # of a loss; a wrong gradient or optimiser shows at the second step in the second digit
TOLERANCES = {IN_BFLOAT16: 1e-2, TORCH_IN_BFLOAT16: 1e-2}
FLOAT32 = [library for library in LOOPS if library not in TOLERANCES]
COLUMNS = (
    "model", "shape", "tokens", "task", "library", "status", "median_s", "min_s", "spread", "rounds", "time_vs_ours",
    "gflop_per_s", "share_of_fma_limit", "loss_error", "peak_mb",
)  # fmt: skip
TABLE = (
    Column("model", "model"),
    Column("shape", "shape"),
    Column("library", "library"),
    Column("status", "status"),
    Column("median_s", "ms", ".1f", 1e3),
    Column("spread", "±%", ".0f", 50),
    Column("time_vs_ours", "/ ours", ".2f"),
    Column("gflop_per_s", "GFLOP/s", ".0f"),
    Column("share_of_fma_limit", "FMA limit, %", ".0f", 100),
    Column("peak_mb", "MB", ".0f"),
)
LEGEND = (
    "ms: median of a step: forward, backward, clipping and AdamW, with dropout. ±%: half the distance between the\n"
    "quartiles. / ours: time divided by ours, within a round. GFLOP/s: of the products that a step needs.\n"
    "MB: the most memory, beyond Python with NumPy."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print, write the CSV; return 1 if the losses of the libraries differ, else 0."""
    options = _parse(arguments)
    for library in options.libraries:
        set_threads(library, options.threads)
    about = described(options.threads, ("torch", "transformers"))
    print("\n".join(f"{name}: {value}" for name, value in about.items() if value != ""), flush=True)
    rows: list[dict[str, Any]] = []
    with workdir(options.workdir) as folder:
        for case in (find_case(name, options.quick) for name in options.case):
            compared = list(_compare(case, options, folder, about["fma_limit_gflop_per_s"] * 1e9))
            if options.csv is not None:
                append_csv(options.csv, compared, about)  # case by case: an interrupted run keeps what it has
            rows += compared
            print(f"{case.name}: done", file=sys.stderr, flush=True)
    print("", table(rows, TABLE), LEGEND, sep="\n\n")
    return 1 if any(row["status"] == WRONG for row in rows) else 0


def _compare(case: Case, options: argparse.Namespace, folder: Path, limit: float) -> Iterator[dict[str, Any]]:
    """Yield a row for each library; one whose losses differ from the last one's (PyTorch) has no times."""
    checkpoint, batches = checkpoint_of(case, folder), case.batches()
    loops = {library: LOOPS[library](case, checkpoint) for library in options.libraries}
    errors = loss_errors(loops, batches)
    good = {library: loop for library, loop in loops.items() if errors[library] <= TOLERANCES.get(library, TOLERANCE)}
    variants = {library: Variant(_endless(loop, batches), settled_clock) for library, loop in good.items()}
    times = measure(variants, options.rounds, options.seconds)
    del loops, good, variants  # frees memory for the processes that measure it
    for library in options.libraries:
        known: dict[str, Any] = {"status": WRONG, "loss_error": errors[library]}
        if library in times:
            known |= _figures(case, times[library], times.get(OURS), limit) | {"status": OK}
            known["peak_mb"] = peak_of(library, case.name, folder, options.threads, options.quick)
        known |= {"model": case.model, "shape": case.shape, "tokens": sum(case.lengths), "task": case.task}
        yield {column: known.get(column) for column in COLUMNS} | {"library": library}


def loss_errors(loops: Mapping[str, Loop], batches: Sequence[Batch]) -> dict[str, float]:
    """Return the relative error of each loop's losses, without dropout, from those of the last loop.

    From the second step on they show differences in gradients, clipping and optimiser. The optimiser in the backward
    pass clips by another norm, which AdamW's first step alone does not depend on: its first two losses count.
    """
    losses = {}
    for library, loop in loops.items():
        loop.train(False)
        losses[library] = np.array([loop.step(batch) for batch in batches])
        loop.train(True)
    truth = list(losses.values())[-1]
    ends = {library: 2 if library.startswith(IN_BACKWARD) else None for library in losses}
    counted = {library: abs(own / truth - 1)[: ends[library]] for library, own in losses.items()}
    return {library: float(np.nan_to_num(errors, nan=np.inf).max()) for library, errors in counted.items()}


def _endless(loop: Loop, batches: Sequence[Batch]) -> Any:
    turns = cycle(batches)
    return lambda: loop.step(next(turns))


def _figures(case: Case, times: Times, ours: Times | None, limit: float) -> dict[str, Any]:
    speed = case.flops / times.median
    return {
        **times.columns(),
        "time_vs_ours": None if ours is None else times.ratio(ours),
        "gflop_per_s": speed / 1e9,
        "share_of_fma_limit": speed / limit,
    }


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.training", description="Compare steps of training with PyTorch."
    )
    names = [case.name for case in CASES]
    parser.add_argument("--case", nargs="+", choices=names, help=f"of {', '.join(names)} (default: all)")
    parser.add_argument(
        "--libraries",
        nargs="+",
        choices=LOOPS,
        default=FLOAT32,
        help="the last one's losses are the truth (default: those in float32)",
    )
    full = {"rounds": 21, "seconds": 20.0, "csv": CSV, "case": names}
    quick = {"rounds": 3, "seconds": 0.5, "csv": None, "case": ["mini-bert/8x64", "deberta-v3-base/8x128"]}
    add_common(parser, full, "small models, 3 rounds")
    return parse(parser, arguments, full, quick)


if __name__ == "__main__":
    sys.exit(main())
