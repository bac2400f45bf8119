"""Hostile input to attention and its positions."""

import numpy as np
import pytest

from bertcore import kernels
from tests.kernels import arrays
from tests.kernels.arrays import f32
from tests.kernels.attention_forms import DENSE, OFFSETS, PACKED, attend
from tests.kernels.refusals import check_refused
from tests.kernels.strategies import normal

pytestmark = pytest.mark.usefixtures("on_numpy")


GRADIENT = f32(2, 4, 5, 8)


def backward(grad_output=DENSE[0], **options):
    """A call of attention_backward."""
    return lambda: arrays.backward("attention", grad_output, *DENSE, **options)


# Each: the call, the error, and what its message must hold (the argument, what came, what was expected).
HOSTILE = {
    "attention, return_lse a text": (
        lambda: kernels.attention(*DENSE, return_lse="no"), TypeError, "return_lse 'no' True False",
    ),
    "attention, dropout_p an array": (
        lambda: kernels.attention(*DENSE, dropout_p=np.ones(2)), TypeError, "dropout_p array number",
    ),
    "attention, one array for two gradients": (
        backward(out=(f32(2, 4, 5, 8), GRADIENT, GRADIENT)), ValueError, "out[1] shares memory with out[2]",
    ),
    "attention, a gradient over what is read": (
        backward(f32(2, 4, 5, 8), out=(DENSE[0], GRADIENT, f32(2, 4, 5, 8))),
        ValueError, "out[0] shares memory with query",
    ),
    "attention, gradients into one array": (backward(out=GRADIENT), TypeError, "out array tuple of three arrays"),
    "attention, a gradient of another shape": (
        backward(out=(f32(2, 4, 5, 7), GRADIENT, GRADIENT)), ValueError, "out[0] (2, 4, 5, 7) (2, 4, 5, 8)",
    ),
    "attention, a gradient of another dtype": (
        backward(out=(GRADIENT, GRADIENT, normal(1, GRADIENT.shape))), TypeError, "out[2] float64 float32",
    ),
    "attention, a gradient that is broadcast": (
        backward(out=(GRADIENT, GRADIENT, np.broadcast_to(f32(5, 8), GRADIENT.shape))), ValueError, "out[2] read-only",
    ),
    "attention, a gradient of columns apart": (
        backward(out=(GRADIENT, GRADIENT, f32(2, 4, 5, 16)[..., ::2])), ValueError, "out[2] not of contiguous rows",
    ),
    "attention, another shape of the gradient": (
        backward(DENSE[0][:1]), ValueError, "grad_output (1, 4, 5, 8) (2, 4, 5, 8)",
    ),
    "attention, another dtype of the gradient": (
        backward(DENSE[0].astype("f8")), TypeError, "grad_output float64 float32",
    ),
    "attention, no named tuple": (
        lambda: kernels.attention_backward(DENSE[0], DENSE), TypeError, "saved tuple AttentionSaved",
    ),
    "attention, dropout_p": (lambda: kernels.attention(*DENSE, dropout_p=1.0), ValueError, "dropout_p 1.0 probability"),
    "attention, dropout_seed": (
        lambda: kernels.attention(*DENSE, dropout_p=0.5, dropout_seed=-1), ValueError, "dropout_seed -1",
    ),
    "attention, dropout in bfloat16": (
        lambda: kernels.attention(*DENSE, dropout_p=0.5, compute_dtype="bfloat16"),
        ValueError, "dropout_p 0.5 compute_dtype 'bfloat16'",
    ),
    "attention, packed without offsets": (lambda: kernels.attention(*PACKED), ValueError, "query (7, 4, 8) cu_seqlens"),
    "attention, two axes": (lambda: kernels.attention(*(f32(5, 8),) * 3), ValueError, "query (5, 8) any"),
    "attention, dense with offsets": (
        lambda: kernels.attention(*DENSE, cu_seqlens=OFFSETS), ValueError, "query (2, 4, 5, 8) (any, any, any)",
    ),
    "attention, heads": (
        lambda: kernels.attention(DENSE[0], *[f32(2, 3, 5, 8)] * 2), ValueError, "key 3 heads query 4 divides",
    ),
    "attention, value's head_dim": (
        lambda: kernels.attention(*DENSE[:2], f32(2, 4, 5, 7)), ValueError, "value (2, 4, 5, 7) (2, 4, 5, 8)",
    ),
    "attention, dtypes": (
        lambda: kernels.attention(*DENSE[:2], DENSE[2].astype(np.float64)), TypeError, "value float64 float32 query",
    ),
    "attention, integer mask": (
        lambda: kernels.attention(*DENSE, attn_mask=np.ones((5, 5), np.int64)),
        TypeError, "attn_mask int64 bool float32",
    ),
    "attention, mask's shape": (
        lambda: kernels.attention(*DENSE, attn_mask=np.ones((2, 5), bool)), ValueError, "attn_mask (2, 5) (2, 4, 5, 5)",
    ),
    "attention, five axes of bias": (
        lambda: kernels.attention(*DENSE, bias=f32(1, 1, 1, 1, 1)), ValueError, "bias (1, 1, 1, 1, 1) (2, 4, 5, 5)",
    ),
    "attention, bias for a longer sequence than any": (
        lambda: kernels.attention(*PACKED, cu_seqlens=OFFSETS, bias=f32(7, 7)), ValueError, "bias (7, 7) (2, 4, 4, 4)",
    ),
    "attention, boolean bias": (
        lambda: kernels.attention(*DENSE, bias=np.ones((5, 5), bool)), TypeError, "bias bool float32",
    ),
    "attention, scale": (lambda: kernels.attention(*DENSE, scale=np.inf), ValueError, "scale inf finite"),
    "attention, scale below float32": (
        lambda: kernels.attention(*DENSE, scale=1e-46), ValueError, "scale 1e-46 0 1.18e-38 float32",
    ),
    "attention, scale beyond float32": (
        lambda: kernels.attention(*DENSE, scale=-1e39), ValueError, "scale -1e+39 3.4e+38 float32",
    ),
    "attention, is_causal a text": (
        lambda: kernels.attention(*DENSE, is_causal="no"), TypeError, "is_causal 'no' True False",
    ),
    "bucketed_distances, a text": (lambda: kernels.bucketed_distances("a"), TypeError, "num_buckets 'a' integer"),
    "bucketed_distances, half a token": (
        lambda: kernels.bucketed_distances(32, 128.5), TypeError, "max_distance 128.5 integer",
    ),
    "alibi_positions, no dtype": (lambda: kernels.alibi_positions(4, 3, "int3"), TypeError, "dtype 'int3' floating"),
    "alibi_positions, a tuple": (
        lambda: kernels.alibi_positions(4, 3, ("a", 0.9)), TypeError, "dtype ('a', 0.9) floating",
    ),
    "alibi_positions, integers": (lambda: kernels.alibi_positions(4, 3, np.int32), TypeError, "dtype int32 floating"),
    "attention, key offsets alone": (
        lambda: kernels.attention(*DENSE, cu_seqlens_k=OFFSETS), ValueError, "cu_seqlens_k cu_seqlens",
    ),
    "attention, key offsets missing": (
        lambda: kernels.attention(PACKED[0], f32(9, 4, 8), f32(9, 4, 8), cu_seqlens=OFFSETS),
        ValueError, "key 9 7 cu_seqlens_k",
    ),
    "attention, key offsets of other sequences": (
        lambda: kernels.attention(*PACKED, cu_seqlens=OFFSETS, cu_seqlens_k=np.array([0, 7])),
        ValueError, "cu_seqlens_k (2,) (3,)",
    ),
    "attention, offsets of floats": (
        lambda: kernels.attention(*PACKED, cu_seqlens=np.array([0.0, 7])), TypeError, "cu_seqlens float64 integer",
    ),
    "attention, no offset": (
        lambda: kernels.attention(*PACKED, cu_seqlens=OFFSETS[:0]), ValueError, "cu_seqlens (0,) (sequences + 1,)",
    ),
    "attention, offsets of two axes": (
        lambda: kernels.attention(*PACKED, cu_seqlens=OFFSETS[None]), ValueError, "cu_seqlens (1, 3) (sequences + 1,)",
    ),
    "attention, offsets start late": (
        lambda: kernels.attention(*PACKED, cu_seqlens=np.array([1, 7])), ValueError, "cu_seqlens 1 to 7 0 to 7 query",
    ),
    "attention, offsets end early": (
        lambda: kernels.attention(*PACKED, cu_seqlens=np.array([0, 6])), ValueError, "cu_seqlens 0 to 6 0 to 7 query",
    ),
    "attention, offsets fall": (
        lambda: kernels.attention(*PACKED, cu_seqlens=np.array([0, 5, 4, 7], np.uint8)),
        ValueError, "cu_seqlens[2] 4 5 cu_seqlens[1]",
    ),
}  # fmt: skip


def with_relative(**changed):
    """A call of attention with relative positions, some of its arguments replaced."""
    right = {"query": f32(7, 2, 4), "key": f32(7, 2, 4), "value": f32(7, 2, 4), "cu_seqlens": np.array([0, 3, 7])}
    right |= {"distance_rows": np.array([0, 1, 2]), "position_key": f32(5, 2, 4)}
    return lambda: attend(right | changed)


SEGMENTS = {"segment_scores": f32(7, 2, 2), "segment_ids": np.zeros(7, int)}
OTHER_KEYS = {"key": f32(8, 2, 4), "value": f32(8, 2, 4)}
RELATIVE = {
    "no table": (with_relative(position_key=None, position_query=None), ValueError, "position_key position_query None"),
    "a table's heads": (with_relative(position_key=f32(5, 3, 4)), ValueError, "position_key (5, 3, 4) (any, 2, 4)"),
    "tables of two sizes": (
        with_relative(position_query=f32(6, 2, 4)), ValueError, "position_query (6, 2, 4) (5, 2, 4)",
    ),
    "a table's dtype": (
        with_relative(position_query=normal(1, (5, 2, 4))), TypeError, "position_query float64 float32 query",
    ),
    "p without its table": (
        with_relative(position_key=None, position_query=f32(5, 2, 4), query_for_position=f32(7, 2, 4)),
        ValueError, "query_for_position position_key",
    ),
    "p's shape": (with_relative(query_for_position=f32(6, 2, 4)), ValueError, "query_for_position (6, 2, 4) (7, 2, 4)"),
    "no rows": (with_relative(distance_rows=np.array([], int)), ValueError, "distance_rows (0,) odd"),
    "an even number of rows": (with_relative(distance_rows=np.array([0, 1])), ValueError, "distance_rows (2,) odd"),
    "rows on two axes": (with_relative(distance_rows=np.array([[0]])), ValueError, "distance_rows (1, 1) odd"),
    "rows that are floats": (with_relative(distance_rows=np.array([0.0])), TypeError, "distance_rows float64 integer"),
    "a row too far": (with_relative(distance_rows=np.array([0, 5, 1])), ValueError, "distance_rows[1] 5 0 to 4"),
    "a negative row": (with_relative(distance_rows=np.array([-1])), ValueError, "distance_rows[0] -1 0 to 4"),
    "ids alone": (with_relative(segment_ids=np.zeros(7, int)), ValueError, "segment_ids alone segment_scores"),
    "segment scores alone": (
        with_relative(segment_scores=f32(7, 2, 2)), ValueError, "segment_scores alone segment_ids",
    ),
    "ids of keys alone": (
        with_relative(segment_ids_k=np.zeros(7, int)), ValueError, "segment_ids_k without segment_ids",
    ),
    "segment scores' shape": (
        with_relative(**SEGMENTS | {"segment_scores": f32(7, 2, 3)}), ValueError, "segment_scores (7, 2, 2)",
    ),
    "too few ids": (with_relative(**SEGMENTS | {"segment_ids": np.zeros(6, int)}), ValueError, "segment_ids (6,) (7,)"),
    "ids that are floats": (
        with_relative(**SEGMENTS | {"segment_ids": np.zeros(7)}), TypeError, "segment_ids float64 integer",
    ),
    "an id too large for float32": (
        with_relative(**SEGMENTS | {"segment_ids": np.full(7, 2**24)}), ValueError, "segment_ids 16777216",
    ),
    "no ids for other keys": (
        with_relative(**SEGMENTS, **OTHER_KEYS, cu_seqlens_k=np.array([0, 3, 8])), ValueError, "8 7 segment_ids_k",
    ),
    "no offsets for other keys": (with_relative(**OTHER_KEYS), ValueError, "8 7 cu_seqlens_k"),
    "offsets beyond the tokens": (with_relative(cu_seqlens=np.array([0, 8])), ValueError, "cu_seqlens 8 7 query"),
    "a mask's shape": (
        with_relative(attn_mask=np.ones((2, 2, 3, 3), bool)), ValueError, "attn_mask (2, 2, 3, 3) (2, 2, 4, 4)",
    ),
    "a mask of integers": (with_relative(attn_mask=np.ones((4, 4), int)), TypeError, "attn_mask int64 bool float32"),
    "a compute_dtype": (
        lambda: kernels.attention(*DENSE, compute_dtype="float16"), ValueError, "compute_dtype 'float16' 'bfloat16'",
    ),
    "bfloat16 of float64": (
        lambda: kernels.attention(*[array.astype("f8") for array in DENSE], compute_dtype="bfloat16"),
        TypeError, "query float64 float32 compute_dtype='bfloat16'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("call, error, fragments", (HOSTILE | RELATIVE).values(), ids=HOSTILE | RELATIVE)
def test_hostile_input(call, error, fragments):
    check_refused(call, error, fragments)


@pytest.mark.parametrize("window", [-1, (1,), (1, -2), 1.5, True, "7"])
def test_windows_that_are_none(window):
    with pytest.raises((TypeError, ValueError), match="window"):
        kernels.attention(*DENSE, window=window)
