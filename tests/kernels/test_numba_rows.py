"""The Numba kernels that work row by row: softmax, layer norm, activations, embedding, cross entropy."""

import tracemalloc
from types import SimpleNamespace

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertcore.kernels import _numba
from bertcore.kernels._numba import norms, pointwise, rows
from bertcore.kernels.activation import ACTIVATIONS
from bertcore.kernels.activation import cpu as activation
from bertcore.kernels.activation import reference as activation_reference
from bertcore.kernels.cross_entropy import cpu as cross_entropy
from bertcore.kernels.cross_entropy import reference as cross_entropy_reference
from bertcore.kernels.embedding import cpu as embedding
from bertcore.kernels.embedding import reference as embedding_reference
from bertcore.kernels.gelu import cpu as gelu
from bertcore.kernels.gelu import reference as gelu_reference
from bertcore.kernels.layer_norm import cpu as layer_norm
from bertcore.kernels.layer_norm import reference as layer_norm_reference
from bertcore.kernels.rms_norm import cpu as rms_norm
from bertcore.kernels.rms_norm import reference as rms_norm_reference
from bertcore.kernels.softmax import cpu as softmax
from bertcore.kernels.softmax import reference as softmax_reference

from ..tolerances import assert_close
from .forced_isa import FORCED, not_when_forced, run_tests_under
from .strategies import LAYOUTS, QUICK, normal, seeds, with_layout

DTYPES = [np.float32] if FORCED else [np.float32, np.float64]
SHAPES = [(0, 7), (3, 0), (1, 1), (7, 1), (1, 7), (5, 39), (3, 160), (2, 3, 1000), (70, 65), (4097,)]
MODULES = {"softmax": softmax, "norms": norms, "pointwise": pointwise, "cross_entropy": cross_entropy}
IGNORED = -100


class Inputs:
    """Random arrays of one dtype and layout, and the same values in float64."""

    def __init__(self, dtype, seed=0, layout="contiguous"):
        self.random, self.dtype, self.layout = np.random.default_rng(seed), dtype, layout

    def floats(self, *shape):
        return with_layout(self.random.standard_normal(shape).astype(self.dtype), self.layout)

    def ids(self, high, *shape):
        return with_layout(self.random.integers(0, max(high, 1), shape), self.layout)


def softmax_calls(make, shape):
    x, grad = make.floats(*shape), make.floats(*shape)
    for dim in range(len(shape)):
        yield "softmax", x, dim
        yield "softmax_backward", grad, x, dim


def layer_norm_calls(make, shape):
    x, residual, grad = (make.floats(*shape) for _ in range(3))
    weight, bias = make.floats(shape[-1]), make.floats(shape[-1])
    for w, b, r in ((weight, bias, residual), (None, bias, None), (weight, None, None), (None, None, residual)):
        yield "layer_norm", x, w, b, 1e-5, r
        yield "layer_norm_backward", grad, x, w, b, 1e-5, r


def rms_norm_calls(make, shape):
    x, residual, grad, weight = (*(make.floats(*shape) for _ in range(3)), make.floats(shape[-1]))
    for w, r in ((weight, residual), (None, None)):
        yield "rms_norm", x, w, 1e-5, r
        yield "rms_norm_backward", grad, x, w, 1e-5, r


def gelu_calls(make, shape):
    x, grad, bias = make.floats(*shape), make.floats(*shape), make.floats(shape[-1])
    for form, b in (("none", None), ("none", bias), ("tanh", None), ("tanh", bias)):
        yield "gelu", x, form, b
        yield "gelu_backward", grad, x, form, b


def activation_calls(make, shape):
    x, grad = make.floats(*shape), make.floats(*shape)
    for name in ACTIVATIONS:
        yield "activation", x, name
        yield "activation_backward", grad, x, name


def embedding_calls(make, shape):
    table = 11
    ids = make.ids(table, *shape[:-1])
    yield "embedding", ids, make.floats(table, shape[-1])
    yield "embedding_backward", make.floats(*shape), ids, table


def cross_entropy_calls(make, shape):
    x = make.floats(int(np.prod(shape[:-1])), shape[-1])
    target = make.ids(shape[-1], len(x))
    ignored = IGNORED if shape[-1] else 0
    target = with_layout(np.where(np.arange(len(x)) % 3 == 1, ignored, target), make.layout)
    grad, (_, lse) = make.floats(len(x)), cross_entropy_reference.cross_entropy(x, target, ignored)
    yield "cross_entropy", x, target, ignored
    yield "cross_entropy_backward", grad, x, target, lse, ignored


OPERATIONS = {
    "softmax": SimpleNamespace(calls=softmax_calls, cpu=softmax, reference=softmax_reference),
    "layer_norm": SimpleNamespace(
        calls=layer_norm_calls, cpu=layer_norm, reference=layer_norm_reference, shared="norms"
    ),
    "rms_norm": SimpleNamespace(calls=rms_norm_calls, cpu=rms_norm, reference=rms_norm_reference, shared="norms"),
    "gelu": SimpleNamespace(calls=gelu_calls, cpu=gelu, reference=gelu_reference, shared="pointwise"),
    "activation": SimpleNamespace(
        calls=activation_calls, cpu=activation, reference=activation_reference, shared="pointwise"
    ),
    "embedding": SimpleNamespace(calls=embedding_calls, cpu=embedding, reference=embedding_reference),
    "cross_entropy": SimpleNamespace(calls=cross_entropy_calls, cpu=cross_entropy, reference=cross_entropy_reference),
}
EVERY_OPERATION = pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)


def wide(argument):
    """Float arrays in float64; anything else as it is."""
    is_float = isinstance(argument, np.ndarray) and argument.dtype.kind == "f"
    return argument.astype(np.float64) if is_float else argument


def results(module, function, *arguments):
    """What `function` of `module` returns, as a tuple."""
    found = getattr(module, function)(*arguments)
    return found if isinstance(found, tuple) else (found,)


def assert_as_reference(operation, function, *arguments):
    """The kernel's results, within tolerance of the reference in float64: C-contiguous, of the input's dtype."""
    found = results(operation.cpu, function, *arguments)
    expected = results(operation.reference, function, *map(wide, arguments))
    dtype = next(a.dtype for a in arguments if isinstance(a, np.ndarray) and a.dtype.kind == "f")
    for mine, truth in zip(found, expected, strict=True):
        assert (mine is None) == (truth is None)
        if mine is not None:
            assert mine.dtype == dtype and mine.flags.c_contiguous and mine.flags.writeable
            # Gradients may cancel to nothing.
            assert_close(mine, truth, name=function, at_least=1 if function.endswith("_backward") else 1e-3)
    return found


# --- parity with the reference --------------------------------------------------------------------


@EVERY_OPERATION
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_awkward_shapes(operation, dtype, shape):
    if operation is OPERATIONS["embedding"] and len(shape) == 1:
        shape = (1, *shape)
    for call in operation.calls(Inputs(dtype), shape):
        assert_as_reference(operation, *call)


@EVERY_OPERATION
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_give_the_same_bits_and_inputs_are_not_written(operation, dtype, layout):
    contiguous = operation.calls(Inputs(dtype), (3, 5, 41))
    for call, plain in zip(operation.calls(Inputs(dtype, layout=layout), (3, 5, 41)), contiguous, strict=True):
        function, *arguments = call
        copies = [np.array(argument) if isinstance(argument, np.ndarray) else argument for argument in arguments]
        found = results(operation.cpu, function, *arguments)
        for mine, same in zip(found, results(operation.cpu, *plain), strict=True):
            np.testing.assert_array_equal(mine, same)
        for argument, copy in zip(arguments, copies, strict=True):
            np.testing.assert_array_equal(argument, copy)


@EVERY_OPERATION
@QUICK
@given(st.integers(0, 40), st.integers(1, 200), seeds())
def test_any_shape(operation, count, width, seed):
    # In float64: of two or three close numbers, layer norm leaves a float32 few digits.
    for call in operation.calls(Inputs(np.float64, seed), (count, width)):
        assert_as_reference(operation, *call)


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_axes(dtype):
    x, grad = np.array(0.5, dtype), np.array(2.0, dtype)
    assert_as_reference(OPERATIONS["gelu"], "gelu", x, "none", None)
    assert_as_reference(OPERATIONS["activation"], "activation_backward", grad, x, "silu")
    assert_as_reference(OPERATIONS["embedding"], "embedding", np.array(1), np.ones((3, 5), dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_over_many_rows_keep_their_digits(dtype):
    """Many rows of one sign: a running float32 sum would be off by 1e-4."""
    grad, x = 1 + 0.1 * normal(0, (20000, 40), dtype), normal(1, (20000, 40), dtype)
    ids = np.zeros(20000, np.int64)
    assert_as_reference(OPERATIONS["embedding"], "embedding_backward", grad, ids, 3)
    assert_as_reference(OPERATIONS["layer_norm"], "layer_norm_backward", grad, x, grad[0], grad[0], 1e-5, None)
    grad = np.resize(grad, (260000, 3))
    assert_as_reference(OPERATIONS["gelu"], "gelu_backward", grad, grad, "none", grad[0])


# --- extremes -------------------------------------------------------------------------------------


def assert_as_reference_elementwise(found, expected, tolerance=4e-6):
    """Like the reference in the same dtype, each element by its own scale; NaN and infinities at the same places."""
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def special_values(dtype):
    huge, tiny = np.finfo(dtype).max, np.finfo(dtype).smallest_subnormal
    return np.array([0, -0.0, np.inf, -np.inf, np.nan, huge, -huge, 1e20, -1e20, 50, -50, tiny, -tiny, 1e-30, 3], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_of_special_values(name, dtype):
    x = np.resize(special_values(dtype), 75)  # in full vectors and in a tail
    ones = np.ones_like(x)
    assert_as_reference_elementwise(activation.activation(x, name), activation_reference.activation(x, name))
    found, expected = (module.activation_backward(ones, x, name) for module in (activation, activation_reference))
    assert_as_reference_elementwise(found, expected)


def test_the_missing_bias_leaves_no_trace():
    assert np.signbit(activation.activation(np.full(99, -0.0, np.float32), "tanh")).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 7, 64, 100])
def test_softmax_of_special_values(dtype, width):
    x = normal(1, (len(special_values(dtype)) + 2, width), dtype)
    x[:-2, width // 2] = special_values(dtype)
    x[-2], x[-1] = -np.inf, np.nan
    found = softmax.softmax(x, 1)
    assert_as_reference_elementwise(found, softmax_reference.softmax(x, 1))
    assert not found[-2].any()
    assert_as_reference_elementwise(
        softmax.softmax_backward(x, found, 1), softmax_reference.softmax_backward(x, found, 1)
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_softmax_is_zero_exactly_where_masked(dtype):
    x = normal(2, (9, 130), dtype)
    x[:, ::3] = -np.inf
    assert not softmax.softmax(x, 1)[:, ::3].any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_layer_norm_of_special_values(dtype):
    x = normal(3, (len(special_values(dtype)), 75), dtype)
    x[:, 70] = special_values(dtype)
    weight = normal(4, 75, dtype)
    assert_as_reference_elementwise(
        *(m.layer_norm(x, weight, weight, 1e-12, None) for m in (layer_norm, layer_norm_reference))
    )
    grad = np.ones_like(x)
    backward = [
        m.layer_norm_backward(grad, x, weight, None, 1e-12, None)[0] for m in (layer_norm, layer_norm_reference)
    ]
    assert_as_reference_elementwise(*backward)


def test_layer_norm_of_constant_rows_and_large_means():
    constant = np.full((2, 40), 3.0, np.float32)
    np.testing.assert_array_equal(layer_norm.layer_norm(constant, None, None, 1e-5, None), 0)
    assert np.isnan(layer_norm.layer_norm(constant, None, None, 0.0, None)).all()
    x = 1000 + normal(5, (4, 1000), np.float32)
    expected = layer_norm_reference.layer_norm(x.astype(np.float64), None, None, 1e-5, None)
    assert_close(layer_norm.layer_norm(x, None, None, 1e-5, None), expected, factor=20)  # a mean of 1000 has ulp 6e-5


@pytest.mark.parametrize("dtype", DTYPES)
def test_cross_entropy_of_special_rows(dtype):
    classes = 2 * cross_entropy.CHUNK + 37
    plain = normal(6, (12, classes), dtype)
    x = plain.copy()
    x[0] = -np.inf
    x[1, : cross_entropy.CHUNK + 1] = -np.inf
    x[2, 5], x[3, -1], x[4, -1] = np.nan, np.nan, np.inf
    x[5] += 1000
    x[6] -= 1000
    x[7] = np.sort(x[7])  # the peak rises in every chunk
    x[8, -1] = 80
    x[9, 3] = -np.inf
    x[10] = -50000
    target = np.arange(12) % 5
    target[9], target[11] = 3, IGNORED
    for mine, truth in zip(
        *(m.cross_entropy(x, target, IGNORED) for m in (cross_entropy, cross_entropy_reference)), strict=True
    ):
        assert_as_reference_elementwise(*(part.reshape(12, -1).sum(1) for part in (mine, truth)))
    lse = cross_entropy_reference.cross_entropy(x, target, IGNORED)[1]
    arguments = np.ones(12, dtype), x, target, lse, IGNORED
    assert_as_reference_elementwise(
        *(m.cross_entropy_backward(*arguments) for m in (cross_entropy, cross_entropy_reference))
    )


def test_ignored_rows_give_zeros_whatever_they_hold():
    x, target = np.full((3, 50), np.nan, np.float32), np.full(3, IGNORED)
    losses, lse = cross_entropy.cross_entropy(x, target, IGNORED)
    assert not losses.any() and np.isnan(lse[:, 1]).all()
    assert not cross_entropy.cross_entropy_backward(np.ones(3, np.float32), x, target, lse, IGNORED).any()


# --- the same row, the same bits ------------------------------------------------------------------


@pytest.fixture
def threads(monkeypatch):
    """threads(n): use n tasks, however small the input, and n of Numba's threads."""
    before = _numba.num_threads()
    for module in MODULES.values():
        monkeypatch.setattr(module, "GRAIN", 1)
    monkeypatch.setattr(embedding, "GRAIN_BYTES", 1)

    def use(count):
        _numba.set_num_threads(count)
        numba.set_num_threads(min(count, numba.config.NUMBA_NUM_THREADS))
        assert rows.task_count(1000, 1) == count

    yield use
    _numba.set_num_threads(before)
    numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)


@EVERY_OPERATION
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_number_of_threads_changes_no_bit(operation, dtype, threads):
    for call in operation.calls(Inputs(dtype), (3 * rows.BLOCK_ROWS + 5, 67)):
        threads(1)
        alone = results(operation.cpu, *call)
        for count in (2, 3, 8):
            threads(count)
            for one, many in zip(alone, results(operation.cpu, *call), strict=True):
                np.testing.assert_array_equal(one, many)


def per_row(array, batch, row):
    """Row `row` of an argument or result that has one entry per row of the batch; anything else as it is."""
    return array[row : row + 1] if isinstance(array, np.ndarray) and array.shape[:1] == (batch,) else array


@EVERY_OPERATION
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_alone_gives_the_same_bits_as_in_a_batch(operation, dtype, threads):
    batch = 151
    threads(2)
    for function, *arguments in operation.calls(Inputs(dtype), (batch, 83)):
        if (function.startswith("softmax") and arguments[-1] == 0) or function == "embedding_backward":
            continue
        found = results(operation.cpu, function, *arguments)
        for row in (0, 64, batch - 1):
            alone = results(operation.cpu, function, *(per_row(argument, batch, row) for argument in arguments))
            for one, all_rows in zip(alone, found, strict=True):
                if one is not None and all_rows.shape[:1] == (batch,):
                    np.testing.assert_array_equal(one, all_rows[row : row + 1])


@not_when_forced
@EVERY_OPERATION
def test_one_specialisation_per_dtype(operation):
    for dtype in DTYPES:
        for shape in ((4, 5), (2, 3, 5), (2, 2, 2, 5)):
            for layout in ("contiguous", "read_only", "reversed"):
                for call in operation.calls(Inputs(dtype, layout=layout), shape):
                    results(operation.cpu, *call)
    module = MODULES[operation.shared] if hasattr(operation, "shared") else operation.cpu
    kernels = [
        value for name, value in vars(module).items() if name in ("_forward", "_backward", "_gather", "_scatter")
    ]
    assert len(kernels) == 2
    for kernel in kernels:
        assert len(getattr(kernel, "signatures", [])) <= len(DTYPES)


# --- embedding tables -----------------------------------------------------------------------------


def test_a_memory_mapped_table_is_not_copied(tmp_path):
    table = normal(7, (4000, 64), np.float32)
    table.tofile(tmp_path / "table")
    mapped = np.memmap(tmp_path / "table", np.float32, "r", shape=table.shape)
    sliced, ids = np.asarray(mapped)[::-2], np.array([[0, 1999], [7, 7]])
    embedding.embedding(ids, mapped)  # compiles
    tracemalloc.start()
    found, found_sliced = embedding.embedding(ids, mapped), embedding.embedding(ids, sliced)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < table.nbytes / 10
    np.testing.assert_array_equal(found, table[ids])
    np.testing.assert_array_equal(found_sliced, table[::-2][ids])


def test_tables_in_odd_memory():
    ids = np.array([2, 0, 2], np.uint8)
    memory = np.zeros(4 * 30 + 1, np.uint8)
    unaligned = memory[1:].view(np.float32).reshape(6, 5)
    unaligned[:] = normal(8, (6, 5), np.float32)
    transposed = normal(9, (5, 6), np.float64).T
    for table in (unaligned, transposed, transposed[:, ::2]):
        np.testing.assert_array_equal(embedding.embedding(ids, table), table[ids])


def test_embedding_of_nothing():
    assert embedding.embedding(np.zeros((2, 0), int), np.ones((3, 4))).shape == (2, 0, 4)
    assert embedding.embedding(np.zeros(0, int), np.ones((0, 4))).shape == (0, 4)
    assert embedding.embedding_backward(np.zeros((0, 4)), np.zeros(0, int), 3).tolist() == np.zeros((3, 4)).tolist()


# --- small inputs run serially; other CPUs --------------------------------------------------------


def test_small_inputs_make_one_task():
    assert rows.task_count(0, 100) == rows.task_count(199, 100) == 1
    assert rows.task_count(200, 100) == min(2, _numba.num_threads())
    assert rows.task_count(10**9, 100) == _numba.num_threads()


@not_when_forced
@pytest.mark.slow
@pytest.mark.parametrize("isa", ["generic", "avx2"])
def test_other_vector_widths(isa):
    run_tests_under(isa, __file__, "-k", "awkward or special or batch or threads")
