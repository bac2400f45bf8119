"""Attention in all its forms: the arguments of each by name, for packed sequences of any lengths.

The fields of `RelativePositions` stand among the arguments, as in the cases of conformance/.
"""

from itertools import accumulate

import numpy as np

from bench.ops.operations import OF_RELATIVE, public_arguments
from bertcore import kernels
from tests.kernels.arrays import f32
from tests.kernels.conformance.calls import everything

# Query, key and value, and the offsets of packed ones, for tests of what the public functions take.
DENSE, PACKED, OFFSETS = (f32(2, 4, 5, 8),) * 3, (f32(7, 4, 8),) * 3, np.array([0, 3, 7])

ROWS = 7  # of the tables of relative positions
SCALE = 0.4

ALL = "position_key position_query query_for_position position_bias segments window shared boolean bias"
FORMS = {  # what each has beside query, key, value and offsets
    "plain": "",
    "causal": "is_causal",
    "boolean mask": "boolean",
    "additive mask": "additive bias",
    "all masks": "boolean bias is_causal window",
    "window": "window",
    "shared heads": "shared",
    "biases by distance": "position_bias",
    "position_key": "position_key",
    "position_query": "position_query",
    "deberta": "position_key position_query boolean",
    "xlnet": "position_key query_for_position segments additive",
    "relative terms": "position_key position_query query_for_position segments additive",
    "all": ALL,
    "dropout": "dropout",
    "dropout, masked": "dropout is_causal window shared",
    "dropout, deberta": "dropout position_key position_query boolean",
    "dropout, all": f"{ALL} dropout",
}
OF_QUERIES = {"query", "query_for_position", "segment_scores", "segment_ids"}
OF_KEYS = {"key", "value", "segment_ids_k"}


def arguments(form, lengths, lengths_k=None, dtype=np.float64, *, seed=1, heads=2, head_dim=5, distances=5, rows=ROWS):
    """The arguments of one form for sequences of these lengths; masks hide every key from every 17th query.

    `rows`: of the tables; where there are as many as distances, each distance has its own.
    """
    words, rng = FORMS[form].split(), np.random.default_rng(seed)
    lengths_k = lengths if lengths_k is None else lengths_k
    tokens, keys, heads_k = sum(lengths), sum(lengths_k), heads
    heads = 2 * heads if "shared" in words else heads
    scores = (len(lengths), heads, max(lengths, default=0), max(lengths_k, default=0))

    def floats(*shape):
        return rng.standard_normal(shape).astype(dtype)

    given = {
        "query": floats(tokens, heads, head_dim),
        "key": floats(keys, heads_k, head_dim),
        "value": floats(keys, heads_k, head_dim),
        "cu_seqlens": np.array([0, *accumulate(lengths)], np.int32),
        "cu_seqlens_k": np.array([0, *accumulate(lengths_k)], np.int32),
        "scale": SCALE,
    }
    visible = rng.random(scores) < 0.7
    visible[..., ::17, :] = False
    if "boolean" in words:
        given["attn_mask"] = visible
    if "additive" in words:
        given["attn_mask"] = np.where(visible, floats(*scores), np.array(-np.inf, dtype))
    if "bias" in words:
        given["bias"] = floats(heads, 1, scores[3])
    if "is_causal" in words:
        given["is_causal"] = True
    if "window" in words:
        given["window"] = (3, 2)
    if "dropout" in words:
        given |= {"dropout_p": 0.3, "dropout_seed": 2**63 + 5}
    if "position_bias" in words:
        given["position_bias"] = floats(rows, heads)
    for table in {"position_key", "position_query"} & set(words):
        given[table] = floats(rows, heads, head_dim)
    if "query_for_position" in words:
        given["query_for_position"] = floats(tokens, heads, head_dim)
    if "segments" in words:
        given |= {"segment_ids": rng.integers(-1, 2, tokens), "segment_ids_k": rng.integers(-1, 2, keys)}
        given["segment_scores"] = floats(tokens, heads, 2)
    if given.keys() & OF_RELATIVE:
        given["distance_rows"] = np.arange(rows) if rows == distances else rng.integers(0, rows, distances)
    return given


def attend(given, **options):
    """`kernels.attention` with such arguments."""
    return kernels.attention(**public_arguments(given), **options)


def results(given, backend, grad=None):
    """Outputs and gradients by name; None where there is nothing. `grad` is by default drawn as the output is."""

    def draw(output):
        return np.random.default_rng(9).standard_normal(output.shape).astype(output.dtype)

    asked = draw if grad is None else lambda output: grad
    found = dict(everything("attention", public_arguments(given), asked, backend))
    for name in ("output alone", "output beside others"):
        assert np.array_equal(found.pop(name), found["output"], equal_nan=True)
    return found


def only(given, sequence, first=0):
    """The same arguments with one sequence, and of that the queries from `first` on: (arguments, queries, keys)."""
    offsets, offsets_k = given["cu_seqlens"], given["cu_seqlens_k"]
    queries = slice(offsets[sequence] + first, offsets[sequence + 1])
    keys = slice(offsets_k[sequence], offsets_k[sequence + 1])
    places = dict.fromkeys(OF_QUERIES, queries) | dict.fromkeys(OF_KEYS, keys)
    own = {name: value[places[name]] if name in places else value for name, value in given.items()}
    length, length_k = queries.stop - queries.start, keys.stop - keys.start
    if "attn_mask" in own:
        own["attn_mask"] = own["attn_mask"][sequence : sequence + 1, :, first : first + length, :length_k]
    if "bias" in own:
        own["bias"] = own["bias"][..., :length_k]
    counts = {"cu_seqlens": np.array([0, length], np.int32), "cu_seqlens_k": np.array([0, length_k], np.int32)}
    return own | counts, queries, keys


def in_float64(problem):
    """The arguments with floating arrays widened."""
    is_float = {name: isinstance(it, np.ndarray) and it.dtype.kind not in "iub" for name, it in problem.items()}
    return {name: it.astype(np.float64) if is_float[name] else it for name, it in problem.items()}
