"""bench.encode: batches, pooling, and the rows of its report, with a library that the test makes up."""

import argparse

import numpy as np
import pytest

from bench import encode
from bench.peers.compare import Plan
from bench.peers.libraries import Session

ROWS = [[5, 2], [7, 1, 1], [3], [4, 4, 4, 4, 4]]


class Tokenizer:
    """Texts are numbers of ROWS."""

    def encode_batch_fast(self, texts):
        return [argparse.Namespace(ids=ROWS[int(text)]) for text in texts]


def states_of(batch):
    """Hidden states (id, 1) on real tokens, NaN-free rubbish at padding."""
    ids = np.where(batch.is_real, batch.input_ids, 99)
    return lambda: np.stack([ids, np.ones_like(ids)], -1).astype(np.float32)


@pytest.mark.parametrize("size", [1, 2, 4, 9])
def test_vectors_do_not_depend_on_batches_and_padding(size):
    found = encode.in_sorted_batches(Session(states_of), Tokenizer(), size, ["0", "1", "2", "3"])
    means = np.array([[np.mean(row), 1] for row in ROWS])
    np.testing.assert_allclose(found, means / np.linalg.norm(means, axis=1, keepdims=True), rtol=1e-6)


def test_wrong_vectors_are_not_timed():
    truth = np.eye(3, dtype=np.float32)
    found = {"bertcore": lambda texts: truth, "torch": lambda texts: truth[::-1], "openvino": lambda texts: 1 / 0}
    rows = encode.compare_encoders(encode.Case((4, 5, 6)), "int8", ["a", "b", "c"], truth, found, {}, {}, Plan(1, 1, 0))
    assert {row["library"]: row["status"] for row in rows} == {
        "bertcore": "ok", "torch": "wrong", "openvino": "failed",
    }  # fmt: skip
    (timed,) = (row for row in rows if row["median_s"] is not None)
    assert (timed["tokens"], timed["time_vs_ours"]) == (15, 1)
