"""adam_update and muon_update: the backends against the definition, the definition against papers and PyTorch."""

import numpy as np
import pytest

from bertcore.kernels import adam_update, get_num_threads, muon_update, set_num_threads
from bertcore.kernels.adam_update import RULES, cpu, reference
from bertcore.kernels.adam_update.reference import levels
from bertcore.kernels.muon_update import cuda
from tests.cuda_emulator.driverless import driverless
from tests.kernels.arrays import normal, to_gpu
from tests.kernels.strategies import NUMBA_DTYPES
from tests.tolerances import assert_all_close, assert_same_arrays

SHAPES = [(0,), (1,), (39,), (7, 160), (131, 97), (4097,), (2, 4096)]
MATRICES = [(1, 1), (1, 7), (13, 5), (39, 39), (0, 4), (5, 160), (13, 5), (67, 131), (160, 39), (13, 5)]
OPTIONS = {"lr": 0.01, "betas": (0.9, 0.98), "eps": 1e-6, "weight_decay": 0.1}
every_update = pytest.mark.parametrize("rule", [*RULES, "muon"])
every_rule = pytest.mark.parametrize("rule", RULES)


def update(rule, state, grads, step, **options):
    """Make one step with parameters, or lists of them, and their moments."""
    if rule == "muon":
        muon_update(state[0], grads, state[1], lr=0.05, beta=0.9, weight_decay=0.1, **options)
    else:
        adam_update(state[0], grads, *state[1:], **OPTIONS, step=step, rule=rule, **options)


def drawn(shapes, step, dtype=np.float64, scale=1.0):
    """Parameters for step 0, gradients for others."""
    return [normal(100 * step + number, shape, dtype, scale=scale) for number, shape in enumerate(shapes)]


def begun(rule, shapes, dtype, to=np.array):
    """Lists of parameters and of each moment."""
    moments = 1 if rule == "muon" else 2
    zeros = [[np.zeros(shape, dtype) for shape in shapes] for _ in range(moments)]
    return [list(map(to, arrays)) for arrays in (drawn(shapes, 0, dtype), *zeros)]


def steps(rule, backend, dtype, shapes=None, to=np.array, state=None):
    """All parameters and moments after some steps."""
    shapes = shapes or (MATRICES if rule == "muon" else SHAPES)
    state = begun(rule, shapes, dtype, to) if state is None else state
    for step in (1, 2, 3):
        grads = list(map(to, drawn(shapes, step, dtype, scale=10.0**step)))
        update(rule, state, grads, step, backend=backend)
    return [array if isinstance(array, np.ndarray) else array.get() for arrays in state for array in arrays]


def check(rule, found, expected):
    """Muon's products of products build up errors."""
    is_single = found[0].dtype == np.float32
    assert_all_close(found, expected, factor=1 if rule != "muon" else 50 if is_single else 1000)


@every_update
@pytest.mark.parametrize("dtype", NUMBA_DTYPES)
def test_numba(rule, dtype):
    check(rule, steps(rule, "numba", dtype), steps(rule, "numpy", np.float64))
    update(rule, [[], [], []], [], 1, backend="numba")


@every_rule
def test_cuda(rule):
    with driverless() as gpu:
        state = begun(rule, SHAPES, np.float32, to_gpu)
        around = to_gpu(np.full(39 + 2, 7, np.float32))
        around[1:-1] = state[0][2]
        state[0][2] = around[1:-1]
        found = steps(rule, "cupy", np.float32, to=to_gpu, state=state)
        assert around[0] == around[-1] == 7
        assert len(gpu.launches) == (3 if rule == "adamw" else 9)
    check(rule, found, steps(rule, "numpy", np.float64))


@pytest.mark.parametrize("at_once, batches", [(cuda.MOST_AT_ONCE, len(set(MATRICES)) - 1), (70, 9)])
def test_muon_on_cuda(at_once, batches, monkeypatch):
    monkeypatch.setattr(cuda, "MOST_AT_ONCE", at_once)
    with driverless() as gpu:
        before = gpu.products
        found = steps("muon", "cupy", np.float32, to=to_gpu)
        assert (len(gpu.launches), gpu.products - before) == (3 * 3 * batches, 3 * 15 * batches)
    check("muon", found, steps("muon", "numpy", np.float64))


@every_update
def test_the_scale_of_gradients(place, rule):
    """The same as scaled gradients give, to the bit but for Muon; a scale that is not finite changes nothing."""
    states = [begun(rule, [(131, 97), (13, 5)], np.float32, place.to) for _ in range(2)]
    for step, scale in enumerate(np.float32([0.37, np.inf, 2, np.nan, -np.inf]), 1):
        grads = drawn([(131, 97), (13, 5)], step, np.float32)
        given = [(grads, scale), ([grad * scale for grad in grads], np.float32(1))]
        for state, (arrays, factor) in zip(states, given if np.isfinite(scale) else given[:1], strict=False):
            scaled = {"grad_scale": place.to(np.asarray(factor)), "backend": place.backend}
            update(rule, state, list(map(place.to, arrays)), step, **scaled)
    found, expected = ([place.back(array) for arrays in state for array in arrays] for state in states)
    if rule == "muon":
        check(rule, found, expected)
    else:
        assert_same_arrays(found, expected)


@every_rule
def test_a_step_whose_number_the_device_knows(rule):
    with driverless():
        states = [begun(rule, [(7, 160)], np.float32, to_gpu) for _ in range(2)]
        for step in (1, 2, 900):
            grads = list(map(to_gpu, drawn([(7, 160)], step, np.float32)))
            for number, state in zip((step, to_gpu(np.asarray(step))), states, strict=True):
                update(rule, state, grads, number)
        assert_same_arrays(*([array.get() for (array,) in state] for state in states))


@every_rule
def test_threads_do_not_change_bits(rule):
    found, before = [], get_num_threads()
    for threads in (1, 2):
        set_num_threads(threads)
        found.append(steps(rule, "numba", np.float32, [(317, 160)]))
    set_num_threads(before)
    assert_same_arrays(*found)


@pytest.mark.parametrize("backend", ["numpy", "numba"])
@every_rule
def test_several_at_once_have_the_bits_of_one_by_one(rule, backend):
    together, alone = (begun(rule, SHAPES, np.float32) for _ in range(2))
    for step in (1, 2):
        grads = [array.T for array in drawn([shape[::-1] for shape in SHAPES], step, np.float32)]
        update(rule, together, grads, step, backend=backend)
        for *state, grad in zip(*alone, grads, strict=True):
            update(rule, state, grad, step, backend=backend)
    for one, other in zip(together, alone, strict=True):
        assert_same_arrays(one, other)


def test_stable_adamw_makes_the_step_of_a_sudden_gradient_small():
    """With v' after one step equal to g^2 the rate is lr; a gradient 100 times as large divides it."""
    options = {"lr": 0.1, "betas": (0.9, 0.99), "eps": 0.0, "rule": "stable_adamw", "backend": "numpy"}
    state = [np.zeros(1), np.zeros(1), np.zeros(1)]
    adam_update(state[0], np.ones(1), *state[1:], **options, step=1)
    np.testing.assert_allclose(state[0], -0.1)
    before = state[0].copy()
    adam_update(state[0], np.full(1, 100.0), *state[1:], **options, step=2)
    second = state[2] / (1 - 0.99**2)
    surprise = np.sqrt(100**2 / second)
    np.testing.assert_allclose(before - state[0], 0.1 / surprise * (state[1] / (1 - 0.9**2)) / np.sqrt(second))


def test_lamb_steps_by_the_norm_of_the_parameter():
    parameter, first, second = normal(1, (7, 39)), *np.zeros((2, 7, 39))
    before, options = parameter.copy(), {"lr": 0.01, "weight_decay": 0.1, "step": 1, "rule": "lamb"}
    adam_update(parameter, normal(2, (7, 39)), first, second, **options, backend="numpy")
    np.testing.assert_allclose(np.linalg.norm(before - parameter), 0.01 * np.linalg.norm(before))


@every_rule
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
    state, peer = [normal(1, (7, 39)), *np.zeros((2, 7, 39))], torch.nn.Parameter(torch.tensor(normal(1, (7, 39))))
    tensors = [torch.tensor(array) for array in state]  # are updated in place, too
    optimizer = torch.optim.AdamW([peer], **OPTIONS)
    for step in range(1, 6):
        grad = normal(step, (7, 39))
        peer.grad = torch.tensor(grad)
        optimizer.step()
        update("adamw", state, grad, step)
        update("adamw", tensors, torch.tensor(grad), step)
        np.testing.assert_allclose(state[0], peer.detach().numpy(), rtol=1e-13)
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
    assert_same_arrays(*found)
    values, most = found[0][2], np.repeat(scales, 256)[:3001]
    known = levels(is_signed) * most[:, None]
    nearest = abs(known - abs(exact)[:, None]).min(axis=1)
    kept = exact != 0 if is_signed else exact > 0.5e-7 * most  # below that they are rounded up
    np.testing.assert_allclose(abs(values - exact)[kept], nearest[kept], rtol=1e-4, atol=1e-30)
    assert ((values > 0) == (exact > 0)).all() or is_signed


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (13, 5), (39, 39), (5, 160)])
def test_muon_makes_singular_values_alike(shape, cpu_dtype):
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
