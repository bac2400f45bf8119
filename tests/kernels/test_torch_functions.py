"""The operations as PyTorch functions: dtypes, layouts, gradients, streams."""

import weakref
from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest

from bench.ops.operations import public_arguments, training
from bertcore import kernels
from bertcore.kernels import use_backend
from bertcore.kernels.attention.positions import OF_RELATIVE
from tests.kernels.conformance.cases import CASES
from tests.kernels.strategies import normal
from tests.refusals import refuses

pytestmark = pytest.mark.parity

torch = pytest.importorskip("torch")
F = pytest.importorskip("bertcore.kernels.torch")


def tensor(*shape, dtype=torch.float64):
    drawn = torch.from_numpy(normal(len(shape), shape, np.float64)) + 0.01  # relu has no derivative at 0
    return drawn.to(dtype).requires_grad_()


@pytest.mark.parametrize("backend, dtype", [("numpy", np.float64), ("numba", np.float32)])
@pytest.mark.parametrize("operation", CASES)
def test_outputs_and_gradients_are_the_kernels(operation, backend, dtype):
    """In every fifth conformance case; the backward outside the block is of the same backend."""
    cases = [case for case in CASES[operation].values() if not case.forward_only]
    for case in islice(cases, 0, None, 5):
        arrays = {name: it for name, it in case.arguments.items() if isinstance(it, np.ndarray)}
        arrays = {name: it.astype(dtype) if it.dtype == np.float64 else np.array(it) for name, it in arrays.items()}
        given = public_arguments(case.arguments | arrays)
        grads = []

        def grad(output, grads=grads):
            grads.append(normal(9, output.shape, output.dtype))
            return grads[0]

        expected = dict(training(operation, given, grad, backend))
        tensors = {name: torch.from_numpy(it) for name, it in arrays.items()}
        wanted = [name for name in tensors if expected.get(f"grad_{name}") is not None]
        given = {name: tensors.get(name, it) for name, it in given.items()}
        if "relative" in given:
            relative = {name: it for name, it in tensors.items() if name in OF_RELATIVE}
            given["relative"] = kernels.RelativePositions(**relative)
        for name in wanted:
            tensors[name].requires_grad_()
        with use_backend(backend):
            output = getattr(F, operation)(**given)
        output.backward(torch.from_numpy(grads[0]))
        np.testing.assert_array_equal(output.detach().numpy(), expected["output"], err_msg=case.name)
        for name in wanted:
            found, message = tensors[name].grad.numpy(), f"{case.name}: {name}"
            np.testing.assert_array_equal(found, expected[f"grad_{name}"], err_msg=message)


def test_only_what_is_needed_has_a_gradient():
    x, weight = tensor(5, 7), tensor(3, 7)
    with use_backend("numpy"):
        F.linear(x, weight.detach()).sum().backward()
        assert x.grad is not None and weight.grad is None
        residual = tensor(5, 7)
        F.layer_norm(x, residual=residual).square().sum().backward()
        assert not F.softmax(x.detach()).requires_grad
        with torch.no_grad():
            assert not F.softmax(x).requires_grad
    residual.grad += 1  # two tensors, though they are equal at first
    assert not torch.equal(x.grad, residual.grad)
    assert x.grad.data_ptr() != residual.grad.data_ptr()


def test_what_is_refused():
    x = tensor(5, 7)
    with use_backend("numpy"):
        (grad,) = torch.autograd.grad(F.softmax(x).square().sum(), x, create_graph=True)
        refuses(RuntimeError, "once_differentiable", grad.sum().backward)
        heads = tensor(1, 2, 5, 4)
        with pytest.raises(ValueError, match="attn_mask requires a gradient, but the kernel has none"):
            F.attention(heads, heads, heads, attn_mask=tensor(5, 5))
        refuses(TypeError, "input is of type list, expected a PyTorch tensor", F.softmax, [1.0, 2.0])
        refuses(TypeError, "weight is of type ndarray, expected a PyTorch tensor", F.linear, x, np.ones((3, 5)))
        refuses(TypeError, "key is None, expected a NumPy, CuPy or PyTorch array", F.attention, heads, None, heads)
        refuses(TypeError, "relative is int, expected RelativePositions", F.attention, heads, heads, heads, relative=3)
        refuses(ValueError, "weight has shape", F.linear, x, tensor(3, 6))


cupy = pytest.importorskip("cupy")


@pytest.fixture
def streams(gpu, monkeypatch):
    """PyTorch's current stream of each of two GPUs."""
    handles = {0: 64, 1: 128}

    def current_stream(device=None):
        index = gpu.current if device is None else device
        return SimpleNamespace(__cuda_stream__=lambda: (0, handles[index]), device=SimpleNamespace(index=index))

    monkeypatch.setattr(torch.cuda, "current_stream", current_stream)
    return handles


def current():
    return cupy.cuda.get_current_stream().ptr


def of_each_gpu():
    """The current stream of each; CuPy has one for each."""
    found = []
    for index in (0, 1):
        with cupy.cuda.Device(index):
            found.append(current())
    return found


def test_a_stream_is_the_current_one_of_its_own_gpu(gpu, streams):
    """Kernels on GPU 1 run on PyTorch's stream there, and GPU 0 is given no stream of another."""
    with F.on_current_stream(1):
        assert gpu.current == 1 and of_each_gpu() == [0, 128]
        with F.on_current_stream(0):
            assert gpu.current == 0 and of_each_gpu() == [64, 128]
    assert gpu.current == 0 and of_each_gpu() == [0, 0]


def test_cupy_uses_pytorchs_stream_within_a_block(streams):
    with F.on_current_stream():
        assert current() == 64
        with F.on_current_stream(1):
            assert current() == 128
        assert current() == 64
    assert current() == 0


class OnGpu:
    """A tensor on a GPU, as far as the choice of a stream is concerned."""

    is_cuda, device = True, 1


def test_functions_run_on_the_stream_of_their_tensors(streams):
    on_host = torch.zeros(2)
    for tensors, expected in (([on_host, None], 0), ([None, OnGpu()], 128)):
        with F.stream_of(tensors):
            assert current() == expected


def test_both_directions_do(monkeypatch):
    seen = []
    monkeypatch.setattr(F, "stream_of", lambda tensors: seen.append(len(tensors)) or F.nullcontext())
    F.softmax(torch.zeros(2, 3, requires_grad=True)).sum().backward()
    assert seen == [1, 1]  # the backward follows its incoming gradient


class FunctionAllocator:
    """cupy.cuda.PythonFunctionAllocator, which asks the driver for the current GPU."""

    def __init__(self, allocate, free):
        self._allocate, self._free = allocate, free

    def malloc(self, size):
        device = cupy.cuda.runtime.getDevice()
        address = self._allocate(size, device)
        owner = OnGpu()
        weakref.finalize(owner, self._free, address, device)
        return cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(address, size, owner, device), 0)


@pytest.fixture
def pool(gpu, streams, monkeypatch):
    """PyTorch's pool: (address, bytes, device, stream) of what is taken from it."""
    taken, room = {}, SimpleNamespace(most=1 << 20)

    def allocate(size, device, stream):
        if size > room.most:
            raise torch.OutOfMemoryError(f"CUDA out of memory: {size} bytes")
        memory = gpu.allocate(size)
        taken[memory.ptr] = memory, size, device, stream
        return memory.ptr

    monkeypatch.setattr(torch.cuda, "caching_allocator_alloc", allocate)
    monkeypatch.setattr(torch.cuda, "caching_allocator_delete", taken.pop)
    monkeypatch.setattr(cupy.cuda, "PythonFunctionAllocator", FunctionAllocator)
    F.share_memory()
    return taken


def test_arrays_are_of_pytorchs_pool(gpu, pool):
    array = cupy.empty(100, "int8")
    with F.on_current_stream():
        other = cupy.empty((3, 5), "float32")
    assert [kept[1:] for kept in pool.values()] == [(100, 0, 0), (60, 0, 64)]
    assert list(pool) == [array.data.ptr, other.data.ptr]
    del array, other
    assert not pool


def test_a_full_pool_is_a_memory_error(pool):
    refuses(MemoryError, "CUDA out of memory: 2097152 bytes", cupy.empty, 2 << 20, "int8")
