"""adam_update: the definition against PyTorch and its papers' formulas, the backends against the definition."""

import numpy as np
import pytest

from bertcore.kernels import adam_update, get_num_threads, set_num_threads
from bertcore.kernels.adam_update import RULES, cpu, reference
from bertcore.kernels.adam_update.reference import levels
from tests.cuda_emulator.driverless import driverless
from tests.kernels.arrays import normal, to_gpu
from tests.kernels.strategies import NUMBA_DTYPES
from tests.tolerances import assert_all_close, assert_same_arrays

SHAPES = [(0,), (1,), (39,), (7, 160), (131, 97)]
OPTIONS = {"lr": 0.01, "betas": (0.9, 0.98), "eps": 1e-6, "weight_decay": 0.1}


def arrays(shape, dtype=np.float64):
    """A parameter and its moments."""
    return [normal(1, shape).astype(dtype), *np.zeros((2, *shape), dtype)]


def steps(backend, shape, dtype, rule, count=3):
    """A parameter and its moments after some steps."""
    state = arrays(shape, dtype)
    for step in range(1, count + 1):
        grad = normal(1 + step, shape, scale=10.0**step).astype(dtype)
        adam_update(state[0], grad, *state[1:], **OPTIONS, step=step, rule=rule, backend=backend)
    return state


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", NUMBA_DTYPES)
def test_numba(rule, shape, dtype):
    exact = steps("numpy", shape, np.float64, rule)
    assert_all_close(steps("numba", shape, dtype, rule), exact)


@pytest.mark.parametrize("rule", RULES)
def test_cuda(rule):
    shapes = [*SHAPES, (4097,), (2, 4096)]
    exact = [steps("numpy", shape, np.float64, rule) for shape in shapes]
    with driverless() as gpu:
        state = [[to_gpu(array) for array in arrays(shape, np.float32)] for shape in shapes]
        around = to_gpu(np.full(39 + 2, 7, np.float32))
        around[1:-1] = state[2][0]
        state[2][0] = around[1:-1]
        parameters, *moments = map(list, zip(*state, strict=True))
        for step in (1, 2, 3):
            grads = [to_gpu(normal(1 + step, shape, scale=10.0**step).astype(np.float32)) for shape in shapes]
            adam_update(parameters, grads, *moments, **OPTIONS, step=step, rule=rule)
        found = [[array.get() for array in arrays] for arrays in state]
        assert around[0] == around[-1] == 7
        assert len(gpu.launches) == (3 if rule == "adamw" else 9)
    for one, expected in zip(found, exact, strict=True):
        assert_all_close(one, expected)


@pytest.mark.parametrize("rule", RULES)
def test_the_scale_of_gradients(place, rule):
    """The same bits as scaled gradients give; a step whose scale is not finite changes nothing."""
    states = [[place.to(array) for array in arrays((131, 97), np.float32)] for _ in range(2)]
    for step, scale in enumerate(np.float32([0.37, np.inf, 0.37, np.nan]), 1):
        grad = normal(step, (131, 97)).astype(np.float32)
        given = [(grad, scale), (grad * scale, np.float32(1))] if np.isfinite(scale) else [(grad, scale)]
        for state, (grad, scale) in zip(states, given, strict=False):
            scaled = {"grad_scale": place.to(np.asarray(scale)), "backend": place.backend}
            adam_update(state[0], place.to(grad), *state[1:], **OPTIONS, **scaled, step=step, rule=rule)
    for one, other in zip(*states, strict=True):
        np.testing.assert_array_equal(place.back(one), place.back(other))


@pytest.mark.parametrize("rule", RULES)
def test_a_step_whose_number_the_device_knows(rule):
    with driverless():
        states = [[to_gpu(array) for array in arrays((7, 160), np.float32)] for _ in range(2)]
        for step in (1, 2, 900):
            grad = to_gpu(normal(step, (7, 160)).astype(np.float32))
            for number, state in zip((step, to_gpu(np.asarray(step))), states, strict=True):
                adam_update(state[0], grad, *state[1:], **OPTIONS, step=number, rule=rule)
        for one, other in zip(*states, strict=True):
            np.testing.assert_array_equal(one.get(), other.get())


@pytest.mark.parametrize("rule", RULES)
def test_threads_do_not_change_bits(rule):
    found, before = [], get_num_threads()
    for threads in (1, 2):
        set_num_threads(threads)
        found.append(steps("numba", (317, 160), np.float32, rule))
    set_num_threads(before)
    np.testing.assert_array_equal(found[0][0], found[1][0])


@pytest.mark.parametrize("backend", ["numpy", "numba"])
@pytest.mark.parametrize("rule", RULES)
def test_several_at_once_have_the_bits_of_one_by_one(rule, backend):
    shapes = [(131, 97), (0,), (1,), (7, 160), (39,), (3, 4096)]
    alone, together = ([arrays(shape, np.float32) for shape in shapes] for _ in range(2))
    for step in (1, 2):
        grads = [normal(step, shape[::-1]).astype(np.float32).T for shape in shapes]
        for state, grad in zip(alone, grads, strict=True):
            adam_update(state[0], grad, *state[1:], **OPTIONS, step=step, rule=rule, backend=backend)
        parameters, *moments = map(list, zip(*together, strict=True))
        adam_update(parameters, grads, *moments, **OPTIONS, step=step, rule=rule, backend=backend)
    for one, other in zip(alone, together, strict=True):
        assert_same_arrays(one, other)
    adam_update([], [], [], [], **OPTIONS, step=1, rule=rule, backend=backend)


def test_stable_adamw_makes_the_step_of_a_sudden_gradient_small():
    """With v' after one step equal to g^2 the rate is lr; a gradient 100 times as large divides it."""
    options = {"lr": 0.1, "betas": (0.9, 0.99), "eps": 0.0}
    state = [np.zeros(1), np.zeros(1), np.zeros(1)]
    adam_update(state[0], np.ones(1), *state[1:], **options, step=1, rule="stable_adamw", backend="numpy")
    np.testing.assert_allclose(state[0], -0.1)
    before = state[0].copy()
    adam_update(state[0], np.full(1, 100.0), *state[1:], **options, step=2, rule="stable_adamw", backend="numpy")
    second = state[2] / (1 - 0.99**2)
    surprise = np.sqrt(100**2 / second)
    np.testing.assert_allclose(before - state[0], 0.1 / surprise * (state[1] / (1 - 0.9**2)) / np.sqrt(second))


def test_lamb_steps_by_the_norm_of_the_parameter():
    parameter, first, second = arrays((7, 39))
    norm, before = np.linalg.norm(parameter), parameter.copy()
    adam_update(
        parameter, normal(2, (7, 39)), first, second, lr=0.01, weight_decay=0.1, step=1, rule="lamb", backend="numpy"
    )
    np.testing.assert_allclose(np.linalg.norm(before - parameter), 0.01 * norm)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("value", [1e19, 1e30, 3e38, 1e-30, np.inf, np.nan])
def test_extremes(rule, value):
    """A square that overflows leaves its second moment inf, and the parameter where it is, on every backend."""
    grad, found = np.array([1, value, -2], np.float32), []
    for backend in ("numpy", "numba"):
        state = [np.array([1, 2, 3], np.float32), *np.zeros((2, 3), np.float32)]
        for step in (1, 2, 3):
            adam_update(state[0], grad, *state[1:], lr=0.1, step=step, rule=rule, backend=backend)
        found.append(state)
    for expected, ours in zip(*found, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-5)
    if value == 3e38:
        assert found[1][0][1] == 2 and found[1][2][1] == np.inf


def test_a_rate_too_small_for_float32_is_zero():
    given = [np.ones(3, np.float32) for _ in range(4)]
    adam_update(*given, lr=1e-60, step=1)
    assert (given[0] == 1).all()


@pytest.mark.parity
def test_torch():
    torch = pytest.importorskip("torch")
    state, peer = arrays((7, 39)), torch.nn.Parameter(torch.tensor(normal(1, (7, 39))))
    optimizer = torch.optim.AdamW([peer], **OPTIONS)
    for step in range(1, 6):
        grad = normal(step, (7, 39))
        peer.grad = torch.tensor(grad)
        optimizer.step()
        adam_update(state[0], grad, *state[1:], **OPTIONS, step=step)
        np.testing.assert_allclose(state[0], peer.detach().numpy(), rtol=1e-13)
    tensors = [torch.tensor(array) for array in arrays((7, 39))]  # are updated in place, too
    for step in range(1, 6):
        adam_update(tensors[0], torch.tensor(normal(step, (7, 39))), *tensors[1:], **OPTIONS, step=step)
    np.testing.assert_array_equal(tensors[0].numpy(), state[0])


@pytest.mark.parametrize("is_signed", [True, False])
def test_moments_in_8_bits(is_signed):
    """Both implementations round to the nearest of the numbers that there are; these come back as they are."""
    exact = normal(1, (3001,)).astype(np.float32) * np.float32(10) ** normal(2, (3001,), scale=2).astype(np.float32)
    exact[256:512] = 0
    exact = exact if is_signed else exact**2
    found = []
    for module in (reference, cpu):
        codes, scales, values = np.zeros(3001, np.uint8), np.zeros(12, np.float32), np.zeros_like(exact)
        module.quantize_moment(exact, codes, scales, is_signed)
        module.dequantize_moment(codes, scales, values, is_signed)
        again = np.zeros_like(codes)
        module.quantize_moment(values, again, scales.copy(), is_signed)
        np.testing.assert_array_equal(again, codes)
        found.append([codes, scales, values])
    assert_same_arrays(dict(enumerate(found[0])), dict(enumerate(found[1])))
    values, most = found[0][2], np.repeat(scales, 256)[:3001]
    known = levels(is_signed) * most[:, None]
    nearest = abs(known - abs(exact)[:, None]).min(axis=1)
    kept = exact != 0 if is_signed else exact > 0.5e-7 * most  # below that they are rounded up
    np.testing.assert_allclose(abs(values - exact)[kept], nearest[kept], rtol=1e-4, atol=1e-30)
    assert ((values > 0) == (exact > 0)).all() or is_signed
