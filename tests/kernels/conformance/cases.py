"""The cases that every implementation of an operation must get right: public arguments, floats in float64.

The runner rounds the floats to each dtype and lays them out in memory in every way it knows. Sizes are awkward on
purpose: nothing, one, primes, one short of a vector, more than a block. Cases that are `forward_only` hold infinities,
at which the derivative is a matter of taste, or NaNs that a hidden key multiplies by 0.
"""

from collections.abc import Iterator
from itertools import accumulate, product
from typing import Any, NamedTuple

import numpy as np

from bertcore.kernels.activation import ACTIVATIONS
from bertcore.kernels.cross_entropy import REDUCTIONS
from bertcore.kernels.pooling import MODES
from tests.kernels.arrays import normal
from tests.kernels.attention_forms import arguments


class Case(NamedTuple):
    name: str
    arguments: dict[str, Any]
    forward_only: bool = False


SHAPES = [(1,), (7,), (160,), (5, 7), (3, 39), (2, 3, 16), (2, 5000), (0, 7), (7, 0), (1, 1)]
# The edges of each variant of CUDA's row kernels, whole vectors and not; more rows than a chunk of a parameter's sums.
ROWS = [(9, 160), (3, 249), (2, 256), (70, 264), (6, 257), (300, 39), (2, 768), (2, 776), (2, 1024), (3, 1025)]
ROWS += [(19, 1032), (2, 2056), (2, 3080), (2, 4096), (2, 4097), (1, 4104)]  # the last is too long for registers
EXTREMES = np.array([[np.nan, 1, 2], [1e4, -1e4, 0], [1, 2, 3]])
INFINITIES = np.array([[-np.inf, 1, -np.inf], [1, np.inf, 2], [1, 2, 3]])


def special_rows(width: int) -> np.ndarray:
    """Rows with infinities and NaNs at their ends and within; -inf alone stands in the second to fourth."""
    rows = normal(1, (7, width))
    rows[1, 1:] = rows[2] = rows[3] = -np.inf
    rows[3, -1] = rows[4, width // 2] = np.nan
    rows[5, 0] = rows[6, -1] = np.inf
    return rows


def far_rows(width: int) -> np.ndarray:
    """Scores whose shift is rounded to steps of more than 1, or overflows in base 2."""
    rows = np.repeat(np.float32([1e4, -1e6, 1e9, -1e9, 3e9, -1e30, 3e38, -3e38])[:, None], width, axis=1)
    rows[:, 1::3] *= np.float32(1 + 2.0**-23)
    rows[:, 2] = -3e38
    return rows.astype(np.float64)


def softmax() -> Iterator[Case]:
    for shape in SHAPES:
        for dim in range(len(shape)):
            yield Case(f"{shape} along {dim}", {"input": normal(1, shape, scale=4), "dim": dim})
    for shape in ROWS:
        yield Case(f"{shape}", {"input": normal(1, shape, scale=4), "dim": -1})
    for width in (3, 160, 1000, 1024, 4096, 4104):
        yield Case(f"special rows of {width}", {"input": special_rows(width), "dim": -1}, forward_only=True)
    for width in (39, 40, 4104):
        yield Case(f"far rows of {width}", {"input": far_rows(width), "dim": -1}, forward_only=True)
    masked = np.array([[-np.inf] * 3, [-np.inf, 1, -np.inf], [0, 1, 2]])
    yield Case("masked", {"input": masked, "dim": -1})
    yield Case("masked, down the columns", {"input": masked.T, "dim": 0})
    yield Case("extremes", {"input": EXTREMES, "dim": -1})
    yield Case("infinities", {"input": INFINITIES, "dim": -1}, forward_only=True)


def layer_norm() -> Iterator[Case]:
    for index, shape in enumerate(SHAPES):
        weight, bias = normal(2, shape[-1:]), normal(3, shape[-1:])
        arguments = {"input": normal(1, shape), "eps": 1e-3}
        yield Case(f"{shape}", arguments)
        residual = normal(4, shape) if index % 2 else None
        yield Case(f"{shape} all", arguments | {"weight": weight, "bias": bias, "residual": residual})
    for shape in ROWS:
        arguments = {"input": normal(1, shape), "residual": normal(4, shape), "eps": 1e-3}
        yield Case(f"{shape}", arguments)
        yield Case(f"{shape} all", arguments | {"weight": normal(2, shape[-1:]), "bias": normal(3, shape[-1:])})
    for width in (39, 1024, 2048, 4097):
        arguments = {"input": special_rows(width), "weight": normal(3, (width,)), "eps": 1e-5}
        yield Case(f"special rows of {width}", arguments, forward_only=True)
    yield Case("residual alone", {"input": normal(1, (3, 39)), "residual": normal(2, (3, 39)), "eps": 1e-5})
    yield Case("bias alone", {"input": normal(1, (3, 39)), "bias": normal(2, (39,)), "eps": 1e-5})
    yield Case("constant rows", {"input": np.full((3, 39), 2.5), "weight": normal(2, (39,)), "eps": 1e-2})
    for width in (333, 344):
        constant = np.full((3, width), [[0.1], [12.345678], [-12345.678]])  # whose sums are rounded
        yield Case(f"constant rows of {width}", {"input": constant, "bias": normal(2, (width,)), "eps": 1e-5})
    for width in (40, 41, 4099, 16400, 16401):  # where E[x^2] - mean^2 is all cancellation; the mean is 512
        half = np.random.default_rng(width).integers(-3, 4, (3, width // 2))
        far = 512.0 + np.concatenate([half, -half, np.zeros((3, width % 2))], axis=1)
        yield Case(f"far rows of {width}", {"input": far, "eps": 1e-5})
    yield Case("NaN in a row", {"input": EXTREMES, "eps": 1e-5})
    yield Case("infinities", {"input": INFINITIES, "eps": 1e-5}, forward_only=True)
    yield from norms_of_large_rows()


def rms_norm() -> Iterator[Case]:
    for case in layer_norm():
        if "bias" not in case.arguments:
            yield case
    for shape in (*SHAPES, *ROWS):
        yield Case(f"{shape} weight", {"input": normal(1, shape), "weight": normal(2, shape[-1:]), "eps": 1e-3})


def affine() -> Iterator[Case]:
    for shape in (*SHAPES, (300, 39), (5, 1030)):
        arguments = {"input": normal(1, shape), "weight": normal(2, shape[-1:]), "bias": normal(3, shape[-1:])}
        yield Case(f"{shape}", arguments)
        yield Case(f"{shape} residual", arguments | {"residual": normal(4, shape)})
    parameters = {"weight": np.array([0.0, 1.0, -2.0]), "bias": np.zeros(3)}
    yield Case("NaN in a row", {"input": EXTREMES, **parameters})


def norms_of_large_rows() -> Iterator[Case]:
    """Squares and sums that overflow in float32 do not reach the result, nor the rows beside them."""
    large = normal(1, (5, 64))
    large[1], large[3] = 1e30 * large[1], 1e37 * large[3]
    yield Case("large rows", {"input": large, "weight": normal(2, (64,)), "eps": 1e-5})


def gelu() -> Iterator[Case]:
    for shape, approximate in product([(), *SHAPES, (300, 39)], ("none", "tanh")):
        bias = normal(2, shape[-1:]) if shape else None
        arguments = {"input": normal(1, shape, scale=3), "approximate": approximate}
        yield Case(f"{shape} {approximate}", arguments)
        yield Case(f"{shape} {approximate} bias", arguments | {"bias": bias})
    for approximate in ("none", "tanh"):
        yield Case(f"extremes {approximate}", {"input": EXTREMES, "approximate": approximate})
        yield Case(f"tails {approximate}", {"input": np.linspace(-40, 40, 1601), "approximate": approximate})
        infinity = {"input": np.array([np.inf, np.nan, 1]), "approximate": approximate}
        yield Case(f"infinity {approximate}", infinity, forward_only=True)


def activation() -> Iterator[Case]:
    for name, shape in product(ACTIVATIONS, [(), (0,), (1,), (160,), (5, 7), (2, 3, 39)]):
        yield Case(f"{name} {shape}", {"input": normal(1, shape, scale=3), "activation": name})
    for name in ACTIVATIONS:
        yield Case(f"{name} extremes", {"input": EXTREMES, "activation": name})
        infinity = {"input": np.array([np.inf, np.nan, 1]), "activation": name}
        yield Case(f"{name} infinity", infinity, forward_only=True)


def gated_activation() -> Iterator[Case]:
    for name, gate in product(ACTIVATIONS, ("first", "second")):
        for shape in [(0,), (2,), (3, 14), (2, 3, 78), (5, 320)]:
            yield Case(f"{name} {gate} {shape}", {"input": normal(1, shape, scale=3), "activation": name, "gate": gate})
    extremes = np.concatenate([EXTREMES, [[2, np.nan, 1], [1, 2, 3], [0, 1, -1]]], axis=1)
    for name in ("gelu", "relu"):
        yield Case(f"extremes {name}", {"input": extremes, "activation": name})


TILES = [  # rows, in_features, out_features at the edges of CUDA's tiles
    (1, 1, 1),
    (1, 64, 64),  # one row: the tile for few rows
    (7, 39, 13),  # nothing divides by 8: element by element
    (16, 65, 160),  # the last row count of the tile for few rows, more than one block
    (17, 160, 39),  # the first beyond it
    (65, 40, 65),  # one row, one column beyond a 64 x 64 tile; in_features a multiple of 8, not of a tile's depth
    (130, 200, 72),  # several deep steps: the pipeline's stages are used again
    (64, 0, 8),  # an empty sum
]


def linear() -> Iterator[Case]:
    sizes = [(5, 7, 3), (39, 160, 13), (3, 1600, 97), (130, 33, 300), (0, 7, 3), (5, 0, 3), (5, 7, 0), (64, 64, 64)]
    for rows, in_features, out_features in (*sizes, *TILES):
        name = f"{rows}x{in_features}x{out_features}"
        arguments = {
            "input": normal(1, (rows, in_features)),
            "weight": normal(2, (out_features, in_features), scale=max(in_features, 1) ** -0.5),
        }
        yield Case(name, arguments)
        everything = {"bias": normal(3, (out_features,)), "residual": normal(4, (rows, out_features))}
        yield Case(f"{name} all", arguments | everything | {"activation": "gelu"})
    small = {"input": normal(1, (2, 3, 7)), "weight": normal(2, (5, 7)), "bias": normal(3, (5,))}
    for name in (None, *ACTIVATIONS):
        yield Case(f"three axes, {name}", small | {"activation": name})
    yield Case("one axis", small | {"input": normal(1, (7,)), "residual": normal(4, (5,))})
    yield Case("NaN in a row", {"input": EXTREMES, "weight": normal(2, (5, 3)), "activation": "gelu"})


def dropout() -> Iterator[Case]:
    for seed, (shape, p) in enumerate(product([(), *SHAPES, (63,), (65,), (160, 39)], (0.0, 0.1, 0.9))):
        arguments = {"input": normal(1, shape), "p": p, "seed": seed << 40 | seed}
        yield Case(f"{shape} by {p}", arguments)
        yield Case(f"{shape} by {p}, residual", arguments | {"residual": normal(2, shape)})
    yield Case("extremes", {"input": EXTREMES, "p": 0.5, "seed": 2**64 - 1})
    yield Case("infinities", {"input": INFINITIES, "p": 0.5, "seed": 3})


def dropout_layer_norm() -> Iterator[Case]:
    # On CUDA widths of 64, 192 and 1088 are computed at once, others as dropout and layer_norm.
    shapes = [*SHAPES, (67, 39), (130, 64), (5, 192), (3, 1088), (3, 72), (3, 4160)]
    for index, shape in enumerate(shapes):
        arguments = {"input": normal(1, shape), "residual": normal(2, shape), "p": 0.3, "seed": index << 40 | 7}
        yield Case(f"{shape}", arguments | {"eps": 1e-3})
        parameters = {"weight": normal(3, shape[-1:]), "bias": normal(4, shape[-1:])}
        yield Case(f"{shape} weight, bias", arguments | parameters | {"eps": 1e-3})
    plain = {"input": normal(1, (5, 39)), "residual": normal(2, (5, 39)), "eps": 1e-5, "seed": 2**64 - 1}
    yield Case("nothing is dropped", plain | {"p": 0.0, "weight": normal(3, (39,))})
    yield Case("most is dropped", plain | {"p": 0.9, "bias": normal(3, (39,))})
    for case in norms_of_large_rows():
        yield case._replace(arguments=case.arguments | {"residual": normal(2, (5, 64)), "p": 0.3, "seed": 7})
    yield Case("NaN in a row", {"input": EXTREMES, "residual": normal(2, (3, 3)), "p": 0.5, "seed": 3, "eps": 1e-5})


def embedding() -> Iterator[Case]:
    rng = np.random.default_rng(1)
    for shape, dim in product([(), (0,), (7,), (2, 39), (160,)], (1, 7, 160)):
        yield Case(f"{shape} of {dim}", {"input": rng.integers(0, 13, shape), "weight": normal(2, (13, dim))})
    for dtype in (np.int32, np.uint8):
        yield Case(f"{dtype.__name__}", {"input": rng.integers(0, 13, 39).astype(dtype), "weight": normal(2, (13, 7))})
    yield Case("one id, often", {"input": np.full(1000, 3), "weight": normal(2, (5, 7))})
    runs = rng.permutation(np.repeat([4, 0, 2, 1], [200, 3, 61, 40])).reshape(2, 152)
    yield Case(
        "runs of ids within a chunk, across chunks and over several", {"input": runs, "weight": normal(2, (7, 39))}
    )
    yield Case("long rows", {"input": np.array([3, 0]), "weight": normal(2, (13, 1000))})
    yield Case("no ids, no table", {"input": np.zeros((0,), np.int64), "weight": np.zeros((0, 7))})
    yield Case("NaN in the table", {"input": np.array([0, 1, 0]), "weight": EXTREMES})


def cross_entropy() -> Iterator[Case]:
    for case, reduction in product(losses(), REDUCTIONS):
        yield case._replace(name=f"{case.name}, {reduction}", arguments=case.arguments | {"reduction": reduction})


def losses() -> Iterator[Case]:
    rng = np.random.default_rng(1)
    for rows, classes in [(1, 1), (5, 7), (39, 160), (3, 5000), (160, 2), (0, 7), (5, 1030), (2, 1025)]:
        target = rng.integers(0, classes, rows)
        logits = normal(1, (rows, classes), scale=3)
        yield Case(f"{rows} of {classes}", {"input": logits, "target": target})
        target = np.where(rng.random(rows) < 0.3, -100, target)
        target[:1] = 0  # at least one row counts: the mean over none is NaN
        yield Case(f"{rows} of {classes}, some ignored", {"input": logits, "target": target.astype(np.int32)})
    yield Case("a class is ignored", {"input": normal(1, (5, 7)), "target": np.arange(5), "ignore_index": 2})
    yield Case("nothing counts", {"input": normal(1, (2, 3)), "target": np.array([-100, -100])})
    yield Case("NaN in a row", {"input": EXTREMES, "target": np.array([1, 0, 2])})
    yield Case("NaN in an ignored row", {"input": EXTREMES, "target": np.array([-100, 0, 2])})
    yield Case("large logits", {"input": 1000 + normal(1, (5, 40)), "target": np.arange(5)})
    for width in (7, 1500):
        special = {"input": special_rows(width), "target": np.array([0, 0, 0, 0, 0, 0, -100])}
        yield Case(f"special rows of {width}", special, forward_only=True)
    for width in (39, 4104):
        yield Case(f"far rows of {width}", {"input": far_rows(width), "target": np.arange(8)}, forward_only=True)
    masked = np.array([[-np.inf, 0, 1], [0, -np.inf, -np.inf]])
    yield Case("impossible classes", {"input": masked, "target": np.array([1, 0])})
    yield Case("the target is impossible", {"input": masked, "target": np.array([0, 0])}, forward_only=True)


def rotary() -> Iterator[Case]:
    """Every fraction of a head, whole vectors and not; positions by sequence, given, and neither."""
    offsets = np.array([0, 3, 3, 4, 20])
    for (shape, half), interleaved in product(
        [((20, 3, 8), 4), ((20, 2, 3, 7), 2), ((20, 1, 160), 39), ((20, 2, 1, 64), 32), ((20, 3, 5), 0)], (False, True)
    ):
        angles = {"cos": normal(2, (23, half)), "sin": normal(3, (23, half)), "interleaved": interleaved}
        name = f"{shape} of {2 * half}{', interleaved' * interleaved}"
        yield Case(name, {"input": normal(1, shape)} | angles)
        yield Case(f"{name}, packed", {"input": normal(1, shape), "cu_seqlens": offsets} | angles)
        positions = np.arange(20, dtype=np.int32) * 7 % 23
        yield Case(f"{name}, positions", {"input": normal(1, shape), "positions": positions} | angles)
    tables = {"cos": normal(2, (1, 2)), "sin": normal(3, (1, 2))}
    yield Case("no token", {"input": np.zeros((0, 3, 4))} | tables)
    yield Case("no sequence", {"input": np.zeros((0, 2, 3, 4)), "cu_seqlens": np.zeros(1, np.int64)} | tables)
    yield Case("no head", {"input": np.zeros((1, 0, 4))} | tables)
    yield Case("NaN in a head", {"input": EXTREMES[:1, None].repeat(2, -1)} | tables)


HEADS = 3
LENGTHS = {
    "one token": ([1], [1]), "ragged": ([3, 0, 1, 13, 39], [3, 0, 1, 13, 39]), "long": ([160, 7], [160, 7]),
    "cross": ([2, 0, 5, 39], [7, 3, 0, 41]), "no sequence": ([], []), "no token": ([0, 0], [0, 0]),
}  # fmt: skip


def packed(lengths: list[int], lengths_k: list[int], head_dim: int) -> dict[str, Any]:
    arrays = {
        "query": normal(1, (sum(lengths), HEADS, head_dim)),
        "key": normal(2, (sum(lengths_k), HEADS, head_dim)),
        "value": normal(3, (sum(lengths_k), HEADS, head_dim)),
        "cu_seqlens": np.array([0, *accumulate(lengths)], np.int32),
    }
    if lengths != lengths_k:
        arrays["cu_seqlens_k"] = np.array([0, *accumulate(lengths_k)], np.int64)
    return arrays


def dense(batch: int, length: int, length_k: int, head_dim: int) -> dict[str, Any]:
    return {
        "query": normal(1, (batch, HEADS, length, head_dim)),
        "key": normal(2, (batch, HEADS, length_k, head_dim)),
        "value": normal(3, (batch, HEADS, length_k, head_dim)),
    }


def visible(shape: tuple[int, ...]) -> np.ndarray:
    """A boolean mask in which the first query sees no key."""
    mask = np.random.default_rng(4).random(shape) < 0.7
    mask[..., :1, :] = False
    return mask


def attention() -> Iterator[Case]:
    for name, (lengths, lengths_k) in LENGTHS.items():
        yield Case(f"packed {name}", packed(lengths, lengths_k, 8))
        scores = (len(lengths), HEADS, max(lengths, default=0), max(lengths_k, default=0))
        masks = {"attn_mask": visible(scores), "bias": normal(5, scores)}
        yield Case(f"packed {name}, causal, mask, bias", packed(lengths, lengths_k, 5) | masks | {"is_causal": True})
    for sizes in [(2, 5, 5), (1, 1, 1), (2, 39, 160), (3, 7, 2), (0, 3, 3), (2, 0, 3), (2, 3, 0)]:
        for head_dim, is_causal in product((1, 7, 64), (False, True)):
            name = f"dense {sizes} of {head_dim}{', causal' * is_causal}"
            yield Case(name, dense(*sizes, head_dim) | {"is_causal": is_causal})
    yield Case("dense, more than a block", dense(1, 130, 300, 64))
    yield from attention_masks()
    yield from attention_extremes()
    yield from attention_forms()


def attention_masks() -> Iterator[Case]:
    """Every way in which a mask or a bias may broadcast."""
    base, scores = dense(2, 5, 7, 4), (2, HEADS, 5, 7)
    for shape in [scores, (2, 1, 5, 7), (1, HEADS, 1, 7), (2, 1, 1, 7), (5, 7), (7,), (2, 1, 5, 1), (1,)]:
        boolean = visible(shape) if len(shape) > 1 and shape[-2] > 1 else normal(6, shape) < 1
        yield Case(f"boolean mask {shape}", base | {"attn_mask": boolean})
        added = np.where(boolean, normal(7, shape), -np.inf)
        yield Case(f"additive mask {shape}", base | {"attn_mask": added, "scale": 0.3})
        yield Case(f"bias {shape}", base | {"bias": normal(8, shape)})
    yield Case("bias of one number", base | {"bias": normal(8, ())})
    ragged = packed([3, 0, 5], [3, 0, 5], 4)
    yield Case(
        "packed, padding mask", ragged | {"attn_mask": normal(6, (3, 1, 1, 5)) < 1, "bias": normal(8, (HEADS, 1, 5))}
    )


def attention_extremes() -> Iterator[Case]:
    base = dense(1, 3, 3, 4)
    query, key = base["query"].copy(), base["key"].copy()
    query[0, 0, 1, 2] = key[0, 1, 2, 3] = np.nan
    yield Case("NaN in a query", base | {"query": query})
    yield Case("NaN in a key", base | {"key": key}, forward_only=True)
    yield Case("NaN in a key that some do not see", base | {"key": key, "is_causal": True}, forward_only=True)
    yield Case("large scores", base | {"query": 30 * base["query"], "key": 30 * base["key"], "scale": 1.0})
    yield Case("scale 0", base | {"scale": 0.0})
    yield Case("a negative scale", base | {"scale": -0.7})
    mask = np.zeros((3, 3))
    mask[1, 2] = np.nan
    yield Case("NaN in a mask", base | {"attn_mask": mask}, forward_only=True)
    mask = np.zeros((3, 3))
    mask[1, 2] = np.inf
    yield Case("infinity in a mask", base | {"attn_mask": mask}, forward_only=True)


def attention_forms() -> Iterator[Case]:
    """Windows, shared heads, relative positions (DeBERTa's two tables, XLNet's with segments), everything at once."""
    several = "window", "shared heads", "biases by distance", "all masks", "all", "dropout, masked", "dropout, all"
    for form in several:
        for name in ("ragged", "cross"):
            yield Case(f"{form}, {name}", arguments(form, *LENGTHS[name], head_dim=13))
    for index, (name, lengths) in enumerate(LENGTHS.items()):
        sizes = {"heads": HEADS, "head_dim": (8, 5, 13)[index % 3], "distances": 2 * index + 1}
        for form in ("position_query", "deberta", "xlnet", "relative terms"):
            yield Case(f"{form}, {name}", arguments(form, *lengths, **sizes))
    lengths = [1, 0, 39, 67, 0], [39, 1, 0, 100, 3]
    for head_dim in (64, 160):  # on CUDA a warp for 16 rows, and two that share them
        given = arguments("biases by distance", *lengths, heads=1, head_dim=head_dim, distances=321, rows=321)
        given |= {"scale": head_dim**-0.5}
        yield Case(f"a row for each distance, {head_dim}", given)
        some = {"window": (20, 3), "dropout_p": 0.2, "dropout_seed": 7}
        yield Case(f"a row for each distance, {head_dim}, a window, dropout", given | some)
    given = arguments("deberta", [20, 0, 7], [70, 3, 7], head_dim=13, distances=39, rows=39)
    yield Case("more rows than a warp has threads", given)
    few = arguments("position_key", [7]) | {"distance_rows": np.array([1, 4, 0], np.uint8)}
    yield Case("position_key, one sequence", few | {"attn_mask": visible((1, 7))})


def maxsim() -> Iterator[Case]:
    for lengths, dim in (((1,), 1), ((39, 0, 3, 160), 7), ((5, 33, 97), 128), ((0,), 7), ((), 3), ((3,), 0)):
        cu_seqlens = np.fromiter(accumulate((0, *lengths)), np.int32)
        document = normal(1, (sum(lengths), dim))
        for queries, length in ((2, 5), (3, 32), (0, 7), (1, 0)):
            given = {"query": normal(2, (queries, length, dim)), "document": document, "cu_seqlens": cu_seqlens}
            yield Case(f"{queries} x {length} and {lengths} x {dim}", given)
        packed = {"query": normal(3, (40, dim)), "cu_seqlens_q": np.array([0, 7, 7, 40])}
        yield Case(f"packed and {lengths} x {dim}", packed | {"document": document, "cu_seqlens": cu_seqlens})
    special = {"query": normal(1, (1, 3, 3)), "document": EXTREMES, "cu_seqlens": np.array([0, 1, 3])}
    yield Case("NaN in a document", special, forward_only=True)


def lstm() -> Iterator[Case]:
    for lengths in ((1,), (3, 0, 5, 1, 5), (2,) * 15, (0,), ()):
        cu_seqlens = np.fromiter(accumulate((0, *lengths)), np.int32)
        for directions, hidden in ((2, 1), (1, 7), (2, 20), (2, 0)):
            given = {"input": normal(1, (sum(lengths), directions * 4 * hidden))}
            given["weight"] = normal(2, (directions, 4 * hidden, hidden), scale=0.3)
            yield Case(f"{directions} x {hidden} and {lengths}", given | {"cu_seqlens": cu_seqlens})
    special = {"input": normal(1, (3, 8)), "weight": normal(2, (2, 4, 1)), "cu_seqlens": np.array([0, 1, 3])}
    special["input"][0, 0], special["input"][1] = np.nan, np.inf
    yield Case("NaN and infinity", special, forward_only=True)


def pooling() -> Iterator[Case]:
    for mode, skipped in product(MODES, (0, 3)):
        for lengths, width in (
            ((0, 1, 39, 3, 4, 160, 0), 39),
            ((5, 33), 264),
            ((2,), 1),
            ((), 7),
            ((0,), 7),
            ((3,), 0),
        ):
            cu_seqlens = np.fromiter(accumulate((0, *lengths)), np.int32)
            given = {"input": normal(1, (sum(lengths), width)), "cu_seqlens": cu_seqlens}
            yield Case(f"{mode} of {lengths} x {width} but {skipped}", given | {"mode": mode, "skipped": skipped})
        if skipped:
            given = {"input": normal(1, (9, 39)), "cu_seqlens": np.array([0, 4, 9]), "mode": mode}
            for many in (2**31, 2**63 - 1, 2**64):
                yield Case(f"{mode} of no token but {many}", given | {"skipped": many})
        special = {"input": special_rows(16).T, "cu_seqlens": np.array([0, 3, 9, 16]), "mode": mode}
        yield Case(f"{mode} of infinities but {skipped}", special | {"skipped": skipped}, forward_only=True)


CASES = {
    operation.__name__: {case.name: case for case in operation()}
    for operation in (
        softmax, layer_norm, rms_norm, affine, gelu, activation, gated_activation, linear, attention, rotary, dropout,
        dropout_layer_norm, pooling, maxsim, lstm, embedding, cross_entropy,
    )
}  # fmt: skip
