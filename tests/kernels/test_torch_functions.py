"""The operations as PyTorch functions: dtypes, layouts, gradients, streams."""

import weakref
from types import SimpleNamespace

import numpy as np
import pytest

from bench.ops.operations import public_arguments
from bertcore import kernels
from bertcore.kernels import use_backend
from tests.kernels.attention_forms import FORMS, arguments
from tests.kernels.strategies import normal
from tests.refusals import refuses

pytestmark = pytest.mark.parity

torch = pytest.importorskip("torch")
F = pytest.importorskip("bertcore.kernels.torch")
OFFSETS = torch.tensor([0, 3, 3, 5])
IDS = torch.tensor([[0, 3, 3], [1, 4, 0]])
TARGET = torch.tensor([0, 6, -100, 3, 3])
COS, SIN = (torch.from_numpy(table) for table in kernels.rotary_tables(5, 4, dtype=np.float64))


def tensor(*shape, dtype=torch.float64):
    drawn = torch.from_numpy(normal(len(shape), shape, np.float64)) + 0.01  # relu has no derivative at 0
    return drawn.to(dtype).requires_grad_()


CALLS = {
    "softmax": (lambda x: F.softmax(x, 0), [(5, 7)]),
    "activation": (lambda x: F.activation(x, "relu"), [(5, 7)]),
    "gated_activation": (lambda x: F.gated_activation(x, "silu", gate="second"), [(5, 6)]),
    "gelu": (lambda x, bias: F.gelu(x, "tanh", bias=bias), [(5, 7), (7,)]),
    "gelu_without_bias": (F.gelu, [(5, 7)]),
    "linear": (F.linear, [(2, 3, 7), (5, 7), (5,)]),
    "linear_without_bias": (F.linear, [(1, 7), (5, 7)]),
    "layer_norm": (lambda x, w, b, r: F.layer_norm(x, w, b, 1e-3, residual=r), [(5, 7), (7,), (7,), (5, 7)]),
    "layer_norm_alone": (F.layer_norm, [(5, 7)]),
    "rms_norm": (lambda x, w, r: F.rms_norm(x, w, 1e-3, residual=r), [(5, 7), (7,), (5, 7)]),
    "embedding": (lambda table: F.embedding(IDS, table), [(5, 7)]),
    "pooling": (lambda x: F.pooling(x, OFFSETS, "weightedmean", skipped=1), [(5, 7)]),
    "maxsim": (lambda query, document: F.maxsim(query, document, OFFSETS), [(2, 3, 7), (5, 7)]),
    "lstm": (lambda x, weight: F.lstm(x, weight, OFFSETS), [(5, 24), (2, 12, 3)]),
    "cross_entropy": (lambda logits: F.cross_entropy(logits, TARGET), [(5, 7)]),
    "rotary": (lambda x: F.rotary(x, COS, SIN, cu_seqlens=OFFSETS), [(5, 2, 4)]),
    "attention": (lambda q, k, v: F.attention(q, k, v, is_causal=True), [(1, 2, 5, 4)] * 3),
}


@pytest.mark.parametrize("name", CALLS)
def test_gradients_beside_finite_differences(name):
    function, shapes = CALLS[name]
    with use_backend("numpy"):
        assert torch.autograd.gradcheck(function, [tensor(*shape) for shape in shapes], atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_gradients_of_attention_beside_finite_differences(form):
    given = {
        name: torch.from_numpy(it) if isinstance(it, np.ndarray) else it
        for name, it in arguments(form, [2, 0, 3], [3, 1, 2], head_dim=3).items()
    }
    names = [name for name, it in given.items() if torch.is_tensor(it) and it.is_floating_point()]
    names = [name for name in names if name != "attn_mask"]

    def attention(*tensors):
        return F.attention(**public_arguments(given | dict(zip(names, tensors, strict=True))))

    with use_backend("numpy"):
        inputs = [given[name].requires_grad_() for name in names]
        assert torch.autograd.gradcheck(attention, inputs, atol=1e-6, fast_mode=True)


def test_every_differentiable_kernel_is_here():
    with_gradients = {name.removesuffix("_backward") for name in kernels.__all__ if name.endswith("_backward")}
    assert with_gradients <= set(vars(F))


def block(of, x, weight, bias, scale):
    hidden = of.gelu(of.linear(x, weight, bias))
    heads = hidden.reshape(2, 3, 5, 4).transpose(1, 2)
    if of is F:
        mixed, hidden = F.attention(heads, heads, heads), F.softmax(hidden)
        return F.layer_norm(mixed.transpose(1, 2).reshape(hidden.shape), scale, residual=hidden)
    mixed = of.scaled_dot_product_attention(heads, heads, heads)
    return of.layer_norm(mixed.transpose(1, 2).reshape(hidden.shape) + of.softmax(hidden, -1), (20,), scale)


@pytest.mark.parametrize("backend", ["numpy", "numba"])
def test_a_block_beside_pytorch(backend):
    gradients = []
    for of in (F, torch.nn.functional):
        inputs = [tensor(*shape, dtype=torch.float32) for shape in [(2, 3, 7), (20, 7), (20,), (20,)]]
        with use_backend(backend):
            output = block(of, *inputs)
        output.square().sum().backward()  # outside the block: the gradients are of the same backend
        gradients.append([output.detach(), *(each.grad for each in inputs)])
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_a_module_trains():
    class Classifier(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.hidden, self.out = torch.nn.Linear(7, 13), torch.nn.Linear(13, 3)

        def forward(self, x):
            return F.linear(F.gelu(F.linear(x, self.hidden.weight, self.hidden.bias)), self.out.weight, self.out.bias)

    torch.manual_seed(0)
    model, x, y = Classifier(), torch.randn(39, 7), torch.randint(0, 3, (39,))
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=0.03), []
    with use_backend("numpy"):
        for _ in range(40):
            optimizer.zero_grad()
            losses.append(F.cross_entropy(model(x), y))
            losses[-1].backward()
            optimizer.step()
    assert losses[-1] < losses[0] / 3


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
