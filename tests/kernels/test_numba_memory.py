"""Reused memory, and the records and addresses that compiled code reads."""

import gc
import multiprocessing
import os
from unittest import mock

import numpy as np
import pytest
from numba.core.codegen import JITCodeLibrary

from bertcore import kernels
from bertcore.kernels._numba import address_of, helper, kernel, parallel_kernel
from bertcore.kernels._numba import memory as arena
from bertcore.kernels._numba.compile import cache
from bertcore.kernels._numba.steps import filled, record
from bertcore.kernels.attention.cpu.records import VIEW
from tests.processes import in_threads
from tests.refusals import refuses

ROWS = 3000
LARGE = (ROWS, 768)  # 9 MB of float32


@pytest.fixture(autouse=True, scope="module")
def without_garbage():
    gc.collect()  # arrays that other tests have left in cycles


@pytest.fixture(autouse=True)
def empty_arena():
    arena.release()
    yield
    arena.release()


def address(array):
    return array.__array_interface__["data"][0]


def test_memory_is_reused_after_the_last_view():
    array = arena.empty(LARGE, np.float32)
    first, view = address(array), array.reshape(-1)[5:].reshape(-1, 1)[3:]
    del array
    assert arena.idle_bytes() == 0
    del view
    assert arena.idle_bytes() >= 4 * 768 * ROWS
    again = arena.empty(LARGE, np.float32)
    assert address(again) == first and arena.idle_bytes() == 0


def test_arrays_in_use_do_not_share_memory():
    arrays = [arena.empty(LARGE, np.float32) for _ in range(4)]
    for index, array in enumerate(arrays):
        array[...] = index
    del arrays[1]
    arrays.append(arena.empty(LARGE, np.float32))
    arrays[-1][...] = 9
    assert [array[0, 0] for array in arrays] == [0, 2, 3, 9] and all((array == array[0, 0]).all() for array in arrays)


def test_large_block_is_not_used_for_small_array():
    del_me = arena.empty((4 * ROWS, 768), np.float32)
    del del_me
    small = arena.empty(LARGE, np.float32)
    assert arena.idle_bytes() >= 16 * 768 * ROWS and small.size


def test_idle_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(arena, "MOST_IDLE", 20 << 20)
    arrays = [arena.empty(LARGE, np.float32) for _ in range(5)]
    del arrays
    assert 0 < arena.idle_bytes() <= 20 << 20
    arena.release()
    assert arena.idle_bytes() == 0


@pytest.mark.parametrize("size", [1 << 50, 1 << 62])
def test_out_of_memory(size):
    refuses(MemoryError, rf"{size}|Unable to allocate", arena.empty, (size,), np.uint8)


def test_kernels_reuse_memory():
    x = np.ones(LARGE, np.float32)
    first = address(kernels.softmax(x, backend="numba"))
    assert arena.idle_bytes() > 0
    assert address(kernels.softmax(x, backend="numba")) == first


def test_block_sizes():
    for size in (arena.LEAST, arena.LEAST + 1, 1000 * 1000, (1 << 22) + 1, 99_999_999):
        array = arena.empty((size,), np.uint8)
        del array
        assert size <= arena.idle_bytes() <= size * 9 / 8
        arena.release()


def test_zeros():
    array = arena.empty(LARGE, np.float32)
    array[...] = 1
    first = address(array)
    del array
    array = arena.zeros(LARGE, np.float32)
    assert address(array) == first and not array.any()


def test_several_threads():
    problems = []

    def work(value):
        for _ in range(50):
            array = arena.empty((1100, 1024), np.float32)
            array[...] = value
            if not (array == value).all():
                problems.append(value)

    in_threads(work, range(4))
    assert not problems


def _overwrite(array):
    array[...] = 7
    os._exit(0 if (array == 7).all() else 1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_forked_process_has_separate_memory():
    array = arena.empty(LARGE, np.float32)
    array[...] = 3
    child = multiprocessing.get_context("fork").Process(target=_overwrite, args=(array,))
    child.start()
    child.join()
    assert child.exitcode == 0 and (array == 3).all()


def test_lasting_arrays_lie_one_after_another():
    shapes = [(3, 1 << 18), (5, 1 << 17), (1 << 19, 2)]
    arrays = [arena.lasting_empty(shape, np.uint8) for shape in shapes]
    for index, array in enumerate(arrays):
        array[...] = index
    places = [address(array) for array in arrays]
    assert all(place % 4096 == 0 for place in places) and max(places) - min(places) < arena.SHARED
    assert [array.shape for array in arrays] == shapes and all((each == i).all() for i, each in enumerate(arrays))
    block = arrays[0].base
    assert all(array.base is block for array in arrays) and arena.lasting_empty((8,), np.uint8).base is not block
    assert arena.lasting_empty((arena.SHARED,), np.uint8).base is not block
    before = arena.idle_bytes()
    del block, array, arrays[0], arrays[0]
    assert arena.idle_bytes() == before  # one is left
    del arrays
    assert arena.idle_bytes() >= before + arena.SHARED


def test_full_block_of_lasting_arrays_is_followed_by_another():
    arrays = [arena.lasting_empty((arena.SHARED // 3,), np.uint8) for _ in range(4)]
    assert len({id(array.base) for array in arrays}) == 2


KIND = record(("flag", np.bool_), ("view", VIEW), ("scale", np.float64), ("count", np.intp), ("last", np.bool_))
VALUES = [(True, (2**40, -1, 0, 3), 0.1, -7, False), (False, (0, 0, 0, 0), np.float64(-np.inf), np.int64(2), True)]


@pytest.mark.parametrize("count", [0, 1, 2])
def test_filled_equals_numpy(count):
    found, expected = filled(KIND, VALUES[:count]), np.array(VALUES[:count], KIND)
    assert found.dtype == KIND and found.flags.writeable and found.flags.aligned
    assert found.tolist() == expected.tolist()


def test_short_records():
    assert filled(KIND, [VALUES[0][:2]]).tolist() == [(True, (2**40, -1, 0, 3), 0, 0, False)]
    refuses(Exception, "pack_into expected 8 items", filled, KIND, [(*VALUES[0], 1)])


@pytest.mark.parametrize(
    "array", [np.zeros(3), np.zeros((4, 5))[1:, 2:], np.empty(0, np.int8), np.frombuffer(bytearray(9), np.int64, 1, 1)]
)
def test_address(array):
    assert address_of(array) == array.__array_interface__["data"][0]


def test_llvm_optimises_a_kernel_once(monkeypatch, tmp_path):
    monkeypatch.setattr(cache, "cache_folder", lambda: tmp_path)  # nothing of an earlier run

    @helper
    def square(x):
        return x * x

    @helper
    def sum_of_squares(x):
        total = x[0] - x[0]
        for value in x:
            total += square(value)
        return total

    @parallel_kernel
    def squares(x, out, task, tasks):
        out[task] = sum_of_squares(x) + square(task)

    def double(x):
        return square(x) * 2

    kernel(double)(1)  # whatever Numba compiles with a first kernel
    optimised, optimise = [], JITCodeLibrary._optimize_final_module

    def spy(library):
        optimised.append(library.name)
        optimise(library)

    out = np.zeros(2)
    with mock.patch.object(JITCodeLibrary, "_optimize_final_module", spy):
        squares(np.arange(3.0), out, 2)
    assert out.tolist() == [5, 6] and len(optimised) == 1
    assert kernel(double)(3.0) == 18  # what was a part of one kernel may be one of another
