"""CUDA gradients of attention, and its forward with dropout: float16 and bfloat16 on tensor cores, float32 by FMA.

If a term added to the scores has a gradient (a bias, tables of relative positions, segments), the kernels write the
gradients of the scores to memory: for a bias as one array of the scores' size, else for a few heads at a time
(relative.py), with a row for each token, as long as the longest sequence. For biases by distance they write only sums
along diagonals, one row for 16 queries.
"""

from functools import partial

import numpy as np

from ... import _cuda
from ..._cuda.elements import dropout_arguments
from .problem import kernel_inputs, longest_sequences, set_strides, tile_count
from .relative import RelativeProducts, has_terms, some_heads

# The instantiations: {padded head_dim: (rows of a block, rows of the other side at once, buffers of these)};
# OnTensorCores in backward_tensor_cores.cuh and ByFma in backward_fp32.cuh.
MMA = {64: (64, 32, 2), 128: (64, 16, 2), 256: (32, 16, 1)}
FP32 = {64: (32, 64, 1), 128: (16, 32, 1), 256: (8, 16, 1)}
THREADS, MAX_HEAD_DIM, WARP = 128, 256, 32
NOWHERE = None, None, *[np.int32(0)] * 3  # an empty struct ScoreGradients
DISTANCES, TOKENS = 8, 8  # of a block of sum_bands and sum_scores, as in backward.cu
MMA_STRIP = 16  # rows


def _is_general(c_name, padded, has_added):
    """Return whether a kernel accepts terms added to the scores; the others serve only the usual case."""
    return has_added or c_name == "float" or padded > 128


def _goals(c_name, padded, is_general):
    """Return the goals of backward.cuh: registers hold the sums for keys and values, or for one of them."""
    apart = is_general and padded >= 128 and c_name != "float"
    return ("QUERIES", "OUTPUT", *(("KEYS", "VALUES") if apart else ("KEYS_AND_VALUES",)))


def _kernel(c_name, padded, goal, is_general):
    return _cuda.template("attention_backward", c_name, padded, goal, is_general)


INSTANTIATIONS = (
    *_cuda.instantiations("attention_deltas"),
    *(
        _kernel(c_name, padded, goal, is_general)
        for c_name in _cuda.C_TYPES.values()
        for padded in MMA
        for is_general in sorted({_is_general(c_name, padded, has_added) for has_added in (False, True)})
        for goal in _goals(c_name, padded, is_general)
    ),
    *("sum_bands", "sum_rows", "list_distances", "sum_segments"),
    *_cuda.instantiations("sum_scores"),
)
KERNELS = _cuda.Source(__file__, "backward.cu", INSTANTIATIONS)
STRIDES = np.dtype([("first", np.int64, 3), ("second", np.int64, 3)])
"""struct Strides of backward.cuh."""


def dropped_output(output, lse, query, key, arrays, problem, scoring):
    """Write the output of attention with dropout on its probabilities; `lse` is the forward's."""
    products = RelativeProducts(query, key, scoring.relative, problem)
    for heads in some_heads(problem, products):
        shared = None, lse, None, *arrays, *products.of(heads), problem, *_dropping(scoring)
        _launch("OUTPUT", (None, output), NOWHERE, heads, shared, problem, scoring, query)


def attention_backward(grad_output, query, key, value, output, lse, scoring, out):
    """Return (grad_query, grad_key, grad_value, grad_bias or None, gradients of the relative terms or None)."""
    check_head_dim(query)
    xp, is_packed = _cuda.array_module(query), scoring.cu_seqlens is not None
    arrays, problem = kernel_inputs(query, key, value, scoring)
    grad_output, output = (_contiguous(array, is_packed) for array in (grad_output, output))
    grads = out or [_empty(array, is_packed) for array in (query, key, value)]
    grad_query, grad_key, grad_value = grads
    longest = _longest_sequences(query, key, scoring)
    scores, bands = _Scores(query, longest, scoring, problem), _Bands(query, longest, scoring, problem)
    relative = None if scoring.relative is None else _RelativeGradients(scores, bands, scoring, problem)
    if query.size and key.size:
        deltas = xp.empty(output.size // query.shape[3], np.float32)
        kernel = _cuda.template("attention_deltas", _cuda.c_type(output.dtype))
        args = grad_output, output, deltas, np.int64(deltas.size), np.int32(query.shape[3])
        KERNELS.launch(kernel, (-(-deltas.size // THREADS),), (THREADS,), args)
        tiles = _cuda.vector_rows(_four_axes(grad_output, is_packed))
        set_strides(problem, grad_output=tiles)
        kept = tiles, xp.ascontiguousarray(lse), deltas
        sums = {"KEYS_AND_VALUES": (grad_key, grad_value), "KEYS": (grad_key, None), "VALUES": (None, grad_value)}
        products = RelativeProducts(query, key, scoring.relative, problem)
        for heads in some_heads(problem, products, scores):
            shared = *kept, *arrays, *products.of(heads), problem, *_dropping(scoring)
            for goal in _goals(*_variant(scoring, problem, query.dtype))[2:]:
                _launch(goal, sums[goal], NOWHERE, heads, shared, problem, scoring, key)
            to = scores.of(heads), bands.array, *scores.sizes
            _launch("QUERIES", (grad_query, None), to, heads, shared, problem, scoring, query)
            if relative is not None:
                relative.add(products, heads, grad_query, grad_key)
    else:
        for grad in grads:
            grad[...] = 0
    grad_bias = None if scoring.bias is None else _sum_broadcast(scores.of_bias(), scoring.bias)
    return *grads, grad_bias, None if relative is None else relative.result()


def check_head_dim(query):
    if query.shape[3] > MAX_HEAD_DIM:
        raise ValueError(f"query has head_dim {query.shape[3]}, expected at most {MAX_HEAD_DIM} on CUDA")


def _variant(scoring, problem, dtype):
    """Return (CUDA's name of the dtype, padded head_dim, whether the kernel is general)."""
    c_name, padded = _cuda.c_type(dtype), next(size for size in MMA if size >= int(problem["head_dim"]))
    has_added = any(it is not None for it in (scoring.attn_mask, scoring.bias, scoring.relative))
    return c_name, padded, _is_general(c_name, padded, has_added)


def shared_memory(padded, dtype, has_bands=False):
    """Return a block's bytes: its own two tiles, two of the other side in each buffer, and its scores."""
    rows, others, buffers = (FP32 if dtype == np.float32 else MMA)[padded]
    count = 2 * rows + 2 * buffers * others
    if dtype == np.float32:
        return 4 * (count * padded + rows * (others + 16))
    return 2 * count * (padded + 8) + has_bands * 4 * rows * (others + 8)


def _launch(goal, sums, scores, heads, shared, problem, scoring, array):
    """Launch the kernel of one goal.

    `sums`: (batch, heads, length, head_dim) arrays of contiguous rows, or None; `scores`: struct ScoreGradients;
    `heads`: a slice of the queries' heads; `array`: the queries or keys of the tiles, of the shape of `sums`.
    """
    c_name, padded, is_general = _variant(scoring, problem, array.dtype)
    rows, *_ = (FP32 if c_name == "float" else MMA)[padded]
    sequences, length, sharing = int(problem["sequences"]), array.shape[2], int(problem["heads"]) // array.shape[1]
    first, end = heads.start // sharing, heads.stop // sharing
    tiles = sequences * -(-length // rows) if scoring.cu_seqlens is None else length // rows + sequences
    strides = np.zeros((), STRIDES)[()]
    set_strides(strides, first=sums[0], second=sums[1])
    args = *sums, strides, *scores, np.int32(first), *shared
    shared_bytes = shared_memory(padded, array.dtype, has_bands=scores[1] is not None)
    KERNELS.launch(_kernel(c_name, padded, goal, is_general), (tiles, end - first), (THREADS,), args, shared_bytes)


def _dropping(scoring):
    return dropout_arguments(scoring.dropout_p, scoring.dropout_seed)


def _longest_sequences(query, key, scoring):
    """Return the longest lengths of queries and keys if gradients of scores are wanted, else zeros.

    Reads packed offsets, which waits for the GPU, unless a bound is given and there is no bias, whose gradient has this
    shape.
    """
    if scoring.bias is None and scoring.relative is None:
        return 0, 0
    if scoring.bias is None and scoring.cu_seqlens is not None and scoring.relative.longest is not None:
        return tuple(min(scoring.relative.longest, array.shape[2]) for array in (query, key))
    return longest_sequences(query, key, scoring.cu_seqlens, scoring.cu_seqlens_k)


def _sum_broadcast(grad_scores, bias):
    """Return the gradient of the bias, of size 1 along the axes of stride 0."""
    axes = tuple(axis for axis, stride in enumerate(bias.strides) if stride == 0 and grad_scores.size)
    total = grad_scores.sum(axis=axes, keepdims=True) if axes else grad_scores
    return total.astype(bias.dtype, copy=False)


class _Scores:
    """Gradients of the individual scores: of all heads if a bias has a gradient, else of some.

    Attributes:
        sizes: rows of a head, rows of a sequence or 0, and the longest sequence of keys: struct ScoreGradients.
    """

    def __init__(self, query, longest, scoring, problem):
        self._xp, self._is_whole, self._array = _cuda.array_module(query), scoring.bias is not None, None
        is_padded = self._is_whole or scoring.cu_seqlens is None
        rows = int(problem["sequences"]) * longest[0] if is_padded else query.shape[2]
        self.sizes = (*map(np.int32, (rows, longest[0] if is_padded else 0, longest[1])),)
        self._shape = query.shape[1], rows, longest[1]
        is_needed = self._is_whole or has_terms(scoring.relative)
        self.bytes_of_head = 0 if self._is_whole or not is_needed else 4 * rows * longest[1]
        if self._is_whole:
            self._array = self._xp.zeros(self._shape, np.float32)

    def reserve(self, count):
        """Allocate memory for `count` heads."""
        if self.bytes_of_head:
            self._array = self._xp.empty((count, *self._shape[1:]), np.float32)

    def of(self, heads):
        """Return (heads, rows, longest sequence of keys), or None."""
        if self._array is None:
            return None
        return self._array[heads] if self._is_whole else self._array[: heads.stop - heads.start]

    def of_bias(self):
        """Return (sequences, heads, longest queries, longest keys), zeros for hidden keys."""
        heads, rows, longest_k = self._shape
        longest_q = int(self.sizes[1])
        sequences = rows // max(longest_q, 1)
        return self._array.reshape(heads, sequences, longest_q, longest_k).transpose(1, 0, 2, 3)


class _Bands:
    """Gradients of scores summed along their diagonals, for biases by distance; `array` is None without them."""

    def __init__(self, query, longest, scoring, problem):
        self.array, self.longest, self.scoring, self.problem = None, longest, scoring, problem
        if scoring.relative is None or scoring.relative.position_bias is None:
            return
        is_mma, (_, padded, _) = query.dtype != np.float32, _variant(scoring, problem, query.dtype)
        self.rows, self.keys, _ = (MMA if is_mma else FP32)[padded]
        self.height = MMA_STRIP if is_mma else self.rows
        strips = tile_count(problem, scoring.cu_seqlens is not None, self.rows) * (self.rows // self.height)
        shape = strips, query.shape[1], (-(-longest[1] // self.keys) + 1) * self.keys
        self.array = _cuda.array_module(query).empty(shape, np.float32)

    def by_distance(self):
        """Return the gradient of the (rows, heads) biases by distance."""
        table, count = self.scoring.relative.position_bias, sum(self.longest) + 1
        xp, (rows, heads) = _cuda.array_module(table), table.shape
        grad, longest = xp.zeros((rows, heads), np.float32), tuple(map(np.int32, self.longest))
        if min(self.longest) and grad.size:
            distances = xp.empty((heads, count), np.float32)
            offsets = _cuda.contiguous(self.scoring.cu_seqlens, self.scoring.cu_seqlens_k)
            sizes = *longest, *map(np.int32, (self.rows, self.height, self.keys))
            args = self.array, distances, *offsets, self.problem, *sizes
            KERNELS.launch("sum_bands", (-(-count // DISTANCES), heads), (256,), args)
            distance_rows = _cuda.contiguous(self.scoring.relative.distance_rows)[0]
            args = distances, distance_rows, self.problem["distances"], grad, np.int32(heads), *longest
            KERNELS.launch("sum_rows", (rows,), (256,), args)
        return grad.astype(table.dtype, copy=False)


class _RelativeGradients:
    """The gradients of relative terms."""

    def __init__(self, scores, bands, scoring, problem):
        self._scores, self._bands, self._relative, self._problem = scores, bands, scoring.relative, problem
        self._offsets = _cuda.contiguous(*scoring[:2])
        self._is_packed, relative = scoring.cu_seqlens is not None, scoring.relative
        self._listed, self._found = None, {}
        for name in ("position_key", "position_query"):
            table = getattr(relative, name)
            if table is not None:
                self._found[name] = _cuda.array_module(table).zeros(table.shape, table.dtype)
        for name in ("query_for_position", "segment_scores"):
            array = getattr(relative, name)
            if array is not None:
                self._found[name] = _empty(array, self._is_packed)
                self._found[name][...] = 0

    def add(self, products, heads, grad_query, grad_key):
        """Add the gradients of some heads, whose scores' gradients are ready; also to those of queries and keys."""
        relative, found = self._relative, self._found
        if relative.position_key is not None:
            of_vectors = found.get("query_for_position", grad_query)
            products.differentiate_queries(
                partial(self._sum_by_row, heads, False), heads, of_vectors, found["position_key"]
            )
        if relative.position_query is not None:
            products.differentiate_keys(
                partial(self._sum_by_row, heads, True), heads, grad_key, found["position_query"]
            )
        if relative.segment_scores is not None:
            self._sum_by_segment(heads, found["segment_scores"])

    def result(self):
        """Return the gradients after every head was added."""
        if self._relative.position_bias is not None:
            self._found["position_bias"] = self._bands.by_distance()
        return type(self._relative)(None, **self._found)

    def _sum_by_row(self, heads, of_keys, table):
        """Write to (heads, tokens, rows) the sums for each query, or key, by row of the tables, times the scale."""
        count, tokens, _ = table.shape
        args = self._scores.of(heads), table, *self._offsets, *self._listed_distances(), self._problem
        kernel, grid = _cuda.template("sum_scores", _cuda.c_type(table.dtype)), (-(-tokens // TOKENS), count)
        numbers = *self._scores.sizes, np.int32(tokens), np.bool_(of_keys)
        KERNELS.launch(kernel, grid, (WARP, TOKENS), (*args, *numbers))

    def _sum_by_segment(self, heads, grad):
        """Write the sums for each query over keys of its segment and of other segments, times the scale."""
        batch, _, length, _ = grad.shape
        count, tokens, xp = heads.stop - heads.start, batch * length, _cuda.array_module(grad)
        table = xp.empty((count, tokens, 2), np.float32)
        segments = _cuda.contiguous(self._relative.segment_ids, self._relative.segment_ids_k)
        args = self._scores.of(heads), table, *self._offsets, *segments, self._problem
        grid = -(-tokens // THREADS), count
        KERNELS.launch("sum_segments", grid, (THREADS,), (*args, *self._scores.sizes, np.int32(tokens)))
        grad[:, heads] = table.reshape(count, batch, length, 2).transpose(1, 0, 2, 3).astype(grad.dtype)

    def _listed_distances(self):
        """Return (starts, distances) of list_distances, computed once."""
        if self._listed is None:
            relative, (rows, longest) = self._relative, (int(self._problem["rows"]), self._bands.longest)
            xp = _cuda.array_module(relative.distance_rows)
            self._listed = xp.empty(rows + 1, np.int32), xp.empty(sum(longest) + 1, np.int32)
            distance_rows = _cuda.contiguous(relative.distance_rows)[0]
            args = distance_rows, self._problem["distances"], *self._listed, *map(np.int32, longest)
            KERNELS.launch("list_distances", (rows + 1,), (WARP,), args)
        return self._listed


# ---- layout of arrays: (tokens, heads, head_dim) when packed, else (batch, heads, length, head_dim) ------------------


def _contiguous(array, is_packed):
    xp = _cuda.array_module(array)
    return xp.ascontiguousarray(array[0].transpose(1, 0, 2) if is_packed else array)


def _empty(like, is_packed):
    """Return an uninitialised (batch, heads, length, size) array."""
    shape = (like.shape[2], like.shape[1], like.shape[3]) if is_packed else like.shape
    return _four_axes(_cuda.array_module(like).empty(shape, like.dtype), is_packed)


def _four_axes(array, is_packed):
    return array.transpose(1, 0, 2)[None] if is_packed else array
