"""Parameters on their own: joined parts, forms of low precision, pages of mapped files."""

import mmap
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from bertcore import kernels
from bertcore.nn.parameter import Parameter, release_pages

RNG = np.random.default_rng(0)
NAMES = ("query.weight", "key.weight")
FLOATS = {name: RNG.normal(size=(7, 5)).astype(np.float32) for name in NAMES}


def quantized(floats):
    """The int8 tensors of a checkpoint, with their scales."""
    tensors = {}
    for name, array in floats.items():
        values, scale = kernels.quantize_weight(array)
        tensors |= {name: values, f"{name}_scale": scale[:, None]}
    return tensors


def filled(arrays, dtype, use="weight"):
    parameter = Parameter(*NAMES, shape=(7, 5), use=use)
    parameter.fill(arrays, np.dtype(dtype))
    return parameter


@pytest.mark.parametrize("use", ["weight", "table"])
@pytest.mark.parametrize("dtype", ["float32", "float64", ml_dtypes.bfloat16, "int8"])
def test_joined_int8_tensors_for_a_model_of_any_dtype(cpu_backend, dtype, use):
    tensors = quantized(FLOATS)
    parameter = filled(tensors, dtype, use)
    exact = np.concatenate([tensors[name] * tensors[f"{name}_scale"] for name in NAMES])
    found = parameter.array()
    if np.dtype(dtype).name == "bfloat16" or (dtype == "int8" and use == "table"):
        exact = exact.astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(found, exact)
    assert parameter.shape == found.shape == (14, 5)


def test_int8_tensors_are_kept_to_the_bit(cpu_backend):
    tensors = quantized(FLOATS)
    for arrays in (tensors, FLOATS):  # quantised before or now
        found = dict(filled(arrays, "int8").tensors())
        assert found.keys() == tensors.keys()
        for name, array in tensors.items():
            assert found[name].dtype == array.dtype
            np.testing.assert_array_equal(found[name], array)


def test_one_part_in_int8_beside_one_in_float(cpu_backend):
    arrays = {**FLOATS, **quantized({"key.weight": FLOATS["key.weight"]})}
    expected = dict(filled(FLOATS, "int8").tensors())
    for name, array in filled(arrays, "int8").tensors():
        np.testing.assert_allclose(array, expected[name], rtol=2e-7)


def test_long_weights_are_quantised_as_whole_ones(cpu_backend):
    weight = RNG.normal(size=(4099, 3)).astype(np.float32)
    parameter = Parameter("decoder.weight", shape=weight.shape, use="weight")
    parameter.fill({"decoder.weight": weight}, np.dtype("int8"))
    values, scale = kernels.quantize_weight(weight)
    np.testing.assert_array_equal(parameter.array(), values * scale[:, None])


def resident_kilobytes(file):
    """How much of the mapping of `file` is in memory."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if line.endswith(str(file)))
    return next(int(line.split()[1]) for line in lines[start:] if line.startswith("Rss:"))


@pytest.mark.skipif(not Path("/proc/self/smaps").is_file(), reason="reads /proc")
def test_pages_of_a_file_are_let_go_and_read_again(tmp_path):
    values = np.arange(1 << 20, dtype=np.float32)
    (tmp_path / "file").write_bytes(values.tobytes())
    with (tmp_path / "file").open("rb") as stream:
        mapping = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    array = np.frombuffer(mapping, np.float32)
    part = array[1000:-1000]  # neither end on a page
    np.testing.assert_array_equal(array, values)
    assert resident_kilobytes(tmp_path / "file") == 4096
    release_pages(part)
    assert resident_kilobytes(tmp_path / "file") <= 128  # the system may map pages around those that are asked for
    np.testing.assert_array_equal(array, values)


@pytest.mark.parametrize("access", [mmap.ACCESS_COPY, mmap.ACCESS_WRITE])
def test_what_was_written_to_a_mapping_stays(tmp_path, access):
    (tmp_path / "file").write_bytes(bytes(1 << 16))
    with (tmp_path / "file").open("r+b") as stream:
        array = np.frombuffer(mmap.mmap(stream.fileno(), 0, access=access), np.uint8)
    array[:] = 7
    array.flags.writeable = False
    release_pages(array)
    assert (array == 7).all()
