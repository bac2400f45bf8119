"""Where the seeds of dropout come from.

A model in training runs its pass within `dropout_seeds(seed)`, and each use of dropout draws the next seed from there:
in inference there are none, and nothing is dropped. A layer has a numbering of its own (`within_site`), so that, run
again for the backward (`tape.checkpoint`), it draws what it drew before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

from bertcore.kernels.program import NotCaptured

_MASK = 2**64 - 1


class Seeds:
    """The seeds that follow from one (64 bits), each when it is drawn.

    Attributes:
        seed: that one.
        count: how many were drawn.
    """

    def __init__(self, seed: int):
        self.seed, self.count = seed, 0

    def draw(self) -> Any:
        """The next one."""
        self.count += 1
        return mixed_seed(self.seed, self.count)

    def of_site(self, number: int) -> Seeds:
        """Those of the site of this number, from the first on."""
        return Seeds(mixed_seed(self.seed, -1 - number))


class SeedsOnGPU(Seeds):
    """Seeds for a pass that is captured: kernels read them where they lie, which is the same place for the same draw of
    each pass, while `numbers` says what they are in a pass of another seed.

    Args:
        array: where they lie, uint64.
        count: how many were drawn before the pass.
    """

    def __init__(self, array: Any, count: int):
        self.count, self._array, self._path = count, array, ()
        self._places: dict[tuple[int, ...], int] = {}  # of each draw; a path of numbers leads to it

    def draw(self) -> Any:
        self.count += 1
        place = self._places.setdefault((*self._path, self.count), len(self._places))
        if place == len(self._array):
            raise NotCaptured(f"it draws more than {place} seeds of dropout")
        return self._array[place : place + 1]

    def of_site(self, number: int) -> SeedsOnGPU:
        site = SeedsOnGPU(self._array, 0)
        site._path, site._places = (*self._path, -1 - number), self._places
        return site

    def numbers(self, seed: int) -> list[int]:
        """The seeds that follow from `seed`, in the order of their places."""
        return [functools.reduce(mixed_seed, path, seed) for path in self._places]


_current: ContextVar[Seeds | None] = ContextVar("bertcore_dropout", default=None)

current_seeds: Callable[[], Seeds | None] = _current.get
"""Where seeds are drawn from here; None where nothing is dropped."""


def dropout_seeds(seed: int) -> AbstractContextManager[None]:
    """A block in which dropout is applied, with seeds that follow from `seed` (64 bits)."""
    return drawn_from(Seeds(seed))


@contextmanager
def drawn_from(seeds: Seeds | None) -> Iterator[None]:
    """A block in which dropout draws from these; with None nothing is dropped."""
    token = _current.set(seeds)
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

    def run(*args: Any, **options: Any) -> Any:
        with drawn_from(seeds.of_site(number)):
            return block(*args, **options)

    return run


def next_seed() -> Any:
    """The seed of one more use of dropout, within `dropout_seeds`."""
    return _current.get().draw()


def of_attention(rate: float) -> dict[str, Any]:
    """The options of `kernels.attention` for one more use of dropout; empty where nothing is dropped."""
    return {"dropout_p": rate, "dropout_seed": next_seed()} if rate and is_dropping() else {}


def mixed_seed(seed: int, number: int) -> int:
    """A seed for each number, unlike those of other seeds: the finaliser of SplitMix64 (Steele et al. 2014)."""
    mixed = (seed + number * 0x9E3779B97F4A7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return mixed ^ (mixed >> 31)
