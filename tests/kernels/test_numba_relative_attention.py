"""What is particular to relative_attention on Numba: blocks, shifts, programs, bits that depend on a sequence alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertcore.kernels import linear, prepare_weight, threads
from bertcore.kernels._numba import LEVEL
from bertcore.kernels.attention import cpu, reference
from bertcore.kernels.attention.cpu import LEAST_TASKS
from bertcore.kernels.attention.forward import KEY_BLOCK, QUERY_BLOCK, forward, scratch_size
from bertcore.kernels.deferred import Deferred
from bertcore.kernels.program import Program
from tests.kernels.attention_forms import relative_attention, relative_attention_backward
from tests.kernels.forced_isa import FORCED, not_when_forced, run_tests_under
from tests.kernels.strategies import QUICK, normal, seeds
from tests.kernels.test_relative_attention import ROWS, TERMS, log_buckets, masks, problem
from tests.tolerances import assert_close

# A lesser CPU gets the dtype that makes its vectors most different: compiling is what takes the time here.
DTYPE = np.float64 if FORCED == "generic" else np.float32
OTHER = np.float32 if FORCED == "generic" else np.float64
only_float32 = pytest.mark.skipif(np.float32 != DTYPE, reason="bfloat16 is for float32 arrays")
ASKED = {"return_lse": True, "return_probs": True, "return_components": True}


def everything(arrays, others, backend, **options):
    """Outputs and gradients by name."""
    output, lse, probs, components = relative_attention(**arrays, **others, **ASKED, **options, backend=backend)
    grad = normal(9, output.shape, output.dtype)
    gradients = relative_attention_backward(grad, **arrays, **others, output=output, lse=lse, backend=backend)
    names = ("content", "content to position", "position to content")
    results = {"output": output, "lse": lse, "probs": probs, **dict(zip(names, components, strict=True))}
    return results | {f"grad of {name}": gradient for name, gradient in gradients.items()}


def check(arrays, others):
    """Numba gives what the reference gives in float64."""
    wide = {name: array.astype(np.float64) for name, array in arrays.items()}
    expected = everything(wide, others, "numpy")
    for name, found in everything(arrays, others, "numba").items():
        if expected[name] is None:
            assert found is None
        else:
            assert_close(found, expected[name], name=name, factor=3, at_least=1)


def some_mask(kind, lengths, lengths_k, seed):
    shape = (len(lengths), 1, max(lengths, default=0), max(lengths_k, default=0))
    return masks(shape, seed)["boolean"] if kind == "boolean" else None


sizes = {
    "lengths": st.lists(st.sampled_from([0, 1, 2, 3, 7, 17, 39, 130]), max_size=4),
    "memory": st.sampled_from([0, 1, 23]),
    "head_dim": st.sampled_from([1, 7, 13, 39, 64, 160]),
    "distances": st.sampled_from([1, 3, 9, 101, 601]),
    "terms": st.sampled_from(sorted(TERMS)),
    "mask": st.sampled_from(["none", "boolean"]),
    "seed": seeds(),
}


@QUICK
@given(**sizes)
def test_any_sizes(lengths, memory, head_dim, distances, terms, mask, seed):
    check_sizes(lengths, memory, head_dim, distances, terms, mask, seed, DTYPE)


@pytest.mark.slow
@QUICK
@given(**sizes)
def test_any_sizes_in_the_other_dtype(lengths, memory, head_dim, distances, terms, mask, seed):
    check_sizes(lengths, memory, head_dim, distances, terms, mask, seed, OTHER)


def check_sizes(lengths, memory, head_dim, distances, terms, mask, seed, dtype):
    lengths_k = [length + memory for length in lengths]
    arrays, others = problem(lengths, lengths_k, terms, distances, dtype, seed, 1 + seed % 2, head_dim)
    check(arrays, others | {"attn_mask": some_mask(mask, lengths, lengths_k, seed)})


@pytest.mark.parametrize("keys", [KEY_BLOCK - 1, KEY_BLOCK, KEY_BLOCK + 1, 600])
@pytest.mark.parametrize("queries", [1, QUERY_BLOCK, QUERY_BLOCK + 1])
def test_block_borders(queries, keys):
    """Also keys that are fewer than the queries, of which the first then stand before all keys."""
    arrays, others = problem([queries, 3], [keys, 5], "all", 801, DTYPE, heads=1, head_dim=16)
    check(arrays, others)


@pytest.mark.parametrize("length", [*range(1, 50), *range(61, 600, 67)])
def test_every_length(length):
    arrays, others = problem([length], [length], "both", 2 * length + 5, DTYPE, heads=1, head_dim=8)
    check(arrays, others)


def test_log_buckets():
    arrays, others = problem([600, 40], [600, 40], "both", heads=1, head_dim=16, dtype=DTYPE)
    arrays |= {name: normal(3, (512, 1, 16), DTYPE) for name in ("position_key", "position_query")}
    check(arrays, others | {"distance_rows": log_buckets(256, 512, 512)})


@only_float32
@pytest.mark.slow
@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("head_dim", [1, 39, 64])
def test_bfloat16(head_dim, terms):
    lengths = [1, 2, 39, 0, KEY_BLOCK + 45]
    arrays, others = problem(lengths, lengths, terms, 401, np.float32, head_dim=head_dim)
    options = ASKED | {"compute_dtype": "bfloat16"}
    *found, components = relative_attention(**arrays, **others, **options, backend="numba")
    *expected, exact_components = relative_attention(**arrays, **others, **options, backend="numpy")
    for name, one, other in zip(("output", "lse", "probs"), found, expected, strict=True):
        # Exponentials are rounded against the highest score so far, of the last block against the highest of all.
        assert_close(one, other, name=name, factor=1000 if name == "output" else 3, at_least=1)
    for one, other in zip(components, exact_components, strict=True):
        assert one is other is None or np.array_equal(one, other)
    error = np.abs(found[0][:42] - expected[0][:42])  # one block: rounded as the reference does, but for halves
    assert np.quantile(error, 0.9) < 1e-6


OF_QUERIES = {"query", "query_for_position", "segment_scores", "segment_ids"}
OF_KEYS = {"key", "value", "segment_ids_k"}


def only(arrays, others, sequence):
    """The same problem with one sequence."""
    offsets, offsets_k = others["cu_seqlens"], others["cu_seqlens_k"]
    rows, rows_k = (slice(some[sequence], some[sequence + 1]) for some in (offsets, offsets_k))
    places = dict.fromkeys(OF_QUERIES, rows) | dict.fromkeys(OF_KEYS, rows_k)
    own = {name: array[places.get(name, slice(None))] for name, array in arrays.items()}
    counts = {"cu_seqlens": offsets[sequence : sequence + 2], "cu_seqlens_k": offsets_k[sequence : sequence + 2]}
    ids = {name: others[name][places[name]] for name in others if name.startswith("segment_ids")}
    return own, others | ids | {name: some - some[0] for name, some in counts.items()}, rows, rows_k


@pytest.mark.parametrize("terms", ["both", "all"])
def test_a_sequence_has_the_same_bits_alone_and_in_any_batch(terms):
    lengths, lengths_k = [5, 39, 300, 1, 33], [5, 50, 300, 1, 33]
    arrays, others = problem(lengths, lengths_k, terms, 101, DTYPE, head_dim=39)
    whole = everything(arrays, others, "numba")
    for sequence, length in enumerate(lengths):
        own, own_others, rows, rows_k = only(arrays, others, sequence)
        alone = everything(own, own_others, "numba")
        np.testing.assert_array_equal(alone["output"], whole["output"][rows])
        np.testing.assert_array_equal(alone["lse"], whole["lse"][:, rows])
        grad = normal(9, whole["output"].shape, DTYPE)[rows]
        results = {"output": alone["output"], "lse": alone["lse"]}
        gradients = relative_attention_backward(grad, **own, **own_others, **results, backend="numba")
        for name in (OF_QUERIES | OF_KEYS) & arrays.keys():
            place = rows if name in OF_QUERIES else rows_k
            np.testing.assert_array_equal(gradients[name], whole[f"grad of {name}"][place])
        fewer = {name: own[name][length // 2 :] for name in OF_QUERIES & own.keys()}  # of the same keys
        fewer_others = {name: own_others[name][length // 2 :] for name in OF_QUERIES & own_others.keys()}
        fewer_others = own_others | fewer_others | {"cu_seqlens": np.array([0, length - length // 2])}
        found = relative_attention(**{**own, **fewer}, **fewer_others, backend="numba")
        np.testing.assert_array_equal(found, alone["output"][length // 2 :])


def test_the_number_of_threads_does_not_change_the_bits(monkeypatch):
    lengths = [30, 5, 60, 1] * (LEAST_TASKS // 4)  # several sequences to a part of the tables' gradients
    arrays, others = problem(lengths, lengths, "all", 101, DTYPE, head_dim=20)
    expected = everything(arrays, others, "numba")
    for count in (1, 2, 3, 5):
        monkeypatch.setattr(threads, "_chosen", threads.ThreadCount(count, "test"))
        for name, found in everything(arrays, others, "numba").items():
            np.testing.assert_array_equal(found, expected[name], err_msg=name)


def test_queries_that_see_nothing():
    arrays, others = problem([39], [39], "all", 9, DTYPE)
    visible = np.ones((39, 39), bool)
    visible[[0, 17, 38]] = False
    found = everything(arrays, others | {"attn_mask": visible}, "numba")
    blind = [0, 17, 38]
    for name in ("output", "grad of query", "grad of query_for_position", "grad of segment_scores"):
        assert not found[name][blind].any(), name
    assert np.all(found["lse"][:, blind] == (-np.inf, 0)) and not found["probs"][0][:, blind].any()


class Filled:
    """NumPy whose empty arrays are full, so that what nobody writes shows."""

    def __getattr__(self, name):
        return getattr(np, name)

    @staticmethod
    def empty(shape, dtype):
        return np.full(shape, 7, dtype)


@pytest.mark.parametrize(
    "lengths, lengths_k, head_dim",
    [([], [], 4), ([0], [0], 4), ([3, 0], [0, 3], 4), ([5], [7], 0), ([0, 0], [2, 3], 4)],
)
def test_empty_sides(lengths, lengths_k, head_dim, monkeypatch):
    monkeypatch.setattr(cpu, "np", Filled())
    monkeypatch.setattr(reference, "np", Filled())
    arrays, others = problem(lengths, lengths_k, "all", 9, DTYPE, head_dim=head_dim)
    check(arrays, others)


def test_a_nan_reaches_the_queries_that_see_it_and_no_other():
    arrays, others = problem([39, 20], [39, 20], "both", 101, DTYPE)
    arrays["key"][45] = np.nan
    output = relative_attention(**arrays, **others, backend="numba")
    assert np.isfinite(output[:39]).all() and np.isnan(output[39:]).all()


def test_views_need_no_further_specialisation():
    arrays, others = problem([39, 5], [39, 5], "both", 9, DTYPE)
    expected = relative_attention(**arrays, **others, backend="numba")
    before = len(forward.signatures)
    fused = np.stack([arrays[name] for name in ("query", "key", "value")], axis=1)
    fused.flags.writeable = False
    views = arrays | {name: fused[:, i] for i, name in enumerate(("query", "key", "value"))}
    views |= {name: np.asfortranarray(arrays[name]) for name in ("position_key", "position_query")}
    np.testing.assert_array_equal(relative_attention(**views, **others, backend="numba"), expected)
    relative_attention(**views, **others, **ASKED, attn_mask=np.ones((44, 44), bool)[:39, :39], backend="numba")
    assert len(forward.signatures) == before


def test_what_a_block_needs_is_bounded():
    """It stays within a second-level cache of 1 MB (float32, head_dim 64)."""
    assert scratch_size(QUERY_BLOCK, KEY_BLOCK, 64, cpu.RELATIVE, np.float32(0)) < 2**18


# --- programs ---------------------------------------------------------------------------------------


class Layer:
    """Projections, relative attention and a projection back, as an encoder calls them."""

    def __init__(self, terms, dtype=None, width=39, heads=3):
        def weight(seed, rows):
            array = normal(seed, (rows, width), np.float32, scale=width**-0.5)
            return prepare_weight(array, dtype=dtype, backend="numba")

        self.qkv, self.p, self.out, self.heads, self.terms = (
            weight(1, 3 * width),
            weight(2, width),
            weight(3, width),
            heads,
            terms,
        )
        self.dtype = None if dtype is None else "bfloat16"
        shape = (ROWS, heads, width // heads)
        self.tables = {name: normal(i, shape, np.float32) for i, name in enumerate(("position_key", "position_query"))}

    def __call__(self, x, cu_seqlens, **options):
        tokens = x.shape[0]
        q, k, v = (linear(x, self.qkv).reshape(tokens, 3, self.heads, -1)[:, i] for i in range(3))
        given = {name: table for name, table in self.tables.items() if name in TERMS[self.terms]}
        if "query_for_position" in TERMS[self.terms]:
            given["query_for_position"] = linear(x, self.p).reshape(tokens, self.heads, -1)
        if "segment_scores" in TERMS[self.terms]:
            given |= {
                "segment_ids": np.arange(tokens) % 2,
                "segment_scores": normal(4, (tokens, self.heads, 2), np.float32),
            }
        context = relative_attention(
            q,
            k,
            v,
            distance_rows=np.arange(9) % ROWS,
            **given,
            cu_seqlens=cu_seqlens,
            compute_dtype=self.dtype,
            **options,
        )
        return linear(context.reshape(tokens, -1), self.out)


only_where_compiled = pytest.mark.skipif(bool(FORCED), reason="takes a minute to compile once more")


@only_where_compiled
@pytest.mark.parametrize(
    "dtype", [None, *(pytest.param(name, marks=pytest.mark.slow) for name in ("bfloat16", "int8"))]
)
def test_in_a_program_it_has_the_same_bits(dtype):
    cu_seqlens = np.array([0, 5, 6, 300], np.int32)
    x = normal(8, (300, 39), np.float32)
    for terms in TERMS:
        layer = Layer(terms, dtype)
        noted = layer(layer(Program().enter(x), cu_seqlens), cu_seqlens)
        assert type(noted) is Deferred and not noted.recorder.has_run
        np.testing.assert_array_equal(noted.result(), layer(layer(x, cu_seqlens), cu_seqlens), err_msg=terms)


@only_where_compiled
def test_what_a_program_does_not_note_is_computed_at_once():
    cu_seqlens, x = np.array([0, 7], np.int32), normal(8, (7, 39), np.float32)
    layer, visible = Layer("both"), np.tri(7, dtype=bool)
    noted = layer(Program().enter(x), cu_seqlens, attn_mask=visible)
    np.testing.assert_array_equal(noted, layer(x, cu_seqlens, attn_mask=visible))


@not_when_forced
@pytest.mark.slow
@pytest.mark.parametrize("isa", ["avx2", "generic"])
def test_everything_again_on_a_lesser_cpu(isa):
    run_tests_under(isa, __file__)


def test_the_forced_isa_is_in_force():
    assert not FORCED or LEVEL.name == FORCED
