"""The operations that models are made of: each gradient against finite differences in float64."""

import numpy as np
import pytest

from bertcore import use_backend
from bertcore.nn import functional
from bertcore.nn.parameter import bfloat16
from bertcore.tape import Tape, value_of

RNG = np.random.default_rng(5)
OFFSETS = np.array([0, 3, 3, 4, 9], np.int32)  # an empty sequence among them
FLAGS = RNG.integers(0, 2, (9, 2)).astype(float)

CASES = {
    "add": (functional.add, [(5, 3), (5, 3)], {}),
    "scale": (functional.scale, [(5, 3)], {"factor": -0.7}),
    "activation": (functional.activation, [(5, 3)], {"name": "tanh"}),
    "reshape": (functional.reshape, [(6, 2)], {"shape": (3, 4)}),
    "columns": (functional.slice_columns, [(5, 4)], {"first": 1, "last": 3}),
    "sequence_mean": (functional.average_sequences, [(9, 2)], {"cu_seqlens": OFFSETS}),
    "mean_squared_error": (functional.mean_squared_error, [(9, 2)], {"labels": FLAGS}),
    "binary_cross_entropy": (functional.binary_cross_entropy, [(9, 2)], {"labels": FLAGS}),
    "self_attention of parts": (
        functional.self_attention,
        [(9, 8), (9, 4)],
        {"num_heads": 2, "cu_seqlens": OFFSETS, "is_causal": True, "scale": 0.3},
    ),
    "neighbours": (functional.take_neighbours, [(9, 2)], {"cu_seqlens": OFFSETS, "distances": (1, 0, -2)}),
    "scale_rows": (functional.affine, [(5, 3), (3,), (3,)], {}),
    "scale_rows with residual": (functional.affine, [(5, 3), (3,), (3,), (5, 3)], {}),
    "linear without bias": (lambda x, w: functional.linear(x, w, None), [(5, 3), (4, 3)], {}),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_finite_differences(name):
    operation, shapes, options = CASES[name]
    arrays = [RNG.normal(size=shape) for shape in shapes]
    with use_backend("numpy"):
        weights = RNG.normal(size=np.shape(operation(*arrays, **options)))
        with Tape() as tape:
            leaves = [tape.leaf(index, lambda array=array: array) for index, array in enumerate(arrays)]
            output = operation(*leaves, **options)
        np.testing.assert_array_equal(value_of(output), operation(*arrays, **options))
        grads = tape.gradients(output, weights)
        for index, array in enumerate(arrays):
            expected = np.empty_like(array)
            for place in np.ndindex(array.shape):
                moved = []
                for step in (1e-6, -1e-6):
                    changed = [one.copy() for one in arrays]
                    changed[index][place] += step
                    moved.append((operation(*changed, **options) * weights).sum())
                expected[place] = (moved[0] - moved[1]) / 2e-6
            np.testing.assert_allclose(grads[index], expected, rtol=1e-7, atol=1e-8)


def test_binary_cross_entropy_of_extreme_logits():
    logits, labels = np.array([1e4, -1e4, 1e4, -1e4]), np.array([1.0, 0.0, 0.0, 1.0])
    with np.errstate(all="raise", under="ignore"):
        assert functional.binary_cross_entropy(logits, labels=labels) == 5e3


def test_mean_of_sequences():
    hidden = np.arange(18.0).reshape(9, 2)
    mean = functional.average_sequences(hidden, cu_seqlens=OFFSETS)
    np.testing.assert_array_equal(mean, [hidden[:3].mean(0), hidden[3], hidden[4:].mean(0)])


def test_neighbours():
    array = np.arange(1.0, 10)[:, None]
    found = functional.take_neighbours(array, cu_seqlens=OFFSETS, distances=(1, 0, -2))
    following, preceding = [2, 3, 0, 0, 6, 7, 8, 9, 0], [0, 0, 1, 0, 0, 0, 5, 6, 7]
    np.testing.assert_array_equal(found, np.stack([following, array[:, 0], preceding], axis=1))


@pytest.mark.parametrize("dtype", ["float16", bfloat16()])
def test_soft_cross_entropy_sums_low_precision_in_float32(dtype):
    logits = np.zeros((2, 70_000), dtype)  # 70,000 is infinite in float16, and beyond 256 bfloat16 counts no ones
    labels = np.zeros_like(logits)
    labels[:, 3] = 1
    loss = functional.soft_cross_entropy(logits, labels=labels)
    assert loss.dtype == logits.dtype
    assert float(loss) == pytest.approx(np.log(70_000), rel=2**-8)
