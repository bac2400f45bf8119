"""Hostile input to the public functions; test_hostile_attention.py has attention's."""

import numpy as np
import pytest

from bertcore import kernels
from bertcore.kernels import embedding_backward
from tests.kernels.arrays import backward, f32
from tests.kernels.attention_forms import OFFSETS, PACKED
from tests.kernels.refusals import check_refused
from tests.kernels.strategies import normal

pytestmark = pytest.mark.usefixtures("on_numpy")


F64 = normal(1, (2, 3))
IDS = np.array([0, 1, 2])
TABLES = f32(9, 4), f32(9, 4)
SQUARE, WIDE = f32(3, 3), f32(3, 4)
OF_THREE, OF_FOUR = (kernels.EmbeddingSaved(IDS, rows) for rows in (3, 4))
READ_ONLY = np.broadcast_to(np.float32(1), (3, 3))

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
        lambda: backward("softmax", f32(2, 4), f32(2, 3)), ValueError, "grad_output (2, 4) (2, 3)",
    ),
    "softmax, gradient's dtype": (
        lambda: backward("softmax", F64, f32(2, 3)), TypeError, "grad_output float64 float32 output",
    ),
    "layer_norm, no axes": (lambda: kernels.layer_norm(f32()), ValueError, "input () (..., "),
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
        lambda: backward("rms_norm", f32(3), f32(3), eps=1e-39), ValueError, "eps 1e-39 0 float32",
    ),
    "layer_norm, eps a text": (lambda: kernels.layer_norm(f32(3), eps="1"), TypeError, "eps '1' number"),
    "layer_norm, gradient's shape": (
        lambda: backward("layer_norm", f32(3), f32(2, 3)), ValueError, "grad_output (3,) (2, 3)",
    ),
    "gelu, form": (lambda: kernels.gelu(f32(3), "erf"), ValueError, "approximate 'erf' 'none' 'tanh'"),
    "gelu, bias in the form's place": (lambda: kernels.gelu(f32(2, 3), f32(3)), TypeError, "approximate array 'none'"),
    "gelu, bias": (lambda: kernels.gelu(f32(2, 3), bias=f32(2)), ValueError, "bias (2,) (3,)"),
    "gelu, bias for no axes": (lambda: kernels.gelu(f32(), bias=f32(1)), ValueError, "input () (..., "),
    "gelu, gradient's shape": (lambda: backward("gelu", f32(3), f32(2, 3)), ValueError, "grad_output (3,) (2, 3)"),
    "activation, name": (
        lambda: kernels.activation(f32(3), "mish"), ValueError, "activation 'mish' 'relu' 'gelu_tanh'",
    ),
    "activation, None": (lambda: kernels.activation(f32(3), None), TypeError, "activation None 'relu'"),
    "activation, gradient's shape": (
        lambda: backward("activation", f32(2), f32(3), "relu"), ValueError, "grad_output (2,) (3,)",
    ),
    "gated_activation, half a column": (
        lambda: kernels.gated_activation(f32(2, 3), "silu"), ValueError, "input (2, 3) two halves",
    ),
    "gated_activation, gate": (
        lambda: kernels.gated_activation(f32(2, 4), "silu", gate="third"), ValueError, "gate 'third' 'first' 'second'",
    ),
    "gated_activation, gradient's shape": (
        lambda: backward("gated_activation", f32(2, 4), f32(2, 4), "silu"),
        ValueError, "grad_output (2, 4) (2, 2)",
    ),
    "affine, no axes": (lambda: kernels.affine(f32(), f32(1), f32(1)), ValueError, "input () (..., "),
    "affine, weight": (lambda: kernels.affine(f32(2, 3), f32(2), f32(3)), ValueError, "weight (2,) (3,)"),
    "affine, residual": (
        lambda: kernels.affine(f32(2, 3), f32(3), f32(3), residual=f32(3)), ValueError, "residual (3,) (2, 3)",
    ),
    "affine, gradient's shape": (
        lambda: backward("affine", f32(3), f32(2, 3), f32(3), f32(3)), ValueError, "grad_output (3,) (2, 3)",
    ),
    "linear, no axes": (lambda: kernels.linear(f32(), f32(3, 1)), ValueError, "input () (..., "),
    "linear, weight transposed": (
        lambda: kernels.linear(f32(2, 3), f32(3, 4)), ValueError, "weight (3, 4) (out_features, 3)",
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
        lambda: backward("linear", f32(2, 3), f32(2, 3), f32(4, 3)), ValueError, "grad_output (2, 3) (2, 4)",
    ),
    "prepare_weight, axes": (lambda: kernels.prepare_weight(f32(2, 3, 4)), ValueError, "weight (2, 3, 4) (any, any)"),
    "prepare_weight, a list": (lambda: kernels.prepare_weight([[1.0]]), TypeError, "weight list"),
    "embedding, ids": (lambda: kernels.embedding(f32(3), f32(4, 2)), TypeError, "input float32 integer"),
    "embedding, booleans": (lambda: kernels.embedding(IDS > 0, f32(4, 2)), TypeError, "input bool integer"),
    "embedding, id too large": (
        lambda: kernels.embedding(np.array([[0, 1], [2, 4]]), f32(4, 2)), ValueError, "input[1, 1] 4 0 to 3",
    ),
    "embedding, id below 0": (lambda: kernels.embedding(np.array([-1]), f32(4, 2)), ValueError, "input[0] -1 0 to 3"),
    "embedding, table": (lambda: kernels.embedding(IDS, f32(4)), ValueError, "weight (4,) (num_embeddings, dim)"),
    "embedding, gradient's shape": (
        lambda: embedding_backward(f32(2, 5), OF_FOUR), ValueError, "grad_output (2, 5) (3, any)",
    ),
    "embedding, add_to's shape": (
        lambda: embedding_backward(SQUARE, OF_FOUR, add_to=f32(3, 3)), ValueError, "add_to (3, 3) (4, 3)",
    ),
    "embedding, add_to's dtype": (
        lambda: embedding_backward(SQUARE, OF_THREE, add_to=np.ones((3, 3))), TypeError, "add_to float64 float32",
    ),
    "embedding, add_to read-only": (
        lambda: embedding_backward(SQUARE, OF_THREE, add_to=READ_ONLY), ValueError, "add_to read-only",
    ),
    "embedding, added to what is read": (
        lambda: embedding_backward(SQUARE, OF_THREE, add_to=SQUARE), ValueError, "add_to grad_output overlaps",
    ),
    "linear, the weight's gradient in float16": (
        lambda: kernels.linear_weight_gradient(SQUARE, SQUARE, dtype="float16"),
        TypeError, "dtype float16 float32 beside",
    ),
    "linear, the weight's gradient of other rows": (
        lambda: kernels.linear_weight_gradient(f32(2, 3), SQUARE), ValueError, "grad_output (2, 3) (3, out_features)",
    ),
    "linear, add_to's dtype": (
        lambda: kernels.linear_weight_gradient(SQUARE, SQUARE, add_to=np.ones((3, 3))),
        TypeError, "add_to float64 float32 beside",
    ),
    "linear, add_to's shape": (
        lambda: kernels.linear_weight_gradient(SQUARE, SQUARE, add_to=f32(2, 3)), ValueError, "add_to (2, 3) (3, 3)",
    ),
    "linear, add_to transposed": (
        lambda: kernels.linear_weight_gradient(SQUARE, SQUARE, add_to=f32(3, 3).T),
        ValueError, "add_to not C-contiguous",
    ),
    "linear, the weight's gradient added to what is read": (
        lambda: kernels.linear_weight_gradient(f32(3, 3), SQUARE, add_to=SQUARE), ValueError, "add_to input overlaps",
    ),
    "linear, needs_weight an array": (
        lambda: backward("linear", f32(2, 4), f32(2, 3), f32(4, 3), needs_weight=IDS),
        TypeError, "needs_weight array True False",
    ),
    "clip_norm, a limit for each array": (
        lambda: kernels.clip_norm([f32(3)] * 2, np.ones(2)), TypeError, "max_norm array number",
    ),
    "cross_entropy, out's shape": (
        lambda: backward("cross_entropy", f32(), SQUARE, IDS, out=WIDE), ValueError, "out (3, 4) (3, 3)",
    ),
    "cross_entropy, out's dtype": (
        lambda: backward("cross_entropy", f32(), SQUARE, IDS, out=np.zeros((3, 3))),
        TypeError, "out float64 float32",
    ),
    "cross_entropy, out read-only": (
        lambda: backward("cross_entropy", f32(), SQUARE, IDS, out=READ_ONLY), ValueError, "out read-only",
    ),
    "cross_entropy, out overlaps the logits": (
        lambda: backward("cross_entropy", f32(), WIDE[:, :3], IDS, out=WIDE[:, 1:]),
        ValueError, "out shares memory with input",
    ),
    **{
        f"dropout, p {p}": (lambda p=p: kernels.dropout(f32(3), p, 0), ValueError, f"p {p}")
        for p in (1.0, -0.1, np.nan)
    },
    **{
        f"dropout, seed {seed}": (lambda seed=seed: kernels.dropout(f32(3), 0.5, seed), error, f"seed {seed}")
        for seed, error in [(-1, ValueError), (2**64, ValueError), (0.5, TypeError), (None, TypeError)]
    },
    "rotary, interleaved an array": (
        lambda: kernels.rotary(PACKED[0], *TABLES, interleaved=IDS), TypeError, "interleaved array True False",
    ),
    "cross_entropy, axes": (lambda: kernels.cross_entropy(f32(3), IDS), ValueError, "input (3,) (rows, classes)"),
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
        lambda: backward("cross_entropy", f32(3), f32(3, 3), IDS), ValueError, "grad_output (3,) ()",
    ),
    "cross_entropy, gradient of losses": (
        lambda: backward("cross_entropy", f32(), f32(3, 3), IDS, reduction="none"),
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
        lambda: backward("rotary", np.zeros((7, 4, 8), int), PACKED[0], *TABLES),
        TypeError, "grad_output int64 float32",
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
}  # fmt: skip


@pytest.mark.parametrize("call, error, fragments", HOSTILE.values(), ids=HOSTILE)
def test_hostile_input(call, error, fragments):
    check_refused(call, error, fragments)


def keeping(name, *arguments, **options):
    """The output and what `name` kept for its backward, with the backward."""
    output, saved = getattr(kernels, name)(*arguments, save=True, **options)
    return np.ones_like(output), saved, getattr(kernels, f"{name}_backward")


THREE, OFFSETS_OF_THREE = np.array([0, 1, 1, 3]), np.array([0, 2, 3])
# Each: the call of an operation, a field that its backward is given, with another value, and the error.
ALTERED = [
    ("softmax", [SQUARE], "output", None, TypeError, "saved.output None array"),
    ("softmax", [SQUARE], "dim", 2, ValueError, "saved.dim 2 2 axes"),
    ("layer_norm", [SQUARE, SQUARE[0]], "weight", f32(2), ValueError, "saved.weight (2,) (3,)"),
    ("layer_norm", [SQUARE, SQUARE[0]], "weight", [1.0] * 3, TypeError, "saved.weight list array"),
    ("layer_norm", [SQUARE], "eps", "x", TypeError, "saved.eps 'x' number"),
    ("rms_norm", [SQUARE], "residual", f32(2, 3), ValueError, "saved.residual (2, 3) (3, 3)"),
    ("affine", [SQUARE, SQUARE[0], SQUARE[1]], "bias", F64[0], TypeError, "saved.bias float64 float32"),
    ("gelu", [SQUARE], "bias", f32(2), ValueError, "saved.bias (2,) (3,)"),
    ("cross_entropy", [SQUARE, IDS], "target", IDS + 1, ValueError, "saved.target[2] 3 0 to 2"),
    ("cross_entropy", [SQUARE, IDS], "lse", f32(2, 2), ValueError, "saved.lse (2, 2) (3, 2)"),
    ("embedding", [IDS, SQUARE], "input", IDS + 1, ValueError, "saved.input[2] 3 0 to 2"),
    ("linear", [SQUARE, WIDE.T.copy(), None], "weight", f32(4, 2), ValueError, "saved.weight (4, 2) (out_features, 3)"),
    ("pooling", [SQUARE, OFFSETS_OF_THREE], "cu_seqlens", THREE[:3], ValueError, "saved.cu_seqlens 0 to 1 0 to 3"),
    ("maxsim", [f32(2, 3, 4), WIDE, THREE], "document", f32(2, 4), ValueError, "saved.cu_seqlens 0 to 3 0 to 2"),
    ("maxsim", [f32(2, 3, 4), WIDE, THREE], "best", np.full((3, 6), 3), ValueError, "saved.best[0, 0] 3 0 to 2"),
    ("attention", [f32(1, 2, 3, 8)] * 3, "key", f32(1, 2, 3, 4), ValueError, "key (1, 2, 3, 4) (1, any, any, 8)"),
    ("attention", [f32(1, 2, 3, 8)] * 3, "lse", f32(1, 2, 2, 2), ValueError, "saved.lse (1, 2, 2, 2) (1, 2, 3, 2)"),
]  # fmt: skip


@pytest.mark.parametrize("backend", ["numpy", "numba"])
@pytest.mark.parametrize("name, arguments, field, value, error, fragments", ALTERED)
def test_a_backward_refuses_what_its_forward_has_not_kept(backend, name, arguments, field, value, error, fragments):
    grad, saved, backward = keeping(name, *arguments)
    check_refused(lambda: backward(grad, saved._replace(**{field: value}), backend=backend), error, fragments)


def test_a_backward_needs_the_input_of_an_activation():
    grad, saved, backward = keeping("linear", SQUARE, SQUARE, activation="gelu")
    check_refused(lambda: backward(grad, saved._replace(before=None)), TypeError, "saved.before None array activation")
