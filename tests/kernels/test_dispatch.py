"""Backend selection: per call, block, process and environment; what may come in; and that nothing falls back."""

import asyncio
import builtins
import importlib
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from bertcore.kernels import (
    BackendUnavailable,
    dispatch,
    get_backend,
    layer_norm,
    set_backend,
    softmax,
    unavailable_reason,
    use_backend,
)
from tests.processes import run_python
from tests.refusals import refuses

ROOT = Path(__file__).parents[2]
ROWS = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)


@pytest.fixture(autouse=True)
def restored():
    yield
    set_backend("auto")


def ran_on(monkeypatch, **options):
    """The backend that computes softmax under `options`."""
    seen, find = [], dispatch.implementation
    with monkeypatch.context() as patch:
        patch.setattr(dispatch, "implementation", lambda package, name: seen.append(name) or find(package, name))
        softmax(ROWS, **options)
    return seen[0]


def test_call_beats_block_beats_process(monkeypatch):
    assert get_backend() == "auto" and ran_on(monkeypatch) == "numba"
    with use_backend("numpy"):
        assert ran_on(monkeypatch) == "numpy"
        assert ran_on(monkeypatch, backend="numba") == "numba"
        with use_backend("auto"):
            assert ran_on(monkeypatch) == "numba"
        assert ran_on(monkeypatch) == "numpy"
    set_backend("numpy")
    assert ran_on(monkeypatch) == "numpy"
    with pytest.raises(ZeroDivisionError), use_backend("numba"):
        raise ZeroDivisionError
    assert get_backend() == "numpy"


def test_a_block_is_of_its_thread_and_its_task_alone():
    async def task(name):
        with use_backend(name):
            for _ in range(3):
                await asyncio.sleep(0)
                assert get_backend() == name

    async def both():
        await asyncio.gather(task("numpy"), task("numba"))

    with use_backend("numpy"), ThreadPoolExecutor() as pool:
        assert pool.submit(get_backend).result() == "auto"
    asyncio.run(both())
    assert get_backend() == "auto"


@pytest.mark.parametrize(("variables", "expected"), [
    ({"BERTCORE_BACKEND": "numpy"}, "numpy False"),
    ({"BERTCORE_BATCH_INVARIANT": "1"}, "auto True"),
    ({"BERTCORE_BATCH_INVARIANT": "0"}, "auto False"),
    ({"BERTCORE_BATCH_INVARIANT": ""}, "auto False"),
    ({"BERTCORE_BATCH_INVARIANT": "yes"}, "ValueError the environment variable BERTCORE_BATCH_INVARIANT is 'yes', exp"),
    ({"BERTCORE_BACKEND": "nunba"}, "ValueError BERTCORE_BACKEND is 'nunba', expected one of"),
    ({"NUMBA_DISABLE_JIT": "1"}, "BackendUnavailable backend 'numba' cannot run here: the environment variable NUMBA"),
])  # fmt: skip
def test_environment(variables, expected):
    code = """
try:
    import numpy, bertcore.kernels as k
    k.softmax(numpy.ones(3))
    print(k.get_backend(), k.is_batch_invariant())
except Exception as error:
    print(type(error).__name__, error)
"""
    assert run_python(code, **variables)[0].startswith(expected)


def test_a_numba_that_does_not_import_is_a_reason(tmp_path):
    (tmp_path / "numba.py").write_text('raise ImportError("Numba needs NumPy 2.4 or less. Got NumPy 2.5.")')
    code = """
import numpy, bertcore.kernels as k
from bench import machine
print(machine.describe()["isa"] == "", k.softmax(numpy.zeros(1), backend="numpy"))
try:
    k.softmax(numpy.ones(3))
except k.BackendUnavailable as error:
    print(error)
"""
    printed, _ = run_python(code, PYTHONPATH=os.pathsep.join((str(tmp_path), str(ROOT))))
    first, second = printed.splitlines()
    assert first == "True [1.]"
    assert second.endswith("Numba is installed but does not import: Numba needs NumPy 2.4 or less. Got NumPy 2.5.")


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ("torch", ValueError, "backend is 'torch', expected one of 'numpy', 'numba', 'cupy', 'auto'"),
        (["numpy"], TypeError, "backend is ['numpy'], expected the name of a backend"),
        (b"numpy", TypeError, "backend is b'numpy', expected the name of a backend"),
        pytest.param(
            "cupy", BackendUnavailable, "'cupy' cannot run here: no NVIDIA GPU is visible",
            marks=pytest.mark.skipif(unavailable_reason("cupy") is None, reason="there is a GPU"),
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "choose", [set_backend, lambda name: use_backend(name).__enter__(), lambda name: softmax(ROWS, backend=name)]
)
def test_what_is_no_backend_here(choose, wrong, error, message):
    refuses(error, re.escape(message), choose, wrong)
    assert get_backend() == "auto"


def test_cupy_that_does_not_import_is_a_reason(monkeypatch):
    """It makes a folder in the user's home, which may be read-only."""

    def refuse(name, *args):
        if name == "cupy":
            raise PermissionError(13, "Permission denied", "/home/.cupy")
        return imported(name, *args)

    imported = builtins.__import__
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(builtins, "__import__", refuse)
    reason = dispatch.startup_error.__wrapped__("cupy")
    assert reason == "CuPy is installed but does not import: [Errno 13] Permission denied: '/home/.cupy'"


def test_memory_maps_are_arrays(tmp_path):
    path = tmp_path / "rows.npy"
    np.save(path, ROWS)
    np.testing.assert_array_equal(softmax(np.load(path, mmap_mode="r")), softmax(ROWS))


@pytest.fixture
def on_gpu():
    """Stands for a CuPy array: the dispatcher knows one by the module of its type."""
    return type("ndarray", (), {"__module__": "cupy", "shape": (5,), "ndim": 1, "dtype": np.dtype("float32")})()


def test_mixing_host_and_gpu_arrays_names_both(on_gpu):
    refuses(TypeError, r"input is in host memory but weight is on the GPU", layer_norm, ROWS, on_gpu)


def test_numba_does_not_take_gpu_arrays(on_gpu):
    with pytest.raises(TypeError, match=r"backend 'numba' expects arrays in host memory, but input is on the GPU"):
        softmax(on_gpu, backend="numba")


def test_missing_function_of_a_backend_is_named(monkeypatch):
    monkeypatch.delattr(dispatch.implementation("bertcore.kernels.softmax", "numpy"), "softmax")
    refuses(NotImplementedError, "softmax has no implementation on backend 'numpy'", softmax, ROWS, backend="numpy")


@pytest.mark.parity
class TestTorch:
    def test_autograd_is_not_cut_silently(self):
        import torch

        plain, tensor = torch.ones(3), torch.ones(3, requires_grad=True)
        refuses(TypeError, "weight requires grad.*detach", layer_norm, plain, tensor)
        with torch.no_grad():
            assert layer_norm(plain, tensor).sum() == pytest.approx(0)

    def test_bfloat16_on_the_host_says_what_to_do(self):
        import torch

        with pytest.raises(TypeError, match=r"input is a bfloat16 tensor .* input.float\(\)"):
            softmax(torch.ones(3, dtype=torch.bfloat16))

    @pytest.mark.filterwarnings("ignore:.*quantize")
    @pytest.mark.parametrize("kind", ["meta", "sparse", "quantized", "conjugated or negated"])
    def test_a_tensor_whose_memory_is_not_its_values_is_named(self, kind):
        import torch

        tensor = {
            "meta": lambda: torch.ones(3, device="meta"),
            "sparse": lambda: torch.ones(3).to_sparse(),
            "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
            "conjugated or negated": lambda: torch.ones(3, dtype=torch.complex64).conj(),
        }[kind]()
        refuses(TypeError, f"input is a {kind} tensor", softmax, tensor)


LIMITED = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (600_000 << 10, resource.RLIM_INFINITY))
import numpy as np
from bertcore import kernels
try:
    kernels.softmax(np.ones((4, 8), np.float32), backend="numba")
except kernels.BackendUnavailable as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space are those of Linux")
def test_too_little_address_space_is_an_error():
    """Otherwise the thread pool ends the process, or loading a library fails somewhere."""
    said, _ = run_python(LIMITED, OMP_NUM_THREADS="4")
    expected = "the limit of address space (ulimit -v) is 585 MiB, expected at least 800 MiB for Numba and 4 threads"
    assert expected in said
