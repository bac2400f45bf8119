"""Hostile input to the public functions."""

import builtins

import numpy as np
import pytest

from bertcore import kernels
from bertcore.kernels.linear import MOST_INT8_FEATURES
from tests.kernels import attention_forms
from tests.kernels.arrays import backward, f32
from tests.kernels.attention_forms import DENSE, attend
from tests.kernels.strategies import normal
from tests.refusals import check_refused

pytestmark = pytest.mark.usefixtures("on_numpy")

F64 = normal(1, (2, 3))
IDS = np.array([0, 1, 2])
TABLES = f32(9, 4), f32(9, 4)
TOO_WIDE = f32(1, MOST_INT8_FEATURES + 1)
SQUARE, WIDE, GRADIENT = f32(3, 3), f32(3, 4), f32(2, 4, 5, 8)
OF_THREE, OF_FOUR = (kernels.EmbeddingSaved(IDS, rows) for rows in (3, 4))
READ_ONLY, READ_ONLY_HEADS = (np.broadcast_to(np.float32(1), shape) for shape in ((3, 3), (7, 4, 8)))
BROADCAST = np.lib.stride_tricks.as_strided(f32(8), (7, 4, 8), (0, 0, 4))
OVERLAPPING = np.lib.stride_tricks.as_strided(f32(20), (7, 4, 8), (4, 8, 4))
SEGMENTS = {"segment_scores": f32(7, 2, 2), "segment_ids": np.zeros(7, int)}
OTHER_TABLE, WIDE_HEADS = {"position_key": None, "position_query": f32(5, 2, 4)}, normal(1, (2, 4, 5, 8))
OTHER_KEYS = {"key": f32(8, 2, 4), "value": f32(8, 2, 4)}
WEIGHT, OF_INPUT = f32(6, 39), np.ones(39, np.float32)
(VALUES, SCALE), (_, GROUPS) = (kernels.quantize_weight(WEIGHT, per_group=it) for it in (False, True))


def changed(array, place, value):
    array = array.copy()
    array[place] = value
    return array


def gradients(grad_output=DENSE[0], **options):
    return backward("attention", grad_output, *DENSE, **options)


def relative(**changed):
    """Attention with relative positions, all right but for what is `changed`."""
    right = {"query": f32(7, 2, 4), "key": f32(7, 2, 4), "value": f32(7, 2, 4), "cu_seqlens": np.array([0, 3, 7])}
    return attend(right | {"distance_rows": np.array([0, 1, 2]), "position_key": f32(5, 2, 4)} | changed)


# Each: the call, the error, and what its message must hold (the argument, what came, what was expected).
HOSTILE = """
gelu(f32(3).astype(">f4")) -> TypeError: input >f4 floating native byte order
gelu(f32(3).astype(np.float16), backend="numba") -> TypeError: input float16 numba float32 float64
gelu(f32(3), backend="tpu") -> ValueError: backend tpu numpy numba cupy
gelu(f32(3), backend=f32(3)) -> TypeError: backend array name
softmax(f32()) -> ValueError: input () axes
layer_norm(f32(3), eps=1e-60) -> ValueError: eps 1e-60 0 1.18e-38 float32
gelu(f32(), bias=f32(1)) -> ValueError: input () (...,
gated_activation(f32(2, 3), "silu") -> ValueError: input (2, 3) two halves
linear(f32(2, 3), prepare_weight(F64)) -> TypeError: weight float64 float32 input
linear(f32(2, 4), prepare_weight(f32(2, 3))) -> ValueError: weight (2, 3) (out_features, 4)
prepare_weight(np.ones((2, 3), np.int8)) -> TypeError: scale None float32 (out_features,)
prepare_weight(np.ones((2, 3), np.int8), np.ones(2)) -> TypeError: scale float64 float32 (out_features,)
prepare_weight(f32(2, 3), f32(2)) -> ValueError: scale int8 float32
prepare_weight(TOO_WIDE.astype(np.int8), f32(1)) -> ValueError: weight 65537 65536 int8
prepare_weight(TOO_WIDE, dtype="int8") -> ValueError: weight 65537 65536 int8
prepare_weight(VALUES, changed(SCALE, 3, np.nan)) -> ValueError: scale[3] nan
prepare_weight(VALUES, changed(SCALE, 3, np.inf)) -> ValueError: scale[3] inf
prepare_weight(VALUES, changed(SCALE, 3, -1)) -> ValueError: scale[3] -1
prepare_weight(VALUES, GROUPS[:, :1]) -> ValueError: scale (6, 1) (6, 2)
prepare_weight(VALUES, changed(GROUPS, (3, 1), np.nan)) -> ValueError: scale[3, 1] nan
prepare_weight(VALUES, GROUPS, OF_INPUT) -> ValueError: input_scale rounded groups
prepare_weight(VALUES, SCALE, changed(OF_INPUT, 3, 0)) -> ValueError: input_scale[3] 0
prepare_weight(VALUES, SCALE, changed(OF_INPUT, 3, np.nan)) -> ValueError: input_scale[3] nan
prepare_weight(VALUES, SCALE, changed(OF_INPUT, 3, np.inf)) -> ValueError: input_scale[3] inf
prepare_weight(VALUES, SCALE, OF_INPUT[1:]) -> ValueError: input_scale shape
prepare_weight(VALUES, SCALE, OF_INPUT.astype(np.float64)) -> TypeError: input_scale float64 float32
prepare_weight(WEIGHT, None, OF_INPUT) -> ValueError: input_scale int8
prepare_weight(VALUES, GROUPS, dtype="int8") -> ValueError: dtype 'int8' already
quantize_weight(changed(WEIGHT, (4, 3), np.nan)) -> ValueError: weight[4] inf or NaN
embedding(np.array([[0, 1], [2, 4]]), f32(4, 2)) -> ValueError: input[1, 1] 4 0 to 3
embedding(np.array([3]), f32(0, 2)) -> ValueError: input[0] 3 empty
embedding_backward(SQUARE, OF_FOUR, add_to=f32(3, 3)) -> ValueError: add_to (3, 3) (4, 3)
embedding_backward(SQUARE, OF_THREE, add_to=np.ones((3, 3))) -> TypeError: add_to float64 float32
embedding_backward(SQUARE, OF_THREE, add_to=READ_ONLY) -> ValueError: add_to read-only
embedding_backward(SQUARE, OF_THREE, add_to=SQUARE) -> ValueError: add_to grad_output overlaps
embedding_backward(SQUARE, OF_THREE, add_to=0.5) -> TypeError: add_to float array
linear_weight_gradient(SQUARE, SQUARE, dtype="float16") -> TypeError: dtype float16 float32 input
linear_weight_gradient(SQUARE, SQUARE, add_to=np.ones((3, 3))) -> TypeError: add_to float64 float32 input
linear_weight_gradient(SQUARE, SQUARE, add_to=f32(2, 3)) -> ValueError: add_to (2, 3) (3, 3)
linear_weight_gradient(SQUARE, SQUARE, add_to=f32(3, 3).T) -> ValueError: add_to not C-contiguous
linear_weight_gradient(f32(3, 3), SQUARE, add_to=SQUARE) -> ValueError: add_to input overlaps
backward("linear", f32(2, 4), f32(2, 3), f32(4, 3), needs_weight=IDS) -> TypeError: needs_weight array True False
pooling(f32(3, 2, 3), np.array([0, 3])) -> ValueError: input (3, 2, 3)
backward("cross_entropy", f32(), SQUARE, IDS, out=[1.0]) -> TypeError: out list array
backward("cross_entropy", f32(), SQUARE, IDS, out=WIDE) -> ValueError: out (3, 4) (3, 3)
backward("cross_entropy", f32(), SQUARE, IDS, out=np.zeros((3, 3))) -> TypeError: out float64 float32
backward("cross_entropy", f32(), SQUARE, IDS, out=READ_ONLY) -> ValueError: out read-only
backward("cross_entropy", f32(), SQUARE, IDS, out=OVERLAPPING[:3, 0, :3]) -> ValueError: out overlapping itself
backward("cross_entropy", f32(), WIDE[:, :3], IDS, out=WIDE[:, 1:]) -> ValueError: out shares memory with input
cross_entropy(f32(3), IDS) -> ValueError: input (3,) (rows, classes)
cross_entropy(f32(3, 2), IDS) -> ValueError: target[2] 2 0 to 1 -100
backward("cross_entropy", f32(), f32(3, 3), IDS, reduction="none") -> ValueError: grad_output () (3,)
rotary(f32(7, 8), *TABLES) -> ValueError: input (7, 8) (tokens, heads, head_dim)
rotary(f32(7, 4, 6), *TABLES) -> ValueError: cos (9, 4) 3
rotary(f32(10, 4, 8), *TABLES) -> ValueError: cos 9 rows 10
rotary(f32(20, 4, 8), *TABLES, cu_seqlens=np.array([0, 5, 15, 20])) -> ValueError: cos 9 rows 10
rotary(PACKED[0], *TABLES, cu_seqlens=OFFSETS, positions=np.arange(7)) -> ValueError: positions cu_seqlens
rotary(PACKED[0], *TABLES, positions=np.arange(3, 10)) -> ValueError: positions[6] 9 0 to 8
rotary(READ_ONLY_HEADS, *TABLES, inplace=True) -> ValueError: input read-only inplace=True
rotary(BROADCAST, *TABLES, inplace=True) -> ValueError: input broadcast inplace=True
rotary(OVERLAPPING, *TABLES, inplace=True) -> ValueError: input overlaps itself inplace=True
rotary_tables(3, 7) -> ValueError: rotary_dim 7 even
rotary_tables(3, 8, 0) -> ValueError: theta 0 positive
rotary_tables(3, 8, scaling="yarn") -> ValueError: scaling 'yarn' 'ntk'
rotary_tables(3, 8, scaling="dynamic", factor=2) -> TypeError: trained_length None integer
rotary_tables(3, 4, scaling="dynamic", factor=1e200, trained_length=1) -> ValueError: theta inf 1e+200 finite
rotary_tables(3, 160, 5e-324) -> ValueError: theta 5e-324
rotary_tables(3, 4, dtype=int) -> TypeError: dtype int64 floating
gradients(out=(f32(2, 4, 5, 8), GRADIENT, GRADIENT)) -> ValueError: out[1] shares memory with out[2]
gradients(f32(2, 4, 5, 8), out=(DENSE[0], GRADIENT, f32(2, 4, 5, 8))) -> ValueError: out[0] shares memory with query
gradients(out=(GRADIENT, GRADIENT, 3)) -> TypeError: out[2] int array
gradients(out=(GRADIENT, None, GRADIENT)) -> TypeError: out tuple of three arrays
gradients(out=GRADIENT) -> TypeError: out array tuple of three arrays
gradients(out=(f32(2, 4, 5, 7), GRADIENT, GRADIENT)) -> ValueError: out[0] (2, 4, 5, 7) (2, 4, 5, 8)
gradients(out=(GRADIENT, GRADIENT, normal(1, GRADIENT.shape))) -> TypeError: out[2] float64 float32
gradients(out=(GRADIENT, GRADIENT, np.broadcast_to(f32(5, 8), GRADIENT.shape))) -> ValueError: out[2] read-only
gradients(out=(GRADIENT, GRADIENT, f32(2, 4, 5, 16)[..., ::2])) -> ValueError: out[2] not of contiguous rows
attention(*DENSE, dropout_p=0.5, compute_dtype="bfloat16") -> ValueError: dropout_p 0.5 compute_dtype 'bfloat16'
attention(*PACKED) -> ValueError: query (7, 4, 8) cu_seqlens
attention(*(f32(5, 8),) * 3) -> ValueError: query (5, 8) any
attention(*DENSE, cu_seqlens=OFFSETS) -> ValueError: query (2, 4, 5, 8) (any, any, any)
attention(DENSE[0], *[f32(2, 3, 5, 8)] * 2) -> ValueError: key 3 heads query 4 divides
attention(*DENSE, bias=f32(1, 1, 1, 1, 1)) -> ValueError: bias (1, 1, 1, 1, 1) (2, 4, 5, 5)
bucketed_distances("a") -> TypeError: num_buckets 'a' integer
bucketed_distances(32, 128.5) -> TypeError: max_distance 128.5 integer
alibi_positions(4, 3, ("a", 0.9)) -> TypeError: dtype ('a', 0.9) floating
alibi_positions(4, 3, "int3") -> TypeError: dtype 'int3' floating
attention(*DENSE, cu_seqlens_k=OFFSETS) -> ValueError: cu_seqlens_k cu_seqlens
attention(PACKED[0], f32(9, 4, 8), f32(9, 4, 8), cu_seqlens=OFFSETS) -> ValueError: key 9 7 cu_seqlens_k
attention(*PACKED, cu_seqlens=OFFSETS[:0]) -> ValueError: cu_seqlens (0,) (sequences + 1,)
attention(*PACKED, cu_seqlens=np.array([1, 7])) -> ValueError: cu_seqlens 1 to 7 0 to 7 query
attention(*PACKED, cu_seqlens=np.array([0, 5, 4, 7], np.uint8)) -> ValueError: cu_seqlens[2] 4 5 cu_seqlens[1]
relative(position_key=None, position_query=None) -> ValueError: position_key position_query None
relative(**OTHER_TABLE, query_for_position=PACKED[0]) -> ValueError: query_for_position position_key
relative(distance_rows=np.array([], int)) -> ValueError: distance_rows (0,) odd
relative(distance_rows=np.array([0, 5, 1])) -> ValueError: distance_rows[1] 5 0 to 4
relative(distance_rows=np.array([-1])) -> ValueError: distance_rows[0] -1 0 to 4
relative(segment_ids=np.zeros(7, int)) -> ValueError: segment_ids alone segment_scores
relative(segment_scores=f32(7, 2, 2)) -> ValueError: segment_scores alone segment_ids
relative(segment_ids_k=np.zeros(7, int)) -> ValueError: segment_ids_k without segment_ids
relative(**SEGMENTS | {"segment_ids": np.full(7, 2**24)}) -> ValueError: segment_ids 16777216
relative(**SEGMENTS, **OTHER_KEYS, cu_seqlens_k=np.array([0, 3, 8])) -> ValueError: 8 7 segment_ids_k
relative(**OTHER_KEYS) -> ValueError: 8 7 cu_seqlens_k
attention(*DENSE, compute_dtype="float16") -> ValueError: compute_dtype 'float16' 'bfloat16'
attention(*DENSE, compute_dtype="bfloat16", save=True) -> ValueError: save True bfloat16 gradients
relative(distance_rows=None) -> TypeError: distance_rows None array
bucketed_distances(8, 2) -> ValueError: max_distance 2 num_buckets 2
pooling(SQUARE, None) -> TypeError: cu_seqlens None array
softmax_backward([1.0], softmax(f32(3), save=True)[1]) -> TypeError: grad_output list array
prepare_weight(f32(2, 3)).integers() -> TypeError: float32 int8
attention(*[WIDE_HEADS] * 3, compute_dtype="bfloat16") -> TypeError: query float64 float32 compute_dtype='bfloat16'
""".strip().splitlines()


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_input(case):
    call, _, refusal = case.partition(" -> ")
    error, _, fragments = refusal.partition(": ")
    names = vars(kernels) | vars(attention_forms) | globals()
    check_refused(lambda: eval(call, names), getattr(builtins, error), fragments)


def keeping(name, *arguments, **options):
    """The output and what `name` kept for its backward, with the backward."""
    output, saved = getattr(kernels, name)(*arguments, save=True, **options)
    return np.ones_like(output), saved, getattr(kernels, f"{name}_backward")


THREE, OFFSETS_OF_THREE = np.array([0, 1, 1, 3]), np.array([0, 2, 3])
# Each: the call of an operation, a field that its backward is given, with another value, and the error.
ALTERED = [
    ("cross_entropy", [SQUARE, IDS], "target", IDS + 1, ValueError, "saved.target[2] 3 0 to 2"),
    ("embedding", [IDS, SQUARE], "input", IDS + 1, ValueError, "saved.input[2] 3 0 to 2"),
    ("pooling", [SQUARE, OFFSETS_OF_THREE], "cu_seqlens", THREE[:3], ValueError, "saved.cu_seqlens 0 to 1 0 to 3"),
    ("gated_activation", [f32(2, 4), "silu"], "input", f32(2, 5), ValueError, "saved.input (2, 5) two halves"),
    ("maxsim", [f32(2, 3, 4), WIDE, THREE], "document", f32(2, 4), ValueError, "saved.cu_seqlens 0 to 3 0 to 2"),
    ("maxsim", [f32(2, 3, 4), WIDE, THREE], "best", np.full((3, 6), 3), ValueError, "saved.best[0, 0] 3 0 to 2"),
    ("attention", [f32(1, 2, 3, 8)] * 3, "key", f32(1, 2, 3, 4), ValueError, "key (1, 2, 3, 4) (1, any, any, 8)"),
]  # fmt: skip


@pytest.mark.parametrize("backend", ["numpy", "numba"])
@pytest.mark.parametrize("name, arguments, field, value, error, fragments", ALTERED)
def test_a_backward_refuses_what_its_forward_has_not_kept(backend, name, arguments, field, value, error, fragments):
    grad, saved, backward = keeping(name, *arguments)
    check_refused(lambda: backward(grad, saved._replace(**{field: value}), backend=backend), error, fragments)


def test_a_backward_needs_the_input_of_an_activation():
    grad, saved, backward = keeping("linear", SQUARE, SQUARE, activation="gelu")
    check_refused(lambda: backward(grad, saved._replace(before=None)), TypeError, "saved.before None array activation")
