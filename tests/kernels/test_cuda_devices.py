"""Several GPUs, and lists of arrays, on a GPU without a driver."""

import weakref
from collections import deque
from unittest import mock

import cupy
import numpy as np
import pytest

from bench.ops import calls
from bench.ops.cases import OPS, cases
from bertcore import AutoModel, AutoModelForMaskedLM, kernels, use_backend, value_and_grad
from bertcore.kernels import adam_update, cast, checks
from bertcore.training import LAMB, AdamW, clip_grad_norm
from tests.cuda_emulator.driverless import OtherDevice
from tests.kernels.arrays import DTYPES, to_gpu
from tests.refusals import refuses
from tests.tiny_families import runnable, tiny_config


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


@pytest.mark.parametrize("name", runnable())
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


COUNT = 5


def arrays(dtype=np.float32, count=COUNT):
    return [to_gpu(np.zeros((3, 4), dtype)) for _ in range(count)]


def checked(call):
    """Return the number of arrays that a call checks."""
    with mock.patch.object(checks, "aligned", wraps=checks.aligned) as aligned:
        call()
    return sum(array is not None for one in aligned.call_args_list for array in one.kwargs.values())


def step(parameters, grads, moments):
    adam_update(parameters, grads, *moments, lr=0.1, step=1, grad_scale=to_gpu(np.ones((), np.float32)))


def test_arrays_that_come_again(gpu):
    held = []
    for _ in range(20):  # so many lists that the first are forgotten on the way
        given = arrays(), (arrays(), arrays()), arrays(np.float16)
        held.append(given)
        checks_of_steps(*given)


def checks_of_steps(parameters, moments, copies):
    assert checked(lambda: step(parameters, arrays(), moments)) == 4 * COUNT + 1
    assert checked(lambda: step(list(parameters), arrays(), moments)) == COUNT + 4
    assert checked(lambda: cast(parameters, copies)) == 2 * COUNT
    assert checked(lambda: cast(parameters, copies)) == 2
    moments[0][2] = cupy.zeros_like(parameters[0])
    assert checked(lambda: step(parameters, arrays(), moments)) == 2 * COUNT + 3
    assert checked(lambda: step(parameters[:3], arrays(count=3), [some[:3] for some in moments])) == 4 * 3 + 1


def test_what_takes_an_arrays_place_is_checked(gpu):
    parameters, moments = arrays(), (arrays(), arrays())
    names = "parameter", "first_moment", "second_moment"
    step(parameters, arrays(), moments)
    for place, wrong in (
        ("parameter", cupy.zeros((4, 3), np.float32).T),
        ("first_moment", cupy.zeros((3, 4), np.float16)),
        ("second_moment", cupy.zeros((3, 5), np.float32)),
    ):
        given = dict(zip(names, map(list, (parameters, *moments)), strict=True))
        given[place][3] = wrong
        for _ in range(2):
            with pytest.raises((TypeError, ValueError), match=rf"^{place}\[3\]"):
                step(given["parameter"], arrays(), [given["first_moment"], given["second_moment"]])
    wrong = [*arrays(count=2), cupy.zeros((2, 2), np.float32), *arrays(count=2)]
    refuses(ValueError, r"^grad\[2\] has shape", step, parameters, wrong, moments)


def test_what_an_operation_has_checked_holds_for_that_one_alone(gpu):
    given = [cupy.zeros((4, 3), np.float32).T, *arrays(count=1)]
    for _ in range(2):
        cast(given, arrays(np.float16, count=2))
        with pytest.raises(ValueError, match=r"^parameter\[0\] is not C-contiguous"):
            step(given, arrays(count=2), (arrays(count=2), arrays(count=2)))


def test_a_list_on_two_gpus_stays_refused(gpu):
    given = arrays()
    with cupy.cuda.Device(1):
        given[2] = cupy.empty((3, 4), np.float32)
    for _ in range(2):
        refuses(ValueError, "on 2 GPUs", step, given, arrays(), (arrays(), arrays()))


def test_none_does_not_stand_for_an_array_that_is_gone(gpu):
    parameters, moments = arrays(), (arrays(), arrays())
    step(parameters, arrays(), moments)
    gpu.launches.clear()
    parameters[3] = None
    refuses(TypeError, r"^parameter\[3\] is NoneType", step, parameters, arrays(), moments)


def test_no_array_is_kept_alive(gpu):
    parameters, moments = arrays(), (arrays(), arrays())
    step(parameters, arrays(), moments)
    kept = [*map(weakref.ref, [*parameters, *moments[0], *moments[1]])]
    gpu.launches.clear()
    del parameters, moments
    assert not any(reference() is not None for reference in kept)
