"""cast: the bits of astype, in arrays that stay where they are; what is refused."""

import cupy
import ml_dtypes
import numpy as np
import pytest

from bertcore.kernels import cast
from tests.cuda_emulator.driverless import driverless
from tests.kernels.arrays import normal, to_gpu
from tests.refusals import refuses

SHAPES = [(0,), (1,), (7,), (3, 39), (67, 131), (2, 4099), (4096,), ()]
DTYPES = [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]


def arrays_of(dtype=np.float32):
    """Of all magnitudes, also those that 16 bits cannot hold, and what lies half way between two of their numbers."""
    special = [0.0, -0.0, np.inf, -np.inf, 1e-45, 65504.0, 65519.9, 65520.0, 3.4e38, 1 + 2**-11, 1 + 3 * 2**-11]
    special += [1 + 2**-8, 1 + 3 * 2**-8, 2**-24, 2**-25, 3 * 2**-25]
    arrays = [np.asarray(normal(index, shape) * 10.0 ** (index - 3), dtype) for index, shape in enumerate(SHAPES)]
    return [*arrays, np.asarray(special, dtype)]


def expected(arrays, dtype):
    with np.errstate(over="ignore"):
        return [array.astype(dtype).tobytes() for array in arrays]


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_of_astype(cpu_backend, dtype):
    arrays = arrays_of()
    outputs = [np.full(array.shape, 7, dtype) for array in arrays]
    cast(arrays, outputs, backend=cpu_backend)
    assert [output.tobytes() for output in outputs] == expected(arrays, dtype)
    cast([], [], backend=cpu_backend)


@pytest.mark.parametrize("dtype", DTYPES)
def test_cuda(dtype):
    arrays = arrays_of()
    arrays[4] = np.asfortranarray(arrays[4])
    with driverless() as gpu:
        for shift in (0, 1):
            given = [to_gpu(array) for array in arrays]
            around = [to_gpu(np.full(array.size + 2, 7, dtype)) for array in arrays]
            outputs = [
                one[shift : shift + array.size].reshape(array.shape) for one, array in zip(around, arrays, strict=True)
            ]
            gpu.launches.clear()
            cast(given, outputs)
            assert len(gpu.launches) == 1
            assert [output.get().tobytes() for output in outputs] == expected(arrays, dtype)
            for one, array in zip(around, arrays, strict=True):
                beside = np.delete(one.get(), slice(shift, shift + array.size))
                assert (beside == 7).all()
            moved = [to_gpu(np.pad(array.reshape(-1), (1, 0)))[1:] for array in arrays]
            cast(moved, [output.reshape(-1) for output in outputs])
            assert [output.get().tobytes() for output in outputs] == expected(arrays, dtype)


def test_the_table_of_addresses_is_sent_once_while_they_stay():
    with driverless() as gpu:
        arrays, outputs = ([to_gpu(np.full(5, value, dtype)) for value in (1, 2)] for dtype in (np.float32, np.float16))
        stream = cupy.cuda.Stream(non_blocking=True)
        cast(arrays, outputs)
        sent = len(gpu.uploads)
        arrays[1].fill(3)
        cast(arrays, outputs)
        assert len(gpu.uploads) == sent
        assert (outputs[0].get() == 1).all() and (outputs[1].get() == 3).all()
        cast(arrays, outputs[::-1])
        assert len(gpu.uploads) == sent + 1
        assert (outputs[0].get() == 3).all() and (outputs[1].get() == 1).all()
        with stream:
            for _ in range(2):
                cast(arrays, outputs)
        assert len(gpu.uploads) == sent + 2
        assert (outputs[0].get() == 1).all() and (outputs[1].get() == 3).all()


def test_cuda_rounds_float32_to_sixteen_bits():
    with driverless(emulated=False):
        arrays = {name: to_gpu(np.ones(3, name)) for name in ("float16", "float32")}
        for array, output in (("float16", "float16"), ("float32", "float32")):
            refuses(TypeError, "expected float32 and float16 or bfloat16", cast, [arrays[array]], [arrays[output]])
