"""One short text through all-MiniLM-L6-v2, stage by stage: python -m bench.latency [--dtype int8] [--calls N]

Measures the wall-clock time and the calling thread's CPU time, which other processes disturb less, of a whole `encode`
and of the compiled program and the tokenizer within it; the rest is Python code. The last line counts calls of Python
functions and of C functions from Python, the same in every run.
"""

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.options import positive
from bertcore import SentenceEncoder, use_backend
from bertcore.arguments import DTYPES
from bertcore.demo_model import demo_model_folder
from bertcore.kernels.program import cpu
from bertcore.tokenization.tokenizer import Tokenizer

TEXT = "a real text of six words"  # 8 tokens
CLOCKS = {"wall": time.perf_counter, "thread": time.thread_time}


class Stages:
    """Seconds of each call of encode and of the stages within it, by name, on both clocks."""

    def __init__(self) -> None:
        self.samples: dict[str, list[tuple[float, ...]]] = {}  # both clocks before, and after

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function`, whose calls are sampled under `name`."""
        wall, thread = CLOCKS.values()
        samples: list[tuple[float, ...]] = []
        self.samples[name] = samples

        def call(*args: Any, **given: Any) -> Any:
            wall_start, thread_start = wall(), thread()
            result = function(*args, **given)
            samples.append((wall_start, thread_start, wall(), thread()))
            return result

        return call

    def report(self) -> list[str]:
        """Return a line for each stage: quartiles in microseconds; "the rest" is paired by call."""
        samples = {name: np.diff(np.reshape(found, (-1, 2, 2)), axis=1)[:, 0] for name, found in self.samples.items()}
        whole, *parts = samples.values()
        samples["the rest"] = whole - sum(parts)
        samples["beyond the compiled program"] = whole - samples["compiled program"]
        lines = [f"{'us: quartiles':30s}" + "".join(f"{name:>30s}" for name in CLOCKS)]
        for name, found in samples.items():
            quartiles = 1e6 * np.quantile(found, [0.25, 0.5, 0.75], axis=0).T
            lines.append(
                f"{name:30s}" + "".join(" " * 6 + "".join(f"{each:8.0f}" for each in row) for row in quartiles)
            )
        return lines


def count_calls(function: Callable[[], Any]) -> int:
    """Return the number of calls of Python and C functions that a call makes."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.latency", description=__doc__.partition(":")[0])
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="of the weights (default: float32)")
    parser.add_argument("--calls", type=positive, default=1000, help="sampled calls (default: 1000)")
    options = parser.parse_args()
    encoder, stages = SentenceEncoder(demo_model_folder(), dtype=options.dtype), Stages()
    tokens = len(encoder.tokenizer(TEXT)["input_ids"])
    with use_backend("numba"):
        for _ in range(20):
            encoder.encode(TEXT)
        calls = count_calls(lambda: encoder.encode(TEXT))
        compiled, tokenize = cpu._run, Tokenizer.encode_beginnings
        encode = stages.timed("encode", encoder.encode)
        cpu._run = stages.timed("compiled program", compiled)
        Tokenizer.encode_beginnings = stages.timed("tokenizing", tokenize)
        try:
            for _ in range(options.calls):
                encode(TEXT)
        finally:
            cpu._run, Tokenizer.encode_beginnings = compiled, tokenize
    print(f"{tokens} tokens, {options.dtype}", *stages.report(), f"calls from Python: {calls}", sep="\n")


if __name__ == "__main__":
    main()
