"""Timings of operations: rows beside a copy of the same bytes, attention beside what PyTorch has for the same."""

import importlib
import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np

from bench.gpu import inputs
from bench.gpu.clock import Timed, by_graph
from bench.gpu.peers import Torch
from bench.gpu.sizes import Sizes
from bench.gpu.timings import Other, Step, check, rows
from bench.ops import operations
from tests.kernels.arrays import DTYPES

COPY_GOAL, COMPILED_GOAL = 0.9, 1.0
ROW_OPERATIONS = {  # arguments beside the input
    "softmax": (),
    "layer_norm": ("weight", "bias", "residual"),
    "gelu": (),
}
Made = dict[str, Any]


def row_steps(sizes: Sizes, peer: Torch | None) -> Iterator[Step]:
    """Every timing of rows: ours beside a copy, or beside the peer."""
    for width in sizes.widths:
        for operation in ROW_OPERATIONS:
            run = partial(_time_rows, sizes, peer, operation, width)
            yield Step("rows", f"{operation} {sizes.row_tokens}x{width}", "bfloat16", run, peer is not None)


def attention_steps(sizes: Sizes, peer: Torch | None) -> Iterator[Step]:
    """Every timing of attention: ours alone, or beside the peer."""
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
    parameters = {name: inputs.normal((width,), dtype, 9) for name in ("weight", "bias")}

    def make(seed: int) -> Made:
        made = {"input": inputs.normal(shape, dtype, seed)}
        for name in ROW_OPERATIONS[operation]:
            made[name] = parameters[name] if name in parameters else inputs.normal(shape, dtype, seed + 100)
        return made

    made = inputs.sets(make)
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
    """Copies on the device that read half of these bytes and write half of them."""
    cupy = importlib.import_module("cupy")
    return by_graph([cupy.zeros(moved // 2, np.uint8).copy for _ in range(count)])


# ---- attention -------------------------------------------------------------------------------------------------------

GOALS = {  # by form: what the peer does, and the goal at each length
    "plain": ("FlashAttention-2", {}, 1.0),
    "bias": ("SDPA with attn_mask", {}, 2.0),
    "relative": ("eager", {2048: 4.0}, 2.0),
}


def _time_attention(sizes: Sizes, peer: Torch | None, form: str, length: int) -> Iterator[Made]:
    made = inputs.sets(partial(_MAKE[form], sizes, length))
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
    """(batch, heads, length, head_dim), as views of what the products of a model write: (batch, length, heads, ...)."""
    shape = sizes.attention_tokens // length, length, sizes.heads, sizes.head_dim
    names = ("query", "key", "value")
    return {name: inputs.normal(shape, "float16", 3 * seed + n).swapaxes(1, 2) for n, name in enumerate(names)}


def _biased(sizes: Sizes, length: int, seed: int) -> Made:
    return _plain(sizes, length, seed) | {"bias": inputs.normal((sizes.heads, length, length), "float16", seed)}


def _relative(sizes: Sizes, length: int, seed: int) -> Made:
    """Packed texts of one length with DeBERTa's two tables, of which the end rows hold all that is beyond."""
    shape = sizes.attention_tokens, sizes.heads, sizes.head_dim
    texts, table = sizes.attention_tokens // length, (sizes.table_rows, sizes.heads, sizes.head_dim)
    arrays = {"query": shape, "key": shape, "value": shape, "position_key": table, "position_query": table}
    made = {name: inputs.normal(shape, "float16", 5 * seed + n) for n, (name, shape) in enumerate(arrays.items())}
    made["distance_rows"] = inputs.on_gpu(np.arange(sizes.table_rows - 1, dtype=np.int32))
    return made | {"cu_seqlens": inputs.on_gpu(np.arange(texts + 1, dtype=np.int32) * np.int32(length))}


_MAKE = {"plain": _plain, "bias": _biased, "relative": _relative}
