"""kernels/lists.py: arrays of a GPU that the call before had are not checked again, and others are."""

from unittest import mock

import cupy
import numpy as np
import pytest

from bertcore.kernels import adam_update, cast, checks, lists
from tests.cuda_emulator.driverless import driverless, unavailable_reason
from tests.kernels.arrays import to_gpu
from tests.refusals import refuses

pytestmark = pytest.mark.skipif(unavailable_reason() is not None, reason=str(unavailable_reason()))

COUNT = 5


@pytest.fixture
def gpu():
    with driverless(emulated=False) as gpu:
        yield gpu
    lists._known.clear()


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
    parameters, moments, copies = arrays(), (arrays(), arrays()), arrays(np.float16)
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
    assert any(reference() is parameters[0] for known in lists._known.values() for reference in known)
    gpu.launches.clear()
    del parameters, moments
    assert not any(reference() is not None for known in lists._known.values() for reference in known)
