"""clip_norm: norms and arrays beside float64, numbers whose squares overflow or vanish, bits, what is refused."""

import math

import ml_dtypes
import numpy as np
import pytest

from bertcore import kernels
from bertcore.kernels.clip_norm import cpu, reference
from tests.cuda_emulator.driverless import driverless
from tests.kernels.arrays import to_gpu
from tests.kernels.strategies import NUMBA_DTYPES, normal
from tests.tolerances import assert_same_arrays

SHAPES = [(0,), (1,), (7,), (3, 5), (67, 131), (2, 4099), ()]


def arrays_of(dtype, scale=1.0):
    return [np.asarray(scale * normal(index, shape), dtype) for index, shape in enumerate(SHAPES)]


def exact_norm(arrays):
    return math.sqrt(math.fsum(float(value) ** 2 for array in arrays for value in array.flat))


@pytest.mark.parametrize("dtype", NUMBA_DTYPES)
def test_arrays_are_scaled_to_the_limit(cpu_backend, dtype):
    arrays, before = arrays_of(dtype), arrays_of(dtype)
    alone = kernels.joint_norm(arrays, backend=cpu_backend)
    norm = kernels.clip_norm(arrays, 2.0, backend=cpu_backend)
    assert alone == norm == pytest.approx(exact_norm(before), rel=1e-6)
    assert alone.shape == () and alone.dtype == np.float64
    for found, array in zip(arrays, before, strict=True):
        np.testing.assert_allclose(found, array * (2.0 / norm), rtol=1e-6)
    assert kernels.clip_norm(arrays, np.inf, backend=cpu_backend) == pytest.approx(2.0, rel=1e-6)


def test_below_the_limit_nothing_changes(cpu_backend):
    arrays, before = arrays_of(np.float32), arrays_of(np.float32)
    norm = kernels.clip_norm(arrays, 1e3, backend=cpu_backend)
    assert kernels.clip_norm(arrays, norm, backend=cpu_backend) == norm
    assert_same_arrays(arrays, before)
    assert kernels.clip_norm([], 1.0, backend=cpu_backend) == 0.0


@pytest.mark.parametrize(
    "dtype, scale", [(np.float32, 1e-30), (np.float32, 1e30), pytest.param(np.float64, 1e-40, marks=pytest.mark.slow)]
)
def test_squares_that_leave_the_range(cpu_backend, dtype, scale):
    arrays = [np.zeros(5000, dtype), *arrays_of(dtype, scale)]
    expected = exact_norm([array.astype(np.float64) / scale for array in arrays]) * scale
    assert kernels.clip_norm(arrays, np.inf, backend=cpu_backend) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_without_a_finite_norm_nothing_changes(cpu_backend, poison):
    arrays = arrays_of(np.float32)
    arrays[4][3, 5] = poison
    before = [array.copy() for array in arrays]
    norm = kernels.clip_norm(arrays, 1.0, backend=cpu_backend)
    assert np.isnan(norm) if np.isnan(poison) else norm == np.inf
    assert_same_arrays(arrays, before)


def test_any_strides(cpu_backend):
    whole = normal(1, (6, 10, 14), np.float32)
    views = [whole[0].T, whole[1:3].transpose(2, 0, 1), whole[3, ::2, ::3], whole[4, ::-1]]
    before = [view.copy() for view in views]
    rest = whole[5].copy(), whole[3, 1::2].copy()
    norm = kernels.clip_norm(views, 0.5, backend=cpu_backend)
    assert norm == pytest.approx(exact_norm(before), rel=1e-6)
    for found, array in zip(views, before, strict=True):
        np.testing.assert_allclose(found, array * np.float32(0.5 / norm), rtol=1e-6)
    assert_same_arrays((whole[5], whole[3, 1::2]), rest)


def test_bits_do_not_depend_on_threads(monkeypatch):
    arrays = [normal(1, (300, 1000), np.float32), normal(2, (70000,), np.float32)]
    found = set()
    for tasks in (1, 2, 3, 7):
        monkeypatch.setattr(cpu, "task_count", lambda work, grain, tasks=tasks: tasks)
        copies = [array.copy() for array in arrays]
        found.add((cpu.clip_norm(copies, 1.0), copies[0].tobytes(), copies[1].tobytes()))
    assert len(found) == 1


def test_bfloat16_by_the_definition():
    arrays = arrays_of(ml_dtypes.bfloat16)
    exact = exact_norm([array.astype(np.float64) for array in arrays])
    assert reference.clip_norm(arrays, 1.0) == pytest.approx(exact, rel=1e-9)
    assert arrays[4].dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize("dtype, scale", [(np.float32, 1e-30), (np.float32, 1e30), (np.float16, 1)])
def test_cuda(dtype, scale):
    arrays = [*arrays_of(dtype, scale), np.asarray(scale * normal(9, 9001), dtype)]
    with driverless() as gpu:
        norm = kernels.joint_norm([to_gpu(array) for array in arrays])
        assert [launch.kernel.partition("<")[0] for launch in gpu.launches] == ["sum_squares", "root_of_sum"]
        assert float(norm) == pytest.approx(exact_norm(arrays), rel=1e-12)
        moved = [to_gpu(np.pad(array.reshape(-1), (1, 0)))[1:] for array in arrays]
        assert float(kernels.joint_norm(moved)) == float(norm)
        some = to_gpu(arrays[4])
        assert kernels.clip_norm([some.T], np.inf) == kernels.clip_norm([some], np.inf)
        assert kernels.clip_norm([some], scale) == pytest.approx(exact_norm(arrays[4:5]), rel=1e-12)
        assert kernels.clip_norm([some], np.inf) == pytest.approx(scale, rel=1e-3 if dtype == np.float16 else 1e-6)
