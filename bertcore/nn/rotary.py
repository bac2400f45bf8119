"""Rotary positions of a model's layers: what a family says of them, and the tables they are made into."""

import functools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bertcore import kernels

ROWS = 512  # tables grow by so many positions, so that lengths that are nearly the same share one


@dataclass(frozen=True)
class RotarySpec:
    """How a layer turns queries and keys by their position (Su et al. 2021, arXiv:2104.09864); see `kernels.rotary` and
    `kernels.rotary_tables`.

    Attributes:
        rotary_dim: how many elements of a head turn.
        theta: the base of the angles.
        interleaved: whether neighbours are a pair.
        scaling, factor, trained_length: for texts longer than those trained on.
    """

    rotary_dim: int
    theta: float
    interleaved: bool = False
    scaling: str | None = None
    factor: float = 1.0
    trained_length: int | None = None


@dataclass(frozen=True)
class RotaryAngles:
    """Cosines and sines for the tokens of a batch, in the memory of the backend in force.

    Attributes:
        cos, sin: (rows, rotary_dim / 2).
        positions: the row of each token, (tokens,); None where rows are counted from each sequence's start.
    """

    cos: Any
    sin: Any
    positions: Any = None


def rotary_angles(spec: RotarySpec, cu_seqlens: Any, positions: Any, dtype: Any) -> RotaryAngles:
    """The angles of packed tokens in a model that computes in `dtype`.

    `positions` are integers, (tokens,), or None where they count from each sequence's start. A scaling that depends on
    the length is that of each text, not of the longest one of its batch.
    """
    offsets = _host(cu_seqlens)
    lengths = offsets[1:] - offsets[:-1]
    kind = "float64" if np.dtype(dtype).itemsize == 8 else "float32"
    given = None if positions is None else _host(positions)
    if spec.scaling == "dynamic":
        if lengths.max(initial=0) > spec.trained_length:
            return _angles_of_each_text(spec, offsets, given, kind)
        spec = replace(spec, scaling=None)  # no text is longer than those trained on
    # Programs want a row for each token: they run again for sequences of other lengths.
    rows = int(offsets[-1] if given is None else given.max(initial=-1) + 1)
    rows = -(-max(rows, 1) // ROWS) * ROWS
    cos, sin = _tables(spec, rows, kind)
    return RotaryAngles(kernels.to_backend(cos), kernels.to_backend(sin), positions)


def _angles_of_each_text(spec: RotarySpec, offsets: np.ndarray, given: np.ndarray | None, kind: str) -> RotaryAngles:
    """One table for each length that differs, one below the other."""
    tables, first_rows, rows = [], {}, 0
    places = np.empty(offsets[-1], np.int32)
    for start, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        length = max(end - start, spec.trained_length)
        positions = np.arange(end - start) if given is None else given[start:end]
        if length not in first_rows:
            tables.append(_tables(spec, length, kind))
            first_rows[length], rows = rows, rows + length
        places[start:end] = first_rows[length] + positions
    cos, sin = (np.concatenate(parts) for parts in zip(*tables, strict=True))
    return RotaryAngles(*map(kernels.to_backend, (cos, sin, places)))


@functools.lru_cache(maxsize=32)
def _tables(spec: RotarySpec, length: int, kind: str) -> tuple[np.ndarray, np.ndarray]:
    scaling = {"scaling": spec.scaling, "factor": spec.factor, "trained_length": spec.trained_length}
    return kernels.rotary_tables(length, spec.rotary_dim, spec.theta, **scaling, dtype=kind)


def _host(array: Any) -> np.ndarray:
    return array if isinstance(array, np.ndarray) else array.get()
