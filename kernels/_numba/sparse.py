"""Dot products of sparse rows over an inverted index, for search."""

from .compile import parallel_kernel
from .rows import share, task_count

GRAIN = 1 << 15  # additions


def sparse_scores(queries, tokens, values, offsets, rows, weights, width, scores):
    """Add the dot products of sparse queries and documents to `scores`; see bertcore.tasks.search.sparse_scores.

    A task computes pairs of a block of documents and a query, so that one query occupies all threads, and the scores of
    a block stay in a cache near the core while the tokens of the query are added. Sums are in the order of the query's
    tokens: neither the block nor the number of threads changes a bit.

    Args:
        queries, tokens, values: offsets, tokens and weights of the queries: int64, int32, float32.
        offsets, rows, weights: offsets of each token of each block, int64, its documents, int32, and weights, float32.
        width: number of tokens of the vocabulary.
        scores: float32 (queries, documents).
    """
    blocks = (len(offsets) - 1) // width if width else 0
    work = len(tokens) * (len(rows) // max(width, 1) + 1)
    _scores(queries, tokens, values, offsets, rows, weights, width, blocks, scores, task_count(work, GRAIN))


@parallel_kernel
def _scores(queries, tokens, values, offsets, rows, weights, width, blocks, scores, task, tasks):
    count = len(queries) - 1
    for pair in range(share(blocks * count, task, tasks), share(blocks * count, task + 1, tasks)):
        block, query = pair // count, pair % count
        for entry in range(queries[query], queries[query + 1]):
            place, value = block * width + tokens[entry], values[entry]
            for posting in range(offsets[place], offsets[place + 1]):
                scores[query, rows[posting]] += value * weights[posting]
