"""Parameters on their own: joined parts, forms of low precision, pages of mapped files."""

import copy
import mmap
import os
import signal
import threading
import tracemalloc
import weakref
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from bertcore import kernels
from bertcore.nn import forms, functional
from bertcore.nn.forms import release_pages
from bertcore.nn.layers import Linear
from bertcore.nn.parameter import Parameter, PerVersion, change_together
from bertcore.passes import Pass
from bertcore.tape import Tape
from tests.kernels.arrays import backward
from tests.refusals import refuses

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
    parameter.fill(arrays, dtype)
    return parameter


@pytest.mark.parametrize("use", ["weight", "table"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int8"])
def test_joined_int8_tensors_for_a_model_of_any_dtype(cpu_backend, dtype, use):
    tensors = quantized(FLOATS)
    parameter = filled(tensors, dtype, use)
    exact = np.concatenate([tensors[name] * tensors[f"{name}_scale"] for name in NAMES])
    found = parameter.array()
    if dtype == "bfloat16" or (dtype == "int8" and use == "table"):
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
    parameter.fill({"decoder.weight": weight}, "int8")
    values, scale = kernels.quantize_weight(weight)
    np.testing.assert_array_equal(parameter.array(), values * scale[:, None])


@pytest.mark.parametrize("use", ["weight", "table"])
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow), "bfloat16", "int8"])
def test_update_reaches_every_form(cpu_backend, dtype, use):
    parameter, wanted = filled(FLOATS, dtype, use), RNG.normal(size=(14, 5)).astype(np.float32)
    expected = filled(dict(parameter.parts(wanted)), dtype, use)
    input = np.eye(5, dtype=parameter.array().dtype if dtype == "float64" else np.float32)
    parameter.weight(Pass.begin()), parameter.value(Pass.begin())
    parameter.update(wanted)
    assert parameter.version == 2
    np.testing.assert_array_equal(parameter.array(), expected.array())
    np.testing.assert_array_equal(parameter.value(Pass.begin()), expected.value(Pass.begin()))
    if use == "weight":
        found = kernels.linear(input, parameter.weight(Pass.begin()), None)
        np.testing.assert_array_equal(found, kernels.linear(input, expected.weight(Pass.begin()), None))


def test_a_weight_is_prepared_once_for_forward_and_backward(monkeypatch):
    parameter, prepared = filled(FLOATS, "float32"), []
    parameter.is_frozen = True
    prepare = kernels.prepare_weight
    monkeypatch.setattr(kernels, "prepare_weight", lambda *args, **how: prepared.append(1) or prepare(*args, **how))
    array = parameter.array()
    inputs, seed = RNG.normal(size=(3, 5)).astype(np.float32), RNG.normal(size=(3, 14)).astype(np.float32)
    with kernels.use_backend("numba"):
        for _ in range(3):
            with Tape() as tape:
                input = tape.leaf("input", inputs)
                output = functional.linear(Pass.begin(), input, parameter.weight(Pass.begin()), None)
            found = tape.gradients(output, seed)["input"]
            np.testing.assert_array_equal(found, backward("linear", seed, inputs, array)[0])
        assert len(prepared) == 1
        transpose = parameter.weight(Pass.begin()).transposed_panels()
        assert parameter.weight(Pass.begin()).transposed_panels() is transpose
        parameter.update(array * 2)
        found, expected = (
            backward("linear", seed, inputs, weight) for weight in (parameter.weight(Pass.begin()), array * 2)
        )
        np.testing.assert_array_equal(found[0], expected[0])
    assert len(prepared) == 2


def test_a_weight_that_is_trained_has_no_other_form():
    parameter = filled(FLOATS, "float32")
    input, seed = RNG.normal(size=(3, 5)).astype(np.float32), RNG.normal(size=(3, 14)).astype(np.float32)
    with kernels.use_backend("numba"):
        _, expected, _ = backward("linear", seed, input, parameter.weight(Pass.begin()))
        with Tape() as tape:
            weight = parameter.weight(Pass.begin())
            output = functional.linear(Pass.begin(), input, weight, None)
        assert weight.value is parameter.array()
        assert not parameter.forms.weights
        np.testing.assert_array_equal(tape.gradients(output, seed)[parameter], expected)


def test_a_pass_of_another_thread_meanwhile_loses_no_values(monkeypatch):
    """Inference frees the array for the prepared weight, and training that for the array."""
    parameter, find, threads = filled(FLOATS, "float32"), forms.Forms._array, []
    before = parameter.array().copy()

    def prepare():
        with kernels.use_backend("numba"):
            parameter.weight(Pass.begin())

    def find_meanwhile(self, place):
        array = find(self, place)
        threads.append(threading.Thread(target=prepare))
        threads[-1].start()
        threads[-1].join(0.2)
        return array

    monkeypatch.setattr(forms.Forms, "_array", find_meanwhile)
    with kernels.use_backend("numba"), Tape():
        np.testing.assert_array_equal(parameter.weight(Pass.begin()).value, before)
    np.testing.assert_array_equal(parameter.array(), before)
    for thread in threads:
        thread.join()


def test_arrays_are_copied_one_after_another_before_they_change(monkeypatch):
    """The array that a parameter had is let go before the next one's is copied."""
    parameters, arrays = [Parameter(name, shape=(7, 5)) for name in "abc"], []
    for parameter in parameters:
        parameter.fill({parameter.names[0]: np.ones((7, 5), np.float32)}, "float32")
        arrays.append(weakref.ref(parameter.array()))
    alive = []
    monkeypatch.setattr(forms, "release_pages", lambda array: alive.append(sum(ref() is not None for ref in arrays)))
    change_together(parameters, lambda own: [np.negative(array, out=array) for array in own])
    assert alive == [3, 2, 1]
    assert all((parameter.array() == -1).all() for parameter in parameters)


def test_what_cannot_be_taken_replaces_nothing(cpu_backend):
    parameter = filled(FLOATS, "int8")
    before = parameter.array()
    with pytest.raises(ValueError, match=r"shape \(7, 5\), expected \(14, 5\) for query.weight, key.weight"):
        parameter.update(before[:7])
    refuses(TypeError, "array is list, expected a NumPy or CuPy array", parameter.update, [[1.0]])
    refuses(ValueError, "inf or NaN", parameter.update, np.full((14, 5), np.nan, np.float32))
    np.testing.assert_array_equal(parameter.array(), before)
    assert parameter.version == 1


def test_a_block_knows_when_its_parameters_change():
    block, other = (Linear("map", in_features=5, out_features=7) for _ in range(2))
    kept, seen = PerVersion(), []
    for change in (None, other.weight, block.weight, None, block.bias):
        if change is not None:
            change.fill({name: np.zeros(shape, np.float32) for name, shape in change.expected.items()}, "float32")
        made = kept.get(Pass.begin(), block.version, dict)
        seen.append(any(made is one for one in seen) or made)
    assert [one is True for one in seen] == [False, True, False, True, False]
    with kernels.use_backend("numpy"):
        assert kept.get(Pass.begin(), block.version, lambda: "another backend's") == "another backend's"
    assert kept.get(Pass.begin(), block.version, dict) is made
    copied = copy.deepcopy(block)
    copied.weight.update(np.ones((7, 5), np.float32))
    assert copied.version == block.version + 1


def test_uses_are_declared_before_there_are_values():
    parameter = Parameter("table", shape=(2, 3), use="table").used_as("weight")
    assert parameter.uses == {"table", "weight"}
    parameter.fill({"table": np.zeros((2, 3), np.float32)}, "float32")
    refuses(RuntimeError, "table already has values", parameter.used_as, "vector")
    refuses(RuntimeError, "table has no values yet", Parameter("table", shape=(2, 3)).array)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_initial_values_need_their_own_memory_alone(dtype):
    parameter = Parameter(*NAMES, shape=(999, 1009), use="weight")
    parameter.fill({name: np.zeros((999, 1009), dtype) for name in NAMES}, dtype)  # imports, caches
    tracemalloc.start()
    tensors = parameter.initial_tensors(NAMES, np.random.default_rng(3), 0.5, dtype)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    expected = np.random.default_rng(3).normal(0, 0.5, (2, 999, 1009)).astype(dtype)
    np.testing.assert_array_equal(list(tensors.values()), expected)
    assert peak < 1.1 * expected.nbytes + (2 << 20)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_child_prepares_weights_though_a_thread_of_its_parent_did(cpu_backend, monkeypatch):
    parameter, other = filled(FLOATS, "float32", "table"), filled(FLOATS, "float32")
    held, done = threading.Event(), threading.Event()

    def prepare(*args, **options):
        held.set()
        done.wait()

    monkeypatch.setattr(kernels, "prepare_weight", prepare)
    thread = threading.Thread(target=lambda: other.forms.read("weight", False, ("numba", 0, None)))
    thread.start()
    held.wait()
    parameter.forms.array = None
    parameter.forms.on_gpus[0] = np.ones((14, 5), np.float32).view(OnDevice)
    child = os.fork()
    if child == 0:
        signal.alarm(10)  # ends it if it hangs
        os._exit(0 if parameter.value(Pass.begin()).sum() == 70 else 1)
    status = os.waitpid(child, 0)[1]
    done.set()
    thread.join()
    assert status == 0


class OnDevice(np.ndarray):
    """An array that has to be fetched."""

    def get(self):
        return np.asarray(self)


def resident_kilobytes(file):
    """Return how much of the mapping of `file` is in memory."""
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


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_an_update_outside_of_a_pass_is_prepared_once(monkeypatch, dtype):
    """For the backend that "auto" stands for, not for one called "auto"."""
    parameter = filled(FLOATS, dtype)
    made, prepare = [], kernels.prepare_weight
    monkeypatch.setattr(kernels, "prepare_weight", lambda *args, **options: made.append(1) or prepare(*args, **options))
    parameter.update(np.ones((14, 5), np.float32))
    with kernels.use_backend(kernels.resolve_backend(None, on_gpu=False)):
        assert parameter.weight(Pass.begin()) is parameter.weight(Pass.begin())
    assert len(made) == 1
