"""A server process of its own, over TCP."""

import contextlib
import os
import resource
import subprocess
import sys
import time

import httpx

START = 300  # seconds: kernels may have to be compiled


@contextlib.contextmanager
def served(*models, backend="numpy", options=(), files=None, log=None):
    """Process and port of `bertcore serve` once it answers; `files`: how many it may open; `log`: of its stderr."""
    command = [sys.executable, "-m", "bertcore", "serve", *map(str, models), "--port", "0", *options]
    environment = {**os.environ, "BERTCORE_BACKEND": backend}
    limit = (lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))) if files else None
    with contextlib.ExitStack() as stack:
        pipes = {"stdout": subprocess.PIPE, "stderr": stack.enter_context(log.open("wb")) if log else None}
        process = stack.enter_context(subprocess.Popen(command, env=environment, preexec_fn=limit, text=True, **pipes))
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
