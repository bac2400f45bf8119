"""All that a call gives to a GPU, and whether two calls gave it the same. Kernels compute nothing meanwhile."""

from contextlib import contextmanager
from unittest import mock

import cupy
import numpy as np

from bertcore.kernels._cuda import cublaslt, plans
from tests.cuda_emulator.driverless import driverless


@contextmanager
def counting_gpu():
    """Kernels compute nothing, and no memory comes again; `given` are cuBLASLt's products, `replays` plans that ran."""
    replays, given, alive = [], [], []
    run = plans.Plan.run

    def noted_run(plan, *args):
        replays.append(plan)
        return run(plan, *args)

    def noted_product(plan, *args):
        given.append((plan, *args))
        return multiply(plan, *args)

    with mock.patch.object(plans.Plan, "run", noted_run), driverless(emulated=False) as gpu:
        multiply = cublaslt.Plan.run  # what stands for it
        with mock.patch.object(cublaslt.Plan, "run", noted_product):
            gpu.replays, gpu.given = replays, given
            cupy.cuda.set_allocator(lambda size: alive.append(gpu.allocate(size)) or alive[-1])
            yield gpu


def done(gpu, call):
    """All that `call` gives to the GPU and returns, with addresses as such."""
    gpu.launches.clear()
    gpu.given.clear()
    result = call()
    parts = result if isinstance(result, tuple | list) else (result,)
    launched = [(it.kernel, it.grid, it.block, it.shared_bytes, *map(_argument, it.args)) for it in gpu.launches]
    products = [
        (id(plan), *addresses, bias, *(factor.value for factor in factors), stream)
        for plan, addresses, bias, factors, _, stream in gpu.given
    ]
    returned = [None if it is None else (_argument(it), it.shape, it.strides, it.dtype) for it in parts]
    return launched + products + returned


def _argument(arg):
    return ("at", arg.data.ptr) if isinstance(arg, cupy.ndarray) else np.asarray(arg).tobytes()


def same(one, other):
    """Whether two runs of a call did the same: memory that only one of them has is the same by its order."""

    def addresses(run):
        return [it for it in leaves(run) if isinstance(it, int)]

    shared = set(addresses(one)) & set(addresses(other))
    return _numbered(one, shared) == _numbered(other, shared)


def leaves(run):
    for item in run:
        yield from leaves(item) if isinstance(item, tuple | list) else [item]


def _numbered(run, shared):
    known = {}
    return [it if not isinstance(it, int) or it in shared else known.setdefault(it, len(known)) for it in leaves(run)]
