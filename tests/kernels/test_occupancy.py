"""Blocks that a multiprocessor holds: registers and shared memory of the machine code against what launches ask for."""

import numpy as np
import pytest

from bertcore.kernels.attention import cuda
from bertcore.kernels.attention.cuda import backward as backward_cuda
from bertcore.kernels.attention.cuda import relative as relative_cuda
from tests.kernels.machine_code import compiled

pytest.importorskip("cuda.core", reason='NVRTC is not installed: pip install -e ".[test]"')

# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability": KB of shared memory and threads of a
# multiprocessor, which has 65,536 registers; a warp takes them in units of 256, a block 1 KB of shared memory besides.
MULTIPROCESSORS = {"sm_75": (64, 1024), "sm_80": (164, 2048), "sm_86": (100, 1536), "sm_90": (228, 2048)}
REGISTERS, WARP_UNIT, OWN_BYTES = 65536, 256, 1024
HALF = np.dtype(np.float16)

FORWARD, BACKWARD, RELATIVE = (module.KERNELS for module in (cuda, backward_cuda, relative_cuda))
BACKWARD_BYTES = backward_cuda.shared_memory(64, HALF)
RELATIVE_BYTES = relative_cuda.shared_memory(64, False, True, True)

# {kernel, of 128 threads: (module, bytes of dynamic shared memory, blocks on each of MULTIPROCESSORS)}
KERNELS = {
    "attention_forward<__half, 64, 1, NOTHING>": (FORWARD, cuda.MMA[64, 1], (2, 3, 3, 3)),
    "attention_forward<__half, 64, 2, NOTHING>": (FORWARD, cuda.MMA[64, 2], (1, 2, 2, 2)),
    "attention_forward<__half, 128, 1, NOTHING>": (FORWARD, cuda.MMA[128, 1], (1, 3, 2, 3)),
    "attention_forward<__half, 128, 2, NOTHING>": (FORWARD, cuda.MMA[128, 2], (1, 2, 1, 2)),
    "attention_backward<__half, 64, KEYS_AND_VALUES, false>": (BACKWARD, BACKWARD_BYTES, (1, 2, 2, 2)),
    "attention_backward<__half, 64, QUERIES, false>": (BACKWARD, BACKWARD_BYTES, (1, 3, 2, 3)),
    "relative_attention_forward<__half, 64, NOTHING>": (RELATIVE, RELATIVE_BYTES, (1, 3, 1, 3)),
}
THREADS = 128


def blocks_held(resources, shared_bytes, kilobytes, most_threads):
    """How many blocks registers, shared memory and threads leave room for."""
    of_warp = -(-resources["registers"] * 32 // WARP_UNIT) * WARP_UNIT
    by_registers = REGISTERS // of_warp // (THREADS // 32)
    by_memory = (kilobytes << 10) // (shared_bytes + resources["shared_bytes"] + OWN_BYTES)
    return min(by_registers, by_memory, most_threads // THREADS)


@pytest.mark.parametrize(
    "architecture", [pytest.param(a, marks=() if a == "sm_90" else pytest.mark.slow) for a in MULTIPROCESSORS]
)
@pytest.mark.parametrize("kernel", KERNELS)
def test_blocks_of_a_multiprocessor(kernel, architecture):
    module, shared_bytes, blocks = KERNELS[kernel]
    resources = compiled(module.text, (kernel,), architecture).resources[kernel]
    assert not resources["stack_bytes"]
    found = blocks_held(resources, shared_bytes, *MULTIPROCESSORS[architecture])
    assert found >= blocks[list(MULTIPROCESSORS).index(architecture)], resources
