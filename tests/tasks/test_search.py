"""Search, mining, communities, similarities and quantisation, beside what their definitions say."""

import itertools
import warnings

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from bertcore.tasks.quantization import quantize_embeddings
from bertcore.tasks.search import (
    SparseIndex,
    community_detection,
    largest,
    paraphrase_mining_embeddings,
    semantic_search,
)
from bertcore.tasks.similarity import SIMILARITIES, cos_sim, dot_score, maxsim, pairwise_angle_sim
from tests.refusals import refuses

ROWS = np.random.default_rng(0).normal(size=(37, 5)).astype(np.float32)


@given(st.lists(st.lists(st.integers(0, 3), min_size=7, max_size=7), min_size=1, max_size=5), st.integers(1, 9))
def test_the_largest_of_each_row(rows, count):
    rows = np.array(rows, np.float32)
    expected = [sorted(range(7), key=lambda index: -row[index])[:count] for row in rows.tolist()]
    np.testing.assert_array_equal(largest(rows, count), expected)


@pytest.mark.parametrize("sizes", [(1, 1), (3, 10), (100, 1000)])
def test_semantic_search(sizes):
    options = {"query_chunk_size": sizes[0], "corpus_chunk_size": sizes[1], "score_function": dot_score}
    scores = ROWS[:7] @ ROWS.T
    found = semantic_search(ROWS[:7], ROWS, top_k=4, **options)
    assert [[hit["corpus_id"] for hit in hits] for hits in found] == np.argsort(-scores, axis=1)[:, :4].tolist()
    np.testing.assert_allclose([[hit["score"] for hit in hits] for hits in found], -np.sort(-scores)[:, :4], rtol=1e-5)
    assert len(semantic_search(ROWS[0], ROWS[:2], top_k=9)[0]) == 2
    assert semantic_search(ROWS[:1], ROWS[:0]) == [[]] and semantic_search(ROWS[:0], ROWS) == []


def test_paraphrase_mining():
    scores = cos_sim(ROWS, ROWS)
    pairs = sorted(([float(scores[i, j]), i, j] for i, j in itertools.combinations(range(37), 2)), reverse=True)
    found = paraphrase_mining_embeddings(ROWS, max_pairs=20, query_chunk_size=5, corpus_chunk_size=7)
    assert [pair[1:] for pair in found] == [pair[1:] for pair in pairs[:20]]
    np.testing.assert_allclose([pair[0] for pair in found], [pair[0] for pair in pairs[:20]], atol=1e-6)
    nearest = {tuple(sorted((i, int(j)))) for i, j in enumerate((scores - 2 * np.eye(37)).argmax(axis=1))}
    assert {tuple(pair[1:]) for pair in paraphrase_mining_embeddings(ROWS, top_k=1)} == nearest
    assert paraphrase_mining_embeddings(ROWS[:1]) == []


def test_communities(capsys):
    centers = np.eye(5, dtype=np.float32)[[0, 1, 2]]
    noise = np.random.default_rng(1).normal(size=(30, 5), scale=0.05)
    labels = np.repeat([0, 1, 2], [15, 10, 5])
    found = community_detection(
        centers[labels] + noise, threshold=0.9, min_community_size=6, batch_size=4, show_progress_bar=True
    )
    assert [sorted(group) for group in found] == [list(range(15)), list(range(15, 25))]
    assert "30/30" in capsys.readouterr().err
    assert community_detection(ROWS[:0]) == [] and community_detection(ROWS, threshold=0.99) == []


@pytest.mark.parametrize("name", SIMILARITIES)
def test_similarities(name, monkeypatch):
    monkeypatch.setattr("bertcore.tasks.similarity.BLOCK", 100)
    exact = {
        "cosine": lambda a, b: a @ b / np.linalg.norm(a) / np.linalg.norm(b),
        "dot": lambda a, b: a @ b,
        "euclidean": lambda a, b: -np.linalg.norm(a - b),
        "manhattan": lambda a, b: -np.abs(a - b).sum(),
    }[name]
    rows = ROWS.astype(np.float64)
    expected = [[exact(a, b) for b in rows[:9]] for a in rows]
    np.testing.assert_allclose(SIMILARITIES[name].of_all(ROWS, ROWS[:9]), expected, atol=1e-5)
    pairs = [exact(a, b) for a, b in zip(rows, rows[::-1], strict=True)]
    np.testing.assert_allclose(SIMILARITIES[name].of_pairs(ROWS, ROWS[::-1]), pairs, atol=1e-5)
    refuses(ValueError, r"a has shape \(37, 5\), b \(3, 4\)", SIMILARITIES[name].of_all, ROWS, np.zeros((3, 4)))
    refuses(ValueError, "b has rows of different lengths", SIMILARITIES[name].of_all, ROWS, [[1.0], [1.0, 2.0]])
    refuses(TypeError, "a has dtype <U1, expected numbers", SIMILARITIES[name].of_pairs, ["a"], ROWS)
    with pytest.raises(ValueError, match=r"a has shape \(37, 5\), b \(36, 5\), expected the same"):
        SIMILARITIES[name].of_pairs(ROWS, ROWS[1:])


def test_angles_name_their_own_arguments():
    refuses(ValueError, r"x has shape \(37, 5\), y \(36, 5\), expected the same", pairwise_angle_sim, ROWS, ROWS[1:])
    refuses(TypeError, "y has dtype", pairwise_angle_sim, ROWS, ["a"])


def test_bytes():
    ranges = np.array([[-1.0] * 5, [1.0] * 5], np.float32)
    found = quantize_embeddings(ROWS, "uint8", ranges=ranges)
    steps = np.clip(np.floor((ROWS.astype(np.float64) + 1) * 127.5), 0, 255)
    assert (np.abs(found - steps) <= 1).all() and (found == steps).mean() > 0.98 and found.dtype == np.uint8
    signed = quantize_embeddings(ROWS, "int8", ranges=ranges)
    assert signed.dtype == np.int8 and (signed.astype(int) + 128 == found).all()
    with pytest.warns(UserWarning, match="the ranges come from only 37 embeddings, .*: give ranges"):
        own = quantize_embeddings(ROWS, "uint8")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quantize_embeddings(np.tile(ROWS, (3, 1)), "uint8")
    assert (own.min(axis=0) == 0).all() and (own.max(axis=0) >= 254).all()
    np.testing.assert_array_equal(own[:3], quantize_embeddings(ROWS[:3], "uint8", calibration_embeddings=ROWS))
    constant = quantize_embeddings(np.ones((100, 2), np.float32), "uint8")
    assert not constant.any()


def test_bits():
    found = quantize_embeddings(ROWS, "ubinary")
    np.testing.assert_array_equal(np.unpackbits(found, axis=1)[:, :5], ROWS > 0)
    assert found.shape == (37, 1) and found.dtype == np.uint8
    signed = quantize_embeddings(ROWS, "binary")
    assert signed.dtype == np.int8 and (signed.astype(int) + 128 == found).all()
    assert quantize_embeddings(ROWS[:0], "binary").shape == (0, 1)
    assert quantize_embeddings(ROWS[:0], "int8").shape == (0, 5)


@pytest.mark.parametrize(("arguments", "error", "message"), [
    ((ROWS, "int4"), ValueError, "precision is 'int4', expected one of 'float32', 'int8'"),
    ((ROWS.astype(np.int8), "int8"), TypeError, "embeddings has dtype int8, expected floating point"),
    (([[1.0], [1.0, 2.0]], "int8"), ValueError, "embeddings has rows of different lengths"),
    ((ROWS[:1], "int8"), ValueError, r"embeddings has shape \(1, 5\), expected several rows of"),
    ((ROWS[0], "uint8"), ValueError, r"embeddings has shape \(5,\), expected several rows of"),
])  # fmt: skip
def test_what_cannot_be_quantized(arguments, error, message):
    refuses(error, message, quantize_embeddings, *arguments)
    with pytest.raises(ValueError, match=r"ranges has shape \(2, 4\), expected \(2, 5\)"):
        quantize_embeddings(ROWS, "int8", ranges=np.zeros((2, 4)))


@pytest.mark.parametrize("options", [{"top_k": 0}, {"query_chunk_size": -1}, {"corpus_chunk_size": 2.5}])
def test_counts_are_checked(options):
    with pytest.raises((TypeError, ValueError), match=f"{next(iter(options))} is .*, expected a positive integer"):
        semantic_search(ROWS, ROWS, **options)


def test_scores_are_a_functions():
    refuses(
        TypeError, "score_function is 'dot', expected a function", semantic_search, ROWS, ROWS, score_function="dot"
    )
    expected = r"score_function returned shape \(\), expected \(\d+, \d+\)"
    refuses(ValueError, expected, semantic_search, ROWS, ROWS, score_function=lambda *given: None)
    refuses(TypeError, "has no argument topk; did you mean top_k", semantic_search, ROWS, ROWS, topk=1)


def test_embeddings_of_two_widths_are_told_of_by_their_names():
    with pytest.raises(ValueError, match=r"query_embeddings has shape \(37, 5\), corpus_embeddings \(37, 4\)"):
        semantic_search(ROWS, ROWS[:, :4])


def test_what_is_not_finite_or_no_number():
    wrong = ROWS.copy()
    wrong[2, 1] = np.nan
    for search in (semantic_search, lambda rows, _: paraphrase_mining_embeddings(rows)):
        refuses(ValueError, "embeddings holds inf or NaN", search, wrong, ROWS)
    refuses(ValueError, "corpus_embeddings holds inf or NaN", semantic_search, ROWS, wrong)
    refuses(TypeError, r"query_embeddings has dtype .*, expected numbers", semantic_search, "a", ROWS)
    for threshold in ("a", None, float("nan")):
        refuses(ValueError, r"threshold is .*, expected a number", community_detection, ROWS, threshold=threshold)
    refuses(ValueError, "embeddings holds inf or NaN", quantize_embeddings, wrong, "uint8")
    large, codes = np.full((2, 5), 1e39), {"corpus_precision": "int8", "ranges": np.array([[-1.0] * 5, [1.0] * 5])}
    corpus = quantize_embeddings(ROWS, "int8", ranges=codes["ranges"])
    for name, call, arguments, options in (
        ("query_embeddings", semantic_search, (large, corpus), codes),
        ("embeddings", quantize_embeddings, (large, "float32"), {}),
        (r"a\[0\]", maxsim, (large, ROWS), {}),
        ("documents", SparseIndex, (scipy.sparse.csr_array(large),), {}),
        ("queries", SparseIndex(scipy.sparse.csr_array(ROWS)).scores, (scipy.sparse.csr_array(large),), {}),
    ):
        refuses(ValueError, f"{name} holds numbers beyond the range of float32", call, *arguments, **options)
    for ranges in (wrong[2:4], [[1] * 5, [0] * 5]):
        with pytest.raises(ValueError, match="ranges holds inf or NaN, or a minimum above"):
            quantize_embeddings(ROWS, "uint8", ranges=ranges)


@pytest.mark.parametrize("dtype", ["int8", "float16"])
def test_squares_beyond_the_dtype(dtype):
    rows = (ROWS * (40 if dtype == "int8" else 1e4)).clip(-60000, 60000).astype(dtype)
    wide = rows.astype(np.float32)
    np.testing.assert_allclose(cos_sim(rows, rows), cos_sim(wide, wide), atol=1e-6)
    options = {"threshold": 0.5, "min_community_size": 2}
    assert community_detection(rows, **options) == community_detection(wide, **options) != []
