"""The nearest codes: bits by what differs, int8 by dot products; every backend against plain Python."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertcore import kernels
from bertcore.kernels import Nearest, nearest_codes, use_backend
from tests.kernels.strategies import layouts, with_layout
from tests.refusals import refuses

SIZES = st.sampled_from([0, 1, 2, 3, 7, 31, 39, 64, 101, 160])


def codes(seed, shape, dtype):
    """Bytes that include both ends of their range."""
    rng, ends = np.random.default_rng(seed), np.iinfo(dtype)
    made = rng.integers(ends.min, ends.max + 1, shape, dtype=dtype)
    made[rng.random(shape) < 0.1] = ends.min
    return made


def oracle(query, corpus, top_k):
    """Scores and rows of each query, from Python's integers."""
    found = []
    for asked in query.tolist():
        if query.dtype == np.uint8:
            keys = [(sum((a ^ b).bit_count() for a, b in zip(asked, row, strict=True))) for row in corpus.tolist()]
        else:
            keys = [-sum(a * b for a, b in zip(asked, row, strict=True)) for row in corpus.tolist()]
        found.append(sorted((key, row) for row, key in enumerate(keys))[:top_k])
    sign = 1 if query.dtype == np.uint8 else -1
    return [[sign * key for key, _ in each] for each in found], [[row for _, row in each] for each in found]


@pytest.mark.parametrize("backend", ["numpy", "numba"])
@given(st.integers(0, 5), SIZES, SIZES, SIZES, SIZES, st.sampled_from([np.uint8, np.int8]), layouts())
def test_nearest(backend, seed, queries, rows, width, top_k, dtype, layout):
    query, corpus = codes(seed, (min(queries, 3), width), dtype), codes(seed + 9, (rows, width), dtype)
    top_k = max(top_k, 1)
    corpus[rows // 2 : rows // 2 + 1] = corpus[:1]  # of equal ones the first
    found = nearest_codes(*(with_layout(array, layout) for array in (query, corpus)), top_k, backend=backend)
    assert (found.scores.tolist(), found.rows.tolist()) == oracle(query, corpus, top_k)
    assert found.rows.shape == (len(query), min(top_k, rows))
    assert (type(found), found.scores.dtype, found.rows.dtype) == (Nearest, np.int32, np.int64)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("top_k", [1, 10, 4000])
def test_many_rows_on_threads(dtype, top_k):
    query, corpus = codes(1, (3, 48), dtype), codes(2, (40_000, 48), dtype)
    expected = nearest_codes(query, corpus, top_k, backend="numpy")
    for threads in (1, 2):
        before = kernels.get_num_threads()
        kernels.set_num_threads(threads)
        try:
            found = nearest_codes(query, corpus, top_k, backend="numba")
        finally:
            kernels.set_num_threads(before)
        np.testing.assert_array_equal(found.scores, expected.scores)
        np.testing.assert_array_equal(found.rows, expected.rows)


def test_errors():
    codes, others, wide = (np.zeros((1, 3), dtype) for dtype in (np.int8, np.uint8, np.int16))
    refuses(TypeError, "query has dtype int16, expected uint8", nearest_codes, wide, codes, 1)
    refuses(TypeError, "corpus has dtype uint8, expected int8", nearest_codes, codes, others, 1)


def test_cuda_has_none(monkeypatch):
    """An operation without a file says so, whatever the backend."""
    monkeypatch.setitem(kernels.dispatch.IMPLEMENTATIONS, "numpy", "absent")
    kernels.dispatch.implementation.cache_clear()
    try:
        with use_backend("numpy"):
            message = "nearest_codes has no implementation on backend 'numpy'"
            refuses(NotImplementedError, message, nearest_codes, *[np.zeros((1, 3), np.int8)] * 2, 1)
    finally:
        kernels.dispatch.implementation.cache_clear()
