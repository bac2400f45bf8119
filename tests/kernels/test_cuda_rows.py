"""The CUDA launchers over rows and elements, in the emulator and on a GPU, beyond the cases of conformance/."""

import numpy as np
import pytest

from bertcore.kernels import _cuda
from bertcore.kernels._cuda import rows as rows_planner
from bertcore.kernels.activation import cuda as activation_cuda
from bertcore.kernels.activation import reference as activation_reference
from bertcore.kernels.cross_entropy import cuda as cross_entropy_cuda
from bertcore.kernels.cross_entropy import reference as cross_entropy_reference
from bertcore.kernels.dropout_layer_norm import cuda as dropout_layer_norm_cuda
from bertcore.kernels.embedding import cuda as embedding_cuda
from bertcore.kernels.layer_norm import cuda as layer_norm_cuda
from bertcore.kernels.layer_norm import reference as layer_norm_reference
from bertcore.kernels.softmax import cuda as softmax_cuda
from tests.cuda_emulator.driverless import driverless
from tests.kernels.conformance.cases import ROWS
from tests.kernels.cuda_support import EmulatorTarget, wide
from tests.kernels.strategies import normal
from tests.kernels.test_numba_rows import check_rows_alone
from tests.tolerances import assert_close


def shifted(array, elements=1):
    """The same values at an address that is `elements` beyond a 16-byte boundary."""
    room = np.empty(array.size + elements + 16, array.dtype)
    start = -(room.ctypes.data // array.dtype.itemsize) % (16 // array.dtype.itemsize) + elements
    view = room[start : start + array.size].reshape(array.shape)
    view[...] = array
    return view


def test_arrays_that_are_aligned_differently(cuda, dtype):
    shape = (5, 64)
    for shifts in [(1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (1, 2, 3, 1)]:
        arrays = (normal(i, shape if i < 2 else shape[1:], dtype) for i in range(4))
        input, residual, weight, bias = map(shifted, arrays, shifts)
        found = cuda.run(layer_norm_cuda.layer_norm, input, weight, bias, 1e-5, residual)
        assert_close(found, layer_norm_reference.layer_norm(*map(wide, (input, weight, bias)), 1e-5, wide(residual)))
        found = cuda.run(activation_cuda.activation, input, "gelu", bias)
        assert_close(found, activation_reference.activation(wide(input), "gelu", wide(bias)))


@pytest.mark.parametrize("width, shift, launches", [
    (64, 0, 1), (192, 0, 1), (1088, 0, 1), (64, 1, 2), (72, 0, 2), (4160, 0, 2),
])  # fmt: skip
def test_dropout_and_layer_norm_in_one_launch(dtype, width, shift, launches):
    """Rows of whole vectors of a warp are; the cases of conformance/ have their results."""
    cuda = EmulatorTarget()
    arrays = [shifted(normal(number, (3, width), dtype), shift) for number in range(3)]
    cuda.run(dropout_layer_norm_cuda.dropout_layer_norm, *arrays[1:], None, None, 1e-5, 0.4, 3)
    assert len(cuda.launches) == launches
    if launches == 1:
        parameters = normal(3, width, dtype), normal(4, width, dtype)
        cuda.run(dropout_layer_norm_cuda.dropout_layer_norm_backward, *arrays, *parameters, 1e-5, 0.4, 3, dtype)
        assert len(cuda.launches) == 3


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "silu"])
def test_activations_of_every_float16(cuda, activation):
    """The relative error is at most 2^-14 before rounding, also for small results."""
    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    input = every[np.isfinite(every)]
    found = wide(cuda.run(activation_cuda.activation, input, activation, None))
    expected = activation_reference.activation(wide(input), activation, None)
    tolerance = (2.0**-11 + 2.0**-14) * np.abs(expected) + 2.0**-25
    wrong = np.abs(found - expected) > tolerance
    assert not wrong.any(), (input[wrong], found[wrong], expected[wrong])


@pytest.mark.parametrize("dim", [16, 39])
def test_embedding_of_unknown_ids_is_nan(cuda, dtype, dim):
    table = normal(1, (13, dim), dtype)
    found = cuda.run(embedding_cuda.embedding, np.array([3, 13, -1, 2**40, 0]), table)
    np.testing.assert_array_equal(found[[0, 4]], table[[3, 0]])
    assert np.isnan(found[1:4].astype(np.float32)).all()


def test_a_gradient_of_an_unknown_id_is_added_to_no_row(cuda, dtype):
    ids, grad, array = np.array([3, 13, -1, 3]), normal(1, (4, 39), dtype), normal(2, (13, 39), dtype)
    found = cuda.run(lambda *args: embedding_cuda.embedding_backward(*args, array.copy()), grad, ids, 13)
    expected = wide(array)
    expected[3] += wide(grad)[[0, 3]].sum(axis=0)
    assert_close(found, expected, factor=3)


def test_cross_entropy_of_unknown_targets_is_nan(cuda, dtype):
    input, target = normal(1, (4, 7), dtype), np.array([7, -1, 3, 2**40])
    losses, lse = cuda.run(cross_entropy_cuda.cross_entropy, input, target, -100)
    assert np.isnan(losses[[0, 1, 3]]).all()
    assert np.isfinite(losses[2]) and np.isfinite(lse).all() and lse.shape == (4, 2)
    grads = cuda.run(cross_entropy_cuda.cross_entropy_backward, np.ones(4, np.float32), input, target, lse, -100, None)
    assert np.isnan(grads[[0, 1, 3]].astype(np.float32)).all() and np.isfinite(grads[2].astype(np.float32)).all()


@pytest.mark.parametrize("classes", [39, 1500])
def test_cross_entropy_of_rows_that_lie_apart(cuda, dtype, classes, monkeypatch):
    """Logits as linear makes them: aligned, with gaps that stay unchanged; the gradient, too, or in their place."""
    monkeypatch.setattr(_cuda, "WIDE", 1)
    stride = _cuda.padded_width(classes, dtype)
    storage = np.full((5, stride), np.nan, dtype)
    storage[:, :classes] = normal(1, (5, classes), dtype)
    target, grad_losses = np.arange(5), np.ones(5, np.float32)

    def run(storage, in_place):
        storage = storage.copy()
        logits = storage[:, :classes]
        losses, lse = cross_entropy_cuda.cross_entropy(logits, target, -100)
        others = target, lse, -100, logits if in_place else None
        grads = cross_entropy_cuda.cross_entropy_backward(grad_losses, logits, *others)
        assert grads.strides[0] == stride * dtype.itemsize and (grads is logits) == in_place
        return losses, grads, storage

    losses, apart, _ = cuda.run(run, storage, False)
    _, _, in_place = cuda.run(run, storage, True)
    expected, lse = cross_entropy_reference.cross_entropy(wide(storage[:, :classes]), target, -100)
    assert_close(losses, expected, factor=3)
    given = np.ones(5), wide(storage[:, :classes]), target, lse, -100, None
    gradient = cross_entropy_reference.cross_entropy_backward(*given)
    assert_close(apart, gradient, factor=3)
    np.testing.assert_array_equal(in_place[:, :classes], apart)
    assert np.isnan(in_place[:, classes:].astype(np.float32)).all()


def test_rows_do_not_depend_on_their_neighbours():
    with driverless():
        check_rows_alone(np.float16, "cupy")


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


def test_as_many_blocks_as_a_gpu_holds_at_once():
    for width, rows, expected in ((768, 65537, 7 * 4), (1024, 65537, 7 * 3), (4096, 65537, 7 * 3), (768, 9, 3)):
        with _cuda.use_runtime(_Recorder()) as recorder:
            softmax_cuda.softmax(np.zeros((rows, width), np.float16), -1)
        assert recorder.grid == (expected, 1, 1)


class _Recorder:
    """A runtime that launches nothing."""

    def array_module(self, array):
        return np

    def address(self, array):
        return array.ctypes.data

    def device(self):
        return _cuda.DeviceProperties(compute_capability=90, multiprocessors=7, shared_bytes=0)

    def launch(self, module, kernel, grid, block, args, shared_bytes):
        self.grid = grid


@pytest.mark.parametrize("name, launcher, args", [
    ("softmax", softmax_cuda.softmax, (-1,)), ("norm", layer_norm_cuda.layer_norm, (None, None, 1e-5, None)),
])  # fmt: skip
def test_every_variant_runs(dtype, name, launcher, args):
    target, seen = EmulatorTarget(), set()
    for shape in ((1, 1), *ROWS):
        target.run(launcher, normal(1, shape, dtype), *args)
        seen.update(launch.kernel for launch in target.launches)
    assert seen == {each for each in rows_planner.row_kernels(name) if f"<{_cuda.c_type(dtype)}," in each}
