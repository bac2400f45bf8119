"""The CUDA launchers over rows and elements, in the emulator and on a GPU, against reference.py in float64."""

import ml_dtypes
import numpy as np
import pytest

from bertcore.kernels import _cuda
from bertcore.kernels._cuda import rows as rows_planner
from bertcore.kernels.activation import ACTIVATIONS
from bertcore.kernels.activation import cuda as activation_cuda
from bertcore.kernels.activation import reference as activation_reference
from bertcore.kernels.cross_entropy import cuda as cross_entropy_cuda
from bertcore.kernels.cross_entropy import reference as cross_entropy_reference
from bertcore.kernels.embedding import cuda as embedding_cuda
from bertcore.kernels.embedding import reference as embedding_reference
from bertcore.kernels.layer_norm import cuda as layer_norm_cuda
from bertcore.kernels.layer_norm import reference as layer_norm_reference
from bertcore.kernels.softmax import cuda as softmax_cuda
from bertcore.kernels.softmax import reference as softmax_reference
from tests.kernels.cuda_support import EmulatorTarget
from tests.kernels.strategies import normal
from tests.tolerances import assert_close

DTYPES = [np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]

# (rows, width), and what they are for: the edges of each variant of the row kernels, whole vectors and not.
ROWS = [
    (1, 1),
    (5, 3),  # less than one vector
    (7, 39),  # rows begin at every misalignment
    (9, 160),
    (3, 249),  # the longest misaligned row that fits 256
    (3, 250),
    (2, 256),
    (6, 257),
    (5, 1000),
    (2, 1024),
    (3, 1025),
    (2, 4096),
    (2, 4097),
    (1, 16384),
    (2, 16385),  # too long for registers
]


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request):
    return request.param


def wide(array):
    return None if array is None else array.astype(np.float64)


def shifted(array, elements=1):
    """The same values at an address that is `elements` beyond a 16-byte boundary."""
    room = np.empty(array.size + elements + 16, array.dtype)
    start = -(room.ctypes.data // array.dtype.itemsize) % (16 // array.dtype.itemsize) + elements
    view = room[start : start + array.size].reshape(array.shape)
    view[...] = array
    return view


# ---- softmax --------------------------------------------------------------------------------------------------------


def check_softmax(cuda, input, dim=-1):
    found = cuda.run(softmax_cuda.softmax, input, dim)
    assert found.dtype == input.dtype and found.flags.c_contiguous
    assert_close(found, softmax_reference.softmax(wide(input), dim))


@pytest.mark.parametrize("shape", ROWS, ids=str)
def test_softmax(cuda, dtype, shape):
    check_softmax(cuda, normal(1, shape, dtype, scale=4))


@pytest.mark.parametrize("width", [3, 160, 1000, 1024, 4096, 16385])
def test_softmax_of_infinities_and_nan(cuda, dtype, width):
    input = normal(1, (6, width), dtype)
    input[0] = -np.inf
    input[1, 1:] = -np.inf
    input[2, width // 2] = np.nan
    input[3] = -np.inf
    input[3, width - 1] = np.nan
    input[4, 0] = np.inf
    check_softmax(cuda, input)


def test_softmax_does_not_overflow(cuda, dtype):
    largest = float(ml_dtypes.finfo(dtype).max)
    check_softmax(cuda, np.array([[largest, largest, -largest], [largest, 0, 1]], dtype))


# ---- layer norm -----------------------------------------------------------------------------------------------------


def check_layer_norm(cuda, input, weight=None, bias=None, eps=1e-5, residual=None):
    found = cuda.run(layer_norm_cuda.layer_norm, input, weight, bias, eps, residual)
    assert found.dtype == input.dtype and found.flags.c_contiguous
    expected = layer_norm_reference.layer_norm(wide(input), wide(weight), wide(bias), eps, wide(residual))
    assert_close(found, expected)


@pytest.mark.parametrize("shape", ROWS, ids=str)
def test_layer_norm(cuda, dtype, shape):
    input, residual = normal(1, shape, dtype), normal(2, shape, dtype)
    weight, bias = normal(3, shape[-1:], dtype), normal(4, shape[-1:], dtype)
    check_layer_norm(cuda, input, eps=1e-3)
    check_layer_norm(cuda, input, weight, bias, 1e-3, residual)


@pytest.mark.parametrize("width", [40, 41, 4099, 16400, 16401])
def test_layer_norm_of_rows_far_from_zero(cuda, width):
    """Where E[x^2] - mean^2 would be all cancellation. The tolerance is that of rounding the mean to float32."""
    input = 1000 + normal(1, (3, width), np.float32)
    found = cuda.run(layer_norm_cuda.layer_norm, input, None, None, 0.0, None)
    assert_close(found, layer_norm_reference.layer_norm(wide(input), None, None, 0.0, None), factor=20)


@pytest.mark.parametrize("width", [39, 1024, 4097, 16385])
def test_layer_norm_of_infinities_and_nan(cuda, dtype, width):
    input = normal(1, (4, width), dtype)
    input[0, width - 1] = np.nan
    input[1, 0] = np.inf
    input[2, 1] = -np.inf
    check_layer_norm(cuda, input, normal(3, width, dtype))


def test_layer_norm_of_arrays_that_are_aligned_differently(cuda, dtype):
    shape = (5, 64)
    for shifts in [(1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (1, 2, 3, 1)]:
        arrays = (normal(i, shape if i < 2 else shape[1:], dtype) for i in range(4))
        input, residual, weight, bias = map(shifted, arrays, shifts)
        check_layer_norm(cuda, input, weight, bias, residual=residual)


# ---- activations ----------------------------------------------------------------------------------------------------


def check_activation(cuda, input, name, bias=None):
    found = cuda.run(activation_cuda.activation, input, name, bias)
    assert found.dtype == input.dtype and found.shape == input.shape
    assert_close(found, activation_reference.activation(wide(input), name, wide(bias)))


def test_activation_of_arrays_that_are_aligned_differently(cuda, dtype):
    for shift, bias_shift in [(1, 0), (0, 1), (3, 2)]:
        input, bias = shifted(normal(1, (39, 24), dtype), shift), shifted(normal(2, 24, dtype), bias_shift)
        check_activation(cuda, input, "gelu", bias)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation(cuda, dtype, name):
    special = np.array([np.nan, np.inf, -np.inf, 0, -100, 100], dtype)
    for input in (shifted(normal(2, 1500, dtype)), special):
        check_activation(cuda, input, name)


# ---- embedding ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ids_dtype", [np.int64, np.uint8])
@pytest.mark.parametrize("shape, dim", [((), 8), ((3, 5), 39), ((2,), 1000), ((300,), 8)])
def test_embedding(cuda, dtype, ids_dtype, shape, dim):
    table = normal(1, (13, dim), dtype)
    ids = np.random.default_rng(2).integers(0, 13, shape).astype(ids_dtype)
    found = cuda.run(embedding_cuda.embedding, ids, table)
    assert found.dtype == dtype and found.flags.c_contiguous
    np.testing.assert_array_equal(found, embedding_reference.embedding(ids, table))


@pytest.mark.parametrize("dim", [16, 39])
def test_embedding_of_unknown_ids_is_nan(cuda, dtype, dim):
    table = normal(1, (13, dim), dtype)
    found = cuda.run(embedding_cuda.embedding, np.array([3, 13, -1, 2**40, 0]), table)
    np.testing.assert_array_equal(found[[0, 4]], table[[3, 0]])
    assert np.isnan(found[1:4].astype(np.float32)).all()


def test_embedding_from_a_misaligned_table(cuda, dtype):
    table = shifted(normal(1, (13, 16), dtype))
    found = cuda.run(embedding_cuda.embedding, np.arange(13), table)
    np.testing.assert_array_equal(found, table)


# ---- cross entropy --------------------------------------------------------------------------------------------------


def check_cross_entropy(cuda, input, target, ignore_index=-100):
    losses, lse = cuda.run(cross_entropy_cuda.cross_entropy, input, target, ignore_index)
    expected = cross_entropy_reference.cross_entropy(wide(input), target, ignore_index)
    assert losses.dtype == lse.dtype == np.float32
    assert_close(losses, expected[0], name="losses")
    assert_close(lse.sum(1), expected[1].sum(1), name="lse")


@pytest.mark.parametrize("target_dtype", [np.int64, np.int8])
@pytest.mark.parametrize("shape", [(7, 39), (3, 1000), (2, 1025), (3, 5001)], ids=str)
def test_cross_entropy(cuda, dtype, shape, target_dtype):
    rng = np.random.default_rng(2)
    target = rng.integers(0, min(shape[1], 127), shape[0])
    target = np.where(rng.random(shape[0]) < 0.3, -100, target).astype(target_dtype)
    check_cross_entropy(cuda, normal(1, shape, dtype, scale=4), target)


@pytest.mark.parametrize("width", [7, 1500])
def test_cross_entropy_of_infinities_and_nan(cuda, dtype, width):
    input = normal(1, (7, width), dtype)
    input[0, 1:] = -np.inf
    input[1, 0] = -np.inf  # the target's logit
    input[2] = -np.inf
    input[3, width // 2] = np.nan
    input[4, 0] = np.inf
    input[5, width - 1] = np.inf
    check_cross_entropy(cuda, input, np.array([0, 0, 0, 0, 0, 0, -100]))


def test_cross_entropy_of_large_logits_keeps_its_digits(cuda):
    check_cross_entropy(cuda, 1000 + normal(1, (5, 40), np.float32), np.arange(5))


def test_cross_entropy_of_unknown_targets_is_nan(cuda, dtype):
    input, target = normal(1, (4, 7), dtype), np.array([7, -1, 3, 2**40])
    losses, lse = cuda.run(cross_entropy_cuda.cross_entropy, input, target, -100)
    assert np.isnan(losses[[0, 1, 3]]).all()
    assert np.isfinite(losses[2]) and np.isfinite(lse).all() and lse.shape == (4, 2)


# ---- what holds for all ---------------------------------------------------------------------------------------------

# name: (launcher, arguments after the input, the same by the reference)
OPERATIONS = {
    "softmax": (softmax_cuda.softmax, (-1,), softmax_reference.softmax),
    "layer_norm": (layer_norm_cuda.layer_norm, (None, None, 1e-5, None), layer_norm_reference.layer_norm),
    "activation": (activation_cuda.activation, ("silu", None), activation_reference.activation),
}


@pytest.mark.parametrize("shape", [(0, 7), (7, 0), (0,), (0, 0)], ids=str)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_empty_arrays_launch_nothing(cuda, dtype, operation, shape):
    launcher, args, _ = OPERATIONS[operation]
    found = cuda.run(launcher, np.zeros(shape, dtype), *args)
    assert found.shape == shape and found.dtype == dtype
    assert not cuda.launches


def test_empty_ids_and_targets_launch_nothing(cuda, dtype):
    assert cuda.run(embedding_cuda.embedding, np.zeros((3, 0), int), np.zeros((5, 8), dtype)).shape == (3, 0, 8)
    assert not cuda.launches
    losses, lse = cuda.run(cross_entropy_cuda.cross_entropy, np.zeros((0, 5), dtype), np.zeros(0, int), -100)
    assert losses.shape == (0,) and lse.shape == (0, 2)
    assert not cuda.launches


@pytest.mark.parametrize("operation", OPERATIONS)
def test_rows_do_not_depend_on_their_neighbours(cuda, operation):
    launcher, args, _ = OPERATIONS[operation]
    input = normal(1, (70, 48), np.float16)
    together = cuda.run(launcher, input, *args)
    for row in (0, 33, 69):
        np.testing.assert_array_equal(together[row], cuda.run(launcher, input[row : row + 1].copy(), *args)[0])


def test_more_rows_than_a_grid_is_high():
    """Rows run along the first axis of the grid; the others end at 65535."""
    input = normal(1, (4 * 65536 + 1, 1), np.float32)
    with _cuda.use_runtime(_Recorder()) as recorder:
        softmax_cuda.softmax(input, -1)
    assert recorder.grid == (65537, 1, 1)
    input = np.zeros((65537, 1025), np.float16)
    with _cuda.use_runtime(_Recorder()) as recorder:
        softmax_cuda.softmax(input, -1)
    assert recorder.grid == (65537, 1, 1)


class _Recorder:
    """A runtime that launches nothing."""

    def array_module(self, array):
        return np

    def address(self, array):
        return array.ctypes.data

    def launch(self, module, kernel, grid, block, args, shared_bytes):
        self.grid = grid


@pytest.mark.parametrize("operation", ["softmax", "layer_norm"])
def test_every_variant_runs(dtype, operation):
    """The widths of ROWS reach all variants of a row kernel."""
    launcher, args, _ = OPERATIONS[operation]
    target, seen = EmulatorTarget(), set()
    for shape in ROWS:
        target.run(launcher, normal(1, shape, dtype), *args)
        seen.update(launch.kernel for launch in target.launches)
    kernel = {"layer_norm": "norm"}.get(operation, operation)
    names = rows_planner.instantiations(f"{kernel}_rows", f"{kernel}_long_rows")
    assert seen == {name for name in names if f"<{_cuda.c_type(dtype)}," in name}
