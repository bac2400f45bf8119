"""Which step of an encoder takes which share of a pass, and what of the FMA limit it reaches:
python -m bench.steps [--model M] [--shape S] [--threads N]

The steps of BERT's layers (kernels/program) run one at a time, each timed; steps of one kind and size are one line. The
FMA limit is measured beside every pass, since a clock changes with what else the machine does: shares are of its
median, and the table names the best, too.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from typing import Any
from unittest import mock

import numpy as np

from bench import machine
from bench.fma import fma_limit
from bench.peers.cases import MODELS, SHAPES, Size, random_batch
from bench.report import Column, table
from bertcore import AutoModel, use_backend
from bertcore.kernels._numba import num_threads
from bertcore.kernels.program import cpu

_RUN = cpu.StepTable.run  # which is replaced during a profile
REST, PASS = "rest: embeddings, Python", "pass"
TABLE = (
    Column("step", "step"),
    Column("count", "count", ".0f"),
    Column("seconds", "ms", ".2f", 1e3),
    Column("share", "% of the pass", ".1f", 100),
    Column("flop_per_s", "GFLOP/s", ".0f", 1e-9),
    Column("share_of_limit", "% of the FMA limit", ".1f", 100),
    Column("lost", "% of the pass lost", ".1f", 100),
)


class Profile:
    """The steps of one pass: name -> count, seconds, FLOP."""

    def __init__(self, lengths: Sequence[int]):
        self.spent: dict[str, list[float]] = {}
        self._keys_seen = sum(length**2 for length in lengths)

    def run(self, steps: cpu.StepTable) -> None:
        """Run the steps of a program one at a time."""
        for name, record, alone in steps.one_by_one():
            start = time.perf_counter()
            _RUN(alone)
            seconds = time.perf_counter() - start
            sums = self.spent.setdefault(_label(name, record), [0, 0.0, 0.0])
            sums[:] = sums[0] + 1, sums[1] + seconds, sums[2] + self._flops(name, record)

    def _flops(self, name: str, record: np.void) -> float:
        if name == "attention":
            return 4.0 * self._keys_seen * int(record["heads"]) * int(record["head_dim"])
        return 2.0 * record["rows"] * record["in_features"] * record["out_features"] if name == "linear" else 0.0


def _label(name: str, record: np.void) -> str:
    return f"linear {record['in_features']} to {record['out_features']}" if name == "linear" else name


def config_of(size: Size) -> dict[str, Any]:
    """The config of an encoder of a size."""
    return {
        "model_type": size.family, "num_hidden_layers": size.layers, "hidden_size": size.hidden,
        "num_attention_heads": size.heads, "intermediate_size": size.intermediate, "vocab_size": size.vocabulary,
    }  # fmt: skip


def measure(model: Any, lengths: Sequence[int], batch: Any, rounds: int) -> tuple[list[dict[str, Any]], list[float]]:
    """The rows (of TABLE's keys), medians over the rounds, and the FMA limits beside them."""
    passes, limits = [], []
    threads = num_threads()
    for _ in range(rounds):
        model(**batch)
        limits.append(fma_limit(threads, 0.02))
        profile, start = Profile(lengths), time.perf_counter()
        with mock.patch.object(cpu.StepTable, "run", lambda steps, profile=profile: profile.run(steps)):
            model(**batch)
        profile.spent[PASS] = [1, time.perf_counter() - start, sum(flops for *_, flops in profile.spent.values())]
        passes.append(profile.spent)
    medians = {name: np.median([one[name] for one in passes], axis=0) for name in passes[0]}
    whole, limit = medians[PASS][1], statistics.median(limits)
    inside = sum(seconds for name, (_, seconds, _) in medians.items() if name != PASS)
    rows = [_row(name, *medians[name], whole, limit) for name in medians if name != PASS]
    return [*rows, _row(REST, 1, whole - inside, 0.0, whole, limit), _row(PASS, *medians[PASS], whole, limit)], limits


def _row(name: str, count: float, seconds: float, flops: float, whole: float, limit: float) -> dict[str, Any]:
    return {
        "step": name,
        "count": count,
        "seconds": seconds,
        "share": seconds / whole,
        "flop_per_s": flops / seconds if flops else None,
        "share_of_limit": flops / seconds / limit if flops else None,
        "lost": (seconds - flops / limit) / whole,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.steps", description=__doc__.partition(":")[0])
    parser.add_argument(
        "--model",
        choices=[name for name in MODELS if "distilbert" not in name],
        default="bert-base",
        help="default: bert-base",
    )
    parser.add_argument("--shape", choices=SHAPES, default="8x128", help="the batch, default 8x128")
    parser.add_argument("--threads", type=int, help="of the kernels (default: their choice)")
    parser.add_argument("--rounds", type=int, default=21, help="passes (default 21)")
    options = parser.parse_args(arguments)
    machine.set_threads(options.threads)
    size, lengths = MODELS[options.model], SHAPES[options.shape]
    batch = random_batch(lengths, size.vocabulary, seed=0)._asdict()
    with use_backend("numba"):
        model = AutoModel.from_config(config_of(size))
        rows, limits = measure(model, lengths, batch, options.rounds)
    print(f"{options.model}, float32, {options.shape}, {num_threads()} threads, {machine.describe()['cpu']}")
    print(f"FMA limit: {statistics.median(limits) / 1e9:.0f} GFLOP/s (median), {max(limits) / 1e9:.0f} (best)")
    print(table(rows, TABLE))


if __name__ == "__main__":
    main()
