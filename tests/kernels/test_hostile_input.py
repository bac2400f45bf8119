"""Hostile input to the public functions: clear errors that name the argument, what came, and what was expected."""

import numpy as np
import pytest

from bertcore import kernels
from tests.kernels.attention_forms import attend
from tests.kernels.strategies import normal

pytestmark = pytest.mark.usefixtures("on_numpy")


def f32(*shape):
    return normal(1, shape, np.float32)


F64 = normal(1, (2, 3))
IDS = np.array([0, 1, 2])
DENSE = (f32(2, 4, 5, 8),) * 3
PACKED = (f32(7, 4, 8),) * 3
OFFSETS = np.array([0, 3, 7])
TABLES = f32(9, 4), f32(9, 4)
SQUARE, WIDE, GRADIENT = f32(3, 3), f32(3, 4), f32(2, 4, 5, 8)
LSE, PACKED_LSE = np.zeros((2, 4, 5, 2), np.float32), np.zeros((7, 4, 2), np.float32)

# Each: the call, the error, and what its message must hold (the argument, what came, what was expected).
HOSTILE = {
    "integers": (lambda: kernels.softmax(IDS), TypeError, "input int64 floating"),
    "complex numbers": (lambda: kernels.gelu(f32(3) * 1j), TypeError, "input complex64 floating"),
    "swapped bytes": (lambda: kernels.gelu(f32(3).astype(">f4")), TypeError, "input >f4 floating native byte order"),
    "half precision on numba": (
        lambda: kernels.gelu(f32(3).astype(np.float16), backend="numba"),
        TypeError, "input float16 numba float32 float64",
    ),
    "unknown backend": (lambda: kernels.gelu(f32(3), backend="tpu"), ValueError, "backend tpu numpy numba cupy"),
    "a backend that is an array": (lambda: kernels.gelu(f32(3), backend=f32(3)), TypeError, "backend array name"),
    "softmax, no axes": (lambda: kernels.softmax(f32()), ValueError, "input () axes"),
    "softmax, no such axis": (lambda: kernels.softmax(f32(2, 3), 2), ValueError, "dim 2 2 axes"),
    "softmax, half an axis": (lambda: kernels.softmax(f32(2, 3), 0.5), TypeError, "dim 0.5 integer"),
    "softmax, gradient's shape": (
        lambda: kernels.softmax_backward(f32(2, 4), f32(2, 3)), ValueError, "grad_output (2, 4) (2, 3)",
    ),
    "softmax, gradient's dtype": (
        lambda: kernels.softmax_backward(F64, f32(2, 3)), TypeError, "grad_output float64 float32 output",
    ),
    "layer_norm, no axes": (lambda: kernels.layer_norm(f32()), ValueError, "input () axes"),
    "layer_norm, weight": (lambda: kernels.layer_norm(f32(2, 3), f32(2)), ValueError, "weight (2,) (3,)"),
    "layer_norm, bias": (lambda: kernels.layer_norm(f32(2, 3), bias=f32(1, 3)), ValueError, "bias (1, 3) (3,)"),
    "layer_norm, residual": (
        lambda: kernels.layer_norm(f32(2, 3), residual=f32(3)), ValueError, "residual (3,) (2, 3)",
    ),
    "layer_norm, weight's dtype": (
        lambda: kernels.layer_norm(f32(2, 3), F64[0]), TypeError, "weight float64 float32 input",
    ),
    "layer_norm, eps below 0": (lambda: kernels.layer_norm(f32(3), eps=-1e-5), ValueError, "eps -1e-05 0"),
    "layer_norm, eps NaN": (lambda: kernels.layer_norm(f32(3), eps=np.nan), ValueError, "eps nan finite"),
    "layer_norm, eps beyond all floats": (
        lambda: kernels.layer_norm(f32(3), eps=10**400), ValueError, "eps 1329 bits finite",
    ),
    "layer_norm, eps below float32": (
        lambda: kernels.layer_norm(f32(3), eps=1e-60), ValueError, "eps 1e-60 0 1.18e-38 float32",
    ),
    "rms_norm, eps beyond float32": (lambda: kernels.rms_norm(f32(3), eps=1e39), ValueError, "eps 1e+39 0 float32"),
    "rms_norm, eps below float32, backwards": (
        lambda: kernels.rms_norm_backward(f32(3), f32(3), eps=1e-39), ValueError, "eps 1e-39 0 float32",
    ),
    "layer_norm, eps a text": (lambda: kernels.layer_norm(f32(3), eps="1"), TypeError, "eps '1' number"),
    "layer_norm, gradient's shape": (
        lambda: kernels.layer_norm_backward(f32(3), f32(2, 3)), ValueError, "grad_output (3,) (2, 3)",
    ),
    "gelu, form": (lambda: kernels.gelu(f32(3), "erf"), ValueError, "approximate 'erf' 'none' 'tanh'"),
    "gelu, bias in the form's place": (lambda: kernels.gelu(f32(2, 3), f32(3)), ValueError, "approximate array 'none'"),
    "gelu, bias": (lambda: kernels.gelu(f32(2, 3), bias=f32(2)), ValueError, "bias (2,) (3,)"),
    "gelu, bias for no axes": (lambda: kernels.gelu(f32(), bias=f32(1)), ValueError, "input () axes"),
    "gelu, gradient's shape": (lambda: kernels.gelu_backward(f32(3), f32(2, 3)), ValueError, "grad_output (3,) (2, 3)"),
    "activation, name": (
        lambda: kernels.activation(f32(3), "mish"), ValueError, "activation 'mish' 'relu' 'gelu_tanh'",
    ),
    "activation, None": (lambda: kernels.activation(f32(3), None), ValueError, "activation None 'relu'"),
    "activation, gradient's shape": (
        lambda: kernels.activation_backward(f32(2), f32(3), "relu"), ValueError, "grad_output (2,) (3,)",
    ),
    "gated_activation, half a column": (
        lambda: kernels.gated_activation(f32(2, 3), "silu"), ValueError, "input (2, 3) two halves",
    ),
    "gated_activation, gate": (
        lambda: kernels.gated_activation(f32(2, 4), "silu", gate="third"), ValueError, "gate 'third' 'first' 'second'",
    ),
    "gated_activation, gradient's shape": (
        lambda: kernels.gated_activation_backward(f32(2, 4), f32(2, 4), "silu"),
        ValueError, "grad_output (2, 4) (2, 2)",
    ),
    "affine, no axes": (lambda: kernels.affine(f32(), f32(1), f32(1)), ValueError, "input () axes"),
    "affine, weight": (lambda: kernels.affine(f32(2, 3), f32(2), f32(3)), ValueError, "weight (2,) (3,)"),
    "affine, residual": (
        lambda: kernels.affine(f32(2, 3), f32(3), f32(3), residual=f32(3)), ValueError, "residual (3,) (2, 3)",
    ),
    "affine, gradient's shape": (
        lambda: kernels.affine_backward(f32(3), f32(2, 3), f32(3), f32(3)), ValueError, "grad_output (3,) (2, 3)",
    ),
    "linear, no axes": (lambda: kernels.linear(f32(), f32(3, 1)), ValueError, "input () axes"),
    "linear, weight transposed": (
        lambda: kernels.linear(f32(2, 3), f32(3, 4)), ValueError, "weight (3, 4) (out_features, 3) (2, 3)",
    ),
    "linear, weight of one axis": (lambda: kernels.linear(f32(2, 3), f32(3)), ValueError, "weight (3,) out_features"),
    "linear, weight's dtype": (lambda: kernels.linear(f32(2, 3), F64), TypeError, "weight float64 float32 input"),
    "linear, prepared weight's dtype": (
        lambda: kernels.linear(f32(2, 3), kernels.prepare_weight(F64)), TypeError, "weight float64 float32 input",
    ),
    "linear, prepared weight's shape": (
        lambda: kernels.linear(f32(2, 4), kernels.prepare_weight(f32(2, 3))),
        ValueError, "weight (2, 3) (out_features, 4)",
    ),
    "linear, bias": (lambda: kernels.linear(f32(2, 3), f32(4, 3), f32(3)), ValueError, "bias (3,) (4,)"),
    "linear, residual": (
        lambda: kernels.linear(f32(5, 2, 3), f32(4, 3), residual=f32(10, 4)), ValueError, "residual (10, 4) (5, 2, 4)",
    ),
    "linear, activation": (
        lambda: kernels.linear(f32(2, 3), f32(4, 3), activation="swish"), ValueError, "activation 'swish' None 'silu'",
    ),
    "linear, gradient's shape": (
        lambda: kernels.linear_backward(f32(2, 3), f32(2, 3), f32(4, 3)), ValueError, "grad_output (2, 3) (2, 4)",
    ),
    "prepare_weight, axes": (lambda: kernels.prepare_weight(f32(2, 3, 4)), ValueError, "weight (2, 3, 4) (any, any)"),
    "prepare_weight, a list": (lambda: kernels.prepare_weight([[1.0]]), TypeError, "weight list"),
    "embedding, ids": (lambda: kernels.embedding(f32(3), f32(4, 2)), TypeError, "input float32 integer"),
    "embedding, booleans": (lambda: kernels.embedding(IDS > 0, f32(4, 2)), TypeError, "input bool integer"),
    "embedding, id too large": (
        lambda: kernels.embedding(np.array([[0, 1], [2, 4]]), f32(4, 2)), ValueError, "input[1, 1] 4 0 to 3",
    ),
    "embedding, id below 0": (lambda: kernels.embedding(np.array([-1]), f32(4, 2)), ValueError, "input[0] -1 0 to 3"),
    "embedding, table": (lambda: kernels.embedding(IDS, f32(4)), ValueError, "weight (4,) (any, any)"),
    "embedding, gradient's shape": (
        lambda: kernels.embedding_backward(f32(2, 5), IDS, 4), ValueError, "grad_output (2, 5) (3, any)",
    ),
    "embedding, too few rows": (lambda: kernels.embedding_backward(f32(3, 5), IDS, 2), ValueError, "input[2] 2 0 to 1"),
    "embedding, more rows than any array has": (
        lambda: kernels.embedding_backward(f32(0, 5), IDS[:0], 2**64), ValueError, "num_embeddings 65 bits 63",
    ),
    "embedding, added to what is read": (
        lambda: kernels.embedding_backward(SQUARE, IDS, 3, add_to=SQUARE), ValueError, "add_to grad_output overlaps",
    ),
    "linear, the weight's gradient added to what is read": (
        lambda: kernels.linear_weight_gradient(f32(3, 3), SQUARE, add_to=SQUARE), ValueError, "add_to input overlaps",
    ),
    "linear, needs_weight an array": (
        lambda: kernels.linear_backward(f32(2, 4), f32(2, 3), f32(4, 3), needs_weight=IDS),
        TypeError, "needs_weight array True False",
    ),
    "clip_norm, a limit for each array": (
        lambda: kernels.clip_norm([f32(3)] * 2, np.ones(2)), TypeError, "max_norm array number",
    ),
    "cross_entropy, out overlaps the logits": (
        lambda: kernels.cross_entropy_backward(f32(), WIDE[:, :3], IDS, out=WIDE[:, 1:]),
        ValueError, "out shares memory with input",
    ),
    "rotary, interleaved an array": (
        lambda: kernels.rotary(PACKED[0], *TABLES, interleaved=IDS), TypeError, "interleaved array True False",
    ),
    "attention, return_lse a text": (
        lambda: kernels.attention(*DENSE, return_lse="no"), TypeError, "return_lse 'no' True False",
    ),
    "attention, dropout_p an array": (
        lambda: kernels.attention(*DENSE, dropout_p=np.ones(2)), TypeError, "dropout_p array number",
    ),
    "attention, one array for two gradients": (
        lambda: kernels.attention_backward(DENSE[0], *DENSE, DENSE[0], LSE, out=(f32(2, 4, 5, 8), *[GRADIENT] * 2)),
        ValueError, "out[1] shares memory with out[2]",
    ),
    "attention, a gradient over what is read": (
        lambda: kernels.attention_backward(DENSE[0], *DENSE, DENSE[0], LSE, out=(DENSE[0], GRADIENT, f32(2, 4, 5, 8))),
        ValueError, "out[0] shares memory with query",
    ),
    "embedding, negative number of rows": (
        lambda: kernels.embedding_backward(f32(0, 5), IDS[:0], -1), ValueError, "num_embeddings -1 0",
    ),
    "cross_entropy, axes": (lambda: kernels.cross_entropy(f32(3), IDS), ValueError, "input (3,) (any, any)"),
    "cross_entropy, rows": (lambda: kernels.cross_entropy(f32(4, 3), IDS), ValueError, "target (3,) (4,)"),
    "cross_entropy, probabilities": (
        lambda: kernels.cross_entropy(f32(3, 3), f32(3)), TypeError, "target float32 integer",
    ),
    "cross_entropy, no such class": (
        lambda: kernels.cross_entropy(f32(3, 2), IDS), ValueError, "target[2] 2 0 to 1 -100",
    ),
    "cross_entropy, reduction": (
        lambda: kernels.cross_entropy(f32(3, 3), IDS, reduction="max"),
        ValueError, "reduction 'max' 'mean' 'sum' 'none'",
    ),
    "cross_entropy, ignore_index of 65 bits": (
        lambda: kernels.cross_entropy(f32(3, 3), IDS, ignore_index=2**63),
        ValueError, "ignore_index 9223372036854775808 64 bits",
    ),
    "cross_entropy, ignore_index": (
        lambda: kernels.cross_entropy(f32(3, 3), IDS, ignore_index=None), TypeError, "ignore_index None integer",
    ),
    "cross_entropy, gradient of a mean": (
        lambda: kernels.cross_entropy_backward(f32(3), f32(3, 3), IDS), ValueError, "grad_output (3,) ()",
    ),
    "cross_entropy, gradient of losses": (
        lambda: kernels.cross_entropy_backward(f32(), f32(3, 3), IDS, reduction="none"),
        ValueError, "grad_output () (3,)",
    ),
    "rotary, two axes": (
        lambda: kernels.rotary(f32(7, 8), *TABLES), ValueError, "input (7, 8) (tokens, heads, head_dim)",
    ),
    "rotary, tables of another precision": (
        lambda: kernels.rotary(PACKED[0].astype(np.float64), *TABLES), TypeError, "cos float32 float64",
    ),
    "rotary, one table": (lambda: kernels.rotary(PACKED[0], TABLES[0], f32(9, 3)), ValueError, "sin (9, 3) (9, 4)"),
    "rotary, more than a head": (lambda: kernels.rotary(f32(7, 4, 6), *TABLES), ValueError, "cos (9, 4) 3"),
    "rotary, too few rows": (lambda: kernels.rotary(f32(10, 4, 8), *TABLES), ValueError, "cos 9 rows 10"),
    "rotary, too few rows for a sequence": (
        lambda: kernels.rotary(f32(20, 4, 8), *TABLES, cu_seqlens=np.array([0, 5, 15, 20])),
        ValueError, "cos 9 rows 10",
    ),
    "rotary, positions and offsets": (
        lambda: kernels.rotary(PACKED[0], *TABLES, cu_seqlens=OFFSETS, positions=np.arange(7)),
        ValueError, "positions cu_seqlens",
    ),
    "rotary, position too large": (
        lambda: kernels.rotary(PACKED[0], *TABLES, positions=np.arange(3, 10)), ValueError, "positions[6] 9 0 to 8",
    ),
    "rotary, read-only": (
        lambda: kernels.rotary(np.broadcast_to(np.float32(1), (7, 4, 8)), *TABLES, inplace=True),
        ValueError, "input read-only inplace=True",
    ),
    "rotary, broadcast": (
        lambda: kernels.rotary(np.lib.stride_tricks.as_strided(f32(8), (7, 4, 8), (0, 0, 4)), *TABLES, inplace=True),
        ValueError, "input broadcast inplace=True",
    ),
    "rotary, gradient's dtype": (
        lambda: kernels.rotary_backward(np.zeros((7, 4, 8), int), *TABLES), TypeError, "grad_output int64 floating",
    ),
    "rotary_tables, odd": (lambda: kernels.rotary_tables(3, 7), ValueError, "rotary_dim 7 even"),
    "rotary_tables, theta": (lambda: kernels.rotary_tables(3, 8, 0), ValueError, "theta 0 positive"),
    "rotary_tables, scaling": (lambda: kernels.rotary_tables(3, 8, scaling="yarn"), ValueError, "scaling 'yarn' 'ntk'"),
    "rotary_tables, dynamic": (
        lambda: kernels.rotary_tables(3, 8, scaling="dynamic", factor=2), TypeError, "trained_length None integer",
    ),
    "rotary_tables, stretched beyond all floats": (
        lambda: kernels.rotary_tables(3, 4, scaling="dynamic", factor=1e200, trained_length=1),
        ValueError, "theta inf 1e+200 finite",
    ),
    "rotary_tables, a base too small": (lambda: kernels.rotary_tables(3, 160, 5e-324), ValueError, "theta 5e-324"),
    "rotary_tables, dtype": (lambda: kernels.rotary_tables(3, 4, dtype=int), TypeError, "dtype int64 floating"),
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
    "attention, packed lse's shape": (
        lambda: kernels.attention_backward(PACKED[0], *PACKED, PACKED[0], PACKED_LSE, cu_seqlens=OFFSETS),
        ValueError, "lse (7, 4, 2) (4, 7, 2)",
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
    "a row that is none": (with_relative(distance_rows=np.array([0, 5, 1])), ValueError, "distance_rows[1] 5 0 to 4"),
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
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    at = 0
    for fragment in split(fragments):
        assert fragment in message[at:], f"{fragment!r} is not in (the rest of) {message!r}"
        at = message.index(fragment, at) + len(fragment)


def split(fragments):
    """Words of the text, what stands in parentheses being one word."""
    words, depth = [""], 0
    for character in fragments:
        depth += (character in "([") - (character in ")]")
        if character == " " and not depth:
            words.append("")
        else:
            words[-1] += character
    return words


@pytest.mark.parametrize("window", [-1, (1,), (1, -2), 1.5, True, "7"])
def test_windows_that_are_none(window):
    with pytest.raises((TypeError, ValueError), match="window"):
        kernels.attention(*DENSE, window=window)
