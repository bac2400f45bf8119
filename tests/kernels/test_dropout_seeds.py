"""A seed of dropout that lies on the GPU: read when a kernel runs, so that each launch of a graph has its own."""

import cupy
import numpy as np
import pytest

from bertcore import kernels
from tests.cuda_emulator.driverless import host
from tests.kernels.arrays import backward
from tests.kernels.strategies import normal
from tests.refusals import refuses

SEEDS = (2**64 - 1, 5 << 33 | 7)


def calls(dtype, width):
    """{name: function of a seed that gives arrays}; a width of 128 is of the kernels for aligned rows."""
    x, y, grad = (cupy.asarray(normal(seed, (5, width), dtype)) for seed in (1, 2, 3))
    weight = cupy.asarray(normal(4, (width,), dtype))
    heads = [cupy.asarray(normal(seed, (39, 2, 8), dtype)) for seed in (5, 6, 7)]
    offsets = cupy.asarray(np.array([0, 30, 39], np.int32))
    of_norm = {"weight": weight, "bias": weight, "p": 0.4}
    of_attention = {"cu_seqlens": offsets, "dropout_p": 0.4}
    return {
        "dropout": lambda seed: (kernels.dropout(x, 0.4, seed, residual=y),),
        "dropout_backward": lambda seed: (backward("dropout", grad, x, 0.4, seed),),
        "dropout_layer_norm": lambda seed: (kernels.dropout_layer_norm(x, y, **of_norm, seed=seed),),
        "dropout_layer_norm_backward": lambda seed: backward("dropout_layer_norm", grad, x, y, **of_norm, seed=seed),
        "attention": lambda seed: (kernels.attention(*heads, **of_attention, dropout_seed=seed),),
        "attention_backward": lambda seed: backward("attention", heads[2], *heads, **of_attention, dropout_seed=seed)[
            :3
        ],
    }


def bits(arrays):
    return [host(array).tobytes() for array in arrays]


@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["float32", "float16"])
@pytest.mark.parametrize("width", [128, 7])
def test_an_array_gives_the_bits_of_its_number(emulated_gpu, width, dtype):
    for name, call in calls(dtype, width).items():
        expected = [bits(call(seed)) for seed in SEEDS]
        assert expected[0] != expected[1], name
        for seed, one, shape in zip(SEEDS, expected, [(), (1,)], strict=True):
            assert bits(call(cupy.full(shape, seed, np.uint64))) == one, name
        seed, stream, memory = cupy.zeros(1, np.uint64), cupy.cuda.Stream(), []
        cupy.cuda.set_allocator(lambda size, taken=memory: taken.append(emulated_gpu.allocate(size)) or taken[-1])
        call(seed)
        taken = iter([*memory])
        cupy.cuda.set_allocator(lambda size, taken=taken: next(taken))
        with stream:
            stream.begin_capture()
            results = call(seed)
            graph = stream.end_capture()
        cupy.cuda.set_allocator(emulated_gpu.allocate)
        for number, one in zip(SEEDS, expected, strict=True):
            seed.fill(number)
            graph.launch(stream)
            assert bits(results) == one, name


def of_attention(x, seed):
    return kernels.attention(x[None], x[None], x[None], dropout_p=0.5, dropout_seed=seed)


def of_norm(x, seed):
    return kernels.dropout_layer_norm(x[0], x[0], p=0.5, seed=seed)


def of_dropout(x, seed):
    return backward("dropout", x, x, 0.5, seed)


@pytest.mark.parametrize("call", [of_dropout, of_norm, of_attention])
def test_arrays_that_are_no_seed(emulated_gpu, call):
    x = cupy.zeros((2, 3, 8), np.float32)
    for _ in range(2):  # what has a plan is checked as well
        call(x, cupy.zeros((), np.uint64))
        for seed, kind, error in (
            (cupy.zeros(1, np.int64), TypeError, "seed has dtype int64, expected an integer or an array of uint64"),
            (cupy.zeros(2, np.uint64), ValueError, r"seed has shape \(2,\), expected \(\) or \(1,\)"),
            (np.zeros(1, np.uint64), TypeError, "seed is in host memory"),
            (1.0, TypeError, "seed is 1.0, expected an integer"),
            (-1, ValueError, "seed is -1"),
        ):
            refuses(kind, error, call, x, seed)
        with cupy.cuda.Device(1):
            other = cupy.zeros(1, np.uint64)
        refuses(ValueError, "the arrays are on 2 GPUs", call, x, other)


@pytest.mark.parametrize("backend", ["numpy", "numba"])
@pytest.mark.parametrize("call", [of_dropout, of_norm, of_attention])
def test_other_backends_take_no_array(call, backend):
    with kernels.use_backend(backend), pytest.raises(TypeError, match=f"seed is an array, backend '{backend}' expects"):
        call(np.zeros((2, 3, 8), np.float32), np.zeros(1, np.uint64))
