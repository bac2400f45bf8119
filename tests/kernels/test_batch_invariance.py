"""The mode of products on the GPU, and that nothing else there makes a text's bits depend on its neighbours.

Products: test_cuda_linear.py; a whole model: tests/models/test_cuda_emulated.py.
"""

import cupy
import numpy as np
import pytest

from bertcore import kernels
from tests.cuda_emulator.driverless import driverless, host
from tests.refusals import refuses

from .cuda_support import batch_invariance


def test_the_mode_is_set_for_the_process():
    with batch_invariance(False):
        kernels.set_batch_invariant(True)
        assert kernels.is_batch_invariant()
        kernels.set_batch_invariant(False)
        assert not kernels.is_batch_invariant()
        refuses(TypeError, "wanted is 'batch', expected True or False", kernels.set_batch_invariant, "batch")


@pytest.mark.slow  # attention's tiles compiled for the emulator
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_attention(dtype):
    """Its tiles are chosen by how much there is to do and how large the GPU is."""
    rng, mine, offsets = np.random.default_rng(0), slice(3, 133), np.array([0, 3, 133, 140, 343], np.int32)
    arrays = [2 * rng.standard_normal((offsets[-1], 2, 64)).astype(dtype) for _ in range(3)]
    found, launched = set(), set()
    for multiprocessors in (1, 132):
        with driverless(multiprocessors=multiprocessors) as gpu:
            among = kernels.attention(*map(cupy.asarray, arrays), cu_seqlens=cupy.asarray(offsets))
            alone = kernels.attention(
                *(cupy.asarray(array[mine]) for array in arrays), cu_seqlens=cupy.asarray(np.array([0, 130], np.int32))
            )
            found |= {host(among)[mine].tobytes(), host(alone).tobytes()}
            launched |= {launch.kernel for launch in gpu.launches}
    assert len(found) == 1
    assert len(launched) == (2 if dtype == np.float16 else 1)
