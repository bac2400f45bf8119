"""CUDA kernels of attention's gradients and of its forward with dropout, which cuda.py launches.

float16 and bfloat16 on tensor cores, float32 by FMA. Where something added to scores has a gradient (a bias, tables of
relative positions, segments), those of the scores are written out, as one array of their size. Of biases by distance
only sums along diagonals are, a row of the scores for 16 queries.
"""

import numpy as np

from .. import _cuda
from .._cuda.dropping import dropping
from .problem import contiguous, kernel_inputs, longest_sequences, set_strides, tile_count
from .relative_cuda import has_terms
from .relative_products import differentiate_key_terms, differentiate_query_terms, products_of

# What the kernels are instantiated for: {padded head_dim: (rows of a block, rows that it meets at once, buffers of
# these)}, OnTensorCores in backward_tensor_cores.cuh and ByFma in backward_fp32.cuh.
MMA = {64: (64, 32, 2), 128: (64, 16, 2), 256: (32, 16, 1)}
FP32 = {64: (32, 64, 1), 128: (16, 32, 1), 256: (8, 16, 1)}
THREADS, MAX_HEAD_DIM, WARP = 128, 256, 32
DISTANCES, TOKENS = 8, 8  # of a block of sum_bands and sum_scores, as in backward.cu
MMA_STRIP = 16  # rows


def _is_general(c_name, padded, has_added):
    """Whether a kernel also takes what is added to scores; those without are for the usual case alone."""
    return has_added or c_name == "float" or padded > 128


def _goals(c_name, padded, is_general):
    """Those of backward.cuh: registers hold the sums of keys and of values, or only one of them."""
    apart = is_general and padded >= 128 and c_name != "float"
    return ("QUERIES", "OUTPUT", *(("KEYS", "VALUES") if apart else ("KEYS_AND_VALUES",)))


def _kernel(c_name, padded, goal, is_general):
    return f"attention_backward<{c_name}, {padded}, {goal}, {str(is_general).lower()}>"


INSTANTIATIONS = (
    *(f"attention_deltas<{c_name}>" for c_name in _cuda.C_TYPES.values()),
    *(
        _kernel(c_name, padded, goal, is_general)
        for c_name in _cuda.C_TYPES.values()
        for padded in MMA
        for is_general in sorted({_is_general(c_name, padded, has_added) for has_added in (False, True)})
        for goal in _goals(c_name, padded, is_general)
    ),
    *("sum_bands", "sum_rows", "list_distances", "sum_scores", "sum_segments"),
)
KERNELS = _cuda.Module(__file__, "backward.cu", INSTANTIATIONS)


def dropped_output(output, lse, query, key, arrays, problem, scoring):
    """Write the output of attention whose probabilities dropout has thinned; lse is that of the forward."""
    shared = None, lse, None, *arrays, *products_of(query, key, scoring.relative), problem, *_dropping(scoring)
    _launch("OUTPUT", (None, _memory(output, scoring), None, None), (0, 0), shared, problem, scoring, query)


def attention_backward(grad_output, query, key, value, output, lse, scoring, out):
    """(grad_query, grad_key, grad_value, grad_bias or None, gradients of the relative terms or None)."""
    check_head_dim(query)
    xp, is_packed = _cuda.array_module(query), scoring.cu_seqlens is not None
    arrays, problem = kernel_inputs(query, key, value, scoring)
    grad_output, output = (_contiguous(array, is_packed) for array in (grad_output, output))
    grad_query, grad_key, grad_value = (_zeros(array, is_packed) for array in (query, key, value))
    longest = _longest_sequences(query, key, scoring)
    grad_scores, bands = _room_for_scores(query, longest, scoring, problem), _Bands(query, longest, scoring, problem)
    if query.size and key.size:
        deltas = _cuda.empty(xp, output.size // query.shape[3], np.float32)
        _launch_deltas(grad_output, output, deltas)
        tiles = _cuda.vector_rows(_four_axes(grad_output, is_packed))
        set_strides(problem, grad_output=tiles)
        kept = tiles, xp.ascontiguousarray(lse), deltas
        shared = *kept, *arrays, *products_of(query, key, scoring.relative), problem, *_dropping(scoring)
        sums = {"KEYS_AND_VALUES": (grad_key, grad_value), "KEYS": (grad_key, None), "VALUES": (None, grad_value)}
        for goal in _goals(*_variant(scoring, problem, query.dtype))[2:]:
            _launch(goal, (*sums[goal], None, None), longest, shared, problem, scoring, key)
        _launch("QUERIES", (grad_query, None, grad_scores, bands.array), longest, shared, problem, scoring, query)
    grads = [_four_axes(grad, is_packed) for grad in (grad_query, grad_key, grad_value)]
    grad_bias = None if scoring.bias is None else _sum_broadcast(grad_scores, scoring.bias)
    grad_relative = None
    if scoring.relative is not None:
        sums = _Sums(grad_scores, longest, scoring, problem)
        grad_relative = _relative_gradients(sums, bands, query, key, *grads[:2])
    for target, grad in zip(out or (), grads, strict=False):
        _cuda.copy(target, grad)
    return *(out or grads), grad_bias, grad_relative


def check_head_dim(query):
    if query.shape[3] > MAX_HEAD_DIM:
        raise ValueError(f"query has head_dim {query.shape[3]}, the CUDA kernels take at most {MAX_HEAD_DIM}")


def _variant(scoring, problem, dtype):
    """(CUDA's name of the dtype, padded head_dim, whether the kernel is general)."""
    c_name, padded = _cuda.c_type(dtype), next(size for size in MMA if size >= int(problem["head_dim"]))
    has_added = any(it is not None for it in (scoring.attn_mask, scoring.bias, scoring.relative))
    return c_name, padded, _is_general(c_name, padded, has_added)


def shared_memory(padded, dtype, has_bands=False):
    """The bytes of a block's tiles: two of its own and two, in each buffer, of those that it meets; of its scores."""
    rows, others, buffers = (FP32 if dtype == np.float32 else MMA)[padded]
    count = 2 * rows + 2 * buffers * others
    if dtype == np.float32:
        return 4 * (count * padded + rows * (others + 16))
    return 2 * count * (padded + 8) + has_bands * 4 * rows * (others + 8)


def _launch_deltas(grad_output, output, deltas):
    blocks, sizes = -(-deltas.size // THREADS), (np.int64(deltas.size), np.int32(output.size // deltas.size))
    kernel = f"attention_deltas<{_cuda.c_type(output.dtype)}>"
    KERNELS.launch(kernel, (blocks,), (THREADS,), (grad_output, output, deltas, *sizes))


def _launch(goal, sums, longest, shared, problem, scoring, array):
    """`sums`: the first four arguments; `array`: the (batch, heads, length, head_dim) queries or keys of the tiles."""
    c_name, padded, is_general = _variant(scoring, problem, array.dtype)
    rows, *_ = (FP32 if c_name == "float" else MMA)[padded]
    sequences, length = int(problem["sequences"]), array.shape[2]
    tiles = sequences * -(-length // rows) if scoring.cu_seqlens is None else length // rows + sequences
    kernel, args = _kernel(c_name, padded, goal, is_general), (*sums, *map(np.int32, longest), *shared)
    shared_bytes = shared_memory(padded, array.dtype, has_bands=sums[3] is not None)
    KERNELS.launch(kernel, (tiles, array.shape[1]), (THREADS,), args, shared_bytes)


def _dropping(scoring):
    return dropping(scoring.dropout_p, scoring.dropout_seed)


def _longest_sequences(query, key, scoring):
    """Those of queries and of keys where gradients of scores are wanted. Packed ones are read: it waits for the GPU."""
    if scoring.bias is None and scoring.relative is None:
        return 0, 0
    return longest_sequences(query, key, scoring.cu_seqlens, scoring.cu_seqlens_k)


def _room_for_scores(query, longest, scoring, problem):
    """Zeros for the gradients of scores; None where sums along diagonals are enough."""
    if scoring.bias is None and not has_terms(scoring.relative):
        return None
    shape = int(problem["sequences"]), query.shape[1], *longest
    return _cuda.array_module(query).zeros(shape, np.float32)


def _sum_broadcast(grad_scores, bias):
    """The gradient of the bias, of size 1 along the axes of stride 0."""
    axes = tuple(axis for axis, stride in enumerate(bias.strides) if stride == 0 and grad_scores.size)
    total = grad_scores.sum(axis=axes, keepdims=True) if axes else grad_scores
    return total.astype(bias.dtype, copy=False)


class _Bands:
    """Gradients of scores summed up along their diagonals, for biases by distance; `array` is None without."""

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
        """The gradient of the (rows, heads) biases by distance."""
        table, count = self.scoring.relative.position_bias, sum(self.longest) + 1
        xp, (rows, heads) = _cuda.array_module(table), table.shape
        grad, longest = xp.zeros((rows, heads), np.float32), tuple(map(np.int32, self.longest))
        if min(self.longest) and grad.size:
            distances = xp.empty((heads, count), np.float32)
            offsets = contiguous(self.scoring.cu_seqlens, self.scoring.cu_seqlens_k)
            sizes = *longest, *map(np.int32, (self.rows, self.height, self.keys))
            args = self.array, distances, *offsets, self.problem, *sizes
            KERNELS.launch("sum_bands", (-(-count // DISTANCES), heads), (256,), args)
            distance_rows = contiguous(self.scoring.relative.distance_rows)[0]
            args = distances, distance_rows, self.problem["distances"], grad, np.int32(heads), *longest
            KERNELS.launch("sum_rows", (rows,), (256,), args)
        return grad.astype(table.dtype, copy=False)


class _Sums:
    """Sums of the gradients of scores, by what was added to them."""

    def __init__(self, grad_scores, longest, scoring, problem):
        self.grad_scores, self.longest, self.relative, self.problem = grad_scores, longest, scoring.relative, problem
        self.offsets = contiguous(scoring.cu_seqlens, scoring.cu_seqlens_k)
        self.distance_rows, self._listed = contiguous(self.relative.distance_rows)[0], None

    def by_row(self, tokens, of_keys):
        """(heads, tokens, rows): of each query, or key, by row of the tables, times the scale."""
        columns = int(self.problem["rows"])
        numbers = np.int32(columns), self.problem["scale"], np.bool_(of_keys)
        shape = (tokens, columns), TOKENS, (WARP, TOKENS)
        return self._sum("sum_scores", *shape, self._listed_distances, numbers)

    def by_segment(self, tokens):
        """(heads, tokens, 2): of each query for keys of its segment and of another, times the scale."""
        shape, segments = ((tokens, 2), THREADS, (THREADS,)), (self.relative.segment_ids, self.relative.segment_ids_k)
        return self._sum("sum_segments", *shape, lambda: contiguous(*segments), (self.problem["scale"],))

    def _sum(self, kernel, shape, tokens_of_block, block, integers, numbers):
        xp, heads = _cuda.array_module(self.grad_scores), int(self.problem["heads"])
        if not self.grad_scores.size:
            return xp.zeros((heads, *shape), np.float32)
        table = xp.empty((heads, *shape), np.float32)
        if table.size:
            sizes = self.problem["sequences"], np.int32(heads), *map(np.int32, (*self.longest, shape[0]))
            args = self.grad_scores, table, *self.offsets, *integers(), *sizes, *numbers
            KERNELS.launch(kernel, (-(-shape[0] // tokens_of_block), heads), block, args)
        return table

    def _listed_distances(self):
        """(starts, distances) of list_distances, made once."""
        if self._listed is None:
            xp, rows = _cuda.array_module(self.grad_scores), int(self.problem["rows"])
            self._listed = xp.empty(rows + 1, np.int32), xp.empty(sum(self.longest) + 1, np.int32)
            args = self.distance_rows, self.problem["distances"], *self._listed, *map(np.int32, self.longest)
            KERNELS.launch("list_distances", (rows + 1,), (WARP,), args)
        return self._listed


def _relative_gradients(sums, bands, query, key, grad_query, grad_key):
    """The gradients of the terms; adds what is the queries' and keys' own to theirs."""
    relative, found = sums.relative, {}
    if relative.position_bias is not None:
        found["position_bias"] = bands.by_distance()
    if relative.position_key is not None:
        per_row = sums.by_row(query.shape[0] * query.shape[2], False)
        of_query, found["position_key"] = differentiate_query_terms(per_row, query, relative)
        if relative.query_for_position is None:
            _add_by_token(grad_query, of_query)
        else:
            found["query_for_position"] = _as_tokens(of_query, relative.query_for_position, sums.offsets[0] is not None)
    if relative.position_query is not None:
        per_row = sums.by_row(key.shape[0] * key.shape[2], True)
        of_key, found["position_query"] = differentiate_key_terms(per_row, query, key, relative)
        _add_by_token(grad_key, of_key)
    if relative.segment_scores is not None:
        by_segment = sums.by_segment(query.shape[0] * query.shape[2])
        found["segment_scores"] = _as_tokens(by_segment, relative.segment_scores, sums.offsets[0] is not None)
    return type(relative)(None, **found)


def _as_tokens(by_token, like, is_packed):
    """(heads, tokens, size) in the shape and dtype of `like`, (batch, heads, length, size)."""
    array = _four_axes(_zeros(like, is_packed), is_packed)
    _add_by_token(array, by_token)
    return array


def _add_by_token(array, by_token):
    """Add (heads, tokens, size) of float32 to a (batch, heads, length, size) array."""
    batch, heads, length, size = array.shape
    added = by_token.reshape(heads, batch, length, size).transpose(1, 0, 2, 3)
    array[...] = (array.astype(np.float32) + added).astype(array.dtype)


# ---- how arrays lie: (tokens, heads, head_dim) when packed, else (batch, heads, length, head_dim) --------------------


def _memory(array, scoring):
    """A (batch, heads, length, head_dim) array in the order of its memory."""
    return array if scoring.cu_seqlens is None else array[0].transpose(1, 0, 2)


def _contiguous(array, is_packed):
    xp = _cuda.array_module(array)
    return xp.ascontiguousarray(array[0].transpose(1, 0, 2) if is_packed else array)


def _zeros(array, is_packed):
    shape = (array.shape[2], array.shape[1], array.shape[3]) if is_packed else array.shape
    return _cuda.zeros(_cuda.array_module(array), shape, array.dtype)


def _four_axes(array, is_packed):
    return array.transpose(1, 0, 2)[None] if is_packed else array
