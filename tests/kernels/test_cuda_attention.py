"""CUDA attention in the emulator, and on a GPU where there is one, against the float64 definition.

The conformance cases run the same functions under one schedule; here is what depends on tiles, warps and memory.
"""

import functools
import itertools

import cupy
import ml_dtypes
import numpy as np
import pytest

from bench.ops.operations import public_arguments
from bertcore import kernels
from bertcore.kernels import _cuda
from bertcore.kernels.attention import cuda as attention_cuda
from bertcore.kernels.attention.cuda import backward as backward_cuda
from bertcore.kernels.attention.cuda import relative as relative_cuda
from bertcore.kernels.attention.positions import RelativePositions, alibi_positions
from tests.cuda_emulator import Emulator
from tests.cuda_emulator.driverless import driverless, host
from tests.kernels.arrays import backward, normal, to_gpu, with_layout
from tests.kernels.attention_forms import FORMS, OF_KEYS, OF_QUERIES, ROWS, arguments, in_float64, only
from tests.kernels.cuda_support import EmulatorTarget, wide
from tests.tolerances import assert_close

SHARED_LIMIT = {75: 64 << 10, 80: 163 << 10, 86: 99 << 10, 90: 227 << 10}  # CUDA C++ Programming Guide
FLOAT16, BFLOAT16, FLOAT32 = np.float16, ml_dtypes.bfloat16, np.float32
SLOW = pytest.mark.slow


# The two half precisions share their code; the conformance cases have the other one by default.
@pytest.fixture(params=[FLOAT16, pytest.param(BFLOAT16, marks=SLOW), FLOAT32], ids=lambda dtype: dtype.__name__)
def dtype(request):
    return request.param


def call(backend, given, names=(), *arrays):
    """(output, lse, probabilities) of `given` with the `arrays` of these names."""
    asked = {"return_lse": True, "return_probs": True, "backend": backend}
    return kernels.attention(**public_arguments(given | dict(zip(names, arrays, strict=True))), **asked)


def defined(given):
    """The definition's results in float64."""
    return call("numpy", in_float64(given))


def computed(cuda, given):
    arrays = {name: it for name, it in given.items() if isinstance(it, np.ndarray)}
    return cuda.run(functools.partial(call, "cupy", given, tuple(arrays)), *arrays.values())


def on_gpu(given):
    """The same with CuPy's arrays; `given` may have some already."""
    return {name: cupy.asarray(it) if isinstance(it, np.ndarray) else it for name, it in given.items()}


def check(cuda, given, **options):
    """Compare output, lse and probabilities with the definition's; returns the output in float64."""
    expected, found = defined(given | options), computed(cuda, given | options)
    assert found[0].flags.c_contiguous and found[1].dtype == np.float32
    assert_close(found[0], expected[0], name="output")
    assert_close(found[1], expected[1], name="lse", at_least=1)
    # exp() multiplies the rounding of a score by its size.
    assert_close(found[2], expected[2], name="probabilities", factor=4)
    return wide(found[0])


def gradients(backend, given, names=(), *arrays):
    """All gradients of `given` with the `arrays` of these names: what the forward kept, if given, in its place."""
    given = given | dict(zip(names, arrays, strict=True))
    grad, *kept = (given.pop(name) for name in ("grad", "output", "lse") if name in given)
    _, saved = kernels.attention(**public_arguments(given), save=True, backend=backend)
    saved = saved._replace(**dict(zip(("output", "lse"), kept, strict=False)))
    *found, relative = kernels.attention_backward(grad, saved, backend=backend)
    terms = () if relative is None else [array for name, array in vars(relative).items() if name != "longest"]
    return (*found, *terms)


def computed_gradients(cuda, given):
    arrays = {name: it for name, it in given.items() if isinstance(it, np.ndarray)}
    return cuda.run(functools.partial(gradients, "cupy", given, tuple(arrays)), *arrays.values())


def check_gradients(cuda, given):
    """Compare all gradients with the definition's, by what its forward keeps."""
    dtype = given["query"].dtype
    output, lse, _ = defined(given)
    given = given | {"grad": normal(9, given["query"].shape, dtype)}
    expected = gradients("numpy", in_float64(given))
    given |= {"output": output.astype(dtype), "lse": lse.astype(np.float32)}
    for index, (one, other) in enumerate(zip(computed_gradients(cuda, given), expected, strict=True)):
        assert (one is None) == (other is None), index
        if other is not None:
            assert_close(one, other, name=f"gradient {index}", at_least=1, factor=3)


def packed(dtype, lengths, lengths_k=None, heads=2, head_dim=13, form="plain", distances=25, **sizes):
    """The arguments of a form with arrays of (tokens, heads, head_dim) and offsets; sums of products stay near 1."""
    given = arguments(form, lengths, lengths_k, dtype, heads=heads, head_dim=head_dim, distances=distances, **sizes)
    products = 3 if given.keys() & {"position_key", "position_query"} else 1
    return given | {"scale": (products * max(head_dim, 1)) ** -0.5}


def dense(dtype, batch=1, heads=1, length=65, length_k=None, head_dim=64, form="plain"):
    """The same with arrays of (batch, heads, length, head_dim)."""
    length_k = length if length_k is None else length_k
    given = packed(dtype, [length] * batch, [length_k] * batch, heads, head_dim, form)
    given = {name: it for name, it in given.items() if not name.startswith("cu_seqlens")}
    for name in (OF_QUERIES | OF_KEYS) & given.keys():
        array = given[name].reshape(batch, len(given[name]) // batch, *given[name].shape[1:])
        given[name] = array if array.ndim == 2 else np.ascontiguousarray(array.swapaxes(1, 2))
    return given


MANY, MANY_K = (0, 1, 64, 0, 65, 3, 0), (3, 0, 65, 0, 1, 8, 2)
FEW, FEW_K = (1, 0, 37, 5), (4, 2, 41, 3)  # memory before the queries, keys alone, fewer keys than queries
WIDE, WIDE_K = (0, 1, 150, 5, 7, 3), (2, 1, 150, 70, 0, 1)
CAUSAL = {"is_causal": True}


CASES = [  # function that makes the arguments, its own arguments, options of attention
    *((dense, {"heads": 2, "length": 5, "length_k": 70, "head_dim": size}, {}) for size in (1, 39, 48, 64, 128, 160)),
    *((dense, {"length": 66, "length_k": 40, "head_dim": size}, CAUSAL) for size in (39, 64, 128, 160)),
    *((dense, {"length": q, "length_k": k, "head_dim": 32}, {}) for q, k in ((1, 65), (65, 1), (65, 0), (130, 130))),
    *((dense, {"length": length, "head_dim": 32}, CAUSAL) for length in (63, 130)),
    *((packed, {"lengths": MANY, "lengths_k": MANY_K, "head_dim": 32}, options) for options in ({}, CAUSAL)),
    # More than one tile of queries, and of keys; distances beyond those that have a row, on both sides.
    *(
        (packed, {"lengths": (q,), "lengths_k": (k,), "form": "deberta"}, {})
        for q, k in ((0, 5), (5, 0), (1, 67), (67, 1))
    ),
    # From the query's own key to more than the text; memory before the queries, queries without a key.
    *(
        (packed, {"lengths": WIDE, "lengths_k": WIDE_K, "heads": 1, "head_dim": 32}, {"window": window} | causal)
        for window in (0, (None, 0), (20, None), (70, 2), (3, 75), 10**6)
        for causal in ({}, CAUSAL)
    ),
    # Warps of a tile begin with different keys.
    *(
        (
            packed,
            {"lengths": (131, 5), "lengths_k": (131, 40), "heads": 1, "form": "relative terms"},
            {"window": window},
        )
        for window in (0, (None, 0), (20, 3), (3, 75))
    ),
    *((packed, {"lengths": FEW, "lengths_k": FEW_K, "form": form}, {}) for form in FORMS),
    *((dense, {"batch": 2, "heads": 2, "length": 37, "length_k": 41, "form": form}, CAUSAL) for form in FORMS),
    *((dense, {"length": 20, "head_dim": 16}, {"scale": scale}) for scale in (-0.3, 0.0, 4.0)),
    *(
        (packed, {"lengths": (40,), "heads": 1, "form": form, "distances": count}, {})
        for form in ("deberta", "biases by distance")
        for count in (1, 301)
    ),
    *(
        (packed, {"lengths": FEW, "lengths_k": FEW_K, "form": form, "distances": rows, "rows": rows}, options)
        for form, rows in (("biases by distance", 81), ("deberta", 39))  # a row for each distance
        for options in ({"window": (20, 3)}, {"dropout_p": 0.2, "dropout_seed": 2**63 + 5})
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda it: " ".join(map(str, (it[0].__name__, *it[1].items(), *it[2]))))
def test_cases(cuda, dtype, case):
    make, given, options = case
    check(cuda, make(dtype, **given), **options)
    check_gradients(cuda, make(dtype, **given) | options)


@pytest.mark.parametrize("head_dim", [1, 40, 64, *(pytest.param(size, marks=SLOW) for size in (32, 100, 128))])
def test_head_dims_with_tables(cuda, dtype, head_dim):
    check(cuda, packed(dtype, (19,), (35,), 1, head_dim, "all"))
    if isinstance(cuda, EmulatorTarget):
        padded, c_type = next(size for size in (32, 64, 128) if size >= head_dim), _cuda.c_type(dtype)
        rows, keys = relative_cuda.FP32[padded][0]
        sizes = f"_fp32<{padded}, {rows}, {keys}" if dtype is FLOAT32 else f"<{c_type}, {padded}"
        expected = [f"relative_attention_forward{sizes}, EVERYTHING>", f"relative_attention_probs<{c_type}>"]
        assert [launch.kernel for launch in cuda.launches] == expected


@pytest.mark.parametrize(
    "head_dim, strips, shared",
    [(64, 2, 99), (64, 1, 64), *(pytest.param(128, *other, marks=SLOW) for other in ((2, 163), (1, 99)))],
)
def test_two_strips_per_warp(cuda, head_dim, strips, shared, monkeypatch):
    monkeypatch.setattr(Emulator, "device", lambda self: _cuda.DeviceProperties(80, 4, shared << 10))
    given = dense(FLOAT16, heads=4, length=150, head_dim=head_dim)
    check(cuda, given, **{name: normal(3, (4, 150, 150), FLOAT16) for name in ("attn_mask", "bias")})
    check(cuda, given, is_causal=True, window=(70, 9))
    if isinstance(cuda, EmulatorTarget):
        assert cuda.launches[0].kernel == f"attention_forward<__half, {head_dim}, {strips}, NOTHING>"


@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("head_dim", [39, 48], ids=["that no vector fits", "of whole vectors"])
def test_packed_views_of_a_fused_projection(cuda, dtype, head_dim, is_causal):
    fused = normal(0, (sum(MANY), 3, 2, head_dim), dtype)
    views = dict(zip(("query", "key", "value"), fused.swapaxes(0, 1), strict=True))
    assert not views["query"].flags.c_contiguous
    check(cuda, views, cu_seqlens=np.cumsum([0, *MANY], dtype=np.int32), is_causal=is_causal)


def test_masks_whose_keys_lie_apart(cuda, dtype):
    given = dense(dtype, 2, 2, 40, 37, 39)
    given["attn_mask"] = (np.random.default_rng(5).random((2, 2, 37, 40)) < 0.8).swapaxes(2, 3)
    check(cuda, given)
    check_gradients(cuda, given)


def test_views_with_tables(cuda, dtype):
    given = packed(dtype, FEW, FEW_K, head_dim=24, form="all")
    for name in ("query", "key", "value", "position_key", "position_query", "query_for_position"):
        given[name] = np.concatenate([given[name]] * 2, axis=2)[..., 1:17]
    for name in ("segment_scores", "position_bias", "distance_rows", "segment_ids", "segment_ids_k", "cu_seqlens"):
        given[name] = np.repeat(given[name], 2, axis=0)[::2]
    check(cuda, given)


@pytest.mark.parametrize("sequences", [33, 1100])
def test_finding_one_of_many_sequences(sequences):
    given = packed(FLOAT16, np.random.default_rng(0).integers(0, 3, sequences), heads=1, head_dim=8)
    with _cuda.use_runtime(Emulator()):
        output = kernels.attention(**given, backend="cupy")
    assert_close(output, defined(given)[0])


@pytest.mark.parametrize("form", ["plain", "position_key"])
def test_tiles_of_keys_out_of_sight_are_not_read(cuda, dtype, form):
    given = packed(dtype, (5,), (200,), heads=1, head_dim=72, form=form)
    for options, beyond in (({"window": (9, None)}, slice(0, 128)), (CAUSAL, slice(64, None))):
        given["value"][beyond] = 0
        output = check(cuda, given, **options)
        given["value"][beyond] = np.nan
        np.testing.assert_array_equal(wide(computed(cuda, given | options)[0]), output)
        given["value"][beyond] = 1


def test_a_window_has_the_same_bits_whatever_the_queries_are(cuda, dtype):
    given = packed(dtype, (150,), head_dim=32) | {"window": (40, 9)}
    part = given | {"query": given["query"][101:], "cu_seqlens": np.array([0, 49], np.int32)}
    np.testing.assert_array_equal(computed(cuda, given)[0][101:], computed(cuda, part)[0])


@pytest.mark.parametrize("name", ["position_key", "position_query", "position_bias"])
def test_unknown_rows_are_not_read(dtype, name):
    """On a GPU the values of distance_rows are not checked: an unknown row counts as zeros."""
    given = packed(dtype, FEW, FEW_K, head_dim=16, form="biases by distance" if name == "position_bias" else name)
    given["distance_rows"][[10, 14]] = -1, ROWS
    table = np.concatenate([given[name], np.zeros_like(given[name][:1])])
    expected, *_ = defined(given | {name: table, "distance_rows": given["distance_rows"] % (ROWS + 1)})
    with driverless():
        assert_close(host(call("cupy", on_gpu(given))[0]), expected)


def test_the_stride_of_a_single_key(dtype):
    """An axis of size 1 may have any stride: memory beyond the key is not read."""
    given = packed(dtype, [1], heads=3, form="biases by distance") | {"bias": normal(3, (1, 3, 1, 1), dtype)}
    expected, *_ = defined(given)
    with driverless():
        given["bias"] = to_gpu(with_layout(given["bias"], "fortran"))
        assert_close(host(call("cupy", on_gpu(given))[0]), expected)


def test_biases_beyond_a_sequence_are_not_read(cuda, dtype):
    """A mask and a bias have the longest sequence's size; beyond a sequence's own length the bias is NaN."""
    lengths = (5, 0, 66, 20)
    given = packed(dtype, lengths, head_dim=24, form="all masks")
    given["bias"] = normal(3, (len(lengths), 2, 66, 66), dtype)
    for bias, length in zip(given["bias"], lengths, strict=True):
        bias[:, length:], bias[:, :, length:] = np.nan, np.nan
    check(cuda, given, window=None)


@pytest.mark.parametrize("hidden", [False, True], ids=["some", "all"])
def test_lowest_finite_masks(cuda, dtype, hidden):
    """The usual stand-in for -inf. Keys count alike where it hides all of them; in bfloat16 it could overflow."""
    given = dense(dtype, length=10, length_k=70, head_dim=16)
    given["attn_mask"] = np.zeros((10, 70), dtype)
    given["attn_mask"][..., 0 if hidden else 30 :] = ml_dtypes.finfo(dtype).min
    in_float32 = {name: it.astype(np.float32) if isinstance(it, np.ndarray) else it for name, it in given.items()}
    assert_close(computed(cuda, given)[0], call("numpy", in_float32)[0])


@pytest.mark.parametrize("name", ["query", "query_for_position", "segment_scores"])
def test_nan_stays_in_its_row_with_tables(cuda, dtype, name):
    given = packed(dtype, (37,), (41,), form="relative terms")
    given[name][20, 1, 1] = np.nan
    given["segment_ids"][20] = 4  # of no key: all get the second score
    output = check(cuda, given)
    assert np.isnan(output[20, 1]).all() and np.isnan(output).sum() == 13


@pytest.mark.parametrize("rows", [1, 5], ids=["by key", "by score"])
@pytest.mark.parametrize("name", ["query", "key"])
def test_nan_is_not_hidden_by_a_boolean_mask(cuda, dtype, name, rows):
    """-inf is added to the scores, as the definition says."""
    given = dense(dtype, length=5, head_dim=32) | {"attn_mask": np.zeros((rows, 5), bool)}
    given[name][0, 0, 3, 1] = np.nan
    wanted = np.isnan(defined(given)[0])
    assert np.array_equal(np.isnan(computed(cuda, given)[0]), wanted)
    assert wanted.sum() == {"query": 32, "key": 160}[name]


def test_scores_in_the_thousands_keep_their_digits(cuda, dtype):
    """Exact scores near 3,840: one float32 would round the sum of peak and logarithm to 2e-4."""
    given = dense(dtype, length=5, length_k=70, head_dim=64)
    given["query"][:], given["key"][:] = 40, 12
    given["key"][..., 0] += np.arange(70) % 8 / 8
    check(cuda, given, scale=0.125)
    lse = computed(cuda, given | {"scale": 0.125})[1]
    above = 0.625 * (np.arange(70) % 8)
    np.testing.assert_array_equal(lse[..., 0], 3840 + above.max())
    tolerance = 2e-6 if dtype is FLOAT32 else 5e-5  # exponentials are of the scaled scores, far below a half's digits
    np.testing.assert_allclose(lse[..., 1], np.log(np.exp(above - above.max()).sum()), rtol=tolerance)
    check_gradients(cuda, given | {"scale": 0.125})


@pytest.mark.parametrize("head_dim, form, options, message", [
    (257, "plain", {}, "head_dim 257, .* at most 256"),
    (129, "deberta", {}, "head_dim 129, .* at most 128"),
    (129, "all", {}, "head_dim 129, .* at most 128"),
    (13, "plain", {"return_components": True}, "return_components"),
])  # fmt: skip
def test_unsupported_arguments(head_dim, form, options, message):
    given = public_arguments(packed(FLOAT16, (2,), head_dim=head_dim, form=form))
    with _cuda.use_runtime(Emulator()), pytest.raises(ValueError, match=message):
        kernels.attention(**given, **options, backend="cupy")


def test_shared_memory_fits_the_smallest_gpu():
    limit, static = SHARED_LIMIT[75], 256  # AddedScores and Place
    assert max(attention_cuda.MMA.values()) + static <= limit
    assert max(shared_bytes for _, shared_bytes in attention_cuda.FP32.values()) <= limit
    assert max(relative_cuda.shared_memory(size, 1, 1, 1) for size in relative_cuda.MMA) + static <= limit


@pytest.mark.parametrize("capability", SHARED_LIMIT)
@pytest.mark.parametrize("head_dim", relative_cuda.FP32)
def test_all_relative_terms_fit_beside_a_mask(head_dim, capability):
    """In float32; a mask's kernel declares a place for each distance of a tile. The large tile is kept if it fits."""
    largest, limit = relative_cuda.FP32[head_dim][0], SHARED_LIMIT[capability]
    for added, present in itertools.product(relative_cuda.ADDED, itertools.product((False, True), repeat=3)):
        rows, keys, shared_bytes = relative_cuda.fp32_tile(head_dim, added, limit, *present)
        assert shared_bytes + (added == "EVERYTHING") * 4 * (rows + keys) <= limit
        is_too_much = (capability, added, all(present)) == (75, "EVERYTHING", True) and head_dim > 32
        assert ((rows, keys) != largest) == is_too_much


@pytest.mark.parametrize("head_dim", [64, pytest.param(100, marks=SLOW)])
def test_smaller_tiles_of_relative_attention(head_dim, monkeypatch):
    monkeypatch.setattr(relative_cuda, "fp32_tile", lambda padded, *_: (*relative_cuda.FP32[padded][1], 64 << 10))
    target = EmulatorTarget()
    check(target, packed(FLOAT32, (37, 5), (41, 40), 1, head_dim, form="relative terms"))
    assert ", 16, EVERYTHING>" in target.launches[0].kernel


def test_a_head_that_is_too_wide_is_refused():
    with pytest.raises(ValueError, match="head_dim 257, expected at most 256 on CUDA"):
        backward_cuda.check_head_dim(np.empty((1, 1, 1, 257)))


def test_gradients_read_no_tiles_out_of_sight(cuda, dtype):
    given = packed(dtype, (300,), heads=1, head_dim=64) | {"window": (9, 9), "grad": normal(4, (300, 1, 64), dtype)}
    clean = computed_gradients(cuda, given)
    for name in ("query", "key", "value", "grad"):
        given[name][256:] = np.nan
    for one, other in zip(clean, computed_gradients(cuda, given), strict=True):
        if one is not None:
            np.testing.assert_array_equal(one[:128], other[:128])
            assert np.isnan(other[256:]).all()


def test_a_sequence_has_the_same_bits_in_any_batch(cuda, dtype):
    given = packed(dtype, (33, 0, 70, 37), head_dim=32) | {"grad": normal(4, (140, 2, 32), dtype)}
    own, queries, _ = only(given, 2)
    together, alone = (computed_gradients(cuda, it) for it in (given, own | {"grad": given["grad"][queries]}))
    for one, other in zip(together, alone, strict=True):
        assert one is other is None or np.array_equal(one[queries], other)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_biases_by_distance_take_no_array_of_scores(dtype):
    with driverless(emulated=False) as gpu:
        array = cupy.zeros((2, 3, 512, 32), dtype)
        relative = alibi_positions(3, 512, dtype)
        relative = RelativePositions(
            cupy.asarray(relative.distance_rows), position_bias=cupy.asarray(relative.position_bias)
        )
        backward("attention", *[array] * 4, relative=relative)
        sizes = {arg.size for launch in gpu.launches for arg in launch.args if isinstance(arg, cupy.ndarray)}
    assert max(sizes) < 2 * 3 * 512 * 512 / 8
