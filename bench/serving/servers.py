"""The servers that are compared, each a process of its own. Both answer POST /embed {"inputs": [text]} alike."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from bench.serving.load import Client

OURS, PEER = "bertcore", "sentence-transformers"
START = 300  # seconds: with an empty cache, kernels are compiled first


class Server(NamedTuple):
    """A process, and the port at which it listens."""

    process: subprocess.Popen
    port: int


def _ours(folder: Path, port: int, threads: int) -> list[str]:
    # The peer cuts long texts, too. OMP_NUM_THREADS says how many threads.
    return ["-m", "bertcore", "serve", str(folder), "--port", str(port), "--auto-truncate"]


def _peer(folder: Path, port: int, threads: int) -> list[str]:
    return ["-m", "bench.serving.peer", str(folder), str(port), str(threads)]


SERVERS: dict[str, Callable[[Path, int, int], list[str]]] = {OURS: _ours, PEER: _peer}


@contextlib.contextmanager
def running(name: str, folder: Path, threads: int) -> Iterator[Server]:
    """A server of that name in SERVERS, once it answers; stopped afterwards."""
    port = _free_port()
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen([sys.executable, *SERVERS[name](folder, port, threads)], env=environment)
    try:
        _wait(process, port)
        yield Server(process, port)
    finally:
        process.terminate()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait(process: subprocess.Popen, port: int) -> None:
    """Until it answers. RuntimeError if it ends before, or takes too long."""
    end = time.monotonic() + START
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}: {' '.join(process.args)}")
        try:
            with contextlib.closing(Client(port)) as client:
                client.get("/health")
            return
        except ConnectionError:
            time.sleep(0.1)
    raise RuntimeError(f"no answer in {START} s: {' '.join(process.args)}")
