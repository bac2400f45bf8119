"""Timings of operations: rows beside a copy, attention and products beside PyTorch and our batch-invariant kernel."""

import importlib
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np

from bench.gpu.peers import Torch
from bench.gpu.timings import Other, Sizes, Step, Timed, by_graph, check, normal, on_gpu, rows, sets
from bench.ops import operations
from bertcore import kernels
from tests.kernels.arrays import DTYPES

COPY_GOAL, COMPILED_GOAL = 0.9, 1.0
ROW_OPERATIONS = {  # arguments beside the input
    "softmax": (),
    "layer_norm": ("weight", "bias", "residual"),
    "gelu": (),
}
Made = dict[str, Any]


def row_steps(sizes: Sizes, peer: Torch | None) -> Iterator[Step]:
    """Yield the timings of rows: ours beside a copy, or beside the peer."""
    for width in sizes.widths:
        for operation in ROW_OPERATIONS:
            run = partial(_time_rows, sizes, peer, operation, width)
            yield Step("rows", f"{operation} {sizes.row_tokens}x{width}", "bfloat16", run, peer is not None)


def attention_steps(sizes: Sizes, peer: Torch | None) -> Iterator[Step]:
    """Yield the timings of attention: ours alone, or beside the peer."""
    lengths = {"plain": sizes.lengths, "bias": sizes.biased_lengths, "relative": sizes.relative_lengths}
    for form, each in lengths.items():
        for length in each:
            run = partial(_time_attention, sizes, peer, form, length)
            yield Step("attention", f"{form} {length}", "float16", run, peer is not None)


def _calls(operation: str, made: list[Made]) -> list[Callable[[], Any]]:
    return [partial(_forward, operation, operations.public_arguments(given)) for given in made]


def _forward(operation: str, arguments: Made) -> Any:
    return operations.forward(operation, arguments, "cupy")


# ---- rows ------------------------------------------------------------------------------------------------------------


def _time_rows(sizes: Sizes, peer: Torch | None, operation: str, width: int) -> Iterator[Made]:
    shape, dtype = (sizes.row_tokens, width), "bfloat16"
    parameters = {name: normal((width,), dtype, 9) for name in ("weight", "bias")}

    def make(seed: int) -> Made:
        made = {"input": normal(shape, dtype, seed)}
        for name in ROW_OPERATIONS[operation]:
            made[name] = parameters[name] if name in parameters else normal(shape, dtype, seed + 100)
        return made

    made = sets(make)
    moved = DTYPES[dtype].itemsize * math.prod(shape) * (2 + ("residual" in made[0]))
    ours = _calls(operation, made)
    if peer is None:
        others = {"copy": Other(_copies(moved, len(made)), COPY_GOAL)}
    else:
        theirs = [peer.call(operation, given) for given in made]
        check(ours[0](), theirs[0](), dtype)
        others = {"torch.compile": Other(peer.by_graph(theirs), COMPILED_GOAL)}
    yield from rows(by_graph(ours), others, sizes.seconds, nbytes=moved)


def _copies(moved: int, count: int) -> Timed:
    """Return copies on the device that read half of these bytes and write the other half."""
    cupy = importlib.import_module("cupy")
    return by_graph([cupy.zeros(moved // 2, np.uint8).copy for _ in range(count)])


# ---- attention -------------------------------------------------------------------------------------------------------

GOALS = {  # by form: the peer's implementation, goals at some lengths, the goal at others
    "plain": ("FlashAttention-2", {}, 1.0),
    "bias": ("SDPA with attn_mask", {}, 2.0),
    "relative": ("eager", {2048: 4.0}, 2.0),
}


def _time_attention(sizes: Sizes, peer: Torch | None, form: str, length: int) -> Iterator[Made]:
    made = sets(partial(_MAKE[form], sizes, length))
    ours, others = _calls("attention", made), {}
    name, goals, goal = GOALS[form]
    if peer is not None:
        theirs = [peer.call("attention", given, compile=False) for given in made]
        with peer.flash_attention() if form == "plain" else nullcontext():
            check(ours[0](), theirs[0](), "float16")
            others[name] = Other(peer.by_graph(theirs), goals.get(length, goal))
    products = 2 if form != "relative" else 4
    flops = products * 2 * sizes.attention_tokens * length * sizes.heads * sizes.head_dim
    yield from rows(by_graph(ours), others, sizes.seconds, flops=flops)


def _plain(sizes: Sizes, length: int, seed: int) -> Made:
    """Make (batch, heads, length, head_dim) views of (batch, length, heads, head_dim), as a model's products write."""
    shape = sizes.attention_tokens // length, length, sizes.heads, sizes.head_dim
    names = ("query", "key", "value")
    return {name: normal(shape, "float16", 3 * seed + n).swapaxes(1, 2) for n, name in enumerate(names)}


def _biased(sizes: Sizes, length: int, seed: int) -> Made:
    return _plain(sizes, length, seed) | {"bias": normal((sizes.heads, length, length), "float16", seed)}


def _relative(sizes: Sizes, length: int, seed: int) -> Made:
    """Make packed texts of one length with DeBERTa's two tables, whose end rows stand for all larger distances."""
    shape = sizes.attention_tokens, sizes.heads, sizes.head_dim
    texts, table = sizes.attention_tokens // length, (sizes.table_rows, sizes.heads, sizes.head_dim)
    arrays = {"query": shape, "key": shape, "value": shape, "position_key": table, "position_query": table}
    made = {name: normal(shape, "float16", 5 * seed + n) for n, (name, shape) in enumerate(arrays.items())}
    made["distance_rows"] = on_gpu(np.arange(sizes.table_rows - 1, dtype=np.int32))
    return made | {"cu_seqlens": on_gpu(np.arange(texts + 1, dtype=np.int32) * np.int32(length))}


_MAKE = {"plain": _plain, "bias": _biased, "relative": _relative}


# ---- products --------------------------------------------------------------------------------------------------------

PRODUCT_DTYPE, PRODUCT_GOAL = "float16", 1.0


@contextmanager
def batch_invariant() -> Iterator[None]:
    """Make products batch-invariant within the block."""
    before = kernels.is_batch_invariant()
    kernels.set_batch_invariant(True)
    try:
        yield
    finally:
        kernels.set_batch_invariant(before)


def product_steps(sizes: Sizes, peer: Torch | None) -> Iterator[Step]:
    """Yield the timings of products."""
    for shape in sizes.products:
        run = partial(_time_product, sizes, peer, *shape)
        yield Step("products", "{}x{} to {}".format(*shape), PRODUCT_DTYPE, run, peer is not None)


def _time_product(sizes: Sizes, peer: Torch | None, tokens: int, in_features: int, out_features: int) -> Iterator[dict]:
    shapes = {"input": (tokens, in_features), "weight": (out_features, in_features), "bias": (out_features,)}
    made = sets(
        lambda seed: {
            name: normal(shape, PRODUCT_DTYPE, 3 * seed + n) for n, (name, shape) in enumerate(shapes.items())
        }
    )
    ours = [partial(kernels.linear, **given, backend="cupy") for given in made]
    if peer is None:
        name, goal, time_by = "batch-invariant", None, by_graph
        theirs = [partial(_batch_invariantly, call) for call in ours]
    else:
        name, goal, time_by = "torch", PRODUCT_GOAL, peer.by_graph
        theirs = [peer.call("linear", given, compile=False) for given in made]
    check(ours[0](), theirs[0](), PRODUCT_DTYPE)
    others = {name: Other(time_by(theirs), goal)}
    yield from rows(by_graph(ours), others, sizes.seconds, flops=2 * tokens * in_features * out_features)


def _batch_invariantly(call: Callable[[], Any]) -> Any:
    with batch_invariant():
        return call()
