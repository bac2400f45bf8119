"""PyTorch tensors in, PyTorch tensors out, over the same memory."""

import numpy as np
import pytest

from bertcore import kernels
from bertcore.kernels import dispatch, tensors, use_backend
from tests.kernels.strategies import normal

pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("on_numpy")]
torch = pytest.importorskip("torch")

X, Y, ROW = (normal(seed, shape, np.float32) for seed, shape in enumerate([(5, 7), (5, 7), (7,)]))
IDS, OFFSETS = np.array([0, 3, 3, 1, 4]), np.array([0, 2, 2, 5])
HEADS = normal(4, (5, 2, 4), np.float32)
ROWS = np.array([0, 2, 4], np.int32)
MASK = np.array([[True, False, True]])
LSE = np.zeros((2, 5, 2), np.float32)


def relative(t):
    return kernels.RelativePositions(t(ROWS), position_key=t(HEADS))


def attention_gradients(*arrays, **options):
    """In one tuple."""
    *gradients, of_relative = kernels.attention_backward(*arrays, **options)
    return *gradients, *(() if of_relative is None else vars(of_relative).values())


CALLS = {
    "softmax": lambda t: kernels.softmax(t(X)),
    "softmax_backward": lambda t: kernels.softmax_backward(t(X), t(Y)),
    "layer_norm": lambda t: kernels.layer_norm(t(X), t(ROW), t(ROW), residual=t(Y)),
    "layer_norm_backward": lambda t: kernels.layer_norm_backward(t(X), t(Y)),
    "rms_norm": lambda t: kernels.rms_norm(t(X)),
    "rms_norm_backward": lambda t: kernels.rms_norm_backward(t(X), t(Y)),
    "affine": lambda t: kernels.affine(t(X), t(ROW), t(ROW), residual=t(Y)),
    "affine_backward": lambda t: kernels.affine_backward(t(X), t(Y), t(ROW), t(ROW)),
    "gelu": lambda t: kernels.gelu(t(X), "tanh", bias=t(ROW)),
    "gelu_backward": lambda t: kernels.gelu_backward(t(X), t(Y)),
    "activation": lambda t: kernels.activation(t(X[0, 0]), "silu"),
    "activation_backward": lambda t: kernels.activation_backward(t(X), t(Y), "silu"),
    "gated_activation": lambda t: kernels.gated_activation(t(X[:, :6]), "silu"),
    "gated_activation_backward": lambda t: kernels.gated_activation_backward(t(X[:, :3]), t(Y[:, :6]), "relu"),
    "dropout": lambda t: kernels.dropout(t(X), 0.3, 1, residual=t(Y)),
    "dropout_backward": lambda t: kernels.dropout_backward(t(X), 0.3, 1),
    "dropout_layer_norm": lambda t: kernels.dropout_layer_norm(t(X), t(Y), t(ROW), p=0.3, seed=1),
    "dropout_layer_norm_backward": lambda t: kernels.dropout_layer_norm_backward(t(X), t(X), t(Y), p=0.3, seed=1),
    "linear": lambda t: kernels.linear(t(X), t(Y)),
    "linear, prepared": lambda t: kernels.linear(t(X), kernels.prepare_weight(t(Y)), activation="relu"),
    "linear_backward": lambda t: kernels.linear_backward(t(X @ Y.T), t(X), t(Y)),
    "attention": lambda t: kernels.attention(
        t(HEADS), t(HEADS), t(HEADS), cu_seqlens=t(OFFSETS), attn_mask=t(MASK), return_lse=True, return_probs=True
    ),
    "attention_backward": lambda t: attention_gradients(
        t(HEADS), t(HEADS), t(HEADS), t(HEADS), t(HEADS), t(LSE), cu_seqlens=t(OFFSETS), bias=t(X[:2, :1, None])
    ),
    "attention, relative": lambda t: kernels.attention(
        t(HEADS), t(HEADS), t(HEADS), cu_seqlens=t(OFFSETS), relative=relative(t), return_lse=True
    ),
    "attention_backward, relative": lambda t: attention_gradients(
        *[t(HEADS)] * 5, t(LSE), relative=relative(t), cu_seqlens=t(OFFSETS)
    ),
    "rotary": lambda t: kernels.rotary(t(HEADS), t(X[:, :2]), t(Y[:, :2]), cu_seqlens=t(OFFSETS)),
    "rotary_backward": lambda t: kernels.rotary_backward(t(HEADS), t(X[:, :2]), t(Y[:, :2]), positions=t(IDS)),
    "embedding": lambda t: kernels.embedding(t(IDS), t(X)),
    "embedding_backward": lambda t: kernels.embedding_backward(t(X), t(IDS), 6),
    "pooling": lambda t: kernels.pooling(t(X), t(OFFSETS), "max"),
    "pooling_backward": lambda t: kernels.pooling_backward(t(X[: len(OFFSETS) - 1]), t(X), t(OFFSETS)),
    "cross_entropy": lambda t: kernels.cross_entropy(t(X), t(IDS)),
    "cross_entropy and lse": lambda t: kernels.cross_entropy(t(X), t(IDS), return_lse=True),
    "cross_entropy_backward": lambda t: kernels.cross_entropy_backward(t(np.ones((), np.float32)), t(X), t(IDS)),
}


def tensor(array):
    return torch.from_numpy(np.array(array))


def as_tuple(result):
    return result if isinstance(result, tuple) else (result,)


def test_every_function_is_called():
    functions = {name for name in kernels.__all__ if hasattr(kernels, f"{name}_backward") or name.endswith("_backward")}
    assert functions <= set(CALLS)


@pytest.mark.parametrize("name", CALLS)
def test_tensors_in_tensors_out(name):
    expected, found = as_tuple(CALLS[name](np.array)), as_tuple(CALLS[name](tensor))
    for array, result in zip(expected, found, strict=True):
        if array is None:
            assert result is None
            continue
        assert type(result) is torch.Tensor
        np.testing.assert_array_equal(result.numpy(), array, strict=True)


@pytest.mark.parametrize("name", CALLS)
def test_nothing_is_copied_on_the_way(name, monkeypatch):
    entered, computed = set(), set()
    native, tensor_of = dispatch.Call._native, tensors.tensor_of

    def spy_in(call, name, array):
        result, home = native(call, name, array)
        assert result.ctypes.data == array.data_ptr()
        entered.add(name)
        return result, home

    def spy_out(array):
        result = tensor_of(array)
        if array is not None and array.size:
            assert result.data_ptr() == array.ctypes.data
            computed.add(array.shape)
        return result

    monkeypatch.setattr(dispatch.Call, "_native", spy_in)
    monkeypatch.setattr(tensors, "tensor_of", spy_out)
    CALLS[name](tensor)
    assert entered and computed


def test_strided_tensors_keep_their_strides():
    transposed = torch.from_numpy(X).T
    np.testing.assert_array_equal(kernels.softmax(transposed).numpy(), kernels.softmax(X.T))


def test_the_default_backend_takes_tensors():
    with use_backend("auto"):
        found = kernels.softmax(torch.from_numpy(X))
    torch.testing.assert_close(found, torch.softmax(torch.from_numpy(X), -1))


def test_arrays_and_tensors_may_be_mixed():
    assert type(kernels.linear(X, torch.from_numpy(Y))) is torch.Tensor


def test_autograd_is_not_lost_silently():
    weight = torch.ones(7, requires_grad=True)
    with pytest.raises(TypeError, match=r"weight requires grad.*detach"):
        kernels.layer_norm(torch.from_numpy(X), weight)
    with torch.no_grad():
        kernels.layer_norm(torch.from_numpy(X), weight)


def test_host_bfloat16_tensors_are_refused():
    with pytest.raises(TypeError, match=r"input is a bfloat16 tensor.*float\(\)"):
        kernels.softmax(torch.ones(3, dtype=torch.bfloat16))
