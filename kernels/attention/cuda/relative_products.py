"""The terms of relative position and of segments in the CUDA backward of attention, by tables of products.

What a query or a key adds to a score depends on the row of the table alone: one product of all queries, or keys, with a
table says it for every row, (heads, tokens, rows) in float32. Their gradients are those of the scores, added up by row;
from these one product each gives those of the vectors and of the table. The tokens of a batch are counted on.

Such arrays of all heads are many times what a layer keeps: at 32 sequences of 512 tokens, 12 heads and 512 rows 403 MB
each, and there were five. So a few heads are computed at a time, in the same memory: as many as MOST_BYTES hold, but at
least those that share a head of keys. Of one head they take 4 bytes a token for each row of each table, and for each
key of the longest sequence: 100 MB there.

A sum of scores goes from the farthest key behind the query to the farthest before it. The products are cuBLASLt's,
whose order of sums is one for each shape; a gradient of a table is summed over all tokens, as that of a weight is.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from ... import _cuda
from ..._cuda import cublaslt
from .problem import contiguous

MOST_BYTES = 256 << 20


class Products(NamedTuple):
    """What the kernels take in struct Terms of backward.cuh, unscaled, of some heads; None where absent."""

    to_position: Any = None  # (heads, tokens, rows)
    from_position: Any = None  # (heads, tokens of keys, rows)
    segment_scores: Any = None  # (heads, tokens, 2)
    segment_ids: Any = None
    segment_ids_k: Any = None


def some_heads(problem, *parts):
    """Slices of the heads of queries that are computed together: whole groups that share a head of keys. Has `parts`
    (which say what they take by `bytes_of_head`) reserve memory for them."""
    heads, sharing = int(problem["heads"]), int(problem["sharing"])
    at_once = min(heads, MOST_BYTES // max(sum(part.bytes_of_head for part in parts), 1))
    count = max(at_once // sharing, 1) * sharing
    for part in parts:
        part.reserve(count)
    return [slice(first, min(first + count, heads)) for first in range(0, heads, count)]


class RelativeProducts:
    """The products of one call, of some heads after the others; none where `relative` is None.

    Attributes:
        bytes_of_head: what those of one head take.
    """

    def __init__(self, query, key, relative, problem):
        self._relative, self._sharing, self.bytes_of_head = relative, int(problem["sharing"]), 0
        if relative is None:
            return
        self._query, self._key = query if relative.query_for_position is None else relative.query_for_position, key
        self._segments = contiguous(relative.segment_ids, relative.segment_ids_k)
        self._scores = None if relative.segment_scores is None else by_token(relative.segment_scores)
        tables = (query, relative.position_key), (key, relative.position_query)
        self._shapes = [None if table is None else (_tokens(array), len(table)) for array, table in tables]
        self.bytes_of_head = 4 * sum(math.prod(shape) for shape in self._shapes if shape is not None)

    def reserve(self, count):
        """Have memory for as many heads."""
        if self._relative is not None:
            xp = _cuda.array_module(self._query)
            self._rooms = [
                None if shape is None else xp.empty((count * math.prod(shape),), np.float32) for shape in self._shapes
            ]

    def of(self, heads):
        """The Products of the heads of this slice, in the place of those before."""
        relative = self._relative
        if relative is None:
            return Products()
        to_position = from_position = None
        if relative.position_key is not None:
            to_position = self._room(0, heads, np.float32)
            table = _by_head(relative.position_key, heads)
            cublaslt.multiply(to_position, _heads_of(self._query, heads), table, transpose_right=True)
        if relative.position_query is not None:
            from_position = self._room(1, heads, np.float32)
            keys, table = self._keys(self._key, heads), _by_head(relative.position_query, heads)
            for one in self._sharers():
                cublaslt.multiply(from_position[one], keys, table[one], transpose_right=True)
        scores = None if self._scores is None else self._scores[heads]
        return Products(to_position, from_position, scores, *self._segments)

    def differentiate_queries(self, sum_scores, heads, grad_vectors, grad_table):
        """Add to the gradients of the vectors that met position_key, and write that table's.

        `sum_scores` writes the gradients of the scores, added up by row, to (heads, tokens, rows) that it is given.
        """
        per_row = self._room(0, heads, self._query.dtype)
        sum_scores(per_row)
        _add_product(grad_vectors, heads, per_row, _by_head(self._relative.position_key, heads))
        vectors, grad_table = _heads_of(self._query, heads), _by_head(grad_table, heads)
        cublaslt.multiply(grad_table, per_row, vectors, transpose_left=True)

    def differentiate_keys(self, sum_scores, heads, grad_key, grad_table):
        """The same of the keys, which met position_query."""
        per_row = self._room(1, heads, self._key.dtype)
        sum_scores(per_row)
        keys, table = self._keys(self._key, heads), _by_head(self._relative.position_query, heads)
        grad_table = _by_head(grad_table, heads)
        for one in self._sharers():
            _add_product(grad_key, self._heads_of_keys(heads), per_row[one], table[one])
            cublaslt.multiply(grad_table[one], per_row[one], keys, transpose_left=True)

    def _room(self, which, heads, dtype):
        shape = heads.stop - heads.start, *self._shapes[which]
        return self._rooms[which].view(dtype)[: math.prod(shape)].reshape(shape)

    def _heads_of_keys(self, heads):
        return slice(heads.start // self._sharing, heads.stop // self._sharing)

    def _keys(self, array, heads):
        return _heads_of(array, self._heads_of_keys(heads))

    def _sharers(self):
        """Of some heads of queries the first ones of each head of keys, then the second ones, and so on."""
        return [slice(first, None, self._sharing) for first in range(self._sharing)]


def by_token(array):
    """(batch, heads, length, size) as (heads, batch * length, size) of float32, contiguous."""
    batch, heads, length, size = array.shape
    xp = _cuda.array_module(array)
    return xp.ascontiguousarray(array.transpose(1, 0, 2, 3).astype(np.float32).reshape(heads, batch * length, size))


def _tokens(array):
    return array.shape[0] * array.shape[2]


def _heads_of(array, heads):
    """These heads of (batch, heads, length, size), (heads, batch * length, size); of one batch as they lie."""
    if len(array) == 1:
        return array[0, heads]
    chosen = array[:, heads].transpose(1, 0, 2, 3)
    return chosen.reshape(len(chosen), _tokens(array), array.shape[3])


def _by_head(table, heads):
    """These heads of a (rows, heads, head_dim) table, (heads, rows, head_dim), as they lie."""
    return table[:, heads].transpose(1, 0, 2)


def _add_product(array, heads, left, right):
    """Add left @ right to these heads of (batch, heads, length, size)."""
    target = _heads_of(array, heads)
    cublaslt.multiply(target, left, right, addend=target)
    if len(array) > 1:
        batch, _, length, size = array.shape
        array[:, heads] = target.reshape(-1, batch, length, size).transpose(1, 0, 2, 3)
