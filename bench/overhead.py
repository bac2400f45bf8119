"""What a forward pass costs beside its compiled code: python -m bench.overhead [--length N] [--dtype D] [--threads N]

Two models of BERT-base's depth at one short text: BERT-base itself, and one so narrow that next to nothing but overhead
is left. For each kind of operation: how often it is called, how long it takes, how much of that is spent in compiled
code (parallel regions and their start included), and the Python around it. The operations and compiled functions are
wrapped while this runs, which the last lines show the cost of. A compiled function that is called by another way than
its module's global name is counted as Python.
"""

import argparse
import contextlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np

from bench import machine
from bench.report import Column, table
from bertcore import AutoModel, kernels, use_backend

BASE = {"model_type": "bert"}
NARROW = {**BASE, "hidden_size": 24, "num_attention_heads": 12, "intermediate_size": 24, "vocab_size": 1000}
MODELS = {"BERT-base": BASE, "12 layers of width 24": NARROW}
REST, FORWARD = "rest of the forward", "forward"
# The layers of an encoder run as one program, which is part of the rest; asked for hidden states they do not.
WAYS = {"layers as one program": False, "operation by operation, with hidden states": True}

TABLE = (
    Column("operation", "operation"),
    Column("calls", "calls", ".0f"),
    Column("total_s", "total, us", ".1f", 1e6),
    Column("compiled_s", "compiled, us", ".1f", 1e6),
    Column("python_s", "Python, us", ".1f", 1e6),
    Column("python_per_call_s", "Python per call, us", ".2f", 1e6),
)


class Profile:
    """Adds up, for each operation of one forward, the calls, the time, and that of the compiled functions within."""

    def __init__(self) -> None:
        self.spent: dict[str, list[float]] = {}  # operation -> calls, total, compiled
        self._running = REST

    def operation(self, name: str, function: Callable) -> Callable:
        """`function`, counted as the operation `name`; what it calls of other operations counts as itself."""

        def call(*args: Any, **options: Any) -> Any:
            if self._running != REST:
                return function(*args, **options)
            self._running, start = name, time.perf_counter()
            try:
                return function(*args, **options)
            finally:
                self._add(name, 1, time.perf_counter() - start, 0.0)
                self._running = REST

        return call

    def compiled(self, function: Callable) -> Callable:
        """`function`, whose time is that of compiled code in the operation that runs."""

        def call(*args: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args)
            finally:
                self._add(self._running, 0, 0.0, time.perf_counter() - start)

        return call

    def _add(self, name: str, *amounts: float) -> None:
        sums = self.spent.setdefault(name, [0, 0.0, 0.0])
        sums[:] = [have + more for have, more in zip(sums, amounts, strict=True)]


@contextlib.contextmanager
def profiled(profile: Profile) -> Iterator[None]:
    """Within the block every operation, and every compiled function that Python calls, reports to the profile.

    Everything must have been compiled before: compiled code cannot call what is wrapped.
    """
    with contextlib.ExitStack() as stack:
        for name in operation_names():
            wrapped = profile.operation(name, getattr(kernels, name))
            stack.enter_context(mock.patch.object(kernels, name, wrapped))
        for module, name, function in list(_compiled_functions()):
            stack.enter_context(mock.patch.object(module, name, profile.compiled(function)))
        yield


def operation_names() -> list[str]:
    """The operations of bertcore.kernels: its folders that have a definition."""
    return sorted(path.parent.name for path in Path(kernels.__file__).parent.glob("*/reference.py"))


def _compiled_functions() -> Iterator[tuple[ModuleType, str, Callable]]:
    from numba.core.dispatcher import Dispatcher

    for module_name, module in list(sys.modules.items()):
        if module_name.startswith(kernels.__name__ + "."):
            for name, value in list(vars(module).items()):
                # on the workqueue pool kernels come in a function that lets one thread in at a time
                if isinstance(value, Dispatcher) or _closed_over(value, Dispatcher):
                    yield module, name, value


def _closed_over(value: Any, kind: type) -> bool:
    cells = getattr(value, "__closure__", None) or ()
    return callable(value) and any(isinstance(cell.cell_contents, kind) for cell in cells)


def measure(forward: Callable[[], Any], rounds: int) -> tuple[list[dict[str, Any]], float]:
    """The rows (of TABLE's keys) of one forward, and the seconds of an unwrapped one: medians over the rounds."""
    forward()  # compiles
    plain, spent = [], []
    for _ in range(rounds):
        plain.append(_seconds(forward))
        profile = Profile()
        with profiled(profile):
            forward()  # wakes what the last unwrapped forward left asleep
            profile.spent.clear()
            spent.append(_completed(_seconds(forward), profile.spent))
    medians = {name: np.median([one[name] for one in spent], axis=0) for name in spent[0]}
    order = sorted(medians, key=lambda name: (name == FORWARD, name == REST, -medians[name][1]))
    return [_row(name, *map(float, medians[name])) for name in order], statistics.median(plain)


def _seconds(forward: Callable[[], Any]) -> float:
    start = time.perf_counter()
    forward()
    return time.perf_counter() - start


def _completed(total: float, spent: dict[str, list[float]]) -> dict[str, list[float]]:
    """With what is outside of any operation, and all together."""
    operations = {name: sums for name, sums in spent.items() if name != REST}
    calls, inside, compiled = np.sum([*operations.values(), [0, 0, 0]], axis=0)
    compiled_outside = spent.get(REST, [0, 0, 0])[2]
    rest = [0, total - inside, compiled_outside]
    return {**operations, REST: rest, FORWARD: [calls, total, compiled + compiled_outside]}


def _row(name: str, calls: float, total: float, compiled: float) -> dict[str, Any]:
    python = total - compiled
    return {
        "operation": name,
        "calls": calls or None,
        "total_s": total,
        "compiled_s": compiled,
        "python_s": python,
        "python_per_call_s": python / calls if calls else None,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.overhead", description=__doc__.partition(":")[0])
    parser.add_argument("--length", type=int, default=16, help="tokens of the one text (default 16)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "int8"), default="float32")
    parser.add_argument("--threads", type=int, help="of the kernels (default: their choice)")
    parser.add_argument("--rounds", type=int, default=51, help="forwards of each kind (default 51)")
    parser.add_argument("--model", nargs="+", choices=list(MODELS), default=list(MODELS), metavar="MODEL")
    options = parser.parse_args(arguments)
    machine.set_threads(options.threads)
    ids = np.arange(1, options.length + 1)[None]
    with use_backend("numba"):
        for name in options.model:
            model = AutoModel.from_config(MODELS[name], dtype=options.dtype)
            for way, traced in WAYS.items():
                rows, plain = measure(partial(model, input_ids=ids, output_hidden_states=traced), options.rounds)
                print(f"{name}, {options.dtype}, 1x{options.length}, {way}: {plain * 1e3:.3f} ms unwrapped (median)")
                print(table(rows, TABLE), end="\n\n")


if __name__ == "__main__":
    main()
