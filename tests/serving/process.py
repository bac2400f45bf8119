"""A server process of its own, over TCP."""

import contextlib
import os
import subprocess
import sys
import time

import httpx

START = 300  # seconds: kernels may have to be compiled


@contextlib.contextmanager
def served(*models, backend="numpy", options=()):
    """Process and port of `bertcore serve`, once it answers; killed afterwards."""
    command = [sys.executable, "-m", "bertcore", "serve", *map(str, models), "--port", "0", *options]
    environment = {**os.environ, "BERTCORE_BACKEND": backend}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            port = int(process.stdout.readline().rpartition(":")[2])
            _wait(process, port)
            yield process, port
        finally:
            process.kill()


def _wait(process, port):
    deadline = time.monotonic() + START
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"http://127.0.0.1:{port}/health", timeout=START).status_code == 200:
                return
        assert process.poll() is None
        time.sleep(0.1)
    raise AssertionError(f"no answer in {START} s")
