"""The Numba kernels that work row by row, beyond conformance/.

Special numbers element by element, sums over many rows, bits that depend on a row alone, avoided copies.
"""

import tracemalloc
from itertools import product

import numba
import numpy as np
import pytest
from numba.core.runtime import _nrt_python as _nrt
from numba.core.runtime import rtsys

from bench.ops import operations
from bertcore.kernels import _numba
from bertcore.kernels._numba import norms, pointwise, rows
from bertcore.kernels.activation import ACTIVATIONS
from bertcore.kernels.activation import cpu as activation
from bertcore.kernels.affine import cpu as affine
from bertcore.kernels.cross_entropy import REDUCTIONS
from bertcore.kernels.cross_entropy import cpu as cross_entropy
from bertcore.kernels.dropout import cpu as dropout
from bertcore.kernels.dropout_layer_norm import cpu as dropout_layer_norm
from bertcore.kernels.embedding import cpu as embedding
from bertcore.kernels.gated_activation import cpu as gated_activation
from bertcore.kernels.layer_norm import cpu as layer_norm
from bertcore.kernels.rotary import cpu as rotary
from bertcore.kernels.softmax import cpu as softmax
from tests.refusals import refuses
from tests.tolerances import assert_close

from .conformance.cases import CASES
from .conformance.checks import results, to_device, to_host
from .forced_isa import FORCED
from .strategies import NUMBA_DTYPES, normal

DTYPES = [np.float32] if FORCED else NUMBA_DTYPES
MODULES = (softmax, norms, affine, pointwise, dropout, dropout_layer_norm, cross_entropy, gated_activation, rotary)
IGNORED = -100


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_over_many_rows_are_exact_enough(dtype):
    """Many rows of one sign: a running float32 sum would be off by 1e-4."""
    x, many = normal(1, (20000, 40), dtype), 1 + 0.1 * normal(0, (260000, 3), dtype)
    for operation, arguments in (
        ("embedding", {"input": np.zeros(20000, np.int64), "weight": x[:3]}),
        ("layer_norm", {"input": x, "weight": x[0]}),
        ("gelu", {"input": many, "bias": many[0]}),
    ):
        wide = {name: it.astype(np.float64) if it.dtype == dtype else it for name, it in arguments.items()}
        found, exact = (
            dict(operations.training(operation, given, of_one_sign, backend))
            for given, backend in ((arguments, "numba"), (wide, "numpy"))
        )
        for name in ("grad_weight", "grad_bias"):
            if found.get(name) is not None:
                assert_close(found[name], exact[name], name=f"{operation}: {name}", at_least=1)


def of_one_sign(output):
    return np.asarray(1 + 0.1 * normal(0, output.shape), output.dtype)


def special_values(dtype):
    huge, tiny = np.finfo(dtype).max, np.finfo(dtype).smallest_subnormal
    return np.array([0, -0.0, np.inf, -np.inf, np.nan, huge, -huge, 1e20, -1e20, 50, -50, tiny, -tiny, 1e-30, 3], dtype)


def rows_of_special_values(dtype, width, place, *more):
    """A row with each special value among ordinary ones, and rows of nothing but `more`."""
    values = special_values(dtype)
    x = normal(1, (len(values) + len(more), width), dtype)
    x[: len(values), place] = values
    x[len(values) :] = np.array(more, dtype)[:, None]
    return x


def special_cases(dtype):
    """Yield (operation, arguments)."""
    for name in ACTIVATIONS:  # in full vectors and in a tail
        yield "activation", {"input": np.resize(special_values(dtype), 75), "activation": name}
    for width in (1, 7, 64, 100):
        yield "softmax", {"input": rows_of_special_values(dtype, width, width // 2, -np.inf, np.nan)}
    rows, weight = rows_of_special_values(dtype, 75, 70), normal(4, 75, dtype)
    yield "layer_norm", {"input": rows, "weight": weight, "bias": weight, "eps": 1e-12}
    yield "layer_norm", {"input": np.full((2, 40), 3.0, dtype), "eps": 0.0}  # NaN


@pytest.mark.parametrize("dtype", DTYPES)
def test_special_values(dtype):
    """Numba equals the reference in the same dtype, each element by its own scale; NaN and infinities, too."""
    for operation, arguments in special_cases(dtype):
        found, expected = (
            dict(operations.training(operation, arguments, np.ones_like, backend)) for backend in ("numba", "numpy")
        )
        for name in ("output", "grad_input"):
            np.testing.assert_allclose(found[name], expected[name], rtol=4e-6, atol=4e-6, err_msg=operation)
    assert np.signbit(activation.activation(np.full(99, -0.0, dtype), "tanh", None)).all()
    masked = normal(2, (9, 130), dtype)
    masked[:, ::3] = -np.inf
    assert not softmax.softmax(masked, 1)[:, ::3].any()  # exactly


@pytest.fixture
def threads(monkeypatch):
    """threads(n): use n tasks, however small the input, and n of Numba's threads."""
    before = _numba.num_threads()
    for module in MODULES:
        monkeypatch.setattr(module, "GRAIN", 1)
    monkeypatch.setattr(embedding, "GRAIN_BYTES", 1)

    def use(count):
        _numba.set_num_threads(count)
        numba.set_num_threads(min(count, numba.config.NUMBA_NUM_THREADS))
        assert rows.task_count(1000, 1) == count

    yield use
    _numba.set_num_threads(before)
    numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)


BATCH = 3 * rows.BLOCK_ROWS + 5


def batches(dtype):
    """(operation, arguments of it with BATCH rows, names of those that have a part for each row)."""
    x, residual, line, width = (normal(seed, (BATCH, 67), dtype) for seed in (1, 2, 3, 4))
    ids, of_norm = np.arange(BATCH) * 7 % 11, {"input": x, "weight": line[0], "residual": residual, "eps": 1e-5}
    tables = {"cos": normal(5, (BATCH, 8), dtype), "sin": normal(6, (BATCH, 8), dtype)}
    by_row = {"input", "residual", "target", "positions"}
    yield "softmax", {"input": x, "dim": -1}, by_row
    yield "softmax", {"input": x, "dim": 0}, set()
    yield "layer_norm", of_norm | {"bias": line[1]}, by_row
    yield "layer_norm", {"input": x, "eps": 1e-5}, by_row
    yield "rms_norm", of_norm, by_row
    drops = {"input": x, "residual": residual, "p": 0.3, "seed": 7}  # by place: a row alone is another's
    yield "dropout", drops, set()
    yield "dropout_layer_norm", drops | {"weight": line[0], "bias": line[1], "eps": 1e-5}, set()
    yield "affine", {"input": x, "weight": line[0], "bias": line[1], "residual": residual}, by_row
    for approximate in ("none", "tanh"):
        yield "gelu", {"input": x, "approximate": approximate, "bias": line[0]}, by_row
    for name in ACTIVATIONS:
        yield "activation", {"input": x, "activation": name}, by_row
        yield "gated_activation", {"input": x[:, 1:], "activation": name, "gate": "second"}, by_row
    heads = {"input": width[:, :60].reshape(BATCH, 3, 20), **tables}
    yield "rotary", heads | {"positions": ids}, by_row
    yield "rotary", heads | {"cu_seqlens": np.array([0, 1, 39, 39, BATCH])}, set()
    yield "embedding", {"input": ids, "weight": line[:11]}, by_row
    for reduction in REDUCTIONS:
        loss = {"input": x, "target": np.where(ids == 3, IGNORED, ids), "reduction": reduction}
        yield "cross_entropy", loss, set() if reduction == "mean" else by_row


def run(operation, arguments, part=slice(None), backend="numba"):
    """Results by name; `part` are the rows of the batch that the arguments hold."""

    def grad(output):
        rows = normal(9, (BATCH, *output.shape[1:]), output.dtype)[part] if output.ndim else np.ones((), output.dtype)
        return to_device(rows, backend)

    given = operations.public_arguments(arguments)
    given = {name: to_device(it, backend) if isinstance(it, np.ndarray) else it for name, it in given.items()}
    found = operations.training(operation, given, grad, backend)
    return {name: to_host(array) for name, array in found if array is not None}


@pytest.mark.parametrize("dtype", DTYPES)
def test_same_bits_for_any_thread_count(dtype, threads):
    for operation, arguments, _ in batches(dtype):
        threads(1)
        alone = run(operation, arguments)
        for count in (2, 3, 8):
            threads(count)
            for name, array in run(operation, arguments).items():
                np.testing.assert_array_equal(array, alone[name], err_msg=f"{operation}: {name}")


def test_threads_allocate_nothing(threads):
    """Failed allocations within parallel regions are not reported: NumPy allocates all scratch before."""
    _nrt.memsys_enable_stats()

    def taken(operation, arguments, count):
        threads(count)
        run(operation, arguments)
        before = rtsys.get_allocation_stats().alloc
        run(operation, arguments)
        return rtsys.get_allocation_stats().alloc - before

    for operation, arguments, _ in batches(np.float32):
        assert taken(operation, arguments, 1) == taken(operation, arguments, 7), operation


def test_out_of_memory(monkeypatch):
    def refuse(shape, *_, **__):
        raise MemoryError(f"Unable to allocate an array of shape {shape}")

    x, ids = normal(1, (BATCH, 67), np.float32), np.arange(BATCH) % 11
    monkeypatch.setattr(np, "zeros", refuse)
    refuses(MemoryError, r"shape \(2, 67\)", layer_norm.layer_norm_backward, x, x, x[0], None, 1e-5, None, x.dtype)
    refuses(MemoryError, r"shape \(2, 67\)", affine.affine_backward, x, x, x[0], x[0], None)
    monkeypatch.setattr(np, "empty", refuse)
    refuses(MemoryError, r"shape \(11, 67\)", embedding.embedding_backward, x, ids, 11, None)


def check_rows_alone(dtype, backend):
    """A row has the same bits alone and in a batch."""
    for operation, arguments, by_row in batches(dtype):
        if not by_row:
            continue
        whole = run(operation, arguments, backend=backend)
        for row in (0, 64, BATCH - 1):
            part = slice(row, row + 1)
            own = {name: it[part] if name in by_row else it for name, it in arguments.items()}
            found = run(operation, own, part, backend)
            of_rows = [name for name in found if whole[name].shape[:1] == (BATCH,)]
            assert of_rows
            for name in of_rows:
                np.testing.assert_array_equal(found[name], whole[name][part], err_msg=f"{operation}: {name}")


@pytest.mark.parametrize("dtype", DTYPES)
def test_same_bits_for_a_row_alone_and_in_a_batch(dtype, threads):
    threads(2)
    check_rows_alone(dtype, "numba")


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_specialisation_per_dtype(dtype):
    for operation in {operation for operation, *_ in batches(dtype)}:
        for case, layout in product(list(CASES[operation].values())[:16], ("contiguous", "read_only", "reversed")):
            results(case, operation, "numba", dtype, dtype, layout)
    for module in (*MODULES, embedding):
        names = vars(module).keys() & {"_forward", "_backward", "_gather", "_scatter", "_rotate"}
        assert all(len(getattr(vars(module)[name], "signatures", [])) <= 2 for name in names), module.__name__


def test_memory_mapped_table_is_not_copied(tmp_path):
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


def test_small_inputs_make_one_task():
    assert rows.task_count(0, 100) == rows.task_count(199, 100) == 1
    assert rows.task_count(200, 100) == min(2, _numba.num_threads())
    assert rows.task_count(10**9, 100) == _numba.num_threads()
