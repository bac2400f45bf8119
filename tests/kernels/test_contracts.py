"""The public functions: clear errors for hostile input, defaults, what is returned, prepared weights."""

import numpy as np
import pytest

from bertcore import kernels
from bertcore.kernels import BackendUnavailable, unavailable_reason, use_backend
from tests.kernels.parity import torch_gradients
from tests.kernels.strategies import normal
from tests.tolerances import assert_close


@pytest.fixture(autouse=True)
def numpy_backend():
    with use_backend("numpy"):
        yield


def f32(*shape):
    return normal(1, shape, np.float32)


F64 = normal(1, (2, 3))
IDS = np.array([0, 1, 2])
DENSE = (f32(2, 4, 5, 8),) * 3
PACKED = (f32(7, 4, 8),) * 3
OFFSETS = np.array([0, 3, 7])
LSE, PACKED_LSE = np.zeros((2, 4, 5), np.float32), np.zeros((4, 7), np.float32)

# Each: the call, the error, and what its message must hold (the argument, what came, what was expected).
HOSTILE = {
    "a list": (lambda: kernels.softmax([1.0, 2.0]), TypeError, "input NumPy list"),
    "a number": (lambda: kernels.gelu(1.0), TypeError, "input NumPy float"),
    "integers": (lambda: kernels.softmax(IDS), TypeError, "input int64 floating"),
    "complex numbers": (lambda: kernels.gelu(f32(3) * 1j), TypeError, "input complex64 floating"),
    "swapped bytes": (lambda: kernels.gelu(f32(3).astype(">f4")), TypeError, "input >f4 floating"),
    "half precision on numba": (
        lambda: kernels.gelu(f32(3).astype(np.float16), backend="numba"),
        TypeError,
        "input float16 numba float32 float64",
    ),
    "unknown backend": (lambda: kernels.gelu(f32(3), backend="tpu"), ValueError, "backend tpu numpy numba cupy"),
    # softmax
    "softmax, no axes": (lambda: kernels.softmax(f32()), ValueError, "input () axes"),
    "softmax, no such axis": (lambda: kernels.softmax(f32(2, 3), 2), ValueError, "dim 2 2 axes"),
    "softmax, half an axis": (lambda: kernels.softmax(f32(2, 3), 0.5), TypeError, "dim integer 0.5"),
    "softmax, gradient's shape": (
        lambda: kernels.softmax_backward(f32(2, 4), f32(2, 3)),
        ValueError,
        "grad_output (2, 4) (2, 3)",
    ),
    "softmax, gradient's dtype": (
        lambda: kernels.softmax_backward(F64, f32(2, 3)),
        TypeError,
        "grad_output float64 float32 output",
    ),
    # layer_norm
    "layer_norm, no axes": (lambda: kernels.layer_norm(f32()), ValueError, "input () axes"),
    "layer_norm, weight": (lambda: kernels.layer_norm(f32(2, 3), f32(2)), ValueError, "weight (2,) (3,)"),
    "layer_norm, bias": (lambda: kernels.layer_norm(f32(2, 3), bias=f32(1, 3)), ValueError, "bias (1, 3) (3,)"),
    "layer_norm, residual": (
        lambda: kernels.layer_norm(f32(2, 3), residual=f32(3)),
        ValueError,
        "residual (3,) (2, 3)",
    ),
    "layer_norm, weight's dtype": (
        lambda: kernels.layer_norm(f32(2, 3), F64[0]),
        TypeError,
        "weight float64 float32 input",
    ),
    "layer_norm, eps below 0": (lambda: kernels.layer_norm(f32(3), eps=-1e-5), ValueError, "eps -1e-05 0"),
    "layer_norm, eps NaN": (lambda: kernels.layer_norm(f32(3), eps=np.nan), ValueError, "eps nan finite"),
    "layer_norm, eps a text": (lambda: kernels.layer_norm(f32(3), eps="1"), TypeError, "eps number '1'"),
    "layer_norm, gradient's shape": (
        lambda: kernels.layer_norm_backward(f32(3), f32(2, 3)),
        ValueError,
        "grad_output (3,) (2, 3)",
    ),
    # gelu and activation
    "gelu, form": (lambda: kernels.gelu(f32(3), "erf"), ValueError, "approximate 'erf' 'none' 'tanh'"),
    "gelu, bias": (lambda: kernels.gelu(f32(2, 3), bias=f32(2)), ValueError, "bias (2,) (3,)"),
    "gelu, bias for no axes": (lambda: kernels.gelu(f32(), bias=f32(1)), ValueError, "input () axes"),
    "gelu, gradient's shape": (lambda: kernels.gelu_backward(f32(3), f32(2, 3)), ValueError, "grad_output (3,) (2, 3)"),
    "activation, name": (
        lambda: kernels.activation(f32(3), "mish"),
        ValueError,
        "activation 'mish' 'relu' 'gelu_tanh'",
    ),
    "activation, None": (lambda: kernels.activation(f32(3), None), ValueError, "activation None 'relu'"),
    "activation, gradient's shape": (
        lambda: kernels.activation_backward(f32(2), f32(3), "relu"),
        ValueError,
        "grad_output (2,) (3,)",
    ),
    # linear
    "linear, no axes": (lambda: kernels.linear(f32(), f32(3, 1)), ValueError, "input () axes"),
    "linear, weight transposed": (
        lambda: kernels.linear(f32(2, 3), f32(3, 4)),
        ValueError,
        "weight (3, 4) (out_features, 3) (2, 3)",
    ),
    "linear, weight of one axis": (lambda: kernels.linear(f32(2, 3), f32(3)), ValueError, "weight (3,) out_features"),
    "linear, weight's dtype": (lambda: kernels.linear(f32(2, 3), F64), TypeError, "weight float64 float32 input"),
    "linear, prepared weight's dtype": (
        lambda: kernels.linear(f32(2, 3), kernels.prepare_weight(F64)),
        TypeError,
        "weight float64 float32 input",
    ),
    "linear, prepared weight's shape": (
        lambda: kernels.linear(f32(2, 4), kernels.prepare_weight(f32(2, 3))),
        ValueError,
        "weight (2, 3) (out_features, 4)",
    ),
    "linear, bias": (lambda: kernels.linear(f32(2, 3), f32(4, 3), f32(3)), ValueError, "bias (3,) (4,)"),
    "linear, residual": (
        lambda: kernels.linear(f32(5, 2, 3), f32(4, 3), residual=f32(10, 4)),
        ValueError,
        "residual (10, 4) (5, 2, 4)",
    ),
    "linear, activation": (
        lambda: kernels.linear(f32(2, 3), f32(4, 3), activation="swish"),
        ValueError,
        "activation 'swish' None 'silu'",
    ),
    "linear, gradient's shape": (
        lambda: kernels.linear_backward(f32(2, 3), f32(2, 3), f32(4, 3)),
        ValueError,
        "grad_output (2, 3) (2, 4)",
    ),
    "prepare_weight, axes": (lambda: kernels.prepare_weight(f32(2, 3, 4)), ValueError, "weight (2, 3, 4) (any, any)"),
    "prepare_weight, a list": (lambda: kernels.prepare_weight([[1.0]]), TypeError, "weight list"),
    # embedding
    "embedding, ids": (lambda: kernels.embedding(f32(3), f32(4, 2)), TypeError, "input float32 integer"),
    "embedding, booleans": (lambda: kernels.embedding(IDS > 0, f32(4, 2)), TypeError, "input bool integer"),
    "embedding, id too large": (
        lambda: kernels.embedding(np.array([[0, 1], [2, 4]]), f32(4, 2)),
        ValueError,
        "input[1, 1] 4 0 to 3",
    ),
    "embedding, id below 0": (lambda: kernels.embedding(np.array([-1]), f32(4, 2)), ValueError, "input[0] -1 0 to 3"),
    "embedding, table": (lambda: kernels.embedding(IDS, f32(4)), ValueError, "weight (4,) (any, any)"),
    "embedding, gradient's shape": (
        lambda: kernels.embedding_backward(f32(2, 5), IDS, 4),
        ValueError,
        "grad_output (2, 5) (3, any)",
    ),
    "embedding, too few rows": (
        lambda: kernels.embedding_backward(f32(3, 5), IDS, 2),
        ValueError,
        "input[2] 2 0 to 1",
    ),
    "embedding, negative number of rows": (
        lambda: kernels.embedding_backward(f32(0, 5), IDS[:0], -1),
        ValueError,
        "num_embeddings -1 0",
    ),
    # cross_entropy
    "cross_entropy, axes": (lambda: kernels.cross_entropy(f32(3), IDS), ValueError, "input (3,) (any, any)"),
    "cross_entropy, rows": (lambda: kernels.cross_entropy(f32(4, 3), IDS), ValueError, "target (3,) (4,)"),
    "cross_entropy, probabilities": (
        lambda: kernels.cross_entropy(f32(3, 3), f32(3)),
        TypeError,
        "target float32 integer",
    ),
    "cross_entropy, no such class": (
        lambda: kernels.cross_entropy(f32(3, 2), IDS),
        ValueError,
        "target[2] 2 0 to 1 -100",
    ),
    "cross_entropy, reduction": (
        lambda: kernels.cross_entropy(f32(3, 3), IDS, reduction="max"),
        ValueError,
        "reduction 'max' 'mean' 'sum' 'none'",
    ),
    "cross_entropy, ignore_index": (
        lambda: kernels.cross_entropy(f32(3, 3), IDS, ignore_index=None),
        TypeError,
        "ignore_index integer None",
    ),
    "cross_entropy, gradient of a mean": (
        lambda: kernels.cross_entropy_backward(f32(3), f32(3, 3), IDS),
        ValueError,
        "grad_output (3,) ()",
    ),
    "cross_entropy, gradient of losses": (
        lambda: kernels.cross_entropy_backward(f32(), f32(3, 3), IDS, reduction="none"),
        ValueError,
        "grad_output () (3,)",
    ),
    # attention
    "attention, packed without offsets": (lambda: kernels.attention(*PACKED), ValueError, "query (7, 4, 8) cu_seqlens"),
    "attention, two axes": (lambda: kernels.attention(*(f32(5, 8),) * 3), ValueError, "query (5, 8) any"),
    "attention, dense with offsets": (
        lambda: kernels.attention(*DENSE, cu_seqlens=OFFSETS),
        ValueError,
        "query (2, 4, 5, 8) (any, any, any)",
    ),
    "attention, heads": (
        lambda: kernels.attention(DENSE[0], f32(2, 3, 5, 8), DENSE[0]),
        ValueError,
        "key (2, 3, 5, 8) (2, 4, any, 8)",
    ),
    "attention, value's head_dim": (
        lambda: kernels.attention(*DENSE[:2], f32(2, 4, 5, 7)),
        ValueError,
        "value (2, 4, 5, 7) (2, 4, 5, 8)",
    ),
    "attention, dtypes": (
        lambda: kernels.attention(*DENSE[:2], DENSE[2].astype(np.float64)),
        TypeError,
        "value float64 float32 query",
    ),
    "attention, integer mask": (
        lambda: kernels.attention(*DENSE, attn_mask=np.ones((5, 5), np.int64)),
        TypeError,
        "attn_mask int64 bool float32",
    ),
    "attention, mask's shape": (
        lambda: kernels.attention(*DENSE, attn_mask=np.ones((2, 5), bool)),
        ValueError,
        "attn_mask (2, 5) (2, 4, 5, 5)",
    ),
    "attention, five axes of bias": (
        lambda: kernels.attention(*DENSE, bias=f32(1, 1, 1, 1, 1)),
        ValueError,
        "bias (1, 1, 1, 1, 1) (2, 4, 5, 5)",
    ),
    "attention, bias for a longer sequence than any": (
        lambda: kernels.attention(*PACKED, cu_seqlens=OFFSETS, bias=f32(7, 7)),
        ValueError,
        "bias (7, 7) (2, 4, 4, 4)",
    ),
    "attention, boolean bias": (
        lambda: kernels.attention(*DENSE, bias=np.ones((5, 5), bool)),
        TypeError,
        "bias bool float32",
    ),
    "attention, scale": (lambda: kernels.attention(*DENSE, scale=np.inf), ValueError, "scale inf finite"),
    "attention, key offsets alone": (
        lambda: kernels.attention(*DENSE, cu_seqlens_k=OFFSETS),
        ValueError,
        "cu_seqlens_k cu_seqlens",
    ),
    "attention, key offsets missing": (
        lambda: kernels.attention(PACKED[0], f32(9, 4, 8), f32(9, 4, 8), cu_seqlens=OFFSETS),
        ValueError,
        "key 9 7 cu_seqlens_k",
    ),
    "attention, key offsets of other sequences": (
        lambda: kernels.attention(*PACKED, cu_seqlens=OFFSETS, cu_seqlens_k=np.array([0, 7])),
        ValueError,
        "cu_seqlens_k (2,) (3,)",
    ),
    "attention, offsets of floats": (
        lambda: kernels.attention(*PACKED, cu_seqlens=np.array([0.0, 7])),
        TypeError,
        "cu_seqlens float64 integer",
    ),
    "attention, no offset": (
        lambda: kernels.attention(*PACKED, cu_seqlens=OFFSETS[:0]),
        ValueError,
        "cu_seqlens (0,) (sequences + 1,)",
    ),
    "attention, offsets of two axes": (
        lambda: kernels.attention(*PACKED, cu_seqlens=OFFSETS[None]),
        ValueError,
        "cu_seqlens (1, 3) (sequences + 1,)",
    ),
    "attention, offsets start late": (
        lambda: kernels.attention(*PACKED, cu_seqlens=np.array([1, 7])),
        ValueError,
        "cu_seqlens 1 to 7 0 to 7 query",
    ),
    "attention, offsets end early": (
        lambda: kernels.attention(*PACKED, cu_seqlens=np.array([0, 6])),
        ValueError,
        "cu_seqlens 0 to 6 0 to 7 query",
    ),
    "attention, offsets fall": (
        lambda: kernels.attention(*PACKED, cu_seqlens=np.array([0, 5, 4, 7], np.uint8)),
        ValueError,
        "cu_seqlens[2] 4 5 cu_seqlens[1]",
    ),
    "attention, gradient's shape": (
        lambda: kernels.attention_backward(f32(2, 4, 5, 7), *DENSE, DENSE[0], LSE),
        ValueError,
        "grad_output (2, 4, 5, 7) (2, 4, 5, 8)",
    ),
    "attention, output's dtype": (
        lambda: kernels.attention_backward(DENSE[0], *DENSE, DENSE[0].astype(np.float16), LSE),
        TypeError,
        "output float16 float32",
    ),
    "attention, lse's shape": (
        lambda: kernels.attention_backward(DENSE[0], *DENSE, DENSE[0], LSE[0]),
        ValueError,
        "lse (4, 5) (2, 4, 5)",
    ),
    "attention, lse's dtype": (
        lambda: kernels.attention_backward(DENSE[0], *DENSE, DENSE[0], LSE.astype(np.float64)),
        TypeError,
        "lse float64 float32",
    ),
    "attention, packed lse's shape": (
        lambda: kernels.attention_backward(PACKED[0], *PACKED, PACKED[0], PACKED_LSE.T, cu_seqlens=OFFSETS),
        ValueError,
        "lse (7, 4) (4, 7)",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_input(name):
    call, error, fragments = HOSTILE[name]
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    at = 0
    for fragment in split(fragments):
        assert fragment in message[at:], f"{fragment!r} is not in (the rest of) {message!r}"
        at = message.index(fragment, at) + len(fragment)


def split(fragments):
    """Words of the text, what stands in parentheses being one word."""
    words, depth = [""], 0
    for character in fragments:
        depth += (character in "([") - (character in ")]")
        if character == " " and not depth:
            words.append("")
        else:
            words[-1] += character
    return words


def test_a_backend_that_is_not_here():
    if unavailable_reason("cupy") is None:
        pytest.skip("CuPy runs here")
    with pytest.raises(BackendUnavailable, match="pip install"):
        kernels.layer_norm(f32(3), backend="cupy")


def test_defaults():
    x = f32(3, 7)
    ones, zeros = np.ones(7, np.float32), np.zeros(7, np.float32)
    np.testing.assert_array_equal(kernels.softmax(x), kernels.softmax(x, 1))
    np.testing.assert_array_equal(kernels.layer_norm(x), kernels.layer_norm(x, ones, zeros, 1e-5))
    np.testing.assert_array_equal(kernels.gelu(x), kernels.gelu(x, "none", bias=zeros))
    np.testing.assert_array_equal(kernels.linear(x, x), kernels.linear(x, x, np.zeros(3, np.float32)))
    np.testing.assert_array_equal(kernels.attention(*DENSE), kernels.attention(*DENSE, scale=8**-0.5))
    packed = kernels.attention(*PACKED, cu_seqlens=OFFSETS)
    np.testing.assert_array_equal(packed, kernels.attention(*PACKED, cu_seqlens=OFFSETS, cu_seqlens_k=OFFSETS))
    target = np.array([1, -100, 2])
    mean = kernels.cross_entropy(x, target)
    assert mean.shape == () and mean.dtype == np.float32
    losses = kernels.cross_entropy(x, target, ignore_index=-100, reduction="none")
    np.testing.assert_allclose(mean, losses.sum() / 2, rtol=1e-6)


def test_attention_returns_what_is_asked_for():
    output = kernels.attention(*DENSE)
    assert isinstance(output, np.ndarray)
    both = kernels.attention(*DENSE, return_lse=True, return_probs=True)
    assert [array.shape for array in both] == [(2, 4, 5, 8), (2, 4, 5), (2, 4, 5, 5)]
    assert [array.shape for array in kernels.attention(*DENSE, return_probs=True)] == [(2, 4, 5, 8), (2, 4, 5, 5)]
    packed = kernels.attention(*PACKED, cu_seqlens=OFFSETS, return_lse=True, return_probs=True)
    assert [array.shape for array in packed] == [(7, 4, 8), (4, 7), (2, 4, 4, 4)]


def test_attention_reads_slices_of_a_fused_projection():
    fused = f32(7, 3, 4, 8)
    slices = [fused[:, index] for index in range(3)]
    found = kernels.attention(*slices, cu_seqlens=OFFSETS)
    np.testing.assert_array_equal(found, kernels.attention(*(array.copy() for array in slices), cu_seqlens=OFFSETS))


def test_the_gradient_of_a_bias_has_its_own_shape():
    output, lse = kernels.attention(*DENSE, return_lse=True)
    for shape in [(), (1,), (5,), (5, 1), (4, 1, 5), (2, 1, 1, 1), (2, 4, 5, 5)]:
        *_, grad = kernels.attention_backward(DENSE[0], *DENSE, output, lse, bias=np.zeros(shape, np.float32))
        assert grad.shape == shape


def test_a_bias_in_a_broadcast_view_gets_a_gradient_for_every_entry():
    output, lse = kernels.attention(*DENSE, return_lse=True)
    full = np.zeros((2, 4, 5, 5), np.float32)
    view = np.broadcast_to(np.float32(0), full.shape)
    expected = kernels.attention_backward(DENSE[0], *DENSE, output, lse, bias=full)[3]
    np.testing.assert_array_equal(kernels.attention_backward(DENSE[0], *DENSE, output, lse, bias=view)[3], expected)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parity
def test_cross_entropy_reduces_as_torch_does(reduction):
    torch = pytest.importorskip("torch")
    x, target, grad = normal(1, (5, 7)), np.array([0, -100, 6, 3, -100]), normal(2, ())

    def function(x):
        return torch.nn.functional.cross_entropy(x, torch.tensor(target), reduction=reduction)

    output, grad_input = torch_gradients(function, grad, x)
    assert_close(kernels.cross_entropy(x, target, reduction=reduction), output)
    assert_close(kernels.cross_entropy_backward(grad, x, target, reduction=reduction), grad_input)


def test_the_mean_over_no_row_is_nan_and_its_gradient_zero():
    x, target = f32(2, 3), np.array([-100, -100])
    assert np.isnan(kernels.cross_entropy(x, target))
    assert not kernels.cross_entropy_backward(np.ones((), np.float32), x, target).any()


def test_a_mean_of_half_precision_losses_does_not_overflow():
    x = np.tile(np.array([0, 8], np.float16), (70_000, 1))
    assert kernels.cross_entropy(x, np.zeros(70_000, np.int64)) == 8


def test_attention_hands_over_rows_of_unit_stride(monkeypatch):
    seen, compute = [], kernels.dispatch.Call.compute

    def spy(call, function, *arrays):
        seen.extend(array for array in arrays if getattr(array, "ndim", 0) == 4)
        return compute(call, function, *arrays)

    monkeypatch.setattr(kernels.dispatch.Call, "compute", spy)
    across = normal(2, (2, 4, 8, 5), np.float32).swapaxes(2, 3)
    output, lse = kernels.attention(across, across, across, return_lse=True)
    kernels.attention_backward(across, across, across, across, across, lse)
    assert len(seen) == 3 + 5 and all(array.strides[-1] == 4 for array in seen)
    np.testing.assert_array_equal(output, kernels.attention(*(across.copy(order="C"),) * 3))


class TestPreparedWeight:
    weight = f32(4, 3)
    x = f32(2, 3)

    def test_says_what_it_is(self):
        prepared = kernels.prepare_weight(self.weight)
        assert (prepared.backend, prepared.shape, prepared.dtype) == ("numpy", (4, 3), np.float32)
        assert (prepared.out_features, prepared.in_features) == (4, 3)
        assert "numpy" in repr(prepared) and "float32" in repr(prepared)
        np.testing.assert_array_equal(prepared.to_array(), self.weight)

    def test_belongs_to_its_backend(self):
        for_numba = kernels.prepare_weight(self.weight, backend="numba")
        for_numpy = kernels.prepare_weight(self.weight, backend="numpy")
        for weight, other in ((for_numba, "numpy"), (for_numpy, "numba")):
            with pytest.raises(ValueError, match=rf"weight was prepared for backend '{weight.backend}'.*'{other}'"):
                kernels.linear(self.x, weight, backend=other)
            with use_backend(other), pytest.raises(ValueError, match="weight was prepared for"):
                kernels.linear(self.x, weight)
            with use_backend("auto"):
                assert_close(kernels.linear(self.x, weight), self.x @ self.weight.T)
                kernels.linear_backward(f32(2, 4), self.x, weight)

    def test_gives_the_weight_back_bit_by_bit(self):
        for backend, dtype in [("numpy", np.float16), ("numba", np.float32), ("numba", np.float64)]:
            for shape in [(1, 1), (39, 160), (97, 3), (0, 5), (5, 0)]:
                weight = normal(1, shape, dtype, "reversed")
                prepared = kernels.prepare_weight(weight, backend=backend)
                assert prepared.dtype == dtype
                np.testing.assert_array_equal(prepared.to_array(), weight, strict=True)
