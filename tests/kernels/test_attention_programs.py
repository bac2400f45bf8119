"""Attention with relative positions as a step of a program on Numba: noted where it can be, with the same bits."""

import numpy as np
import pytest

from bertcore.kernels import RelativePositions, attention, linear, prepare_weight
from bertcore.kernels.deferred import Deferred
from bertcore.kernels.program import Program
from tests.kernels.attention_forms import ROWS
from tests.kernels.forced_isa import FORCED
from tests.kernels.strategies import normal

TERMS = {
    "position_key": {"position_key"},
    "position_query": {"position_query"},
    "both": {"position_key", "position_query"},
    "xlnet": {"position_key", "query_for_position", "segment_scores"},
    "all": {"position_key", "position_query", "query_for_position", "segment_scores"},
}


class Layer:
    """Projections, attention with relative positions and a projection back, as an encoder calls them."""

    def __init__(self, terms, dtype=None, width=39, heads=3):
        def weight(seed, rows):
            array = normal(seed, (rows, width), np.float32, scale=width**-0.5)
            return prepare_weight(array, dtype=dtype, backend="numba")

        self.qkv, self.p, self.out = weight(1, 3 * width), weight(2, width), weight(3, width)
        self.heads, self.terms, self.dtype = heads, TERMS[terms], None if dtype is None else "bfloat16"
        shape = (ROWS, heads, width // heads)
        self.tables = {name: normal(i, shape, np.float32) for i, name in enumerate(("position_key", "position_query"))}

    def __call__(self, x, cu_seqlens, **options):
        tokens = x.shape[0]
        q, k, v = (linear(x, self.qkv).reshape(tokens, 3, self.heads, -1)[:, i] for i in range(3))
        given = {name: table for name, table in self.tables.items() if name in self.terms}
        if "query_for_position" in self.terms:
            given["query_for_position"] = linear(x, self.p).reshape(tokens, self.heads, -1)
        if "segment_scores" in self.terms:
            given["segment_ids"] = np.arange(tokens) % 2
            given["segment_scores"] = normal(4, (tokens, self.heads, 2), np.float32)
        relative = RelativePositions(np.arange(9) % ROWS, **given)
        options |= {"cu_seqlens": cu_seqlens, "compute_dtype": self.dtype}
        return linear(attention(q, k, v, relative=relative, **options).reshape(tokens, -1), self.out)


only_where_compiled = pytest.mark.skipif(bool(FORCED), reason="takes a minute to compile once more")


@only_where_compiled
@pytest.mark.parametrize(
    "dtype", [None, *(pytest.param(name, marks=pytest.mark.slow) for name in ("bfloat16", "int8"))]
)
def test_same_bits_in_a_program(dtype):
    cu_seqlens = np.array([0, 5, 6, 300], np.int32)
    x = normal(8, (300, 39), np.float32)
    for terms in TERMS:
        layer = Layer(terms, dtype)
        noted = layer(layer(Program().enter(x), cu_seqlens), cu_seqlens)
        assert type(noted) is Deferred and not noted.recorder.has_run
        np.testing.assert_array_equal(noted.result(), layer(layer(x, cu_seqlens), cu_seqlens), err_msg=terms)


@only_where_compiled
def test_masks_are_computed_at_once():
    cu_seqlens, x = np.array([0, 7], np.int32), normal(8, (7, 39), np.float32)
    layer, visible = Layer("both"), np.tri(7, dtype=bool)
    noted = layer(Program().enter(x), cu_seqlens, attn_mask=visible)
    np.testing.assert_array_equal(noted, layer(x, cu_seqlens, attn_mask=visible))
