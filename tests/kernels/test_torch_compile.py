"""`kernels.torch` as operators: under torch.compile without a graph break."""

import pytest

from bertcore import kernels
from bertcore.kernels import use_backend

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
    "layer_norm": lambda x: F.layer_norm(x, x[0], x[1], 1e-3, residual=x * 2),
    "dropout": lambda x: F.dropout(x, 0.25, 2**64 - 5, residual=x * 2),
    "dropout_layer_norm": lambda x: F.dropout_layer_norm(x, x * 2, x[0], x[1], p=0.25, seed=7),
    "rms_norm": lambda x: F.rms_norm(x, x[0], residual=x * 2),
    "affine": lambda x: F.affine(x, x[0], x[1], residual=x * 2),
    "embedding": lambda x: F.embedding(IDS, x),
    "pooling": lambda x: F.pooling(x, OFFSETS, "weightedmean", skipped=1),
    "cross_entropy": lambda x: sum(F.cross_entropy(x, TARGET, return_lse=True)).sum(),
    "rotary": lambda x: F.rotary(x.reshape(5, 2, 4), COS, SIN, cu_seqlens=OFFSETS),
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


def test_every_operation_is_called():
    assert {name.removesuffix("_backward") for name in kernels.__all__ if name.endswith("_backward")} <= set(CALLS)


@pytest.mark.parametrize("compiler", ["eager", "aot_eager"])
def test_one_graph_of_every_operation(compiler):
    compiled = torch.compile(every_operation, fullgraph=True, backend=compiler)
    x = drawn(5, 8).requires_grad_()
    with use_backend("numpy"):
        expected, found = every_operation(x), compiled(x)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(torch.autograd.grad(found, x), torch.autograd.grad(expected, x))
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), expected)
