"""kernels/_cuda/capture.py: the places of a pass's arrays in one block of memory."""

import cupy
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertcore.kernels._cuda.capture import ALIGNMENT, Arena, Lifetimes
from tests.cuda_emulator.driverless import driverless, unavailable_reason


@given(st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 6)), min_size=1, max_size=40))
def test_arrays_that_live_at_once_stand_apart(sizes):
    if unavailable_reason() is not None:
        pytest.skip(unavailable_reason())
    with driverless(emulated=False):
        lifetimes = Lifetimes()
        ends = _allocate(lifetimes.allocate, sizes)
        plan = lifetimes.plan((ends.pop(),))
        del ends
        places = []
        memory = cupy.cuda.alloc(plan.nbytes)
        arena = Arena(plan, memory)
        _allocate(lambda size: places.append(arena.allocate(size)) or places[-1], sizes)
    spans = [(place.ptr - memory.ptr, size) for place, (size, _) in zip(places, sizes, strict=True)]
    for index, ((start, size), (_, kept)) in enumerate(zip(spans, sizes, strict=True)):
        assert start % ALIGNMENT == 0 and start + size <= plan.nbytes
        for other, length in spans[index + 1 : index + 1 + kept]:
            assert start + size <= other or other + length <= start


def _allocate(allocate, sizes):
    """Arrays of these bytes; the last one is kept."""
    live = {}
    for index, (size, kept) in enumerate(sizes):
        live[index] = index + kept, cupy.ndarray(size, np.int8, allocate(size))
        for other in [other for other, (last, _) in live.items() if last <= index and other != len(sizes) - 1]:
            del live[other]
    return [live[len(sizes) - 1][1]]
