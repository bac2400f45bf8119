"""What a timing is: something of ours beside others, checked, then timed in turns; and the rows that it makes."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from bench.gpu.clock import Timed
from bench.measure import Times, measure

ROUNDS = 15
TOLERANCE = {"float16": 2e-2, "bfloat16": 1e-1, "float32": 1e-4}  # of the largest number that is compared
COMPARED = 64  # rows


class Step(NamedTuple):
    """A piece of the run that is done as a whole or not at all; `run` gives its rows. `is_beside`: a peer has part."""

    kind: str
    name: str
    dtype: str
    run: Callable[[], Iterator[dict[str, Any]]]
    is_beside: bool = False


class Other(NamedTuple):
    """What ours is compared with, and how many times as fast as that it is meant to be."""

    timed: Timed
    goal: float | None


def rows(
    ours: Timed, others: Mapping[str, Other], seconds: float, nbytes: int | None = None, flops: float | None = None
) -> Iterator[dict[str, Any]]:
    """One row for each of the others, or one row where there is none. nbytes, flops: of one call."""
    timed = {"ours": ours} | {name: other.timed for name, other in others.items()}
    times = measure({name: one.variant for name, one in timed.items()}, ROUNDS, seconds)
    figures = _figures(times["ours"], ours, nbytes, flops)
    if not others:
        yield figures
    for name, (other, goal) in others.items():
        ratio = times[name].ratio(times["ours"]) * ours.calls / other.calls
        compared = {"against": name, "against_s": times[name].median / other.calls, "against_method": other.method}
        yield figures | compared | {"ratio": ratio, "goal": goal}


def _figures(times: Times, timed: Timed, nbytes: int | None, flops: float | None) -> dict[str, Any]:
    median = times.median / timed.calls
    return {
        "median_s": median,
        "spread": times.spread,
        "method": timed.method,
        "gb_per_s": None if nbytes is None else nbytes / median / 1e9,
        "tflop_per_s": None if flops is None else flops / median / 1e12,
    }


def check(found: Any, expected: Any, dtype: str) -> None:
    """Raise AssertionError unless the first rows of ours and of the peer's result agree."""
    found, expected = (_on_host(array).astype(np.float64) for array in (found, expected))
    assert found.shape == expected.shape, f"ours has shape {found.shape}, the other's {expected.shape}"
    scale = np.abs(expected).max()
    error = np.abs(found - expected).max() / scale
    assert error < TOLERANCE[dtype], f"ours is off from the other's result by {error:.2g} of its scale"


def _on_host(array: Any) -> np.ndarray:
    if hasattr(array, "detach"):
        return array[:COMPARED].detach().float().cpu().numpy()
    return array[:COMPARED].get()
