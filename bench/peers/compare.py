"""All libraries on one model in one precision: loaded, checked, and timed in turns."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from bench.measure import Times, Variant, measure, settled_clock
from bench.peers.cases import Batch, Case
from bench.peers.libraries import OURS, Peer, Session, Unsupported, missing_reason

OK, UNAVAILABLE, FAILED, WRONG = "ok", "unavailable", "failed", "wrong"
COLUMNS = (
    "model", "shape", "tokens", "precision", "library", "status", "median_s", "min_s", "spread", "rounds", "repeats",
    "time_vs_ours", "is_best_peer", "gflop_per_s", "share_of_fma_limit", "error", "note",
)  # fmt: skip

# Largest `error` below. BERT-base has 1e-6 in float32, 0.005 to 0.012 in bfloat16, 0.02 to 0.03 in int8, 0.065 with
# static scales. A forgotten mask costs 0.01 to 0.16 there, at least 2e-4 in any model: float32 shows it for sure.
TOLERANCES = {"float32": 2e-5, "bfloat16": 3e-2, "int8": 1.2e-1}


class Plan(NamedTuple):
    """Threads, rounds and seconds to measure, and the machine's FMA limit (FLOP/s)."""

    threads: int = 2
    rounds: int = 15
    seconds: float = 4.0
    fma_limit: float | None = None


class Failure(NamedTuple):
    """The reason for missing times: UNAVAILABLE, FAILED or WRONG, and a note."""

    status: str
    note: str
    error: float | None = None


def open_sessions(
    peers: Iterable[Peer], precision: str, folder: Path, threads: int
) -> tuple[dict[str, Session], dict[str, Failure]]:
    """Return the libraries that have loaded the checkpoint, and the failures of the others."""
    sessions: dict[str, Session] = {}
    failures: dict[str, Failure] = {}
    for peer in peers:
        if precision not in peer.precisions:
            continue
        missing = missing_reason(peer)
        if missing is not None:
            failures[peer.name] = Failure(UNAVAILABLE, missing)
            continue
        try:
            sessions[peer.name] = peer.load(folder, precision, threads)
        except Unsupported as error:
            failures[peer.name] = Failure(UNAVAILABLE, str(error))
        except Exception as error:  # one broken library must not cost the results of a long run
            failures[peer.name] = failure_of(error)
    return sessions, failures


def compare(
    case: Case,
    precision: str,
    batch: Batch,
    sessions: Mapping[str, Session],
    failures: Mapping[str, Failure],
    truth: np.ndarray,
    plan: Plan,
    beside: Mapping[str, Variant] = MappingProxyType({}),
) -> list[dict[str, Any]]:
    """Return a row (of COLUMNS) per library; one that fails or is wrong on this batch has no times.

    The variants `beside` are timed in turns with them; rows have their ratio to each as time_vs_<its name>.
    """
    calls, errors, failures = {}, {}, dict(failures)
    for name, session in sessions.items():
        try:
            call = session.bind(batch)
            errors[name] = error_of(session.hidden(call()), batch, truth)
        except Exception as error:
            failures[name] = failure_of(error)
            continue
        if errors[name] <= TOLERANCES[precision]:
            calls[name] = Variant(call, settled_clock)
        else:
            note = f"off by {errors[name]:.2g} of the hidden states' norm (allowed {TOLERANCES[precision]:g})"
            failures[name] = Failure(WRONG, note, errors[name])
    times = measure({**calls, **beside}, plan.rounds, plan.seconds) if calls else {}
    own = {name: times[name] for name in times if name not in beside}
    known = {name: figures_of(case, name, own, plan) for name in own}
    rows = [
        row_of(case, precision, name, OK, error=errors[name], note=sessions[name].note, **figures)
        | {f"time_vs_{other}": times[name].ratio(times[other]) for other in beside}
        for name, figures in known.items()
    ]
    absent = dict.fromkeys(f"time_vs_{other}" for other in beside)
    return rows + [row_of(case, precision, name, *failure) | absent for name, failure in failures.items()]


def error_of(found: np.ndarray, batch: Batch, truth: np.ndarray) -> float:
    """Return the norm of the difference over the truth's, on real tokens; infinite if any number is not finite."""
    found = np.asarray(found, np.float32)
    expected = (*batch.input_ids.shape, truth.shape[1])
    if found.shape != expected:
        raise ValueError(f"the hidden states have shape {found.shape}, expected {expected}")
    difference = found[batch.is_real].astype(np.float64) - truth
    error = float(np.linalg.norm(difference) / np.linalg.norm(truth))
    return error if np.isfinite(error) else float("inf")


def best_peer(times: Mapping[str, Times]) -> str | None:
    """Return the library other than ours with the least median."""
    others = {name: own.median for name, own in times.items() if name != OURS}
    return min(others, key=others.__getitem__, default=None)


def figures_of(case: Case, name: str, times: Mapping[str, Times], plan: Plan) -> dict[str, Any]:
    """Return the measured columns of one library."""
    own = times[name]
    speed = case.flops / own.median
    return {
        **own.columns(),
        "repeats": own.repeats,
        "time_vs_ours": own.ratio(times[OURS]) if OURS in times else None,
        "is_best_peer": int(name == best_peer(times)),
        "gflop_per_s": speed / 1e9,
        "share_of_fma_limit": None if plan.fma_limit is None else speed / plan.fma_limit,
    }


def row_of(
    case: Case, precision: str, library: str, status: str, note: str = "", error: float | None = None, **figures: Any
) -> dict[str, Any]:
    """Return a row of COLUMNS."""
    known = {
        "model": case.model,
        "shape": case.shape,
        "tokens": sum(case.lengths),
        "precision": precision,
        "library": library,
        "status": status,
        "error": error,
        "note": note,
        **figures,
    }
    return {column: known.get(column) for column in COLUMNS}


def failure_of(error: Exception) -> Failure:
    """Return the failure of a library that raised `error`."""
    return Failure(FAILED, f"{type(error).__name__}: {' '.join(str(error).split())}"[:500])
