"""Records and addresses that compiled code reads, and how often LLVM sees a kernel."""

from unittest import mock

import numpy as np
import pytest
from numba.core.codegen import JITCodeLibrary

from bertcore.kernels._numba import address_of, helper, kernel, parallel_kernel
from bertcore.kernels._numba.compile import cache
from bertcore.kernels._numba.steps import filled, record
from bertcore.kernels.attention.cpu.records import VIEW
from tests.refusals import refuses

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
