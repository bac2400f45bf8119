"""Model.encode_packed: sequences of any lengths in, packed hidden states out."""

import numpy as np
import pytest

from bertcore import AutoModel
from tests.refusals import refuses
from tests.tolerances import assert_close

CONFIG = {
    "model_type": "bert", "vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3,
    "intermediate_size": 40, "max_position_embeddings": 16, "initializer_range": 0.3,
}  # fmt: skip


@pytest.fixture(scope="module")
def model():
    return AutoModel.from_config(CONFIG)


def test_equal_to_the_padded_door(model, cpu_backend):
    sequences = [np.array([1, 2, 3], np.uint64), [], np.arange(16, dtype=np.uint8), np.array([7], ">i4")]
    ids, mask = np.zeros((4, 16), int), np.zeros((4, 16), int)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)], mask[row, : len(sequence)] = sequence, 1
    hidden, cu_seqlens = model.encode_packed(sequences)
    assert cu_seqlens.tolist() == [0, 3, 3, 19, 20]
    assert_close(hidden, model(ids, mask).last_hidden_state[mask == 1])


@pytest.mark.parametrize("sequences", [[], [[]], [[], []]])
def test_nothing(model, cpu_backend, sequences):
    hidden, cu_seqlens = model.encode_packed(sequences)
    assert hidden.shape == (0, 24)
    assert cu_seqlens.tolist() == [0] * (len(sequences) + 1)


@pytest.mark.parametrize(("sequences", "error", "message"), [
    ([[1], [2, 50]], ValueError, r"input_ids\[1\]\[1\] is 50, expected 0 to 49: the model has 50 words"),
    ([[], [-1]], ValueError, r"input_ids\[1\]\[0\] is -1"),
    ([[1], [1] * 17], ValueError, r"input_ids\[1\] has 17 tokens, the model has 16 positions"),
    ([[1.0]], TypeError, r"input_ids\[0\] is float64 of shape \(1,\), expected integers"),
    ([[1], 3], TypeError, r"input_ids\[1\] is int64 of shape \(\)"),
    ([[1], [True, 2]], TypeError, r"input_ids\[1\] holds bool, expected integers"),
    ([[1], None], TypeError, r"input_ids\[1\] is NoneType, expected a list of integers or an array"),
    *((wrong, TypeError, "input_ids is .*, expected a list of seq") for wrong in (None, 3, "a", {}, np.array(1))),
    ([[[1]]], ValueError, r"input_ids\[0\] is int64 of shape \(1, 1\)"),
])  # fmt: skip
def test_wrong_ids(model, sequences, error, message):
    refuses(error, message, model.encode_packed, sequences)


def test_dropout_is_that_of_padded_sequences():
    ids = np.arange(1, 6)
    model = AutoModel.from_config(CONFIG | {"hidden_dropout_prob": 0.5}).train(seed=3)
    padded = model(ids[None]).last_hidden_state[0]
    model.passes = 0  # the same bits again
    np.testing.assert_array_equal(model.encode_packed([ids])[0], padded)
    assert np.abs(padded - model.eval().encode_packed([ids])[0]).max() > 0.1
