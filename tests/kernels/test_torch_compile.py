"""`kernels.torch` as operators: under torch.compile without a graph break, and under torch.func."""

import pytest

from bertcore import kernels
from bertcore.kernels import use_backend
from tests.refusals import refuses

pytestmark = pytest.mark.parity
torch = pytest.importorskip("torch")
F = pytest.importorskip("bertcore.kernels.torch")
OFFSETS = torch.tensor([0, 3, 5])
IDS, TARGET = torch.tensor([0, 3, 3, 1, 4]), torch.tensor([0, 6, -100, 3, 3])


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


COS, SIN = torch.cos(drawn(5, 2)), torch.sin(drawn(5, 2))
CALLS = {
    "softmax": lambda x: F.softmax(x, 0),
    "activation": lambda x: F.activation(x, "tanh"),
    "gated_activation": lambda x: F.gated_activation(x, "silu", gate="second"),
    "gelu": lambda x: F.gelu(x, "tanh", bias=x[0]),
    "linear": lambda x: F.linear(x, x[:3], x[0, :3], activation="gelu", residual=x[:, :3]),
    "linear_alone": lambda x: F.linear(x, x[:3]),
    "layer_norm": lambda x: F.layer_norm(x, x[0], x[1], 1e-3, residual=x * 2),
    "dropout": lambda x: F.dropout(x, 0.25, 2**64 - 5, residual=x * 2),
    "dropout_layer_norm": lambda x: F.dropout_layer_norm(x, x * 2, x[0], x[1], p=0.25, seed=7),
    "rms_norm": lambda x: F.rms_norm(x, x[0], residual=x * 2),
    "affine": lambda x: F.affine(x, x[0], x[1], residual=x * 2),
    "embedding": lambda x: F.embedding(IDS, x),
    "pooling": lambda x: F.pooling(x, OFFSETS, "weightedmean", skipped=1),
    "cross_entropy": lambda x: sum(F.cross_entropy(x, TARGET, return_lse=True)).sum(),
    "rotary": lambda x: F.rotary(x.reshape(5, 2, 4), COS, SIN, cu_seqlens=OFFSETS),
    "lstm": lambda x: F.lstm(x, x[:2].T.reshape(1, 8, 2), OFFSETS),
    "maxsim": lambda x: F.maxsim(x.reshape(1, 5, 8), x * 2, OFFSETS),
    "attention": lambda x: F.attention(*[x.reshape(1, 2, 5, 4)] * 3, is_causal=True, window=(2, None)),
    "packed_attention": lambda x: F.attention(*[x.reshape(5, 2, 4)] * 3, cu_seqlens=OFFSETS, return_lse=True)[0],
    "relative_attention": lambda x: F.attention(
        *[x.reshape(1, 2, 5, 4)] * 3,
        relative=kernels.RelativePositions(torch.tensor([0, 1, 2]), position_bias=x[:3, :2]),
        bias=x[:, :5],
    ),
}


def every_operation(x):
    return sum(call(x).square().mean() for call in CALLS.values())


def loss(call):
    return lambda x: call(x).square().mean()


def gradient(call, x):
    x = x.clone().requires_grad_()
    return torch.autograd.grad(loss(call)(x), x)[0]


def test_every_operation_is_called():
    assert {name.removesuffix("_backward") for name in kernels.__all__ if name.endswith("_backward")} <= set(CALLS)


def test_one_graph_of_every_operation():
    compiled = torch.compile(every_operation, fullgraph=True, backend="aot_eager")
    x = drawn(5, 8).requires_grad_()
    with use_backend("numpy"):
        expected, found = every_operation(x), compiled(x)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(torch.autograd.grad(found, x), torch.autograd.grad(expected, x))
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), expected)


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize("name", CALLS)
def test_transforms(name):
    call, batch = CALLS[name], torch.stack([drawn(5, 8), drawn(5, 8, seed=1)])
    x, gradients = batch[0], torch.stack([gradient(call, each) for each in batch])
    output, pull_back = torch.func.vjp(loss(call), x)
    each = {
        "grad": (torch.func.grad(loss(call))(x), gradients[0]),
        "vjp": (pull_back(torch.ones_like(output))[0], gradients[0]),
        "vmap": (torch.vmap(call)(batch), torch.stack([call(each) for each in batch])),
        "vmap along another axis": (torch.vmap(call, 1)(batch.movedim(0, 1)), torch.vmap(call)(batch)),
        "vmap of grad": (torch.vmap(torch.func.grad(loss(call)))(batch), gradients),
        "grad of vmap": (torch.func.grad(lambda x: torch.vmap(loss(call))(x).sum())(batch), gradients),
        "jacrev": (torch.func.jacrev(call)(x), torch.autograd.functional.jacobian(call, x)),
    }
    for transform, (found, expected) in each.items():
        torch.testing.assert_close(found, expected, msg=lambda text, name=transform: f"{name}: {text}")


@pytest.mark.usefixtures("on_numpy")
def test_calls_that_are_not_compiled():
    """Beyond torch.compile's limit a function runs eagerly, and so does what PyTorch cannot trace."""
    with torch._dynamo.config.patch(recompile_limit=1):
        for name, call in CALLS.items():
            x = drawn(5, 8).requires_grad_()
            found = torch.autograd.grad(loss(torch.compile(call, backend="eager", fullgraph=False))(x), x)[0]
            torch.testing.assert_close(found, gradient(call, x.detach()), msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.usefixtures("on_numpy")
def test_vmap_beside_autograd_and_compile():
    x = drawn(3, 5).requires_grad_()
    found, expected = (torch.autograd.grad(call(x).sum(), x)[0] for call in (torch.vmap(F.gelu), F.gelu))
    torch.testing.assert_close(found, expected)
    compiled = torch.compile(torch.vmap(F.gelu), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x.detach()), F.gelu(x.detach()))


def second_gradient(differentiate):
    inner = differentiate(lambda x: F.softmax(x).square().sum())
    return differentiate(lambda x: inner(x).sum())(X)


def dual():
    with torch.autograd.forward_ad.dual_level():
        F.softmax(torch.autograd.forward_ad.make_dual(X, X))


X = drawn(3, 5)
REFUSED = {
    "jvp": (lambda: torch.func.jvp(F.softmax, (X,), (X,)), NotImplementedError, "no forward-mode derivatives"),
    "jacfwd": (lambda: torch.func.jacfwd(F.softmax)(X), NotImplementedError, "no forward-mode derivatives"),
    "hessian": (lambda: torch.func.hessian(F.softmax)(X), NotImplementedError, "no forward-mode derivatives"),
    "dual": (dual, NotImplementedError, "no forward-mode derivatives"),
    "grad of grad": (lambda: second_gradient(torch.func.grad), NotImplementedError, "no gradients of gradients"),
    "a seed for each": (
        lambda: torch.vmap(lambda x, seed: F.dropout(x, 0.5, seed))(X, torch.arange(3)), TypeError, "seed is an array",
    ),
    "return_probs": (
        lambda: torch.vmap(lambda x: F.attention(x, x, x, return_probs=True)[0])(drawn(2, 1, 2, 3, 4)),
        ValueError, "return_probs is True, expected False under torch.compile and torch.func",
    ),
    "nothing": (lambda: torch.vmap(F.softmax)(X[:0]), ValueError, "over no element"),
    "shape": (lambda: torch.vmap(F.linear)(X, X), ValueError, "weight has shape"),
    "no table": (lambda: F.embedding(IDS, torch.ones(())), ValueError, r"weight has shape \(\), expected \(num_emb"),
    "no table, compiled": (
        lambda: torch.compile(F.embedding, backend="eager", fullgraph=True)(IDS, torch.ones(())),
        RuntimeError, r"weight has shape \(\), expected \(num_embeddings, dim\)",
    ),
}  # fmt: skip


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize("call, error, message", REFUSED.values(), ids=REFUSED)
def test_refused(call, error, message):
    refuses(error, message, call)


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize("transform", [lambda f: f, torch.vmap, lambda f: torch.compile(f, backend="eager")])
def test_negated_and_conjugated_tensors(transform):
    negated = (-1j * drawn(3, 5)).conj().imag
    assert negated.is_neg()
    torch.testing.assert_close(transform(F.softmax)(negated), torch.softmax(drawn(3, 5), -1))
    x = drawn(3, 5).requires_grad_()
    found, expected = (torch.autograd.grad(of(x, -1), x, negated)[0] for of in (F.softmax, torch.softmax))
    torch.testing.assert_close(found, expected)
    refuses(TypeError, "input has dtype complex64", F.softmax, torch.ones(3, dtype=torch.complex64).conj())
