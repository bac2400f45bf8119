"""Launches, modules and captures of CUDA kernels without a GPU."""

import threading

import cupy
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertcore.kernels import _cuda
from bertcore.kernels._cuda.capture import ALIGNMENT, Arena, Lifetimes
from tests.cuda_emulator import EmulatorError
from tests.cuda_emulator.driverless import driverless
from tests.cuda_emulator.streams import CaptureError
from tests.refusals import refuses


@pytest.fixture
def module(tmp_path):
    (tmp_path / "sum.cu").write_text('#include "common.cuh"\n__global__ void sum() {}\n')
    return _cuda.Source(tmp_path / "cuda.py", "sum.cu", ["sum", "other<1>"])


def test_a_kernel_is_compiled_once_per_device(gpu, module):
    for gpu.current in (0, 0, 1, 0, 1):
        module.launch("sum", (3,), (64,), ())
    assert gpu.compiled == [(module.text, "sum", ("-std=c++17",))] * 2
    assert [launch.device for launch in gpu.launches] == [0, 0, 1, 0, 1]


def test_arguments_and_extents(gpu, module):
    array, struct = cupy.empty((3, 4), np.float16)[1:], np.zeros((), [("a", np.int64), ("b", np.bool_)])[()]
    module.launch("sum", (3,), (64, 2), (None, np.int32(7), array, struct), shared_bytes=16)
    ((device, kernel, grid, block, (null, number, *others), shared_bytes),) = gpu.launches
    assert (device, kernel, grid, block, shared_bytes) == (0, "sum", (3, 1, 1), (64, 2, 1), 16)
    assert null == 0 and null.dtype.itemsize == 8
    assert type(number) is np.int32
    assert others[0] is array and others[1].tobytes() == struct.tobytes()
    refuses(TypeError, "Unsupported type", module.launch, "sum", (3,), (64,), ([1.0],))
    refuses(ValueError, "'product' is not among the instantiations", module.launch, "product", (1,), (1,), ())


def test_shared_memory_is_asked_for_when_it_grows(gpu, module):
    for size in (0, 48 << 10, 64 << 10, 50 << 10, 96 << 10):
        module.launch("other<1>", (1,), (32,), (), shared_bytes=size)
    assert gpu.grants == [48 << 10, 64 << 10, 96 << 10]


def test_launches_beyond_cudas_limits_are_refused(gpu, module):
    refuses(EmulatorError, r"sum: grid .* is outside", module.launch, "sum", (0,), (1,), ())


@pytest.mark.parametrize("join", [cupy.concatenate, cupy.stack])
def test_more_arrays_than_cupy_joins_without_a_table_are_refused_under_capture(gpu, join):
    name, arrays = join.__name__, [cupy.zeros(3) for _ in range(9)]
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        refuses(CaptureError, f"{name} of more than 8 arrays", getattr(cupy, name), arrays)


def test_c_types():
    assert [_cuda.c_type(name) for name in ("float32", np.float16)] == ["float", "__half"]
    refuses(TypeError, "float64", _cuda.c_type, np.float64)


def test_runtimes_are_replaced_for_a_block():
    outer = _cuda.runtime()
    with _cuda.use_runtime(object()) as replacement:
        assert _cuda.runtime() is replacement
    assert _cuda.runtime() is outer


def test_one_module_does_not_wait_for_anothers_text(tmp_path, monkeypatch):
    """functools.cached_property would, and a child forked meanwhile for ever."""
    reached, may_go_on = threading.Event(), threading.Event()

    def inline(path):
        if path.stem == "slow":
            reached.set()
            may_go_on.wait(10)
        return path.stem

    monkeypatch.setattr(_cuda, "inline_includes", inline)
    slow, fast = (_cuda.Source(tmp_path / "cuda.py", name, []) for name in ("slow.cu", "fast.cu"))
    thread = threading.Thread(target=lambda: slow.text)
    thread.start()
    assert reached.wait(10)
    assert fast.text == "fast" and thread.is_alive()
    may_go_on.set()
    thread.join()
    assert slow.text == "slow"


def test_headers_are_inlined_once_and_lines_keep_their_numbers(tmp_path):
    (tmp_path / "own.cuh").write_text("#include <cuda_fp16.h>\nint own;\n")
    (tmp_path / "both.cuh").write_text('#include "own.cuh"\nint both;\n')
    (tmp_path / "kernel.cu").write_text('#include "both.cuh"\n  #include "own.cuh"\nint kernel;\n')
    assert [line for line in _cuda.inline_includes(tmp_path / "kernel.cu").splitlines() if line] == [
        '#line 1 "kernel.cu"',
        '#line 1 "both.cuh"',
        '#line 1 "own.cuh"',
        "#include <cuda_fp16.h>",
        "int own;",
        '#line 2 "both.cuh"',
        "int both;",
        '#line 2 "kernel.cu"',
        '#line 3 "kernel.cu"',
        "int kernel;",
    ]


def test_headers_of_another_folder_are_inlined_once(tmp_path):
    for folder, text in (("one", "int one;"), ("two", '#include "../one/own.cuh"\nint two;')):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "own.cuh").write_text(text)
    (tmp_path / "one" / "kernel.cu").write_text('#include "../two/own.cuh"\n#include "own.cuh"\n')
    lines = _cuda.inline_includes(tmp_path / "one" / "kernel.cu").splitlines()
    assert [line for line in lines if line.startswith("int")] == ["int one;", "int two;"]


def test_missing_headers_are_named(tmp_path):
    (tmp_path / "kernel.cu").write_text('#include "nowhere.cuh"\n')
    refuses(FileNotFoundError, r"kernel\.cu.*nowhere\.cuh", _cuda.inline_includes, tmp_path / "kernel.cu")


@given(st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 6)), min_size=1, max_size=40))
def test_arrays_that_live_at_once_stand_apart(sizes):
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
