"""The emulator computes what CUDA defines, and notices what CUDA leaves undefined."""

import math

import numpy as np
import pytest

from bertcore.kernels import _cuda
from tests.cuda_emulator import SCHEDULES, Emulator, EmulatorError, build

OVERRUNS = ("READ_AFTER", "WRITE_AFTER", "WRITE_BEFORE", "WRITE_INTO_CANARY")
KERNELS = _cuda.Source(
    __file__,
    "planted.cu",
    (
        *("reverse", "warp_operations", "arithmetic", "functions", "extent<float>", "extent<__half>"),
        *("product<true>", "product<false>"),
        *(f"overrun_{kind}<{case}>" for kind in ("dynamic", "static", "argument") for case in OVERRUNS),
        *("index_beyond_array", "unwritten", "divergent_barrier", "early_return", "absent_lane", "half_a_warp"),
        *("different_operations", "misaligned", "write", "divide", "deep_recursion"),
        *("overtaken", "uncommitted"),
    ),
)


@pytest.fixture(params=SCHEDULES)
def emulator(request):
    with _cuda.use_runtime(Emulator(request.param)) as emulator:
        yield emulator


@pytest.fixture
def one_schedule():
    with _cuda.use_runtime(Emulator()) as emulator:
        yield emulator


def expect_error(pattern, kernel, grid, block, args=(), shared_bytes=0):
    with pytest.raises(EmulatorError, match=pattern) as caught:
        KERNELS.launch(kernel, grid, block, args, shared_bytes)
    assert kernel in str(caught.value)


def test_missing_barrier_shows():
    values = np.arange(128, dtype=np.int32)
    right = []
    for schedule in SCHEDULES:
        output = np.zeros_like(values)
        with _cuda.use_runtime(Emulator(schedule)):
            KERNELS.launch("reverse", (1,), (128,), (values, output))
        right.append(np.array_equal(output, values[::-1]))
    assert not any(right[1:]), "forward, backward and random must show it"


@pytest.mark.parametrize(
    "defines", [(), pytest.param(("EMULATOR_UCONTEXT",), marks=pytest.mark.slow)], ids=["assembly", "ucontext"]
)
def test_warp_operations(defines):
    output = np.zeros((32, 8), np.int32)
    with _cuda.use_runtime(Emulator("random", defines=defines)):
        KERNELS.launch("warp_operations", (1,), (32,), (output,))
    lanes = np.arange(32)
    expected = np.stack(
        [
            np.full(32, 5), lanes ^ 3, np.where(lanes < 30, lanes + 2, lanes),
            np.where(lanes % 8 >= 2, lanes - 2, lanes), np.full(32, 0x55555555), np.full(32, 1),
            np.where(lanes < 16, 3, 20), np.full(32, 16),
        ],
        axis=1,
    )  # fmt: skip
    np.testing.assert_array_equal(output, expected)


def test_arithmetic(one_schedule):
    """NVRTC's options for CuPy: multiply-add is one operation, and -ftz=true."""
    tiny = np.finfo(np.float32).tiny
    input, half = np.array([1 + 2**-12, 1 + 2**-11, tiny / 4, 1e-20], np.float32), np.array(2**-24, np.float16)
    output = np.full(4, np.nan, np.float32)
    KERNELS.launch("arithmetic", (1,), (1,), (input, half, output))
    assert output.tolist() == [2**-24 if build.can_fuse() else 0, 0, 0, 2**-24]
    assert np.float32(tiny) / np.float32(4) > 0  # the caller's arithmetic is what it was


def test_functions_are_as_inexact_as_cuda_lets_them_be(one_schedule):
    x = np.random.default_rng(0).uniform(0.5, 8, 1024).astype(np.float32)
    output = np.empty((7, x.size), np.float32)
    KERNELS.launch("functions", (8,), (128,), (x, output))
    wide = x.astype(np.float64)
    erf = np.array([math.erf(each) for each in wide])
    expected = {
        "exp2f": np.exp2(wide), "expf": np.exp(wide), "logf": np.log(wide), "erff": erf, "tanhf": np.tanh(wide),
        "rsqrtf": wide**-0.5, "__fdividef": wide / (1 + wide),
    }  # fmt: skip
    for (name, right), found in zip(expected.items(), output, strict=True):
        most = 1 if name == "logf" else 2
        ulps = (found.astype(np.float64) - right) / np.spacing(np.abs(right).astype(np.float32))
        assert most - 0.5 < np.abs(ulps).max() < most + 2 and abs(ulps.mean()) < 0.3, name
    output = np.empty((7, 2), np.float32)
    KERNELS.launch("functions", (1,), (2,), (np.array([0, 1], np.float32), output))  # whose results are exact
    assert output[0, 0] == output[1, 0] == 1 and output[2, 1] == 0 and output[6].tolist() == [0, 0.5]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_three_dimensional_indices(emulator, dtype):
    output = np.zeros((24, 24), dtype)
    KERNELS.launch(f"extent<{_cuda.c_type(dtype)}>", (2, 3, 4), (4, 3, 2), (output,))
    expected = np.arange(24)[:, None] + np.arange(24, dtype=np.float32) / np.float32(100)
    np.testing.assert_array_equal(output, expected.astype(dtype))


def test_products_are_cut_off(one_schedule):
    a, b = np.zeros((16, 16), np.float16), np.zeros((16, 8), np.float16)
    a[:, 0], a[:, 1] = 1, 2.0**-12
    b[0], b[1] = 1, np.arange(8) * 2.0**-14  # 1 + column * 2^-26, beyond the 23 bits of a float
    a[8:] *= -1
    output = np.zeros((16, 8), np.float32)
    KERNELS.launch("product<true>", (1,), (32,), (a, b, output))
    assert (output[:8] == 1).all() and (output[8:] == -1).all()


def test_copies_that_are_not_awaited_are_nan(one_schedule):
    a, b, output = np.ones((16, 16), np.float16), np.ones((16, 8), np.float16), np.zeros((16, 8), np.float32)
    KERNELS.launch("product<false>", (1,), (32,), (a, b, output))
    assert np.isnan(output).all()


def test_copies_may_arrive_before_they_are_awaited():
    """The memory is used again meanwhile: what it holds then depends on the schedule."""
    overtaken = {}
    for schedule in SCHEDULES:
        output = np.full((32, 4), np.nan, np.float32)
        with _cuda.use_runtime(Emulator(schedule)):
            KERNELS.launch("overtaken", (1,), (32,), (np.ones((32, 4), np.float32), output))
        overtaken[schedule] = output.any(axis=1)
    assert overtaken["random"].any() and not overtaken["random"].all()
    assert not overtaken["forward"].any()


@pytest.mark.parametrize("case", OVERRUNS)
@pytest.mark.parametrize("kind", ["dynamic", "static", "argument"])
def test_overrun_is_caught(one_schedule, kind, case):
    output = np.zeros(1, np.float32)
    memory = np.zeros(100, np.uint8)
    args = {"dynamic": (np.int32(100), output), "static": (output,), "argument": (memory, np.int32(100), output)}[kind]
    where = {"dynamic": "dynamic shared memory", "static": "shared array 'shared'", "argument": "argument 0"}[kind]
    byte = {"READ_AFTER": 4196, "WRITE_AFTER": 4196, "WRITE_BEFORE": -4097, "WRITE_INTO_CANARY": 100}[case]
    thread = "" if case == "WRITE_INTO_CANARY" else r", thread \(5, 0, 0\)"  # noticed when the block is over
    pattern = rf"block \(1, 0, 0\){thread}: .*byte {byte} of {where}.*100 bytes"
    expect_error(pattern, f"overrun_{kind}<{case}>", (3,), (64,), args, shared_bytes=100 if kind == "dynamic" else 0)


def test_shared_memory_starts_as_nan_in_every_block(one_schedule):
    output = np.zeros(2, np.float32)
    KERNELS.launch("unwritten", (2,), (32,), (output,))
    assert output[0] == 1 and np.isnan(output[1])


def line_of(text):
    """The number of the line of planted.cu that has this text."""
    return 1 + next(number for number, line in enumerate(KERNELS.path.read_text().splitlines()) if text in line)


FLOATS, INTEGERS = np.zeros(32, np.float32), np.zeros(32, np.int32)
READ_ONLY = np.zeros(1, np.float32)
READ_ONLY.flags.writeable = False
KIND = "argument 0: parameter of kind 'i' and 4 bytes, given"
ERRORS = [  # kernel, grid, block, arguments, bytes of shared memory, what the error says
    ("uncommitted", (1,), (32,), (np.ones((32, 4), np.float32),), 0, "a cp.async that it has not committed"),
    ("overrun_static<READ_AFTER>", (3,), (64,), (FLOATS,), 0, rf"at planted.cu:{line_of('CASE == READ_AFTER')}"),
    ("index_beyond_array", (1,), (1,), (np.int32(8), FLOATS), 0, "index beyond an array"),
    ("divergent_barrier", (1,), (64,), (), 0, r"divergent barrier: .*planted.cu:\d+, others .* line \d+"),
    (
        *("early_return", (1,), (64,), (np.int32(40),), 0),
        r"of 64 threads, 24 have returned; 40 wait at __syncthreads \(planted.cu:\d+\), the first is thread \(0, 0, 0",
    ),
    ("absent_lane", (1,), (32,), (INTEGERS,), 0, "reads lane 20, which is not in mask 0xffff"),
    ("half_a_warp", (1,), (32,), (INTEGERS,), 0, "of 32 threads, 16 have returned; 16 wait at __shfl_xor_sync"),
    ("different_operations", (1,), (32,), (INTEGERS,), 0, r"divergent warp: this lane is at __shfl_\w+ while others"),
    ("misaligned", (1,), (1,), (FLOATS, FLOATS.copy()), 0, "misaligned"),
    ("write", (1,), (1,), (READ_ONLY,), 0, "the read-only argument 0 was written"),
    ("divide", (1,), (1,), (np.int32(0), INTEGERS), 0, "division by zero"),
    ("divide", (1,), (1,), (np.int32(1), None), 0, "invalid address"),
    ("deep_recursion", (1,), (1,), (INTEGERS,), 0, "the thread's stack"),
    # arguments that do not fit the parameters
    ("divide", (1,), (1,), (np.int32(1),), 0, "2 arguments wanted, 1 given"),
    ("divide", (1,), (1,), (np.int64(1), INTEGERS), 0, f"{KIND} 'i' and 8 bytes"),
    ("divide", (1,), (1,), (np.float32(1), INTEGERS), 0, f"{KIND} 'f'"),
    ("divide", (1,), (1,), (INTEGERS, INTEGERS), 0, "argument 0: .* given 'p'"),
    # launches beyond CUDA's limits
    ("write", (1, 65536), (1,), (FLOATS,), 0, "grid .* is outside"),
    ("write", (1, 1, 65536), (1,), (FLOATS,), 0, "grid .* is outside"),
    ("write", (2**31,), (1,), (FLOATS,), 0, "grid .* is outside"),
    ("write", (0,), (1,), (FLOATS,), 0, "grid .* is outside"),
    ("write", (1,), (0,), (FLOATS,), 0, "block .* is outside"),
    ("write", (1,), (1025,), (FLOATS,), 0, "block .* is outside"),
    ("write", (1,), (64, 32), (FLOATS,), 0, "block .* has more than 1024 threads"),
    ("write", (1,), (1,), (FLOATS,), 1 << 20, "1048576 bytes of shared memory, there are"),
]


@pytest.mark.parametrize("case", ERRORS, ids=lambda case: f"{case[0]}: {case[-1][:20]}")
def test_errors(emulator, case):
    kernel, grid, block, args, shared_bytes, pattern = case
    expect_error(pattern, kernel, grid, block, args, shared_bytes)
    output = np.zeros(1, np.int32)
    KERNELS.launch("divide", (1,), (1,), (np.int32(2), output))  # the next launch works
    assert output[0] == 3
