"""Attention on Numba: strided views, blocks, and bits that depend on a sequence alone."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertcore.kernels import attention, attention_backward
from bertcore.kernels._numba import LEVEL
from bertcore.kernels._numba.products import blocks as scores
from bertcore.kernels.attention import cpu, reference
from bertcore.kernels.attention.cpu import forward as kernel
from bertcore.kernels.attention.cpu import records
from bertcore.kernels.threads import threads_here
from tests.kernels.attention_forms import FORMS, arguments, attend, in_float64, only, results
from tests.kernels.forced_isa import FORCED
from tests.kernels.strategies import QUICK, normal, seeds
from tests.refusals import refuses
from tests.tolerances import TOLERANCES, assert_close, assert_same_arrays

# A lesser CPU gets the dtype that makes its vectors most different: compiling is what takes the time here.
DTYPE, OTHER = (np.float64, np.float32) if FORCED == "generic" else (np.float32, np.float64)
QUERIES, KEYS = kernel.QUERY_BLOCK, kernel.KEY_BLOCK
only_float32 = pytest.mark.skipif(np.float32 != DTYPE, reason="bfloat16 is for float32 arrays")
WITHOUT_TABLES = ["plain", "additive mask", "all masks", "shared heads", "biases by distance"]
BOTH_KERNELS = pytest.mark.parametrize("form", ["plain", "all masks", "deberta", "all"])


def check(problem):
    """Numba gives what the reference gives in float64."""
    expected = results(in_float64(problem), "numpy")
    rounded = results(problem, "numpy")
    for name, found in results(problem, "numba").items():
        if expected[name] is None:
            assert found is None, name
            continue
        at_least = 1
        if "position" in name:
            # All scores may add to one distance what cancels to nothing: the measure is NumPy's error in this dtype, or
            # what their number makes of errors that are independent.
            error = np.abs(rounded[name] - expected[name]).max(initial=0.0)
            scores = len(problem["query"]) * max(np.diff(problem["cu_seqlens_k"]), default=0)
            at_least = max(1, error / TOLERANCES[found.dtype.name], scores**0.5 / 4)
        assert_close(found, expected[name], name=name, factor=3, at_least=at_least)


sizes = {
    "lengths": st.lists(st.sampled_from([0, 1, 2, 3, 7, 17, 39, 130]), max_size=4),
    "memory": st.sampled_from([0, 1, 23]),
    "head_dim": st.sampled_from([1, 7, 13, 39, 48, 64, 160]),
    "distances": st.sampled_from([1, 3, 9, 101, 601]),
    "seed": seeds(),
}


@pytest.mark.parametrize("dtype", [DTYPE, pytest.param(OTHER, marks=pytest.mark.slow)])  # compiles for 14 s
@settings(QUICK, max_examples=120)
@given(form=st.sampled_from(sorted(FORMS)), **sizes)
def test_any_sizes(dtype, form, lengths, memory, head_dim, distances, seed):
    lengths_k = [length + memory for length in lengths]
    check(arguments(form, lengths, lengths_k, dtype, seed=seed, head_dim=head_dim, distances=distances))


@pytest.mark.parametrize("form", ["plain", "all", "dropout, all"])
@pytest.mark.parametrize("keys", [KEYS - 1, KEYS, KEYS + 1, 2 * KEYS + 3, pytest.param(1009, marks=pytest.mark.slow)])
@pytest.mark.parametrize("queries", [1, QUERIES, QUERIES + 1])
def test_block_borders(queries, keys, form):
    """Also fewer keys than queries; the highest score is in the last block, where all before is rescaled."""
    problem = arguments(form, [queries, 3, 40], [keys, 5, 0], DTYPE, head_dim=16, distances=801)
    problem["key"] *= np.linspace(0.1, 4, len(problem["key"]), dtype=DTYPE)[:, None, None]
    check(problem)


@pytest.mark.parametrize("length", [*range(1, 50), *range(61, 600, 67)])
def test_every_length(length):
    for form in ("plain", "deberta"):
        check(arguments(form, [length], dtype=DTYPE, heads=1, head_dim=8, distances=2 * length + 5))


@pytest.mark.parametrize("form", ["plain", "all"])
@pytest.mark.parametrize(
    "lengths, lengths_k, head_dim",
    [([], [], 4), ([0], [0], 4), ([3, 0], [0, 3], 4), ([5], [7], 0), ([0, 0], [2, 3], 4)],
)
def test_empty_sides(lengths, lengths_k, head_dim, form, monkeypatch):
    class Filled:
        """NumPy with filled empty arrays, so that unwritten elements show."""

        def __getattr__(self, name):
            return getattr(np, name)

        @staticmethod
        def empty(shape, dtype):
            return np.full(shape, 7, dtype)

    monkeypatch.setattr(cpu, "np", Filled())
    monkeypatch.setattr(reference, "np", Filled())
    check(arguments(form, lengths, lengths_k, DTYPE, head_dim=head_dim))


def test_queries_without_keys_have_no_gradient():
    """Once they got what another sequence had left in the scratch."""
    problem = arguments("xlnet", [1, 1, 1], [9, 0, 30], DTYPE, head_dim=8)
    del problem["attn_mask"]
    grad = results(problem, "numba")["grad_query_for_position"]
    assert not grad[1].any() and grad[[0, 2]].any()


@pytest.mark.parametrize("where", [0, KEYS - 1, KEYS, 2 * KEYS])
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_special_score_in_any_block(where, special):
    query, key, value = (normal(seed, (1, 1, length, 8), DTYPE) for seed, length in ((1, 3), (2, 520), (3, 520)))
    bias = np.zeros((1, 1, 3, 520), DTYPE)
    bias[0, 0, 1, where] = special
    asked = {"bias": bias, "return_lse": True, "return_probs": True}
    found = attention(query, key, value, **asked, backend="numba")
    with np.errstate(invalid="ignore"):
        expected = attention(query, key, value, **asked, backend="numpy")
    for name, one, other in zip(("output", "lse", "probs"), found, expected, strict=True):
        assert_close(one, other, name=name, factor=3, at_least=1)


@only_float32
@pytest.mark.parametrize(
    "form",
    [
        pytest.param(form, marks=[] if form in WITHOUT_TABLES else pytest.mark.slow)
        for form in FORMS
        if "dropout" not in form  # which bfloat16 does not go with
    ],
)
@pytest.mark.parametrize("head_dim", [1, 39, 64])
def test_bfloat16(head_dim, form):
    problem = arguments(form, [1, 2, 39, 0, KEYS + 45], dtype=np.float32, head_dim=head_dim, distances=401)
    asked = {"compute_dtype": "bfloat16", "return_lse": True, "return_probs": True, "return_components": True}
    *found, components = attend(problem, **asked, backend="numba")
    if not LEVEL.bfloat16_dot:
        *plain, _ = attend(problem, **(asked | {"compute_dtype": None}), backend="numba")
        assert all(map(np.array_equal, found, plain))
        return
    *expected, exact_components = attend(problem, **asked, backend="numpy")
    for name, one, other in zip(("output", "lse", "probs"), found, expected, strict=True):
        # Exponentials are rounded against the highest score so far, of the last block against the highest of all.
        assert_close(one, other, name=name, factor=1000 if name == "output" else 3, at_least=1)
    for one, other in zip(components, exact_components, strict=True):
        assert one is other is None or np.array_equal(one, other)
    error = np.abs(found[0][:42] - expected[0][:42])  # one block: rounded as the reference does, but for halves
    assert np.quantile(error, 0.9) < 1e-6


@only_float32
@pytest.mark.parametrize("storage", [
    pytest.param(cpu.STORAGE["bfloat16"], id="of this CPU"),
    pytest.param(np.uint16(0), id="pairs", marks=pytest.mark.slow),  # on CPUs without the instruction, too
])  # fmt: skip
@pytest.mark.parametrize("window", [(4, 4), (5, 0), (64, 64), (None, 0)], ids=str)
def test_hidden_values_do_not_leak_in_bfloat16(window, storage, monkeypatch):
    """Zero times infinity is NaN: what float32 does not multiply, tiles and pairs of bfloat16 must not either."""
    monkeypatch.setitem(cpu.STORAGE, "bfloat16", storage)
    lengths = [39, 100, 20, 300]
    query, key, value = (normal(seed, (sum(lengths), 1, 8), np.float32) for seed in range(3))
    offsets = np.cumsum([0, *lengths], dtype=np.int32)
    spread = set()
    for where in range(0, sum(lengths), 3):
        spoiled = value.copy()
        spoiled[where] = np.inf if where % 2 else np.nan
        float32, bfloat16 = (
            attention(query, key, spoiled, cu_seqlens=offsets, window=window, compute_dtype=it, backend="numba")
            for it in (None, "bfloat16")
        )
        np.testing.assert_array_equal(np.isfinite(bfloat16), np.isfinite(float32), err_msg=str(where))
        spread.add(np.isfinite(float32).all(axis=(1, 2)).sum())
    assert len(spread) > 1 and max(spread) < sum(lengths)


@pytest.mark.parametrize("dtype", [DTYPE, pytest.param(OTHER, marks=pytest.mark.slow)])
@BOTH_KERNELS
def test_same_bits_alone_and_in_any_batch(form, dtype):
    problem = arguments(form, [5, 39, 300, 1, 33], [5, 50, 300, 1, 33], dtype, head_dim=39, distances=101)
    grad = normal(9, problem["query"].shape, dtype)
    whole = results(problem, "numba", grad)
    for sequence, length in enumerate([5, 39, 300, 1, 33]):
        own, queries, keys = only(problem, sequence)
        alone = results(own, "numba", grad[queries])
        places = dict.fromkeys(("output", "grad_query", "grad_query_for_position", "grad_segment_scores"), queries)
        places |= {"lse": (slice(None), queries), "grad_key": keys, "grad_value": keys}
        for name, place in places.items():
            if whole.get(name) is not None:
                np.testing.assert_array_equal(alone[name], whole[name][place], err_msg=name)
        if "is_causal" not in own:  # which counts queries from the first one on
            fewer = attend(only(problem, sequence, length // 2)[0], backend="numba")
            np.testing.assert_array_equal(fewer, alone["output"][length // 2 :])


@pytest.mark.parametrize("lengths, window", [([5, 39, 300, 1, 33], None), ([700], (70, 9))])
@pytest.mark.parametrize("compute_dtype", [None, pytest.param("bfloat16", marks=only_float32)])
def test_same_bits_for_any_queries(compute_dtype, lengths, window):
    problem = arguments("plain", lengths, dtype=DTYPE, head_dim=40) | {"window": window}
    asked = {"compute_dtype": compute_dtype, "backend": "numba"}
    whole = attend(problem, **asked)
    for sequence, length in enumerate(lengths):
        for first in {0, min(1, length - 1), length // 2}:
            own, queries, _ = only(problem, sequence, first)
            np.testing.assert_array_equal(attend(own, **asked), whole[queries])


def test_same_bits_with_padding():
    problem = arguments("plain", [160], dtype=DTYPE, head_dim=39)
    alone, lse = attend(problem, return_lse=True, backend="numba")
    content = (np.pad(problem[name], ((0, 23), (0, 0), (0, 0)))[None] for name in ("query", "key", "value"))
    visible, asked = np.arange(183) < 160, {"scale": problem["scale"], "return_lse": True, "backend": "numba"}
    padded, padded_lse = attention(*(array.swapaxes(1, 2) for array in content), attn_mask=visible, **asked)
    np.testing.assert_array_equal(padded[0, :, :160].swapaxes(0, 1), alone)
    np.testing.assert_array_equal(padded_lse[0, :, :160], lse)


@pytest.mark.parametrize("form", ["all masks", "all"])
def test_same_bits_for_any_thread_count(form):
    lengths = [300] + [30, 5, 60, 1] * (cpu.LEAST_TASKS // 4)  # several sequences to a part of the tables' gradients
    problem = arguments(form, lengths, dtype=DTYPE, head_dim=20, distances=101)
    expected = results(problem, "numba")
    for count in (1, 3):
        with threads_here(count):
            assert_same_arrays(results(problem, "numba"), expected)


def test_concurrent_python_threads():
    problem = arguments("causal", [39, 5, 160], dtype=DTYPE, head_dim=20)
    expected = results(problem, "numba")
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: results(problem, "numba"), range(40)):
            assert_same_arrays(found, expected)


@pytest.mark.parametrize("form", ["plain", "deberta"])
def test_views_need_no_copy_and_no_specialisation(form):
    problem = arguments(form, [39, 5], dtype=DTYPE, heads=2, head_dim=20)
    expected = attend(problem, backend="numba")
    before = len(kernel.forward.signatures)
    fused = np.stack([problem[name] for name in ("query", "key", "value")], axis=1)
    fused.flags.writeable = False
    views = problem | {name: fused[:, i] for i, name in enumerate(("query", "key", "value"))}
    views |= {name: np.asfortranarray(it) for name, it in problem.items() if name in ("position_key", "position_query")}
    assert all(records.addressed(fused[:, i].transpose(1, 0, 2)[None]).base is not None for i in range(3))
    np.testing.assert_array_equal(attend(views, backend="numba"), expected)
    results(views | {"attn_mask": np.ones((44, 44), bool)[:39, :39]}, "numba")
    assert len(kernel.forward.signatures) == before


def test_out_of_memory_for_scratch(monkeypatch):
    def refuse(shape, dtype):
        raise MemoryError(f"Unable to allocate {shape[0]} bytes")

    problem = arguments("plain", [9], dtype=np.float32)
    output, saved = attend(problem, save=True, backend="numba")
    monkeypatch.setattr(records, "empty", refuse)
    refuses(MemoryError, "bytes", attend, problem, backend="numba")
    refuses(MemoryError, "bytes", attention_backward, output, saved, backend="numba")


def test_rows_at_once_fit_scratch():
    sizes = range(0, 30_000, 16)
    for longest in (*range(0, 3000, 16), 30_000):
        room = scores.scores_size.py_func(longest)
        needed = (scores.rows_at_once.py_func(row) * row for row in sizes if row <= longest)
        assert max(needed, default=0) <= room
