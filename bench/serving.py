"""What the server adds to an embedding: python -m bench.serving [--model FOLDER] [--rounds N]

One client asks a server process of its own for one short text at a time, in turns with `encode` in this process; the
answer is checked first. Then the server's memory after ever more requests. Needs the extra `serve`, and httpx.
"""

import argparse
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

import httpx
import numpy as np

from bertcore import SentenceEncoder
from bertcore.demo_model import demo_model_folder

TEXT = "How many people live in Berlin today?"
REQUESTS = (300, 300, 300)  # after which the memory is read


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(process: subprocess.Popen, client: httpx.Client) -> None:
    """Until the server answers."""
    while process.poll() is None:
        try:
            client.get("/health")
            return
        except httpx.TransportError:
            time.sleep(0.1)
    raise RuntimeError(f"the server ended with {process.returncode}")


def milliseconds(call) -> float:
    """How long a call takes."""
    start = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - start)


def resident(process: subprocess.Popen) -> float:
    """The process's memory in MB."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def measure(process: subprocess.Popen, client: httpx.Client, encoder: SentenceEncoder, rounds: int) -> None:
    """Check, measure and print."""

    def ask(texts=TEXT):
        return client.post("/embed", json={"inputs": texts}).raise_for_status().json()

    expected = encoder.encode(TEXT, normalize=True)
    np.testing.assert_array_equal(np.array(ask()[0], np.float32), expected)
    for _ in range(20):
        ask(), encoder.encode(TEXT)
    calls = (ask, lambda: encoder.encode(TEXT), lambda: client.get("/health"))
    times = [[milliseconds(call) for call in calls] for _ in range(rounds)]
    served, alone, health = (statistics.median(column) for column in zip(*times, strict=True))
    print(f"one text: {served:.2f} ms served, {alone:.2f} ms in the process: {served - alone:.2f} ms more")
    print(f"/health: {health:.2f} ms")
    for requests in REQUESTS:
        for _ in range(requests):
            ask([TEXT] * 8)
        print(f"memory after {requests} more requests of 8 texts: {resident(process):.0f} MB")


def main() -> None:
    """Start a server, measure it, stop it."""
    parser = argparse.ArgumentParser(prog="python -m bench.serving", description=__doc__.partition(":")[0])
    parser.add_argument("--model", help="folder of a sentence encoder (default: all-MiniLM-L6-v2)")
    parser.add_argument("--rounds", type=int, default=200, help="requests that are timed (default: 200)")
    given = parser.parse_args()
    folder, port = given.model or str(demo_model_folder()), free_port()
    process = subprocess.Popen([sys.executable, "-m", "bertcore", "serve", folder, "--port", str(port)])
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            wait_for(process, client)
            measure(process, client, SentenceEncoder(folder), given.rounds)
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
