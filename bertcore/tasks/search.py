"""Nearest embeddings: search, similar pairs and communities, computed in blocks to bound memory."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bertcore import kernels
from bertcore.arguments import as_float32, check_count, check_function, check_numbers, naming_nearest, required
from bertcore.kernels import checks
from bertcore.kernels.arrays import ArrayLike
from bertcore.tasks.quantization import PRECISIONS, Codes
from bertcore.tasks.similarity import cos_sim, dot_score, floating, normalized
from bertcore.tasks.texts import progress_bar

if TYPE_CHECKING:
    from scipy.sparse import csr_array, sparray, spmatrix

    from bertcore.tasks.reading import PromptedReader

Score = Callable[[np.ndarray, np.ndarray], np.ndarray]


class BestRows:
    """Keep the `top_k` best rows of a corpus for each query; the corpus is added block by block.

    `scores` and `indices`, (queries, kept), have the best first; among ties the earlier row comes first.
    """

    def __init__(self, queries: int, top_k: int):
        self.top_k, self._rows = top_k, 0
        self.scores = np.empty((queries, 0), np.float32)
        self.indices = np.empty((queries, 0), np.int64)

    def add(self, scores: np.ndarray) -> None:
        """Add the scores of the corpus's next rows, (queries, rows)."""
        rows = np.broadcast_to(self._rows + np.arange(scores.shape[1]), scores.shape)
        self._rows += scores.shape[1]
        scores, rows = np.hstack([self.scores, scores]), np.hstack([self.indices, rows])
        best = largest(scores, self.top_k)
        self.scores, self.indices = (np.take_along_axis(array, best, axis=1) for array in (scores, rows))


def largest(scores: np.ndarray, count: int) -> np.ndarray:
    """Return the columns (rows, count) of each row's `count` largest values, largest first, ties by column."""
    if count < scores.shape[1]:
        least = np.partition(scores, scores.shape[1] - count, axis=1)[:, -count][:, None]
        kept = [np.flatnonzero(row) for row in scores >= least]
        orders = (
            found[np.argsort(-row[found], kind="stable")[:count]] for row, found in zip(scores, kept, strict=True)
        )
        return np.array(list(orders), np.int64).reshape(len(scores), count)
    return np.argsort(-scores, axis=1, kind="stable")


def ranking(
    scores: np.ndarray, texts: Sequence[str], top_k: int | None, return_documents: bool
) -> list[dict[str, Any]]:
    """Return the index and the score of each text, best first; ties keep their order."""
    checks.boolean("return_documents", return_documents)
    return [
        {"corpus_id": index, "score": float(scores[index])} | ({"text": texts[index]} if return_documents else {})
        for index in np.argsort(-scores, kind="stable")[:top_k].tolist()
    ]


@naming_nearest()
def semantic_search(
    query_embeddings: np.ndarray,
    corpus_embeddings: Any,
    query_chunk_size: int = 100,
    corpus_chunk_size: int = 50_000,
    top_k: int = 10,
    score_function: Score = cos_sim,
    *,
    corpus_precision: str = "float32",
    rescore: bool = True,
    rescore_multiplier: int | None = None,
    ranges: np.ndarray | None = None,
) -> list[list[dict[str, Any]]]:
    """Find the embeddings of a corpus that are nearest to each query.

    Args:
        query_embeddings: (queries, dim), or (dim,) for one; SciPy sparse matrices or PyTorch tensors, too.
        corpus_embeddings: (texts, dim), of the same types; with `corpus_precision`, the codes that
            `quantize_embeddings` returned; or a `VectorIndex`, which has its own precision and score.
        top_k: number of results for each query.
        score_function: maps (n, dim) and (m, dim) to (n, m), greater for closer ones; `cos_sim` or `dot_score` for
            sparse embeddings, which are compared by an inverted index. It is not called for codes or a `VectorIndex`.
        query_chunk_size, corpus_chunk_size: rows compared at once; they do not change the result.
        corpus_precision: "float32", "int8", "uint8", "binary" or "ubinary". Codes are compared with codes of the
            queries, in integer arithmetic.
        rescore: rescore the best by the dot product of the query and the decoded vectors, as sentence-transformers
            does; otherwise a score is an estimate of it (for bits, the share that agrees minus the share that does
            not).
        rescore_multiplier: how many times `top_k` rows are rescored (default: 4, or 64 for bits).
        ranges: the ranges with which the corpus was quantized to int8 or uint8.

    Returns:
        For each query a list of {"corpus_id": index, "score": float}, best first, ties by index.

    Raises ValueError for mismatched shapes, inf or NaN, and sizes that are not positive; TypeError for non-numbers.
    """
    if hasattr(corpus_embeddings, "search"):
        again = {"rescore": rescore, "rescore_multiplier": rescore_multiplier, "query_chunk_size": query_chunk_size}
        return corpus_embeddings.search(query_embeddings, top_k, **again)
    checks.choice("corpus_precision", corpus_precision, PRECISIONS)
    if corpus_precision != "float32":
        queries = as_float32("query_embeddings", check_table("query_embeddings", query_embeddings))
        corpus, codes = _codes_of(corpus_embeddings, corpus_precision, queries.shape[1], ranges)
        _check_counts(top_k=top_k, query_chunk_size=query_chunk_size)
        count = top_k * multiplier(corpus_precision, rescore_multiplier) if rescore else top_k
        answers = []
        for start in range(0, len(queries), query_chunk_size):
            some = queries[start : start + query_chunk_size]
            scores, rows = best_codes(some, [corpus], codes, count)
            if rescore:
                scores, rows = rescored(some, rows, lambda rows: codes.decoded(corpus[rows]), top_k)
            answers += [list(zip(*pair, strict=True)) for pair in zip(rows.tolist(), scores.tolist(), strict=True)]
        return [[{"corpus_id": index, "score": score} for index, score in pairs] for pairs in answers]
    table = sparse_table if is_sparse(query_embeddings) or is_sparse(corpus_embeddings) else check_table
    queries, corpus = table("query_embeddings", query_embeddings), table("corpus_embeddings", corpus_embeddings)
    if queries.shape[1] != corpus.shape[1]:
        raise ValueError(
            f"query_embeddings has shape {queries.shape}, corpus_embeddings {corpus.shape}, expected one width"
        )
    _check_counts(top_k=top_k, query_chunk_size=query_chunk_size, corpus_chunk_size=corpus_chunk_size)
    if not isinstance(queries, np.ndarray):
        found = _best_sparse(queries, corpus, top_k, score_function, query_chunk_size)
    else:
        found = _best_pairs(queries, corpus, top_k, score_function, (query_chunk_size, corpus_chunk_size))
    return [[{"corpus_id": index, "score": score} for index, score in pairs] for pairs in found]


def _codes_of(corpus: ArrayLike, precision: str, dimension: int, ranges: np.ndarray | None) -> tuple[np.ndarray, Codes]:
    """Return codes of sentence-transformers' forms as int8, or as uint8 for bits."""
    given, is_bits = check_numbers("corpus_embeddings", corpus), precision in ("binary", "ubinary")
    dtype, width = np.dtype("int8" if precision in ("int8", "binary") else "uint8"), -(-dimension // 8)
    width = width if is_bits else dimension
    if given.dtype != dtype:
        raise TypeError(f"corpus_embeddings has dtype {given.dtype}, expected {dtype} for {precision}")
    if given.ndim != 2 or given.shape[1] != width:
        raise ValueError(f"corpus_embeddings has shape {given.shape}, expected (texts, {width}) for {precision}")
    if not is_bits and ranges is None:
        raise ValueError(f"ranges is None, expected the ranges with which the corpus was quantized to {precision}")
    if precision in ("binary", "uint8"):
        given = given.view(np.uint8) ^ 0x80
    return given.view(np.uint8 if is_bits else np.int8), Codes(dimension, ranges=None if is_bits else ranges)


def multiplier(precision: str, given: int | None) -> int:
    """Return the default multiplier of rescored rows: bits need more of them for the same recall."""
    if given is None:
        return 64 if precision in ("binary", "ubinary") else 4  # 64: recall 0.97 of 50,000 texts, 16: 0.89
    return check_count("rescore_multiplier", given)


def best_codes(
    queries: np.ndarray, arrays: Sequence[np.ndarray], codes: Codes, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return scores and rows, (queries, kept), of the nearest codes in arrays whose rows follow each other."""
    asked, scale, shift = codes.asked(queries, arrays[0].dtype)
    backend = "numpy" if kernels.get_backend() == "numpy" else "numba"
    best, first = [], 0
    for array in arrays:
        found = kernels.nearest_codes(asked, array, count, backend=backend)
        best.append((found.scores * scale + shift, found.rows + first))
        first += len(array)
    scores, rows = (np.concatenate(each, axis=1) for each in zip(*best, strict=True))
    kept = largest(scores, count)
    return np.take_along_axis(scores, kept, axis=1), np.take_along_axis(rows, kept, axis=1)


def rescored(
    queries: np.ndarray, rows: np.ndarray, decoded: Callable[[np.ndarray], np.ndarray], top_k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return scores and rows (queries, top_k) of the best of `rows` by dot products with their decoded vectors."""
    rows = np.sort(rows, axis=1)
    found = [decoded(some) @ query for some, query in zip(rows, queries, strict=True)]
    scores = np.array(found, np.float32).reshape(rows.shape)
    kept = largest(scores, top_k)
    return np.take_along_axis(scores, kept, axis=1), np.take_along_axis(rows, kept, axis=1)


def _best_pairs(
    queries: np.ndarray, corpus: np.ndarray, top_k: int, score_function: Score, chunks: tuple[int, int]
) -> Iterator[list[tuple[int, float]]]:
    """Yield (index, score) of the best rows of the corpus for each query, compared in chunks of these sizes."""
    check_function("score_function", score_function)
    for start in range(0, len(queries), chunks[0]):
        some = queries[start : start + chunks[0]]
        best = BestRows(len(some), top_k)
        for first in range(0, len(corpus), chunks[1]):
            others = corpus[first : first + chunks[1]]
            scores = checked_scores("score_function", score_function(some, others), (len(some), len(others)))
            best.add(scores)
        for indices, scores in zip(best.indices.tolist(), best.scores.tolist(), strict=True):
            yield list(zip(indices, scores, strict=True))


BLOCK_DOCUMENTS = 1 << 14  # whose scores stay in the first- or second-level cache


class SparseIndex:
    """An inverted index of sparse embeddings: for each token the documents that contain it, with their weights.

    `documents` is a sparse matrix of SciPy in any format, and `shape` is its shape, (documents, tokens).
    """

    def __init__(self, documents: sparray | spmatrix):
        documents = as_float32("documents", sparse_table("documents", documents)).copy()
        documents.sum_duplicates()
        self.shape, offsets, rows, weights, total = documents.shape, [], [], [], 0
        for start in range(0, self.shape[0], BLOCK_DOCUMENTS):
            part = documents[start : start + BLOCK_DOCUMENTS].tocsc()
            offsets.append(part.indptr[:-1].astype(np.int64) + total)
            rows.append(part.indices.astype(np.int32) + start)
            weights.append(part.data)
            total += part.nnz
        self._offsets = np.concatenate([*offsets, np.array([total])])
        self._rows, self._weights = (
            np.concatenate([np.zeros(0, kind), *parts]) for kind, parts in ((np.int32, rows), (np.float32, weights))
        )

    def scores(self, queries: sparray | spmatrix) -> np.ndarray:
        """Return the dot products (queries, documents), float32, of a sparse matrix (queries, tokens) of SciPy."""
        queries = sparse_table("queries", queries)
        if queries.shape[1] != self.shape[1]:
            raise ValueError(f"queries has shape {queries.shape}, expected rows of {self.shape[1]}")
        given = queries.indptr.astype(np.int64), queries.indices.astype(np.int32), as_float32("queries", queries.data)
        scores = np.zeros((queries.shape[0], self.shape[0]), np.float32)
        postings = self._offsets, self._rows, self._weights
        if kernels.resolve_backend(None, on_gpu=False) == "numpy":
            sparse_scores(*given, *postings, self.shape[1], scores)
        elif scores.size:
            from bertcore.kernels._numba.sparse import sparse_scores as compiled

            compiled(*given, *postings, self.shape[1], scores)
        return scores

    def search(self, queries: sparray | spmatrix, top_k: int = 10) -> tuple[np.ndarray, np.ndarray]:
        """Return the scores and the indices of the best documents for each query, (queries, top_k), best first."""
        scores = self.scores(queries)
        best = BestRows(len(scores), check_count("top_k", top_k))
        best.add(scores)
        return best.scores, best.indices


def sparse_scores(
    queries: np.ndarray, tokens: np.ndarray, values: np.ndarray,
    offsets: np.ndarray, rows: np.ndarray, weights: np.ndarray, width: int, scores: np.ndarray,
) -> None:  # fmt: skip
    """Add the dot products of sparse queries and documents to `scores`, (queries, documents): the definition.

    Args:
        queries: offsets of the queries in `tokens` and `values`, (queries + 1,).
        tokens, values: the tokens of all queries, and their weights.
        offsets: offsets of each token of each block of documents in `rows` and `weights`, (blocks * width + 1,).
        rows, weights: the documents that contain the token, and their weights.
        width: number of tokens in the vocabulary.
        scores: float32.
    """
    for query, (first, last) in enumerate(zip(queries[:-1].tolist(), queries[1:].tolist(), strict=True)):
        for token, value in zip(tokens[first:last].tolist(), values[first:last], strict=True):
            for place in range(token, len(offsets) - 1, width):
                part = slice(offsets[place], offsets[place + 1])
                scores[query, rows[part]] += value * weights[part]


def is_sparse(embeddings: object) -> bool:
    """Return whether embeddings are a sparse matrix of SciPy or a sparse tensor of PyTorch."""
    return hasattr(embeddings, "tocsr") or bool(getattr(embeddings, "is_sparse", False))


def sparse_table(name: str, embeddings: Any) -> csr_array:
    """Return embeddings, one row or a table, sparse or dense, as a sparse matrix of finite numbers."""
    from bertcore.tasks.sparse_modules import as_table

    table = as_table(embeddings)
    if table.dtype.kind not in "fiu" or table.ndim != 2:
        raise TypeError(f"{name} holds {table.dtype}, expected a table of numbers")
    if not np.isfinite(table.data).all():
        raise ValueError(f"{name} holds inf or NaN, expected finite numbers")
    return table


def _best_sparse(
    queries: csr_array, corpus: csr_array, top_k: int, score_function: Score, chunk: int
) -> Iterator[list[tuple[int, float]]]:
    """Yield (index, score) of the best rows of a sparse corpus for each query, some queries at a time."""
    if score_function not in (cos_sim, dot_score):
        raise ValueError("score_function is custom, expected cos_sim or dot_score: the embeddings are sparse")
    if score_function is cos_sim:
        queries, corpus = (_of_length_1(each) for each in (queries, corpus))
    index = SparseIndex(corpus)
    for start in range(0, queries.shape[0], chunk):
        scores, indices = index.search(queries[start : start + chunk], top_k)
        for places, found in zip(indices.tolist(), scores.tolist(), strict=True):
            yield list(zip(places, found, strict=True))


def _of_length_1(table: csr_array) -> csr_array:
    lengths = np.sqrt(table.multiply(table).sum(axis=1)).clip(1e-12)
    return required("scipy.sparse").csr_array(table.multiply(1 / lengths[:, None]))


def checked_scores(name: str, scores: ArrayLike, expected: tuple[int, int]) -> np.ndarray:
    """Return what a function of scores returned, as an array. Raises ValueError for another shape than (rows, rows)."""
    scores = np.asarray(scores)
    if scores.shape != expected:
        raise ValueError(f"{name} returned shape {scores.shape}, expected {expected}")
    return scores


MINING = ("top_k", "max_pairs", "score_function", "query_chunk_size", "corpus_chunk_size")


def paraphrase_mining(model: PromptedReader, sentences: Sequence[str], **options: Any) -> list[list[Any]]:
    """Find the most similar pairs of sentences.

    `model` is a SentenceEncoder; `options` as for `paraphrase_mining_embeddings` and for the model's `encode`.
    """
    mining = {name: options.pop(name) for name in MINING if name in options}
    return paraphrase_mining_embeddings(model.encode(sentences, **options), **mining)


@naming_nearest()
def paraphrase_mining_embeddings(
    embeddings: np.ndarray,
    query_chunk_size: int = 1000,
    corpus_chunk_size: int = 50_000,
    max_pairs: int = 500_000,
    top_k: int = 100,
    score_function: Score = cos_sim,
) -> list[list[Any]]:
    """Find the most similar pairs of embeddings.

    Args:
        embeddings: (texts, dim).
        top_k: number of candidates for each embedding, before the best pairs are chosen.
        max_pairs: maximum number of pairs to return.
        score_function: maps (n, dim) and (m, dim) to (n, m); must be symmetric.
        query_chunk_size, corpus_chunk_size: rows compared at once; they do not change the result.

    Returns:
        [score, i, j] with i < j, best first.

    Raises ValueError for another shape, and sizes that are not positive.
    """
    rows = check_table("embeddings", embeddings)
    _check_counts(
        top_k=top_k, max_pairs=max_pairs, query_chunk_size=query_chunk_size, corpus_chunk_size=corpus_chunk_size
    )
    kept: list[tuple[float, int, int]] = []
    queued: set[tuple[int, int]] = set()
    chunks = query_chunk_size, corpus_chunk_size
    for of_one, found in enumerate(_best_pairs(rows, rows, top_k + 1, score_function, chunks)):
        others = [pair for pair in found if pair[0] != of_one][:top_k]  # each is nearest to itself
        _queue(kept, queued, of_one, others, max_pairs)
    return [[score, -left, -right] for score, left, right in sorted(kept, reverse=True)]


def _queue(
    kept: list[tuple[float, int, int]],
    queued: set[tuple[int, int]],
    of_one: int,
    others: list[tuple[int, float]],
    max_pairs: int,
) -> None:
    """Keep one text's pairs with `others` among the `max_pairs` best, a heap of (score, -i, -j)."""
    for other, score in others:
        pair = min(of_one, other), max(of_one, other)
        if pair in queued or (len(kept) == max_pairs and score <= kept[0][0]):
            continue
        queued.add(pair)
        entry = (score, -pair[0], -pair[1])
        if len(kept) < max_pairs:
            heapq.heappush(kept, entry)
        else:
            _, left, right = heapq.heappushpop(kept, entry)
            queued.discard((-left, -right))


@naming_nearest()
def community_detection(
    embeddings: np.ndarray,
    threshold: float = 0.75,
    min_community_size: int = 10,
    batch_size: int = 1024,
    show_progress_bar: bool = False,
) -> list[list[int]]:
    """Find groups of embeddings whose cosine with a central one is at least `threshold`, largest group first.

    Args:
        embeddings: (texts, dim).
        threshold: the least cosine.
        min_community_size: minimum number of texts in a group.
        batch_size: rows compared with all others at once; does not change the result.
        show_progress_bar: whether to show a bar.

    Returns:
        The indices of each group, the central one first, then by similarity. No text is in two groups: larger groups
        take precedence.

    Raises ValueError for another shape, and sizes that are not positive.
    """
    rows = normalized(floating(check_table("embeddings", embeddings)))
    if isinstance(threshold, bool) or not isinstance(threshold, int | float | np.number) or threshold != threshold:
        raise ValueError(f"threshold is {threshold!r}, expected a number")
    _check_counts(min_community_size=min_community_size, batch_size=batch_size)
    found = []
    with progress_bar(len(rows), show_progress_bar) as advance:
        for start in range(0, len(rows), batch_size):
            cosines = rows[start : start + batch_size] @ rows.T
            near = cosines >= threshold
            for offset in np.flatnonzero(near.sum(axis=1) >= min_community_size).tolist():
                members = np.flatnonzero(near[offset])
                order = np.argsort(-cosines[offset, members], kind="stable")
                found.append((start + offset, members[order].astype(np.uint32)))
            advance(len(cosines))
    return _without_overlap(sorted(found, key=lambda group: -len(group[1])), len(rows), min_community_size)


def _without_overlap(groups: list[tuple[int, np.ndarray]], texts: int, least: int) -> list[list[int]]:
    """Return the groups (center, members) without members of earlier groups; drop those smaller than `least`."""
    taken, kept = np.zeros(texts, bool), []
    for center, members in groups:
        free = members[~taken[members]]
        if not taken[center] and len(free) >= least:
            kept.append([center, *free[free != center].tolist()])
            taken[kept[-1]] = True
    return sorted(kept, key=len, reverse=True)


def check_table(name: str, rows: ArrayLike) -> np.ndarray:
    """Return rows (n, dim), one for (dim,). Raises TypeError for non-numbers, ValueError for inf, NaN, other shapes."""
    table = np.atleast_2d(check_numbers(name, rows))
    if table.ndim != 2:
        raise ValueError(f"{name} has shape {table.shape}, expected (texts, dim)")
    if not np.isfinite(table).all():
        raise ValueError(f"{name} holds inf or NaN, expected finite numbers")
    return table


def _check_counts(**counts: int) -> None:
    for name, value in counts.items():
        check_count(name, value)
