"""The LSTM beside torch.nn.LSTM, and its bits beside other texts and threads."""

from itertools import pairwise

import numpy as np
import pytest

from bertcore import kernels
from bertcore.kernels.lstm import cpu

LENGTHS = 3, 1, 7, 0, 7, 2


def drawn(hidden, features=5, dtype=np.float32):
    rng, offsets = np.random.default_rng(hidden), np.cumsum((0, *LENGTHS))
    shapes = (offsets[-1], features), (2, 4 * hidden, features), (2, 4 * hidden, hidden), (2, 4 * hidden)
    return *(rng.normal(0, 0.5, shape).astype(dtype) for shape in shapes), offsets


@pytest.mark.parity
@pytest.mark.parametrize("backend", ["numpy", "numba"])
def test_outputs_and_gradients_equal_those_of_torch(backend):
    torch = pytest.importorskip("torch")
    input, first, weight, bias, offsets = drawn(9)
    module = torch.nn.LSTM(5, 9, bidirectional=True)
    with torch.no_grad():
        for direction, ending in enumerate(("", "_reverse")):
            for name, value in (("weight_ih", first), ("weight_hh", weight), ("bias_ih", bias), ("bias_hh", bias)):
                getattr(module, f"{name}_l0{ending}").copy_(torch.from_numpy(value[direction]))
    rows = torch.from_numpy(input).requires_grad_()
    texts = [text for text in rows.split(list(LENGTHS)) if len(text)]
    packed, _ = module(torch.nn.utils.rnn.pack_sequence(texts, enforce_sorted=False))
    expected = torch.cat(torch.nn.utils.rnn.unpack_sequence(packed))
    grad = np.random.default_rng(0).normal(size=expected.shape).astype(np.float32)
    expected.backward(torch.from_numpy(grad))
    known = input @ first.reshape(-1, 5).T + 2 * bias.reshape(-1)
    output, saved = kernels.lstm(known, weight, offsets, save=True, backend=backend)
    of_known, of_weight = kernels.lstm_backward(grad, saved, backend=backend)
    np.testing.assert_allclose(output, expected.detach().numpy(), atol=1e-6)
    np.testing.assert_allclose(of_known @ first.reshape(-1, 5), rows.grad.numpy(), atol=1e-5)
    for direction, ending in enumerate(("", "_reverse")):
        np.testing.assert_allclose(of_weight[direction], getattr(module, f"weight_hh_l0{ending}").grad, atol=1e-5)


def test_a_text_has_the_same_bits_alone_and_on_other_threads(monkeypatch):
    _, _, weight, _, offsets = drawn(40)
    input = np.random.default_rng(1).normal(size=(offsets[-1], 320)).astype(np.float32)
    whole = kernels.lstm(input, weight, offsets, backend="numba")
    for first, last in pairwise(offsets):
        alone = kernels.lstm(input[first:last], weight, np.array([0, last - first]), backend="numba")
        np.testing.assert_array_equal(whole[first:last], alone)
    monkeypatch.setattr(cpu, "num_threads", lambda: 7)  # a private number of groups of texts
    np.testing.assert_array_equal(kernels.lstm(input, weight, offsets, backend="numba"), whole)
