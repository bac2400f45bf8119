"""CuPy on PyTorch's stream and memory pool, with stand-ins for both libraries."""

import weakref
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.parity
torch = pytest.importorskip("torch")
cupy = pytest.importorskip("cupy")
F = pytest.importorskip("bertcore.kernels.torch")


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
        with F._stream_of(tensors):
            assert current() == expected


def test_both_directions_do(monkeypatch):
    seen = []
    monkeypatch.setattr(F, "_stream_of", lambda tensors: seen.append(len(tensors)) or F.nullcontext())
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
    with pytest.raises(MemoryError, match="CUDA out of memory: 2097152 bytes"):
        cupy.empty(2 << 20, "int8")
