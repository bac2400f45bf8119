"""kernels/_cuda: what reaches CuPy, and how the text of a kernel is put together. CuPy itself is a stand-in here."""

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from cupy.cuda import runtime

from bertcore.kernels import _cuda


class FakeKernel:
    def __init__(self):
        self.calls, self.grants = [], []

    def __call__(self, grid, block, args, shared_mem):
        self.calls.append((grid, block, args, shared_mem))

    @property
    def max_dynamic_shared_size_bytes(self):
        raise AssertionError("asks the driver at every launch")

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, size):
        self.grants.append(size)


class FakeCuPy:
    """As much of CuPy as the runtime uses: two GPUs, and a RawModule that remembers what it was asked to compile."""

    def __init__(self):
        self.current, self.compiled, self.kernels = 0, [], {}
        names = [name for name in dir(runtime) if name.startswith("cudaDevAttr")]
        attributes = dict.fromkeys((name.removeprefix("cudaDevAttr") for name in names), 0)
        attributes |= {"MultiProcessorCount": 132, "MaxSharedMemoryPerBlockOptin": 232448}
        self.cuda = SimpleNamespace(
            runtime=SimpleNamespace(getDevice=lambda: self.current),
            Device=lambda index: SimpleNamespace(attributes=attributes, compute_capability="90"),
        )

    def RawModule(self, *, code, options, name_expressions):
        self.compiled.append((code, options, name_expressions))
        return SimpleNamespace(get_function=lambda name: self.kernels.setdefault((self.current, name), FakeKernel()))


@pytest.fixture
def cupy(monkeypatch):
    fake = FakeCuPy()
    monkeypatch.setitem(sys.modules, "cupy", fake)
    with _cuda.use_runtime(_cuda.CuPyRuntime()):
        yield fake


@pytest.fixture
def module(tmp_path):
    (tmp_path / "sum.cu").write_text('#include "common.cuh"\n__global__ void sum() {}\n')
    return _cuda.Module(tmp_path / "cuda.py", "sum.cu", ["sum", "other<1>"])


def test_a_kernel_is_compiled_once_per_device(cupy, module):
    for device in (0, 0, 1, 0, 1):
        cupy.current = device
        module.launch("sum", (3,), (64,), ())
    assert cupy.compiled == [(module.text, ("-std=c++17",), ("sum",))] * 2
    assert [len(cupy.kernels[device, "sum"].calls) for device in (0, 1)] == [3, 2]


def test_arguments_and_extents(cupy, module):
    module.launch("sum", (3,), (64, 2), (None, np.int32(7)), shared_bytes=16)
    ((grid, block, (null, number), shared_bytes),) = cupy.kernels[0, "sum"].calls
    assert (grid, block, shared_bytes) == ((3, 1, 1), (64, 2, 1), 16)
    assert null == 0 and null.dtype.itemsize == 8
    assert type(number) is np.int32


def test_large_shared_memory_is_asked_for_when_it_grows(cupy, module):
    for size in (0, 48 << 10, 64 << 10, 50 << 10, 96 << 10):
        module.launch("other<1>", (1,), (32,), (), shared_bytes=size)
    assert cupy.kernels[0, "other<1>"].grants == [64 << 10, 96 << 10]


def test_device(cupy):
    assert _cuda.device() == (90, 132, 232448)
    assert _cuda.array_module(None) is cupy


def test_unknown_kernels_are_refused(cupy, module):
    with pytest.raises(ValueError, match="'product' is not among the instantiations"):
        module.launch("product", (1,), (1,), ())


def test_c_types():
    assert [_cuda.c_type(name) for name in ("float32", np.float16)] == ["float", "__half"]
    with pytest.raises(TypeError, match="float64"):
        _cuda.c_type(np.float64)


def test_runtimes_are_replaced_for_a_block():
    outer = _cuda.runtime()
    with _cuda.use_runtime(object()) as replacement:
        assert _cuda.runtime() is replacement
    assert _cuda.runtime() is outer


def test_headers_are_inlined_once_and_lines_keep_their_numbers(tmp_path):
    (tmp_path / "own.cuh").write_text("#include <cuda_fp16.h>\nint own;\n")
    (tmp_path / "both.cuh").write_text('#include "own.cuh"\nint both;\n')
    (tmp_path / "kernel.cu").write_text('#include "both.cuh"\n  #include "own.cuh"\nint kernel;\n')
    assert [line for line in _cuda.inline_includes(tmp_path / "kernel.cu").splitlines() if line] == [
        '#line 1 "kernel.cu"',
        '#line 1 "both.cuh"',
        '#line 1 "own.cuh"',
        "#include <cuda_fp16.h>",
        "int own;",
        '#line 2 "both.cuh"',
        "int both;",
        '#line 2 "kernel.cu"',
        '#line 3 "kernel.cu"',
        "int kernel;",
    ]


def test_headers_of_another_folder_are_inlined_once(tmp_path):
    """Whatever path leads there; a header of the same name elsewhere is another one."""
    for folder, text in (("one", "int one;"), ("two", '#include "../one/own.cuh"\nint two;')):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "own.cuh").write_text(text)
    (tmp_path / "one" / "kernel.cu").write_text('#include "../two/own.cuh"\n#include "own.cuh"\n')
    lines = _cuda.inline_includes(tmp_path / "one" / "kernel.cu").splitlines()
    assert [line for line in lines if line.startswith("int")] == ["int one;", "int two;"]


def test_missing_headers_are_named(tmp_path):
    (tmp_path / "kernel.cu").write_text('#include "nowhere.cuh"\n')
    with pytest.raises(FileNotFoundError, match=r"kernel\.cu.*nowhere\.cuh"):
        _cuda.inline_includes(tmp_path / "kernel.cu")


def test_no_launcher_imports_cupy():
    """Launchers get CuPy from the runtime, at the first launch."""
    code = (
        "import sys, importlib, pathlib, bertcore.kernels as k\n"
        "for path in pathlib.Path(k.__file__).parent.glob('*/cuda.py'):\n"
        "    importlib.import_module(f'{k.__name__}.{path.parent.name}.cuda')\n"
        "sys.exit('cupy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
