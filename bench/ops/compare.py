"""All variants of one case: checked, then timed in turns."""

import importlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from bench.measure import GpuClock, Times, Variant, host_clock, measure
from bench.ops import baselines, calls, peers
from bench.ops.cases import Case

OK, UNAVAILABLE, WRONG = "ok", "unavailable", "wrong"
COLUMNS = (
    "op", "name", "size", "length", "direction", "dtype", "variant", "status", "median_s", "min_s", "spread", "rounds",
    "repeats", "speedup_vs_numpy", "time_vs_copy", "time_vs_threaded_copy", "gb_per_s", "gflop_per_s", "note",
)  # fmt: skip


class Plan(NamedTuple):
    """The variants to compare, and for how long."""

    backends: Sequence[str] = calls.BACKENDS
    dtype: np.dtype = np.dtype(np.float32)
    rounds: int = 21
    seconds: float = 2.0
    with_peers: bool = False


def compare(case: Case, plan: Plan) -> list[dict[str, Any]]:
    """One row (of COLUMNS) per variant: backends, peers, and copies if the case is memory-bound.

    A backend that cannot run the case, fails, or gives a wrong result has a row that says so and no times.
    """
    variants, failures = _checked(case, plan)
    if case.flops is None:
        variants |= _copies(case, plan, variants)
    times = measure(variants, plan.rounds, plan.seconds) if variants else {}
    rows = [_row(case, plan, name, OK, **_figures(case, plan, name, times)) for name in times]
    return rows + [_row(case, plan, name, *failure) for name, failure in failures.items()]


def _checked(case: Case, plan: Plan) -> tuple[dict[str, Variant], dict[str, tuple[str, str]]]:
    """The variants whose results are right, and (status, note) of the others."""
    inputs = calls.make_inputs(case, plan.dtype)
    expected = calls.expected_results(case, inputs)
    variants, failures = {}, {}
    for name, (unavailable_reason, bind) in _candidates(case, plan, inputs).items():
        try:
            reason = unavailable_reason()
            if reason is not None:
                failures[name] = (UNAVAILABLE, reason)
                continue
            call = bind()
            calls.check(call(), expected, plan.dtype)
        except Exception as error:  # one broken kernel must not cost the results of a long run
            failures[name] = (WRONG, f"{type(error).__name__}: {' '.join(str(error).split())}")
        else:
            variants[name] = Variant(call, _clock(name))
    return variants, failures


def _candidates(case: Case, plan: Plan, inputs: dict[str, Any]) -> dict[str, tuple[Callable, Callable]]:
    """For each variant what says why it cannot run, and what makes its call."""
    candidates: dict[str, tuple[Callable, Callable]] = {
        name: (partial(calls.unavailable_reason, case, name, plan.dtype), partial(calls.bind, case, inputs, name))
        for name in plan.backends
    }
    if plan.with_peers:
        candidates["torch"] = (partial(peers.torch_unavailable_reason, case), partial(peers.bind_torch, case, inputs))
    return candidates


def _clock(name: str) -> Callable:
    return GpuClock(importlib.import_module("cupy")) if name == "cupy" else host_clock


def _copies(case: Case, plan: Plan, variants: dict[str, Variant]) -> dict[str, Variant]:
    moved = case.elements * plan.dtype.itemsize
    if moved < baselines.LEAST:
        return {}
    copies = baselines.host_copies(moved) if variants.keys() - {"cupy"} else {}
    return copies | (baselines.gpu_copy(moved) if "cupy" in variants else {})


def _figures(case: Case, plan: Plan, name: str, times: dict[str, Times]) -> dict[str, Any]:
    """The measured columns of one variant."""
    own = times[name]
    return {
        **own.columns(),
        "repeats": own.repeats,
        **_ratios(name, times),
        "gb_per_s": case.elements * plan.dtype.itemsize / own.median / 1e9,
        "gflop_per_s": None if case.flops is None else case.flops / own.median / 1e9,
    }


def _ratios(name: str, times: dict[str, Times]) -> dict[str, float]:
    """Against the reference and against the copies in the same memory; a copy is compared with nothing."""
    if name in (baselines.COPY, baselines.THREADED_COPY, baselines.GPU_COPY):
        return {}
    others = {"time_vs_copy": baselines.COPY, "time_vs_threaded_copy": baselines.THREADED_COPY}
    if name == "cupy":
        others = {"time_vs_copy": baselines.GPU_COPY}
    ratios = {column: times[name].ratio(times[other]) for column, other in others.items() if other in times}
    if calls.REFERENCE in times:
        ratios["speedup_vs_numpy"] = times[calls.REFERENCE].ratio(times[name])
    return ratios


def _row(case: Case, plan: Plan, variant: str, status: str, note: str = "", **figures: Any) -> dict[str, Any]:
    known = {
        "op": case.op,
        "name": case.name,
        "size": case.size,
        "length": case.length,
        "direction": case.direction,
        "dtype": plan.dtype.name,
        "variant": variant,
        "status": status,
        "note": note,
        **figures,
    }
    return {column: known.get(column) for column in COLUMNS}
