"""A server under mixed load, by the promises of SECURITY.md: python -m bench.serving.mixed

Small requests are timed alone, then beside clients that never read, half-open heads, nested, giant and broken requests,
long and ordinary ones, all at once (`attack.py`).
"""

import argparse
import contextlib
import multiprocessing
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench import machine
from bench.memory import resident
from bench.options import above_zero, positive
from bench.peers.command import workdir
from bench.serving.__main__ import model_folder
from bench.serving.attack import GIANT, Asking, attack
from bench.serving.load import OURS, Client, Server, running
from bertcore.serving import ServerSettings

SMALL = b'{"inputs": "the cat"}'
ALONE = 300  # requests
LINES = 20  # of the table over time
STATUSES = {"200", "400", "413", "422", "429", "504"}  # what may be answered
MOST_CLOSED = 0.01  # share of the small requests whose connection may end without an answer
READ_MB = 2 * 50  # of the texts of two requests that are being tokenized
CONNECTION_MB = 0.2
ENDS = 45  # seconds after which connections that do nothing have ended


class Sample(NamedTuple):
    """A small request: its end since the load's start and its duration in seconds, and the server's memory then."""

    at: float
    seconds: float
    resident_mb: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Put the load on a server, print what was seen, and return 1 if a promise was broken, else 0."""
    options = _parse(arguments)
    machine.set_threads(options.threads)
    about = machine.describe()
    print("\n".join(f"{name}: {value}" for name, value in about.items() if value != ""), flush=True)
    with workdir(None) as folder, tempfile.NamedTemporaryFile() as log:
        name, model = model_folder(options.model, folder)
        limits = ("--max-response-bytes", str(options.max_response_bytes), "--log-level", "warning")
        with running(OURS, model, options.threads, limits, files=options.files, log=log) as server:
            print(f"model: {name}", flush=True)
            broken = _measure(server, options)
        log.seek(0)
        if count := log.read().count(b"Traceback"):
            broken.append(f"{count} tracebacks in the log")
    print("", *(f"BROKEN: {promise}" for promise in broken), sep="\n" if broken else "")
    return 1 if broken else 0


def _measure(server: Server, options: argparse.Namespace) -> list[str]:
    """Return the promises that the server broke under the load."""
    client, process = Asking(server.port), server.process.pid
    for body in (SMALL, GIANT, *[SMALL] * 20):  # the first ones warm up
        client.ask("/embed", body)
    alone = _times(client, process, ALONE)
    before, files, broken = resident(process=process), _open_files(process), []
    context = multiprocessing.get_context("spawn")
    stop, results = context.Event(), context.Queue()
    attacker = context.Process(target=attack, args=(server.port, stop, results))
    attacker.start()
    first, client.seen = client.seen, Counter()
    beside = _times(client, process, seconds=options.seconds)
    stop.set()
    small, seen = client.seen, results.get(timeout=120)
    attacker.join()
    most = max(sample.resident_mb for sample in beside)
    settings = ServerSettings(max_response_bytes=options.max_response_bytes)
    bound = before + settings.max_memory / 1e6 + READ_MB + CONNECTION_MB * (options.files or 1024)
    for start in range(0, len(beside), -(-len(beside) // LINES)):
        some = beside[start : start + -(-len(beside) // LINES)]
        median = np.median([sample.seconds for sample in some])
        print(
            f"{some[-1].at:7.1f} s: {max(sample.resident_mb for sample in some):6.0f} MB, small {1e3 * median:.1f} ms"
        )
    print(f"memory: {before:.0f} MB before, {most:.0f} MB at most; {bound:.0f} MB are promised")
    figures = [np.quantile([sample.seconds for sample in some], [0.5, 0.99]) for some in (alone, beside)]
    ratio = figures[1] / figures[0]
    for title, (median, late), times in zip(("alone", "beside the load"), figures, (alone, beside), strict=True):
        print(f"small, {title}: p50 {1e3 * median:.2f} ms, p99 {1e3 * late:.2f} ms ({len(times)} requests)")
    print(f"beside / alone: p50 {ratio[0]:.2f}, p99 {ratio[1]:.2f}")
    print(f"answers to small requests: {dict(small)}; to others: {dict(seen)}")
    if most > bound:
        broken.append(f"{most:.0f} MB of memory, {bound:.0f} are promised")
    if ratio[0] > options.times:
        broken.append(f"small requests take {ratio[0]:.1f} times as long as alone, {options.times:g} are promised")
    if others := {*small, *seen} - STATUSES - {"closed"}:
        broken.append(f"answers of other kinds: {', '.join(sorted(others))}")
    if small["closed"] > MOST_CLOSED * len(beside):
        broken.append(f"{small['closed']} small requests of {len(beside)} without an answer")
    return [*broken, *_broken_after(server, client, files, first + small + seen)]


def _times(client: Asking, process: int, count: int | None = None, seconds: float = np.inf) -> list[Sample]:
    """Return a sample of each answer to `count` requests, or to those of some seconds."""
    samples, start = [], time.perf_counter()
    while (count is None or len(samples) < count) and (begin := time.perf_counter()) < start + seconds:
        if client.ask("/embed", SMALL):
            end = time.perf_counter()
            samples.append(Sample(end - start, end - begin, resident(process=process)))
    return samples


def _broken_after(server: Server, client: Asking, files: int, seen: Counter[str]) -> Iterator[str]:
    """Yield the promises that are broken once the load, whose answers were `seen`, has ended."""
    client.seen = Counter()
    if not client.ask("/embed", SMALL) or client.seen["200"] != 1:
        yield "no answer after the load"
    with contextlib.closing(Client(server.port)) as reader:
        counters = reader.get("/metrics").decode()
    counted = re.findall(r'_requests_total{path="(.+)",status="(\d+)"} (\d+)', counters)
    sums = Counter[str]()
    for _, status, count in counted:
        sums[status] += int(count)
    print(f"counted by the server: {dict(sums)}")
    if sums["500"]:
        yield f"{sums['500']} answers with status 500"
    if lost := {status: seen[status] - sums[status] for status in STATUSES if seen[status] > sums[status]}:
        yield f"answers that clients saw and the server did not count: {lost}"
    end = time.monotonic() + ENDS
    while (left := _open_files(server.process.pid)) > files + 1 and time.monotonic() < end:
        time.sleep(0.5)
    if left > files + 1:
        yield f"{left} files are open after the load, {files} before"


def _open_files(process: int) -> int:
    return len(os.listdir(f"/proc/{process}/fd"))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.serving.mixed", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=above_zero, default=600, help="of the load (default: %(default)g)")
    parser.add_argument("--model", type=Path, help="folder of a sentence encoder (default: all-MiniLM-L6-v2)")
    parser.add_argument("--threads", type=positive, default=2, help="of the server (default: 2)")
    parser.add_argument("--times", type=above_zero, default=3, help="as long as alone that a small request may take")
    parser.add_argument("--files", type=positive, help="that the server may open, as ulimit -n (default: the system's)")
    parser.add_argument(
        "--max-response-bytes", type=positive, default=ServerSettings.max_response_bytes, metavar="BYTES"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
