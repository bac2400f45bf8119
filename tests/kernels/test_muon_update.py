"""muon_update: what becomes of singular values, the backends against the definition, what is refused."""

import numpy as np
import pytest

from bertcore.kernels import muon_update
from bertcore.kernels.muon_update import cuda
from tests.cuda_emulator.driverless import driverless
from tests.kernels.arrays import normal, to_gpu
from tests.kernels.strategies import NUMBA_DTYPES

SHAPES = [(1, 1), (1, 7), (13, 5), (39, 39), (0, 4), (5, 160), (13, 5), (67, 131), (160, 39), (13, 5)]
OPTIONS = {"lr": 0.05, "beta": 0.9, "weight_decay": 0.1}


def matrices(shapes, dtype):
    """Parameters and momenta."""
    parameters = [normal(number, shape).astype(dtype) for number, shape in enumerate(shapes)]
    return parameters, [np.zeros(shape, dtype) for shape in shapes]


def gradients(step, shapes, dtype):
    return [normal(100 * step + number, shape, scale=10.0**step).astype(dtype) for number, shape in enumerate(shapes)]


def steps(backend, dtype, shapes=SHAPES, moved=lambda array: array, **options):
    """Parameters and momenta after some steps."""
    state = [list(map(moved, arrays)) for arrays in matrices(shapes, dtype)]
    for step in (1, 2, 3):
        grads = list(map(moved, gradients(step, shapes, dtype)))
        muon_update(state[0], grads, state[1], **OPTIONS, **options, backend=backend)
    return [array if isinstance(array, np.ndarray) else array.get() for arrays in state for array in arrays]


def check(found, expected, dtype):
    for ours, array in zip(found, expected, strict=True):
        most = np.abs(array).max(initial=0)
        np.testing.assert_allclose(ours, array, rtol=0, atol=most * {"float64": 1e-9, "float32": 1e-4}[dtype])


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (13, 5), (39, 39), (5, 160)])
def test_singular_values_are_made_alike(shape, cpu_dtype):
    grad, parameter, momentum = normal(1, shape).astype(cpu_dtype), *np.zeros((2, *shape), cpu_dtype)
    muon_update([parameter], [grad], [momentum], lr=1.0, beta=0.0)
    left, values, right = np.linalg.svd(grad, full_matrices=False)
    found = parameter / (-0.2 * max(shape) ** 0.5)
    new = np.diag(left.T @ found @ right.T)
    np.testing.assert_allclose(left @ np.diag(new) @ right, found, atol={"float64": 1e-9, "float32": 2e-4}[cpu_dtype])
    kept = values > 0.02 * np.linalg.norm(values)
    assert ((new[kept] > 0.5) & (new[kept] < 1.3)).all()


@pytest.mark.parametrize("value", [0, 1e-30, 1e30])
def test_what_has_no_direction_gets_none_and_large_squares_count(cpu_backend, value):
    state = np.ones((3, 4), np.float32), np.full((3, 4), value, np.float32), np.zeros((3, 4), np.float32)
    muon_update(*([array] for array in state), lr=0.1, backend=cpu_backend)
    assert np.isfinite(state[0]).all() and (state[0] == 1).all() == (value < 1)


@pytest.mark.parametrize("dtype", NUMBA_DTYPES)
def test_numba(dtype):
    check(steps("numba", dtype), steps("numpy", np.float64), np.dtype(dtype).name)
    muon_update([], [], [], **OPTIONS)


@pytest.mark.parametrize("at_once", [cuda.MOST_AT_ONCE, 70])
def test_cuda(at_once, monkeypatch):
    monkeypatch.setattr(cuda, "MOST_AT_ONCE", at_once)
    with driverless() as gpu:
        before = gpu.products
        found = steps("cupy", np.float32, moved=to_gpu)
        batches = 9 if at_once == 70 else len(set(SHAPES)) - 1
        assert (len(gpu.launches), gpu.products - before) == (3 * 3 * batches, 3 * 15 * batches)
    check(found, steps("numpy", np.float64), "float32")


def test_the_scale_of_gradients(place):
    shapes = [(13, 5), (39, 39)]
    state = [list(map(place.to, arrays)) for arrays in matrices(shapes, np.float32)]
    exact = matrices(shapes, np.float64)
    for step, scale in enumerate((0.5, np.inf, 2.0, np.nan, -np.inf), 1):
        scaled = {"grad_scale": place.to(np.asarray(scale, np.float32)), "backend": place.backend}
        muon_update(state[0], list(map(place.to, gradients(step, shapes, np.float32))), state[1], **OPTIONS, **scaled)
        if np.isfinite(scale):
            grads = [scale * grad for grad in gradients(step, shapes, np.float64)]
            muon_update(exact[0], grads, exact[1], **OPTIONS, backend="numpy")
    check([place.back(array) for arrays in state for array in arrays], exact[0] + exact[1], "float32")
