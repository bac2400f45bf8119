"""Products by cuBLASLt; a replacement computes on the host and checks arguments (cuda_emulator/cublaslt.cpp)."""

import ctypes
import re
import time
from pathlib import Path

import cupy
import numpy as np
import pytest
from cuda import pathfinder

from bertcore import kernels
from bertcore.kernels import _cuda
from bertcore.kernels._cuda import cublaslt
from bertcore.kernels.linear import cuda as linear_cuda
from tests.cuda_emulator import Emulator
from tests.cuda_emulator.driverless import driverless, host
from tests.processes import in_threads
from tests.tolerances import assert_close

from .cuda_support import batch_invariance, wide
from .strategies import normal


@pytest.fixture(autouse=True)
def runtime():
    with _cuda.use_runtime(Emulator()) as runtime:
        yield runtime


@pytest.mark.parametrize("offset", [0, 1, 4])
def test_views(dtype, offset):
    right = normal(1, (40, 24), dtype)
    storage = np.full((9, 96), np.nan, dtype)
    storage[:, offset : offset + 40] = normal(0, (9, 40), dtype)
    view = storage[:, offset : offset + 40]
    for left in (view, view[::-1], view[::2], view.T.copy().T, np.broadcast_to(view[0], (5, 40))):
        output = np.empty((len(left), 24), dtype)
        cublaslt.multiply(output, left, right)
        assert_close(output, wide(left) @ wide(right))


def test_a_plan_is_made_once_for_a_shape_and_its_alignments():
    storage, right = normal(0, (9 * 40 + 8,), np.float32), normal(1, (24, 40), np.float32)
    output = np.empty((9, 24), np.float32)
    made = []
    for offset in (0, 0, 1, 1, 8):
        before = cublaslt.plan.cache_info().misses
        cublaslt.multiply(output, storage[offset : offset + 360].reshape(9, 40), right, transpose_right=True)
        made.append(cublaslt.plan.cache_info().misses - before)
    assert made[1] == made[3] == 0 and made[2] == 1


def test_what_the_library_refuses_says_why():
    ones = np.ones((8, 8), np.float32)
    with pytest.raises(RuntimeError, match="cublasLtMatmulAlgoGetHeuristic fails with status 15: types 0, 0, 2, 2"):
        cublaslt.multiply(np.empty((8, 8), np.float16), ones, ones)


def test_a_product_without_an_algorithm_is_an_error(monkeypatch):
    call = cublaslt.Library.call

    def find_none(library, name, *args):
        return None if name == "cublasLtMatmulAlgoGetHeuristic" else call(library, name, *args)

    monkeypatch.setattr(cublaslt.Library, "call", find_none)
    ones = np.ones((11, 11), np.float32)  # no other test has a plan for it
    with pytest.raises(
        RuntimeError, match=r"cuBLASLt has no algorithm for Product\(device=0, batch=1, rows=11, columns=11"
    ):
        cublaslt.multiply(np.empty((11, 11), np.float32), ones, ones)


def test_threads_do_not_take_each_others_bias(monkeypatch):
    """One plan, two threads: the bias is an attribute of the plan's descriptor until the product has started."""
    ones, wrong, call = np.ones((2, 2), np.float32), [], cublaslt.Library.call
    biases, outputs = (np.zeros((2, 64), np.float32) for _ in range(2))  # rows of 256 bytes: of the same alignment
    biases[1] = 1

    def dawdle(library, name, *args):
        call(library, name, *args)
        time.sleep(1e-3)

    def work(index):
        output = outputs[index, :4].reshape(2, 2)
        with _cuda.use_runtime(Emulator()):
            for _ in range(5):
                cublaslt.multiply(output, ones, ones, bias=biases[index, :2])
                wrong.extend(output[output != 2 + index])

    monkeypatch.setattr(cublaslt.Library, "call", dawdle)
    in_threads(work, range(2))
    assert not wrong


def test_products_run_on_the_callers_stream(runtime, monkeypatch):
    monkeypatch.setattr(runtime, "stream", lambda: 1234)
    cublaslt.multiply(np.empty((2, 2), np.float32), np.ones((2, 2), np.float32), np.ones((2, 2), np.float32))
    library = cublaslt.load(runtime.cublaslt_path()).functions
    library.standin_last_stream.restype = ctypes.c_void_p
    assert library.standin_last_stream() == 1234


def test_products_are_captured():
    with driverless():
        left, right, output = (cupy.asarray(normal(i, (8, 8), np.float32)) for i in range(3))
        bias = cupy.asarray(normal(3, (8,), np.float32))
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            stream.begin_capture()
            cublaslt.multiply(output, left, right, bias=bias)
            graph = stream.end_capture()
        cublaslt.multiply(output, left, right, bias=cupy.zeros_like(bias))  # by the same plan
        host(left)[...] *= 2
        graph.launch()
        assert_close(host(output), wide(host(left)) @ wide(host(right)) + wide(host(bias)))


def test_the_mode_chooses(runtime):
    def kinds(activation=None):
        library, before = cublaslt.load(runtime.cublaslt_path()).functions, len(runtime.launches)
        products = library.standin_products()
        linear_cuda.linear(np.ones((2, 8), np.float16), np.ones((4, 8), np.float16), None, activation, None)
        return library.standin_products() - products, [launch.kernel for launch in runtime.launches[before:]]

    with batch_invariance(False):
        assert kinds() == kinds("gelu_tanh") == (1, [])
        assert kinds("gelu") == (1, ["pointwise<__half, true>"])
    with batch_invariance(True):
        assert kinds() == (0, ["linear_mma<__half, 16, 16>"])


def test_a_missing_library_says_what_to_install(monkeypatch):
    def missing(name):
        raise pathfinder.DynamicLibNotFoundError(name)

    monkeypatch.setattr(pathfinder, "load_nvidia_dynamic_lib", missing)
    with pytest.raises(kernels.BackendUnavailable, match=r"cuBLASLt, which is not installed: pip install .*\[ctk\]"):
        _cuda.CuPyRuntime().cublaslt_path()


NUMBERS = {  # by their names in the library's headers
    "CUBLAS_COMPUTE_32F": cublaslt.COMPUTE_32F,
    "CUBLASLT_EPILOGUE_DEFAULT": cublaslt.NO_EPILOGUE,
    "CUBLASLT_EPILOGUE_BIAS": cublaslt.ADD_BIAS,
    "CUBLASLT_EPILOGUE_GELU": cublaslt.EPILOGUES["gelu_tanh"],
    "CUBLASLT_MATMUL_DESC_TRANSA": cublaslt.TRANSPOSE_A,
    "CUBLASLT_MATMUL_DESC_TRANSB": cublaslt.TRANSPOSE_B,
    "CUBLASLT_MATMUL_DESC_EPILOGUE": cublaslt.EPILOGUE,
    "CUBLASLT_MATMUL_DESC_BIAS_POINTER": cublaslt.BIAS_POINTER,
    "CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT": cublaslt.BATCH,
    "CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET": cublaslt.BATCH_STRIDE,
    "CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES": cublaslt.WORKSPACE,
    "CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK": cublaslt.REDUCTIONS,
    "CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE": cublaslt.REDUCED_IN_FLOAT32,
    **{
        f"CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_{matrix}_BYTES": number
        for matrix, number in zip("ABCD", cublaslt.ALIGNMENTS, strict=True)
    },
}
POINTERS = ("Handle_t", "Desc_t", "Layout_t", "Preference_t", "Stream_t")
INTEGERS = {"uint64_t": ctypes.c_uint64, "int64_t": ctypes.c_int64, "size_t": ctypes.c_size_t, "int": ctypes.c_int}


@pytest.fixture(scope="module")
def headers():
    """cublasLt.h and cublas_api.h without comments."""
    folder = pathfinder.find_nvidia_header_directory("cublas")
    if folder is None or not (Path(folder) / "cublasLt.h").is_file():
        pytest.skip("the headers of cuBLASLt are not installed")
    text = "".join((Path(folder) / name).read_text() for name in ("cublasLt.h", "cublas_api.h"))
    return re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.S)


def test_our_numbers_are_the_headers(headers):
    for name, number in NUMBERS.items():
        assert int(re.search(rf"\b{name} = (\d+)", headers)[1]) == number, name
    algorithm = re.search(r"uint64_t data\[(\d+)\];\s*} cublasLtMatmulAlgo_t", headers)
    assert ctypes.sizeof(cublaslt.Choice().algorithm) == 8 * int(algorithm[1])


def test_our_signatures_are_the_headers(headers):
    """An argument is an integer, a pointer (descriptors and streams are), or one of an enumeration."""
    for name, types in cublaslt.SIGNATURES.items():
        declared = re.search(rf"\b{name}\(([^)]*)\)", headers)[1].split(",")
        for argument, ours in zip(declared, types, strict=True):
            kind = argument.split()[0]
            is_pointer = re.search(r"[*\[]", argument) or kind.endswith(POINTERS)
            assert ours is (ctypes.c_void_p if is_pointer else INTEGERS.get(kind, ctypes.c_int)), (name, argument)
