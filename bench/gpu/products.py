"""Timings of linear maps: cuBLASLt's products beside PyTorch's and beside our batch-invariant kernel."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from bench.gpu import inputs
from bench.gpu.clock import by_graph
from bench.gpu.peers import Torch
from bench.gpu.sizes import Sizes
from bench.gpu.timings import Other, Step, check, rows
from bertcore import kernels

DTYPE, GOAL = "float16", 1.0


@contextmanager
def batch_invariant() -> Iterator[None]:
    """Within the block products are batch-invariant."""
    before = kernels.is_batch_invariant()
    kernels.set_batch_invariant(True)
    try:
        yield
    finally:
        kernels.set_batch_invariant(before)


def steps(sizes: Sizes, peer: Torch | None) -> Iterator[Step]:
    """Every timing of a product."""
    for shape in sizes.products:
        run = partial(_time, sizes, peer, *shape)
        yield Step("products", "{}x{} to {}".format(*shape), DTYPE, run, peer is not None)


def _time(sizes: Sizes, peer: Torch | None, tokens: int, in_features: int, out_features: int) -> Iterator[dict]:
    shapes = {"input": (tokens, in_features), "weight": (out_features, in_features), "bias": (out_features,)}
    made = inputs.sets(
        lambda seed: {name: inputs.normal(shape, DTYPE, 3 * seed + n) for n, (name, shape) in enumerate(shapes.items())}
    )
    ours = [partial(kernels.linear, **given, backend="cupy") for given in made]
    if peer is None:
        name, goal, time_by = "batch-invariant", None, by_graph
        theirs = [partial(_batch_invariantly, call) for call in ours]
    else:
        name, goal, time_by = "torch", GOAL, peer.by_graph
        theirs = [peer.call("linear", given, compile=False) for given in made]
    check(ours[0](), theirs[0](), DTYPE)
    others = {name: Other(time_by(theirs), goal)}
    yield from rows(by_graph(ours), others, sizes.seconds, flops=2 * tokens * in_features * out_features)


def _batch_invariantly(call: Callable[[], Any]) -> Any:
    with batch_invariant():
        return call()
