"""Two GPUs: operations run where their arrays are, whichever GPU is the current one."""

from collections import deque

import cupy
import numpy as np
import pytest

from bench.ops import calls
from bench.ops.cases import OPS, cases
from bertcore import AutoModel, AutoModelForMaskedLM, kernels, use_backend, value_and_grad
from bertcore.training import LAMB, AdamW, clip_grad_norm
from tests.cuda_emulator.driverless import OtherDevice, unavailable_reason
from tests.kernels.arrays import DTYPES
from tests.refusals import refuses
from tests.tiny_families import runnable, tiny_config

pytestmark = pytest.mark.skipif(unavailable_reason() is not None, reason=str(unavailable_reason()))


def devices(arrays):
    return {array.device.id for array in arrays if isinstance(array, cupy.ndarray)}


def on_second(make):
    with cupy.cuda.Device(1):
        return make()


def some_ids():
    return np.random.default_rng(0).integers(5, 40, (2, 7))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("operation", OPS)
def test_operations(gpu, operation, dtype):
    for case in cases("tiny"):
        if case.op == operation:
            inputs = calls.make_inputs(case, DTYPES[dtype])
            call = on_second(lambda case=case, inputs=inputs: calls.bind(case, inputs, "cupy"))
            gpu.launches.clear()
            assert devices(call().values()) == {1}, case.id
            assert {launch.device for launch in gpu.launches} <= {1}, case.id


def test_a_bias_that_is_shared_is_copied_where_it_is(gpu):
    query = on_second(lambda: cupy.zeros((2, 3, 5, 8), np.float32))
    bias = cupy.broadcast_to(on_second(lambda: cupy.zeros((1, 3, 5, 5), np.float32)), (2, 3, 5, 5))
    output, saved = kernels.attention(query, query, query, bias=bias, save=True)
    grads = kernels.attention_backward(output, saved)
    assert devices((grads.query, grads.bias)) == {1}


@pytest.mark.parametrize(
    "name", [each if each == "bert-base-uncased" else pytest.param(each, marks=pytest.mark.slow) for each in runnable()]
)
def test_a_model_computes_where_its_ids_are(gpu, name):
    with use_backend("numpy"):
        model = AutoModel.from_config(tiny_config(name))
    ids = on_second(lambda: cupy.asarray(some_ids()))
    assert devices([model(input_ids=ids)[0]]) == {1}
    assert {launch.device for launch in gpu.launches} == {1}


@pytest.mark.parametrize(
    "name", ["bert-base-uncased", "mpnet-base", "deberta-base", "modernbert-base", "xlnet-base-cased"]
)
def test_a_model_computes_on_both(gpu, name):
    gpu.launches = deque(maxlen=0)  # a longer one would keep their arguments alive
    with use_backend("numpy"):
        model = AutoModel.from_config(tiny_config(name))
    for index in (0, 1, 0, 1, 0, 1):
        with cupy.cuda.Device(index):
            ids = cupy.asarray(some_ids())
        assert devices([model(input_ids=ids)[0]]) == {index}  # each array elsewhere would be an OtherDevice
    for parameter in model.parameters():
        found = parameter.array()
        assert isinstance(found, np.ndarray) and found.shape == parameter.shape


def test_a_changed_parameter_stays_on_one_gpu(gpu):
    with use_backend("numpy"):
        model = AutoModel.from_config(tiny_config("bert-base-uncased"))
    for index in (1, 0):
        with cupy.cuda.Device(index):
            model(input_ids=cupy.asarray(some_ids()))
    parameter = next(model.parameters())
    assert {*parameter.forms.on_gpus} == {0, 1}
    with use_backend("cupy"), cupy.cuda.Device(1):
        parameter.change(lambda array: array.fill(0))
    assert {*parameter.forms.on_gpus} == {1}


@pytest.mark.parametrize("optimizer", [AdamW, LAMB])
def test_training(gpu, optimizer):
    with use_backend("numpy"):
        model = AutoModelForMaskedLM.from_config(tiny_config("bert-base-uncased"))
    ids, steps = on_second(lambda: cupy.asarray(some_ids())), optimizer(model)
    with use_backend("cupy"):
        out, grads = value_and_grad(model)(input_ids=ids, labels=some_ids())
        clip_grad_norm(grads, 1.0)
        steps.step(grads)
    assert devices((out.loss, *grads.values())) == {1}
    assert {launch.device for launch in gpu.launches} == {1}


def test_arrays_of_two_gpus_are_refused(gpu):
    one, other = cupy.zeros((2, 3), np.float32), on_second(lambda: cupy.zeros((2, 3), np.float32))
    with pytest.raises(ValueError, match="the arrays are on 2 GPUs, expected all of them on one"):
        kernels.layer_norm(one, residual=other)
    refuses(OtherDevice, "astype on GPU 0: memory of GPU 1", other.astype, np.float16)
