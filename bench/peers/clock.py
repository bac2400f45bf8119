"""A clock for libraries with thread pools of their own in one process.

After a call, worker threads go on spinning in wait of the next: measured here, ONNX Runtime's for 40 ms, GNU OpenMP's
(PyTorch, CTranslate2) for 10 ms, TBB's (OpenVINO, ours) for 1 ms. On as many cores as threads they take a core from
whatever is measured next. Switching the spinning off (ONNX Runtime's session.intra_op.allow_spinning, OMP_WAIT_POLICY)
would slow those libraries down themselves. So each sample waits until the process is idle, and then, if the call is
short, makes one untimed call that wakes the library's own threads and brings its data into the caches.
"""

import time
from collections.abc import Callable
from typing import Any

from bench.measure import SHORT_CALL, host_clock

STEP = 4e-3  # seconds asleep between two looks
IDLE = 0.1  # of one core
LONGEST_WAIT = 1.0  # seconds; whatever spins longer than that does so in its users' processes as well


def settle() -> bool:
    """Sleep until the threads of this process do; whether they did within LONGEST_WAIT."""
    end = time.perf_counter() + LONGEST_WAIT
    while time.perf_counter() < end:
        before = time.process_time()
        time.sleep(STEP)
        if time.process_time() - before < IDLE * STEP:
            return True
    return False


def settled_clock(call: Callable[[], Any], repeats: int) -> float:
    """Seconds that `repeats` calls take, from an idle process on."""
    settle()
    elapsed = host_clock(call, 1)
    return host_clock(call, repeats) if elapsed < SHORT_CALL or repeats > 1 else elapsed
