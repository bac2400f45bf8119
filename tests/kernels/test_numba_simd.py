"""The SIMD layer under the Numba kernels, and how kernels are compiled, cached and given threads."""

import math
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertcore.kernels._numba import LEVEL, as_kernel_array, cache, codegen, kernel, simd_math, threads
from bertcore.kernels._numba.simd import (
    absolute,
    any_lane,
    broadcast,
    copysign,
    first_lanes,
    fma,
    lanes,
    load,
    load_masked,
    maximum,
    minimum,
    pointer,
    pointer_at,
    reduce_add,
    reduce_max,
    select,
    square_root,
    store,
    store_masked,
)

from .forced_isa import FORCED, not_when_forced, run_tests_under

DTYPES = [np.float32, np.float64]
WIDTH = {np.float32: LEVEL.vector_bytes // 4, np.float64: LEVEL.vector_bytes // 8}


def elementwise(function):
    """A kernel out[:] = function(x) over full vectors and a masked tail."""

    @kernel
    def run(x, out):
        full = x.size - x.size % lanes(x)
        for i in range(0, full, lanes(x)):
            store(out, i, function(load(x, i)))
        tail = first_lanes(x, x.size - full)
        store_masked(out, full, function(load_masked(x, full, tail, 0.0)), tail)

    def call(x):
        out = np.empty_like(x)
        run(as_kernel_array(x), out)
        return out

    return call


exp, erf, tanh = elementwise(simd_math.exp), elementwise(simd_math.erf), elementwise(simd_math.tanh)


def sample(dtype, low, high, count=50021):
    x = np.linspace(low, high, count)
    return np.concatenate([x, np.random.default_rng(0).normal(size=1009) * 1e-3]).astype(dtype)


def ulps(actual, exact):
    return float(np.max(np.abs(actual - exact) / np.spacing(np.abs(exact).astype(actual.dtype))))


@pytest.mark.parametrize("dtype", DTYPES)
def test_exp_is_within_its_stated_error(dtype):
    low, high = (-86.9, 88.7) if dtype == np.float32 else (-708.0, 709.7)
    x = sample(dtype, low, high)
    assert ulps(exp(x), np.exp(x.astype(np.longdouble))) < 1.2


@pytest.mark.parametrize("function, scalar", [(erf, math.erf), (tanh, math.tanh)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_erf_and_tanh_are_within_their_stated_error(function, scalar, dtype):
    x = sample(dtype, -7, 7, 20011)
    exact = np.array([scalar(value) for value in x.astype(np.float64)])
    assert ulps(function(x), exact) < 1.5
    assert np.all(np.abs(function(x)) <= 1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_special_values(dtype):
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e4, -1e4], dtype)
    np.testing.assert_array_equal(exp(x), np.array([np.inf, 0, np.nan, 1, 1, np.inf, 0], dtype))
    for function in (erf, tanh):
        expected = np.array([1, -1, np.nan, 0.0, -0.0, 1, -1], dtype)
        np.testing.assert_array_equal(function(x), expected)
        np.testing.assert_array_equal(np.signbit(function(x)[[3, 4]]), [False, True])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [0, 1, 3, 7, 8, 15, 16, 17, 39, 160])
def test_masked_tail_reads_and_writes_nothing_else(dtype, size):
    guarded = np.full(size + 64, 7, dtype)
    guarded[32 : 32 + size] = np.arange(size)
    out = np.full(size + 64, -1, dtype)
    _copy(guarded.ctypes.data + 32 * guarded.itemsize, out.ctypes.data + 32 * out.itemsize, size, dtype(0))
    np.testing.assert_array_equal(out[32 : 32 + size], np.arange(size))
    assert np.all(out[:32] == -1) and np.all(out[32 + size :] == -1)


@kernel
def _copy(source_address, target_address, size, like):
    source, target = pointer_at(source_address, like), pointer_at(target_address, like)
    full = size - size % lanes(like)
    for i in range(0, full, lanes(like)):
        store(pointer(target, i), 0, load(source, i))
    tail = first_lanes(like, size - full)
    store_masked(target, full, load_masked(source, full, tail, 0.0), tail)


@kernel
def _masked_fill(x, out, count):
    store(out, 0, load_masked(x, 0, first_lanes(x, count), -5.0))


@pytest.mark.parametrize("count", [-3, 0, 1, 2, 1000])
def test_first_lanes_and_fill(count):
    width = WIDTH[np.float32]
    x, out = np.arange(width, dtype=np.float32), np.empty(width, np.float32)
    _masked_fill(x, out, count)
    np.testing.assert_array_equal(out, np.where(np.arange(width) < count, x, -5))


@kernel
def _operations(a, b, c, out, masks):
    x, y, z = load(a, 0), load(b, 0), load(c, 0)
    n = lanes(a)
    store(out, 0, x + y - z * 2.0)
    store(out, n, -x / y)
    store(out, 2 * n, fma(x, y, z))
    store(out, 3 * n, maximum(x, y))
    store(out, 4 * n, minimum(x, 0.5))
    store(out, 5 * n, copysign(square_root(absolute(x)), y))
    w = broadcast(x, 3)
    w += x
    store(out, 6 * n, w)
    store(out, 7 * n, select((x < y) | (x >= 4.0) & ~(y == z), x, -1.0))
    store(out, 8 * n, select(x != x, 1.0, broadcast(x, 0.0)))
    masks[0] = any_lane(x > y)
    masks[1] = any_lane(x <= y)


def _check_operations(a, b, c):
    out, masks = np.empty((9, a.size), a.dtype), np.zeros(2, np.bool_)
    _operations(a, b, c, out, masks)
    wide = np.longdouble if a.dtype == np.float64 else np.float64
    fused = (a.astype(wide) * b + c).astype(a.dtype) if LEVEL.fma else a * b + c
    expected = [
        a + b - c * a.dtype.type(2),
        -a / b,
        fused,
        np.maximum(a, b),
        np.minimum(a, a.dtype.type(0.5)),
        np.copysign(np.sqrt(np.abs(a)), b),
        a + a.dtype.type(3),
        np.where((a < b) | (a >= 4) & ~(b == c), a, a.dtype.type(-1)),
        np.isnan(a).astype(a.dtype),
    ]
    for row, (actual, wanted) in enumerate(zip(out, expected, strict=True)):
        np.testing.assert_array_equal(actual, wanted, err_msg=f"operation {row}")
    assert list(masks) == [np.any(a > b), np.any(a <= b)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_operators_agree_with_numpy(dtype):
    values = st.floats(-100, 100, width=16) | st.sampled_from([math.nan, math.inf, -math.inf, -0.0])

    @given(st.lists(st.tuples(values, values, values), min_size=WIDTH[dtype], max_size=WIDTH[dtype]))
    @settings(max_examples=60, deadline=None)
    def check(rows):
        a, b, c = np.array(rows, dtype).T.copy()
        with np.errstate(all="ignore"):
            _check_operations(a, b, c)

    check()


@kernel
def _reductions(x, out):
    out[0], out[1] = reduce_add(load(x, 0)), reduce_max(load(x, 0))


@pytest.mark.parametrize("dtype", DTYPES)
def test_reductions_follow_one_tree(dtype):
    x = np.random.default_rng(1).normal(size=WIDTH[dtype]).astype(dtype)
    out = np.empty(2, dtype)
    _reductions(x, out)
    tree = x
    while tree.size > 1:
        tree = tree[: tree.size // 2] + tree[tree.size // 2 :]
    assert out[0] == tree[0] and out[1] == x.max()
    x[-1] = np.nan
    _reductions(x, out)
    assert np.isnan(out).all()


def test_typing_errors_name_what_came():
    from numba.core.errors import TypingError

    @kernel
    def strided(x):
        return reduce_add(load(x, 0))

    with pytest.raises(TypingError, match="C-contiguous"):
        strided(np.zeros(64, np.float32)[::2])


def test_vectors_have_the_width_of_the_forced_isa():
    assert not FORCED or LEVEL.name == FORCED
    _masked_fill(np.zeros(64, np.float32), np.zeros(64, np.float32), 1)
    assembly = "".join(_masked_fill.inspect_asm().values()) if _masked_fill.stats.cache_misses else ""
    assert FORCED not in ("avx2", "generic") or "zmm" not in assembly
    assert codegen.Vec(codegen.types.float32, 16).suffix == "v16f32"


@not_when_forced
@pytest.mark.parametrize("isa", ["avx2", "generic"])
def test_everything_again_on_a_lesser_cpu(isa):
    run_tests_under(isa, __file__)


# --- arrays ---------------------------------------------------------------------------------------


def test_contiguous_arrays_are_not_copied():
    x = np.arange(12.0)
    assert as_kernel_array(x) is x
    x.flags.writeable = False
    alias = as_kernel_array(x)
    assert alias.flags.writeable and alias.ctypes.data == x.ctypes.data and alias.shape == x.shape
    address = x.ctypes.data
    del x  # the alias keeps the memory alive
    assert alias.ctypes.data == address and alias.sum() == 66


def test_other_arrays_become_contiguous():
    x = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    unaligned = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32)
    for view in (x.T, x[:, ::2], np.broadcast_to(x[0], (5, 4)), unaligned, x[:0, ::2]):
        result = as_kernel_array(view)
        assert result.flags.c_contiguous and result.flags.aligned and result.flags.writeable
        np.testing.assert_array_equal(result, view)


# --- threads --------------------------------------------------------------------------------------


def test_thread_count_from_environment(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3,1")
    assert threads.detect_threads() == (3, "environment (OMP_NUM_THREADS)")
    monkeypatch.setenv("OMP_NUM_THREADS", "²")
    monkeypatch.delenv("NUMBA_NUM_THREADS", raising=False)
    assert threads.detect_threads().count >= 1
    assert "environment" not in threads.detect_threads().source


def test_quota_of_cgroup_v2_is_the_least_of_the_parents(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "cgroup").write_text("0::/a/b\n")
    assert threads.cgroup_quota(tmp_path, tmp_path / "cgroup") is None
    (tmp_path / "a" / "b" / "cpu.max").write_text("max 100000\n")
    assert threads.cgroup_quota(tmp_path, tmp_path / "cgroup") is None
    (tmp_path / "a" / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "cpu.max").write_text("400000 100000\n")
    assert threads.cgroup_quota(tmp_path, tmp_path / "cgroup") == 1.5


@pytest.mark.parametrize("controllers", ["cpu", "cpu,cpuacct"])
def test_quota_of_cgroup_v1(tmp_path, controllers):
    folder = tmp_path / controllers
    folder.mkdir()
    (tmp_path / "cgroup").write_text(f"4:memory:/x\n3:cpuset:/\n1:{controllers}:/docker/123\n0::/\n")
    (folder / "cpu.cfs_quota_us").write_text("-1\n")
    (folder / "cpu.cfs_period_us").write_text("100000\n")
    assert threads.cgroup_quota(tmp_path, tmp_path / "cgroup") is None
    (folder / "cpu.cfs_quota_us").write_text("250000\n")
    assert threads.cgroup_quota(tmp_path, tmp_path / "cgroup") == 2.5


def test_quota_decides_when_it_is_the_least(monkeypatch):
    for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(threads, "cgroup_quota", lambda: 0.5)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2}, raising=False)
    assert threads.detect_threads() == (1, "cgroup quota (0.5 CPUs)")


def test_set_num_threads():
    before = threads._state
    try:
        threads.set_num_threads(3)
        assert threads.num_threads() == 3
        with pytest.raises(ValueError, match="at least 1"):
            threads.set_num_threads(0)
    finally:
        threads._state = before


# --- cache and start-up ------------------------------------------------------------------------------------------

_SCRIPT = """
import numba, sys
before = numba.config.CACHE_DIR
from bertcore.kernels import _numba
from bertcore.kernels._numba.simd import load
import numpy as np
assert numba.config.CACHE_DIR == before
print(_numba.cache_folder(), _numba.thread_count().count)
"""


def _run(script, **environment):
    environment = {**{k: v for k, v in os.environ.items() if "CACHE" not in k}, **environment}
    result = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    return result.stdout.strip(), result.stderr


@not_when_forced
def test_cache_folder_choice(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    ours = str(tmp_path / "ours")
    assert _run(_SCRIPT, BERTCORE_CACHE_DIR=ours, NUMBA_CACHE_DIR=str(tmp_path / "numba"))[0].startswith(ours)
    assert _run(_SCRIPT, NUMBA_CACHE_DIR=str(tmp_path / "numba"))[0].startswith(str(tmp_path / "numba" / "bertcore"))
    out, _ = _run(_SCRIPT, XDG_CACHE_HOME=str(blocked), HOME=str(blocked), OMP_NUM_THREADS="1", TMPDIR=str(tmp_path))
    assert out.startswith(str(tmp_path / "bertcore-")) and out.endswith(" 1")


_PRETEND = "from bertcore.kernels._numba import kernel\n@kernel\ndef f(x):\n    return x + 1\n"
_CALL = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location('bertcore.kernels.pretend', {file!r})
module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
assert module.f({value}) == {value} + 1
"""


@not_when_forced
def test_processes_never_write_the_same_cache_file(tmp_path):
    """Numba numbers its files: two processes at once could each write a number 1, for different types."""
    (tmp_path / "pretend.py").write_text(_PRETEND)
    names = []
    for value in (1, 1.5):
        _run(
            _CALL.format(file=str(tmp_path / "pretend.py"), value=value), BERTCORE_CACHE_DIR=str(tmp_path / str(value))
        )
        names += [file.name for file in (tmp_path / str(value)).rglob("*.nbc")]
    assert len(set(names)) == 2


@not_when_forced
def test_compilation_is_announced_once_and_only_with_a_cold_cache(tmp_path):
    (tmp_path / "pretend.py").write_text(_PRETEND)
    script = "".join(_CALL.format(file=str(tmp_path / "pretend.py"), value=value) for value in (1, 1.5))
    assert _run(script, BERTCORE_CACHE_DIR=str(tmp_path))[1].count("compiling kernels") == 1
    assert _run(script, BERTCORE_CACHE_DIR=str(tmp_path))[1] == ""


_MANY_CALLERS = """
from concurrent.futures import ThreadPoolExecutor
import numpy as np
from bertcore.kernels import _numba
from bertcore.kernels.linear.cpu import linear
x = np.arange(130 * 39, dtype=np.float32).reshape(130, 39)
wanted = linear(x, x, None, None, None)
with ThreadPoolExecutor(4) as pool:
    for found in pool.map(lambda _: linear(x, x, None, None, None), range(100)):
        np.testing.assert_array_equal(found, wanted)
print(_numba.THREADING_LAYER)
"""


@not_when_forced
@pytest.mark.parametrize("priority", ["workqueue tbb omp", "omp workqueue tbb", "tbb workqueue omp"])
def test_several_python_threads_on_every_pool(priority):
    """Numba's workqueue aborts the process when two threads enter it at once."""
    layer, _ = _run(_MANY_CALLERS, NUMBA_THREADING_LAYER_PRIORITY=priority, OMP_NUM_THREADS="2")
    assert layer in priority.split()[:2]


@not_when_forced
@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
@pytest.mark.parametrize("damage", [b"", b"no pickle"], ids=["empty", "garbage"])
def test_damaged_cache_is_compiled_again(tmp_path, suffix, damage):
    file = tmp_path / "pretend.py"
    file.write_text("from bertcore.kernels._numba import kernel\n@kernel\ndef f(x):\n    return x + 1\n")
    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import pretend; assert pretend.f(1) == 2"
    _run(script, BERTCORE_CACHE_DIR=str(tmp_path))
    damaged = [path for path in tmp_path.rglob(f"*{suffix}") if "pretend" in path.name]
    assert damaged
    for path in damaged:
        path.write_bytes(damage)
    _run(script, BERTCORE_CACHE_DIR=str(tmp_path))
    _run(script, BERTCORE_CACHE_DIR=str(tmp_path))


def test_digest_follows_the_shared_sources(tmp_path, monkeypatch):
    (tmp_path / "simd.py").write_text("a = 1")
    monkeypatch.setattr(cache, "__file__", str(tmp_path / "cache.py"))
    before = cache._digest()
    (tmp_path / "simd.py").write_text("a = 2")
    assert cache._digest() != before


@not_when_forced
def test_importing_the_kernels_does_not_import_numba():
    assert _run("import sys, bertcore.kernels; print('numba' in sys.modules)")[0] == "False"
