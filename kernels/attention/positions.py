"""Terms of attention's scores that depend on the distance between a key and a query."""

import math
from dataclasses import dataclass, fields

import numpy as np

from .. import checks
from ..arrays import Array, DTypeLike


@dataclass(frozen=True, eq=False)
class RelativePositions:
    """The terms that relative positions and segments add to the scores of `attention`.

    Query i of a sequence is at the key position i + keys - queries, so that earlier keys are memory. Its distance to
    key j is d = i + keys - queries - j, for which the row of the tables is

        r(d) = distance_rows[d + (len(distance_rows) - 1) // 2]

    with the end entries for all d outside its range.

    To query @ key.T are added, before the scale (query_for_position is the query by default):

    - content to position: `query_for_position[i] . position_key[r(d)]`,
    - position to content: `key[j] . position_query[r(d)]`,
    - segments: `segment_scores[i, h, segment_ids[i] != segment_ids_k[j]]`,

    and after the scale, before bias and mask, position_bias[r(d), h].

    Sources: disentangled attention, He et al. 2021, arXiv:2006.03654; Transformer-XL, Dai et al. 2019,
    arXiv:1901.02860; segments, Yang et al. 2019, arXiv:1906.08237; biases, Raffel et al. 2020, arXiv:1910.10683.

    Attributes:
        distance_rows: an odd number of integers: the row of the tables for each distance, ascending, 0 in the middle.
            On a GPU their values are not checked.
        position_key: table multiplied with the queries, (rows, heads, head_dim), of the query's dtype.
        position_query: table multiplied with the keys, of the same shape.
        query_for_position: of the query's shape and dtype. Needs position_key.
        position_bias: (rows, heads) of the query's dtype. At least one of the three tables is given.
        segment_ids: integers of a magnitude below 2**24, (tokens,), dense (batch, length). On a GPU their values are
            not checked.
        segment_ids_k: the same for the keys; by default segment_ids.
        segment_scores: for keys of the same segment and of another, of the query's shape except for the last axis,
            which has size 2. Given with segment_ids.
        longest: the tokens of the longest packed sequence of queries and of keys, or more. On a GPU, where it is not
            checked, it sets the memory of gradients; without it they read cu_seqlens, which waits for the GPU.
    """

    distance_rows: Array | None
    position_key: Array | None = None
    position_query: Array | None = None
    query_for_position: Array | None = None
    position_bias: Array | None = None
    segment_ids: Array | None = None
    segment_ids_k: Array | None = None
    segment_scores: Array | None = None
    longest: int | None = None


TABLES = "position_key", "position_query", "position_bias"
TERMS = ("position_key", "position_query", "query_for_position", "position_bias", "segment_scores")
"""The fields of RelativePositions that have gradients."""

OF_RELATIVE = tuple(field.name for field in fields(RelativePositions) if field.name != "longest")


def alibi_positions(num_heads: int, longest: int, dtype: DTypeLike = np.float32) -> RelativePositions:
    """Attention with linear biases: -slope * |distance|, symmetric (Press et al. 2021, arXiv:2108.12409).

    The slopes of n heads, n a power of two, are 2^(-8 k / n) for k from 1 to n. Other numbers of heads use those of the
    power of two below, then every second one of the power above.

    Args:
        num_heads: at least 1.
        longest: the number of tokens of the longest sequence, at least 1.
        dtype: the dtype of the queries.

    Raises:
        TypeError, ValueError: for other numbers, and for a dtype that is not floating.
    """
    num_heads = checks.integer_number("num_heads", num_heads, minimum=1)
    last = checks.integer_number("longest", longest, minimum=1) - 1
    dtype = checks.floating_dtype("dtype", dtype)
    bias = -np.arange(last + 1)[:, None] * alibi_slopes(num_heads)
    return RelativePositions(np.abs(np.arange(-last, last + 1, dtype=np.int32)), position_bias=bias.astype(dtype))


def alibi_slopes(num_heads: int) -> np.ndarray:
    below = 1 << (num_heads.bit_length() - 1)
    slopes = 2.0 ** (-8 * np.arange(1, below + 1) / below)
    between = 2.0 ** (-8 * np.arange(1, 2 * below + 1, 2) / (2 * below))
    return np.concatenate([slopes, between])[:num_heads]


def bucketed_distances(num_buckets: int = 32, max_distance: int = 128) -> np.ndarray:
    """Return the bidirectional buckets of T5 and MPNet as `distance_rows`: int32, (2 * max_distance + 1,).

    Keys before the query have the first half of the buckets, keys after it the second half. Half of each half is for
    exact distances, the rest for logarithmic ranges up to max_distance, beyond which all share the last bucket. Halves
    are rounded down.
    Source: Raffel et al. 2020, arXiv:1910.10683, section 2.1.

    Args:
        num_buckets: at least 4.
        max_distance: more than num_buckets // 4.

    Raises:
        TypeError, ValueError: for other numbers.
    """
    num_buckets = checks.integer_number("num_buckets", num_buckets, minimum=4)
    max_distance = checks.integer_number("max_distance", max_distance)
    half, exact = num_buckets // 2, num_buckets // 4
    if max_distance <= exact:
        raise ValueError(f"max_distance is {max_distance}, expected more than num_buckets // 4 = {exact}")
    distances = np.arange(-max_distance, max_distance + 1)
    size = np.abs(distances)
    # Rounded as by transformers: in float64 a distance at the end of a range, (18, 128) has one, is in another bucket.
    logs = np.log(np.maximum(size, 1).astype(np.float32) / exact, dtype=np.float64).astype(np.float32)
    share = logs / np.float32(math.log(max_distance / exact)) * np.float32(half - exact)
    far = np.minimum(exact + share.astype(np.int64), half - 1)
    return (np.where(size < exact, size, far) + np.where(distances < 0, half, 0)).astype(np.int32)
