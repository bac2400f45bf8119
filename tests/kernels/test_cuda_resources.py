"""Every kernel is started with what the GPU has: its threads, registers and shared memory, by what NVRTC made of it."""

import re
from collections import deque

import cupy
import numpy as np
import pytest

from bertcore import AutoModel, AutoModelForMaskedLM, SentenceEncoder, set_batch_invariant, use_backend, value_and_grad
from bertcore.kernels import RelativePositions, attention
from bertcore.training import AdamW, clip_grad_norm
from tests.cuda_emulator.driverless import driverless, unavailable_reason
from tests.cuda_emulator.resources import TooManyResources, Uses, check_launch, launch_bounds
from tests.demo import demo_folder  # noqa: F401
from tests.kernels.arrays import DTYPES
from tests.kernels.conformance.cases import CASES
from tests.kernels.conformance.checks import DTYPES_OF, on_disk, results
from tests.kernels.machine_code import compiled
from tests.tiny_families import runnable, tiny_config

pytest.importorskip("cuda.core", reason='NVRTC is not installed: pip install -e ".[test]"')
pytestmark = pytest.mark.skipif(unavailable_reason() is not None, reason=str(unavailable_reason()))
SLOW = pytest.mark.slow  # the whole of each module is compiled, as test_cuda_compile.py does
CAPABILITIES = (75, 90, 120)  # 64, 227 and 99 KB of shared memory; 80 and 100 have more than 99


def launching(capability):
    return driverless(emulated=False, compute_capability=capability, resources=True)


@SLOW
@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("operation", on_disk("cupy"))
def test_operations(operation, capability):
    with launching(capability) as gpu:
        for dtype in DTYPES_OF["cupy"]:
            for case in CASES[operation].values():
                results(case, operation, "cupy", DTYPES[dtype], DTYPES[dtype], "contiguous")
        assert gpu.launches or gpu.products


@SLOW
@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("is_batch_invariant", [False, True])
def test_families(capability, is_batch_invariant):
    ids = np.random.default_rng(0).integers(5, 40, (2, 70))
    set_batch_invariant(is_batch_invariant)
    try:
        with launching(capability) as gpu, use_backend("cupy"):
            for name in runnable():
                for dtype in ("float32", "float16"):
                    gpu.launches = deque(maxlen=1)  # more would keep their arguments alive
                    AutoModel.from_config(tiny_config(name), dtype=dtype)(input_ids=ids)
                    assert gpu.launches, name
    finally:
        set_batch_invariant(False)


@SLOW
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_training_and_embedding(capability, demo_folder):  # noqa: F811
    ids = np.random.default_rng(0).integers(5, 40, (2, 70))
    with launching(capability), use_backend("cupy"):
        for name in ("bert-base-uncased", "deberta-v3-small"):
            model = AutoModelForMaskedLM.from_config(tiny_config(name))
            _, grads = value_and_grad(model)(input_ids=ids, labels=ids)
            clip_grad_norm(grads, 1.0)
            AdamW(model, lr=1e-3).step(grads)
        SentenceEncoder(demo_folder).encode(["A kitten rests."])


@SLOW
@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("head_dim", [32, 64, 128])
def test_relative_attention_beside_a_mask(head_dim, dtype, capability):
    """Tiles of 48 KB stand beside what is declared: CUDA grants both together no more than that unasked."""
    with launching(capability) as gpu:
        query, key, value = cupy.zeros((3, 1, 2, 20, head_dim), dtype)
        mask, rows = cupy.ones((1, 1, 20, 20), bool), cupy.arange(41, dtype=np.int32)
        arrays = {name: cupy.zeros((41, 2, head_dim), dtype) for name in ("position_key", "position_query")}
        arrays["query_for_position"] = query
        for beside in ([], ["position_query"], ["query_for_position"], list(arrays)[1:]):
            relative = RelativePositions(rows, **{name: arrays[name] for name in ("position_key", *beside)})
            attention(query, key, value, attn_mask=mask, relative=relative, backend="cupy")
        assert len(gpu.launches) == 4


# ---- what would be refused -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "uses, threads, shared_bytes, granted, refused",
    [
        (Uses(64, 0, 1024), 1024, 0, None, None),
        (Uses(65, 0, 1024), 1024, 0, None, "73728 registers"),  # in pieces of 8 of a thread
        (Uses(255, 0, 256), 256, 0, None, None),
        (Uses(32, 0, 128), 160, 0, None, "160 threads of a block, there are 128"),
        (Uses(32, 256, 128), 128, 48 << 10, None, "49408 bytes of shared memory, there are 49152"),
        (Uses(32, 256, 128), 128, 48 << 10, 48 << 10, None),
        (Uses(32, 0, 128), 128, 64 << 10, 60 << 10, "65536 bytes of dynamic shared memory, there are 61440"),
        (Uses(32, 1024, 128), 128, 99 << 10, 99 << 10, "102400 bytes of shared memory, there are 101376"),
    ],
)
def test_what_a_gpu_refuses(uses, threads, shared_bytes, granted, refused):
    if refused is None:
        check_launch("kernel", uses, 120, threads, shared_bytes, granted)
    else:
        with pytest.raises(TooManyResources, match=f"kernel on sm_120: {refused}"):
            check_launch("kernel", uses, 120, threads, shared_bytes, granted)


@pytest.mark.parametrize("grid", [(0, 1, 1), (1, 65536, 1), (1, 1, 65536), (2**31, 1, 1)])
def test_what_a_grid_cannot_be(grid):
    """CuPy would make one block of none, which finds no row that is its own."""
    with driverless(emulated=False) as gpu:
        kernel = gpu.raw_module(code="", options=(), name_expressions=()).get_function("kernel")
        kernel((2**31 - 1, 65535, 65535), (1024, 1, 1), ())
        with pytest.raises(TooManyResources, match=re.escape(str(grid))):
            kernel(grid, (32, 1, 1), ())


def test_launch_bounds_are_read_from_the_cubin():
    source = """
        __global__ void __launch_bounds__(96) bounded(float *data) { data[threadIdx.x] = 0; }
        __global__ void unbounded(float *data) { data[threadIdx.x] = 0; }"""
    made = compiled(source, ("bounded", "unbounded"), "sm_90")
    bounds = [launch_bounds(made.cubin.read_bytes(), made.symbols[name]) for name in ("bounded", "unbounded")]
    assert bounds == [96, 1024]
