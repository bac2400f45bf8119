"""CUDA attention with tables of relative positions and segments: 16 bits on tensor cores, float32 by FMA.

The backward uses tables of products. The term that a query or a key adds to a score depends only on the row of the
table: one product of all queries, or keys, with a table computes it for every row, (heads, tokens, rows) in float32.
The gradients of these products are the gradients of the scores summed by row; one more product each gives the gradients
of the vectors and of the table. Tokens are numbered through the batch.

Such arrays of all heads would be many times larger than the arrays that a layer keeps: 403 MB each at 32 sequences of
512 tokens, 12 heads and 512 rows. So a few heads are computed at a time, in the same memory: as many as fit into
MOST_BYTES, but at least those that share a head of keys. One head takes 4 bytes a token for each row of each table, and
for each key of the longest sequence.

A sum of scores runs from the farthest key after the query to the farthest before it. cuBLASLt computes the products,
with one order of summation for each shape; a table's gradient is summed over all tokens, like a weight's.
"""

import math
from typing import NamedTuple

import numpy as np

from ... import _cuda
from ..._cuda import cublaslt
from ...arrays import NativeArray
from ..arguments import heads_first
from .problem import set_strides

# {padded head_dim: (queries per block, keys at once)}: RelativeTiling in relative_tensor_cores.cuh. In float32 the
# smaller tiles are for sm_75, where both tables, their queries and a mask need 256 bytes more than its 64 KB.
MMA = {32: (64, 32), 64: (64, 32), 128: (32, 16)}
FP32 = {32: ((64, 32),), 64: ((32, 32), (32, 16)), 128: ((16, 16), (8, 16))}
FP32_THREADS = 128
WARP_ROWS, WARP_BYTES = 16, 2048  # queries of a warp, and its bytes for products, in relative_tensor_cores.cuh
MAX_HEAD_DIM = 128
ADDED = ("NOTHING", "EVERYTHING")  # of problem.cuh

INSTANTIATIONS = [
    *_cuda.instantiations("relative_attention_forward", MMA, ADDED, types=("__half", "__nv_bfloat16")),
    *(
        _cuda.template("relative_attention_forward_fp32", size, *tile, added)
        for size, tiles in FP32.items()
        for added in ADDED
        for tile in (tiles[:1] if added == "NOTHING" else tiles)
    ),
    *_cuda.instantiations("relative_attention_probs"),
]
KERNELS = _cuda.Source(__file__, "relative.cu", instantiations=INSTANTIATIONS)

STRIDED = ("query_for_position", "position_key", "position_query", "segment_scores")
SEGMENTS = ("segment_ids", "segment_ids_k")
RELATIVE = np.dtype([*((name, np.int64, 3) for name in STRIDED), *((name, np.int64) for name in SEGMENTS)])
"""struct Relative of relative_terms.cuh."""


def has_terms(relative):
    """Return whether there are terms other than biases by distance, which all kernels accept."""
    if relative is None:
        return False
    return any(it is not None for it in (relative.position_key, relative.position_query, relative.segment_scores))


def terms(relative):
    """Return these kernels' arguments after the problem: the arrays of STRIDED, those of SEGMENTS, struct Relative."""
    tables = (heads_first(table) for table in (relative.position_key, relative.position_query))
    tiles = (None if it is None else _cuda.vector_rows(it) for it in (relative.query_for_position, *tables))
    arrays = dict(zip(STRIDED, (*tiles, relative.segment_scores), strict=True))
    struct = np.zeros((), dtype=RELATIVE)[()]
    set_strides(struct, **arrays)
    segments = _cuda.contiguous(*(getattr(relative, name) for name in SEGMENTS))
    for name, ids in zip(SEGMENTS, segments, strict=True):
        struct[name] = 0 if ids is None else ids.shape[1]
    return *arrays.values(), *segments, struct


def forward_kernel(problem, dtype, is_packed, added, *tiles):
    """Return (kernel, queries per block, threads, shared bytes); tiles: the arrays in shared memory, or None."""
    padded = next(size for size in MMA if size >= int(problem["head_dim"]))
    added, present = added if added in ADDED else "EVERYTHING", [array is not None for array in tiles]
    if dtype == np.float32:
        rows, keys, shared_bytes = fp32_tile(padded, added, _cuda.device().shared_bytes, *present)
        return _cuda.template("attention_forward_fp32", padded, rows, keys, added), rows, FP32_THREADS, shared_bytes
    (rows, _), shared_bytes = MMA[padded], shared_memory(padded, *present)
    kernel = _cuda.template("attention_forward", _cuda.c_type(dtype), padded, added)
    return kernel, rows, rows // WARP_ROWS * 32, shared_bytes


def shared_memory(padded, *present):
    """Return a block's bytes in half precision: the tiles of attention and of RelativeTiles, and the products."""
    rows, keys = MMA[padded]
    count = rows + 2 * keys + _tile_rows(rows, keys, *present)
    return 2 * count * (padded + 8) + rows // WARP_ROWS * WARP_BYTES


def fp32_tile(padded, added, most, *present):
    """Return (queries per block, keys at once, bytes of a block) in float32.

    It is the first size whose block, with the shared memory that its kernel declares (Stage in problem.cuh), fits into
    `most` bytes.
    """
    for rows, keys in FP32[padded]:
        probs = max(keys * padded, rows * (keys + 16))  # the probabilities reuse the memory of the keys
        shared_bytes = 4 * ((rows + keys + _tile_rows(rows, keys, *present)) * padded + probs)
        if shared_bytes + (0 if added == "NOTHING" else 4 * (rows + keys)) <= most:
            break
    return rows, keys, shared_bytes


def _tile_rows(rows, keys, has_query_for_position, has_position_key, has_position_query):
    """Return the rows of RelativeTiles in relative_terms.cuh."""
    band = -(-(rows + keys - 1) // keys) * keys
    return has_query_for_position * rows + (has_position_key + has_position_query) * band


MOST_BYTES = 256 << 20


class Products(NamedTuple):
    """Struct Terms of backward.cuh: the products of some heads, unscaled; None if absent."""

    to_position: NativeArray | None = None  # (heads, tokens, rows)
    from_position: NativeArray | None = None  # (heads, tokens of keys, rows)
    segment_scores: NativeArray | None = None  # (heads, tokens, 2)
    segment_ids: NativeArray | None = None
    segment_ids_k: NativeArray | None = None


def some_heads(problem, *parts):
    """Return slices of the queries' heads that are computed together: whole groups that share a head of keys.

    The `parts`, which need `bytes_of_head`, reserve memory for them.
    """
    heads, sharing = int(problem["heads"]), int(problem["sharing"])
    at_once = min(heads, MOST_BYTES // max(sum(part.bytes_of_head for part in parts), 1))
    count = max(at_once // sharing, 1) * sharing
    for part in parts:
        part.reserve(count)
    return [slice(first, min(first + count, heads)) for first in range(0, heads, count)]


class RelativeProducts:
    """The products of one call, some heads at a time; none if `relative` is None.

    Attributes:
        bytes_of_head: the size of one head's products.
    """

    def __init__(self, query, key, relative, problem):
        self._relative, self._sharing, self.bytes_of_head = relative, int(problem["sharing"]), 0
        if relative is None:
            return
        self._query, self._key = query if relative.query_for_position is None else relative.query_for_position, key
        self._segments = _cuda.contiguous(relative.segment_ids, relative.segment_ids_k)
        self._scores = None if relative.segment_scores is None else by_token(relative.segment_scores)
        tables = (query, relative.position_key), (key, relative.position_query)
        self._shapes = [None if table is None else (_tokens(array), len(table)) for array, table in tables]
        self.bytes_of_head = 4 * sum(math.prod(shape) for shape in self._shapes if shape is not None)

    def reserve(self, count):
        """Allocate memory for `count` heads."""
        if self._relative is not None:
            xp = _cuda.array_module(self._query)
            self._scratch = [
                None if shape is None else xp.empty((count * math.prod(shape),), np.float32) for shape in self._shapes
            ]

    def of(self, heads):
        """Return the Products of the heads of this slice; they overwrite the previous ones."""
        relative = self._relative
        if relative is None:
            return Products()
        to_position = from_position = None
        if relative.position_key is not None:
            to_position = self._scratch_of(0, heads, np.float32)
            table = _by_head(relative.position_key, heads)
            cublaslt.multiply(to_position, _heads_of(self._query, heads), table, transpose_right=True)
        if relative.position_query is not None:
            from_position = self._scratch_of(1, heads, np.float32)
            keys, table = self._keys(self._key, heads), _by_head(relative.position_query, heads)
            for one in self._sharers():
                cublaslt.multiply(from_position[one], keys, table[one], transpose_right=True)
        scores = None if self._scores is None else self._scores[heads]
        return Products(to_position, from_position, scores, *self._segments)

    def differentiate_queries(self, sum_scores, heads, grad_vectors, grad_table):
        """Add to the gradients of the vectors multiplied with position_key, and write that table's gradient.

        `sum_scores` writes the gradients of the scores, summed by row, to the (heads, tokens, rows) array it is given.
        """
        per_row = self._scratch_of(0, heads, self._query.dtype)
        sum_scores(per_row)
        _add_product(grad_vectors, heads, per_row, _by_head(self._relative.position_key, heads))
        vectors, grad_table = _heads_of(self._query, heads), _by_head(grad_table, heads)
        cublaslt.multiply(grad_table, per_row, vectors, transpose_left=True)

    def differentiate_keys(self, sum_scores, heads, grad_key, grad_table):
        """Do the same for the keys, which are multiplied with position_query."""
        per_row = self._scratch_of(1, heads, self._key.dtype)
        sum_scores(per_row)
        keys, table = self._keys(self._key, heads), _by_head(self._relative.position_query, heads)
        grad_table = _by_head(grad_table, heads)
        for one in self._sharers():
            _add_product(grad_key, self._heads_of_keys(heads), per_row[one], table[one])
            cublaslt.multiply(grad_table[one], per_row[one], keys, transpose_left=True)

    def _scratch_of(self, which, heads, dtype):
        shape = heads.stop - heads.start, *self._shapes[which]
        return self._scratch[which].view(dtype)[: math.prod(shape)].reshape(shape)

    def _heads_of_keys(self, heads):
        return slice(heads.start // self._sharing, heads.stop // self._sharing)

    def _keys(self, array, heads):
        return _heads_of(array, self._heads_of_keys(heads))

    def _sharers(self):
        """Return slices of the queries' heads: the first one for each head of keys, then the second ones, and so on."""
        return [slice(first, None, self._sharing) for first in range(self._sharing)]


def by_token(array):
    """Return (batch, heads, length, size) as (heads, batch * length, size) of float32, contiguous."""
    batch, heads, length, size = array.shape
    xp = _cuda.array_module(array)
    return xp.ascontiguousarray(array.transpose(1, 0, 2, 3).astype(np.float32).reshape(heads, batch * length, size))


def _tokens(array):
    return array.shape[0] * array.shape[2]


def _heads_of(array, heads):
    """Return these heads of (batch, heads, length, size) as (heads, batch * length, size); a view of a batch of one."""
    if len(array) == 1:
        return array[0, heads]
    chosen = array[:, heads].transpose(1, 0, 2, 3)
    return chosen.reshape(len(chosen), _tokens(array), array.shape[3])


def _by_head(table, heads):
    """Return these heads of a (rows, heads, head_dim) table as a (heads, rows, head_dim) view."""
    return table[:, heads].transpose(1, 0, 2)


def _add_product(array, heads, left, right):
    """Add left @ right to these heads of (batch, heads, length, size)."""
    target = _heads_of(array, heads)
    cublaslt.multiply(target, left, right, addend=target)
    if len(array) > 1:
        batch, _, length, size = array.shape
        array[:, heads] = target.reshape(-1, batch, length, size).transpose(1, 0, 2, 3)
