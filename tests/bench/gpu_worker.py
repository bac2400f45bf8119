"""The worker of bench.gpu without a GPU: the real one within `driverless`.

    python -m tests.bench.gpu_worker [--quick] [--peer] [--timings] [--idle]

--peer: PyTorch on the CPU stands for the peer. --timings: only the first of the checks. --idle: no kernel computes.
"""

import sys
from collections import deque
from contextlib import nullcontext
from functools import partial

from bench.gpu import checks, peers, worker
from bench.measure import host_clock
from tests.cuda_emulator.driverless import driverless, host


class TorchOnCPU(peers.Torch):
    """PyTorch without a GPU, over the memory of the host that stands for a GPU's."""

    device = "cpu"

    def tensor(self, array):
        return super().tensor(host(array))

    def compiled(self, function):
        return function

    def flash_attention(self):
        return nullcontext()

    def by_graph(self, calls):
        return self.by_events(calls)

    def clock(self, call, repeats):
        return host_clock(call, repeats)

    def free(self):
        pass


def _first(steps, every):
    print("what a library writes to standard output")
    return [next(steps(every))]


def main(arguments):
    if "--timings" in arguments:
        checks.steps = partial(_first, checks.steps)
    with driverless(emulated="--idle" not in arguments) as gpu:
        gpu.launches = deque(maxlen=0)  # a longer one would keep their arguments alive
        worker.main(arguments, TorchOnCPU() if "--peer" in arguments else None)


if __name__ == "__main__":
    main(sys.argv[1:])
