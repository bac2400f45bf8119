"""Pooling and batching on their own."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertcore.tasks.sentence_encoder.modules import pool
from bertcore.tasks.similarity import normalized
from bertcore.tasks.texts import BATCHES_PER_WINDOW, GROUP_TEXTS, batches, grouped, lower_cased, windows
from tests.tokenization.corpus import HARD_TEXTS


@given(st.lists(st.integers(0, 50)), st.integers(1, 60))
def test_batches_partition_the_texts(lengths, budget):
    found = list(batches(lengths, budget))
    assert sorted(itertools.chain(*found)) == list(range(len(lengths)))
    for batch in found:
        assert batch
        assert len(batch) == 1 or sum(lengths[index] for index in batch) <= budget


@given(st.lists(st.integers(0, 50)), st.integers(1, 5))
def test_windows_keep_the_order_and_are_bounded(lengths, budget):
    sequences = [np.zeros(length, np.int32) for length in lengths]
    found = list(windows(sequences, budget))
    assert [id(s) for s in itertools.chain(*found)] == [id(s) for s in sequences]
    for window in found:
        assert sum(max(1, len(s)) for s in window[:-1]) < BATCHES_PER_WINDOW * budget


@given(st.lists(st.text(max_size=20)))
def test_groups_keep_the_order(texts):
    assert list(itertools.chain(*grouped(texts))) == texts


def test_groups_are_bounded():
    sizes = [len(group) for group in grouped("x" for _ in range(3000))]
    assert max(sizes) == GROUP_TEXTS and sum(sizes) == 3000
    assert [len(group) for group in grouped(["x" * 10**6, "y", "z" * 10**6, "w"])] == [1, 1, 1, 1]


def test_a_text_without_tokens_pools_to_zeros():
    hidden = np.arange(1, 13, dtype=np.float32).reshape(4, 3)
    found = pool(hidden, np.array([0, 0, 3, 3, 4, 4], np.int32), ("max", "mean"))
    expected = [[0] * 6, [7, 8, 9, 4, 5, 6], [0] * 6, [10, 11, 12, 10, 11, 12], [0] * 6]
    np.testing.assert_array_equal(found, expected)


def test_half_precision_is_pooled_in_float32():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for dtype in (np.float16, ml_dtypes.bfloat16):
        hidden = np.random.default_rng(0).normal(size=(300, 5)).astype(dtype)
        found = pool(hidden, np.array([0, 300]), ("mean",))
        assert found.dtype == np.float32
        np.testing.assert_allclose(found[0], hidden.astype(np.float64).mean(axis=0), atol=1e-6)


def test_normalized_leaves_zeros():
    np.testing.assert_allclose(normalized(np.array([[3.0, 4.0], [0.0, 0.0]])), [[0.6, 0.8], [0, 0]])


def test_texts_are_in_lower_case_as_tokenizers_write_it():
    from tokenizers.normalizers import Lowercase

    for text in [*HARD_TEXTS, "\u03a3\u0399\u03a3\u03a5\u03a6\u039f\u03a3 \u03a3"]:  # which end in a sigma
        assert lower_cased(text) == Lowercase().normalize_str(text)
