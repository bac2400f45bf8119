"""The command `python -m bench.gpu`: it keeps the time, and leaves the GPU to a process that it can replace.

A wrong address in a kernel ends every further use of the GPU by its process, one on the host ends the process, and a
kernel that never ends blocks both. Each of them may cost no more than its step.
"""

import argparse
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.options import above_zero
from bench.report import Column, append_csv, check_csv, table

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
# Each part's share of the time, in the order of the parts, and that of its steps beside a peer, which come after all
# others; a part may use what earlier ones left over.
SHARES = {
    "kernel": (34, 0),
    "family": (10, 0),
    "products": (3, 3),
    "attention": (4, 6),
    "model": (4, 11),
    "training": (5, 10),
    "rows": (5, 5),
}
BAD, NOT_RUN = ("wrong", "failed"), "not run"
MOST_OF_STEP, GRACE = 0.25, 0.2  # shares of the time: for one step, and for the last one to end
READY_SECONDS = 120.0  # of a process until it is ready


class Unavailable(Exception):
    """There is no GPU, or the process that uses it does not start."""


def ends(kinds: Collection[str]) -> dict[tuple[str, bool], float]:
    """Return {(kind, is beside a peer): share of the time by which its last step has to begin}."""
    shares = {(kind, beside): SHARES[kind][beside] for beside in (False, True) for kind in SHARES if kind in kinds}
    return dict(zip(shares, np.cumsum([*shares.values()]) / sum(shares.values()), strict=True))


def main(arguments: Sequence[str] | None = None, worker: Sequence[str] = ("-m", "bench.gpu.worker")) -> int:
    """Check, time, print the table and write the CSV.

    Args:
        arguments: the command line's; None for sys.argv.
        worker: Python's arguments for the process that has the GPU.

    Returns:
        1 if a result is wrong, 2 without a GPU or a place for the CSV, 3 if there was no time for some steps, else 0.
        After SIGTERM the table has what was done, and SystemExit(143) follows.
    """
    options, rows = _parse(arguments), []
    files = tempfile.TemporaryDirectory()  # for CuPy and compilers if the home folder is not writable
    command = [sys.executable, *worker, *(["--quick"] if options.quick else [])]
    run = Run(command, 60 * options.minutes, _home(files.name))
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        run.begin()
        check_csv(options.csv, [*COLUMNS, *run.machine])
        described = (f"{name}: {value}" for name, value in run.machine.items() if value != "")
        print("\n".join(described), end="\n\n", flush=True)
        for row in run.rows(options.kinds):
            print(_progress(row), file=sys.stderr, flush=True)
            append_csv(options.csv, [row], run.machine)  # row by row: an interrupted run keeps what it has
            rows.append(row)
    except (Unavailable, OSError, ValueError) as error:
        print(f"python -m bench.gpu: {error}", file=sys.stderr)
        return 2
    finally:
        signal.signal(signal.SIGTERM, before)
        run.stop()
        files.cleanup()
        bad = [row for row in rows if row["status"] in BAD]
        if rows:
            print(table(rows, TABLE), f"added to {options.csv}", sep="\n\n")
        if bad:  # once more: the whole table is longer than what some terminals keep
            print(f"\n{len(bad)} of {len(rows)} rows are wrong or failed:", table(bad, TABLE), sep="\n\n")
    return 1 if bad else 3 if any(row["status"] == NOT_RUN for row in rows) else 0


class Run:
    """All steps, run by one process after another with HOME set to `home`."""

    def __init__(self, command: list[str], seconds: float, home: str):
        self._command, self._seconds, self._start = command, seconds, time.perf_counter()
        self._process, self._messages = None, queue.SimpleQueue()
        self._environment = os.environ | {"HOME": home}
        self.machine: dict[str, Any] = {}
        self._steps: list[Any] = []

    def rows(self, kinds: Collection[str]) -> Iterator[dict[str, Any]]:
        """Yield the rows of all steps of these kinds; a step not begun before its part's end has one row, NOT_RUN."""
        until = ends(kinds)
        for number, (kind, name, dtype, is_beside) in enumerate(self._steps):
            if kind not in kinds:
                continue
            known = dict.fromkeys(COLUMNS) | {"kind": kind, "name": name, "dtype": dtype, "status": "ok"}
            if time.perf_counter() - self._start > until[kind, is_beside] * self._seconds:
                yield known | {"status": NOT_RUN, "note": "the time of its part was over"}
                continue
            for row in self._rows_of(number):
                yield known | row

    def _rows_of(self, number: int) -> Iterator[dict[str, Any]]:
        try:
            if self._process is None:
                self.begin()
            self._process.stdin.write(f"{number}\n")
            self._process.stdin.flush()
            last = self._start + (1 + GRACE) * self._seconds
            until = min(time.perf_counter() + MOST_OF_STEP * self._seconds, last)
            while "is_usable" not in (message := self._message(until)):
                yield message["row"]
            if not message["is_usable"]:
                self.stop()
        except (Unavailable, OSError) as error:  # OSError: the process has ended
            yield {"status": "failed", "note": str(error)}
            self.stop()

    def begin(self) -> None:
        """Start a process, and wait until it is ready."""
        self._messages = queue.SimpleQueue()
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "encoding": "utf-8"}
        self._process = subprocess.Popen(self._command, env=self._environment, **pipes)
        threading.Thread(target=_listen, args=(self._process, self._messages), daemon=True).start()
        message = self._message(time.perf_counter() + READY_SECONDS)
        if "unavailable" in message:
            raise Unavailable(message["unavailable"])
        self.machine, self._steps = message["machine"], message["steps"]

    def _message(self, until: float) -> dict[str, Any]:
        try:
            line = self._messages.get(timeout=max(0.1, until - time.perf_counter()))
        except queue.Empty:
            raise Unavailable("no answer in time") from None
        if not line:
            raise Unavailable(f"the process that has the GPU ended with status {self._process.wait()}")
        return json.loads(line)

    def stop(self) -> None:
        """End the process, if one is running."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def _home(other: str) -> str:
    """Return the home folder, or `other` if it is not writable."""
    home = os.path.expanduser("~")
    return home if os.access(home, os.W_OK) else other


def _listen(process: subprocess.Popen, messages: queue.SimpleQueue) -> None:
    """Put every line that the process writes into the queue, and an empty one at its end."""
    for line in process.stdout:
        messages.put(line)
    messages.put("")


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
    parser.add_argument("--minutes", type=above_zero, default=6.5, help="when the last step may begin (default 6.5)")
    parser.add_argument("--kinds", nargs="+", choices=SHARES, default=[*SHARES], help="these parts alone")
    parser.add_argument("--quick", action="store_true", help="few cases and tiny sizes: see that the command works")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
