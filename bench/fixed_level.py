"""Kernels compiled for an instruction-set level against those for this CPU: python -m bench.fixed_level

Shipped kernels are compiled for a level (packaging/kernels), those in the user's cache for the CPU. A process for each
runs the same model with random weights on the same batches, in turns; a ratio above 1 means that shipped ones are
slower.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

from bench.measure import Variant, measure
from bench.options import above_zero, positive
from bench.peers.cases import SHAPES
from bertcore.arguments import DTYPES
from bertcore.presets import PRESETS

KINDS = ("fixed", "native")


def work(kind: str, model_name: str, dtype: str) -> None:
    """Answer each shape's name on stdin with the seconds of a forward pass."""
    from bertcore.kernels._numba.compile import isa

    if kind == "fixed":
        isa.compile_for(isa.LEVEL, isa.LEVEL.llvm_cpu)
    from bertcore import AutoModel
    from bertcore.presets import preset_config

    model = AutoModel.from_config(preset_config(model_name), dtype=dtype, seed=0)
    draw = np.random.default_rng(0)
    texts = {shape: [draw.integers(1, 1000, length, np.int32) for length in SHAPES[shape]] for shape in SHAPES}
    print(isa.LEVEL.name, flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        model.encode_packed(texts[line.strip()])
        print(time.perf_counter() - start, flush=True)


def asking(process: subprocess.Popen, shape: str) -> Variant:
    """Return the variant that asks a worker process."""

    def call() -> float:
        print(shape, file=process.stdin, flush=True)
        return float(process.stdout.readline())

    def clock(call: Callable[[], float], repeats: int) -> float:
        return sum(call() for _ in range(repeats))

    return Variant(call, clock)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.fixed_level", description=__doc__.partition(":")[0])
    parser.add_argument("--model", choices=PRESETS, metavar="NAME", default="bert-base-uncased")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["float32", "bfloat16", "int8"])
    parser.add_argument("--shapes", nargs="+", default=["1x16", "8x128", "ragged"], choices=SHAPES)
    parser.add_argument("--rounds", type=positive, default=101, help="at most, in the seconds (default: 101)")
    parser.add_argument("--seconds", type=above_zero, default=60, help="for each shape (default: 60)")
    options = parser.parse_args()
    for dtype in options.dtypes:
        command = [sys.executable, "-c", "import sys; from bench.fixed_level import work; work(*sys.argv[1:])"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        processes = {kind: subprocess.Popen([*command, kind, options.model, dtype], **pipes) for kind in KINDS}
        levels = [process.stdout.readline().strip() for process in processes.values()]
        for shape in options.shapes:
            times = measure(
                {kind: asking(process, shape) for kind, process in processes.items()}, options.rounds, options.seconds
            )
            ratio, native = times["fixed"].ratio(times["native"]), times["native"]
            print(f"{levels[0]:12} {dtype:9} {shape:7} native {native.median * 1e3:8.2f} ms, fixed/native {ratio:.3f}")
        for process in processes.values():
            process.communicate()


if __name__ == "__main__":
    main()
