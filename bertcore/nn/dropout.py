"""Where the seeds of dropout come from.

A model in training runs its pass within `dropout_seeds(seed)`, and each use of dropout draws the next seed from there:
in inference there are none, and nothing is dropped. A layer has a numbering of its own (`within_site`), so that, run
again for the backward (`tape.checkpoint`), it draws what it drew before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_MASK = 2**64 - 1


class _Seeds:
    def __init__(self, seed: int):
        self.seed, self.count = seed, 0


_current: ContextVar[_Seeds | None] = ContextVar("bertcore_dropout", default=None)


@contextmanager
def dropout_seeds(seed: int) -> Iterator[None]:
    """A block in which dropout is applied, with seeds that follow from `seed` (64 bits)."""
    token = _current.set(_Seeds(seed))
    try:
        yield
    finally:
        _current.reset(token)


def is_dropping() -> bool:
    """Whether there are seeds, so that dropout is applied where a rate is not 0."""
    return _current.get() is not None


def within_site(number: int, block: Callable[..., Any]) -> Callable[..., Any]:
    """`block`, whose seeds then follow from this number and from the seed around it alone, whenever it is called."""
    seeds = _current.get()
    if seeds is None:
        return block
    seed = mixed_seed(seeds.seed, -1 - number)

    def run(*args: Any, **options: Any) -> Any:
        with dropout_seeds(seed):
            return block(*args, **options)

    return run


def next_seed() -> int:
    """The seed of one more use of dropout, within `dropout_seeds`."""
    seeds = _current.get()
    seeds.count += 1
    return mixed_seed(seeds.seed, seeds.count)


def of_attention(rate: float) -> dict[str, Any]:
    """The options of `kernels.attention` for one more use of dropout; empty where nothing is dropped."""
    return {"dropout_p": rate, "dropout_seed": next_seed()} if rate and is_dropping() else {}


def mixed_seed(seed: int, number: int) -> int:
    """A seed for each number, unlike those of other seeds: the finaliser of SplitMix64 (Steele et al. 2014)."""
    mixed = (seed + number * 0x9E3779B97F4A7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return mixed ^ (mixed >> 31)
