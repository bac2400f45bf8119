"""Rotary positions of a model's layers: a family's settings, and tables of angles."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.kernels.arrays import NativeArray
from bertcore.passes import Pass

FEWEST_ROWS = 512  # the least size of a table, which grows by doubling
# Up to this many tokens a table has a row for each, so that a recorded program also fits other sequence lengths.
MOST_RECORDED = 2**14


@dataclass(frozen=True)
class RotarySpec:
    """The rotation of queries and keys by their position (Su et al. 2021, arXiv:2104.09864).

    See `kernels.rotary` and `kernels.rotary_tables`.
    """

    rotary_dim: int  # the number of elements of a head that are rotated
    theta: float  # the base of the angles
    interleaved: bool = False  # whether pairs are adjacent elements
    # the scaling for texts longer than the trained length
    scaling: str | None = None
    factor: float = 1.0
    trained_length: int | None = None


@dataclass(frozen=True)
class RotaryAngles:
    """Cosines and sines for the tokens of a batch, (rows, rotary_dim / 2) each, in the active backend's memory."""

    cos: NativeArray
    sin: NativeArray
    positions: NativeArray | None = None  # the row of each token; None if rows count from each sequence's start
    can_be_recorded: bool = False  # whether the rows suffice for these tokens in sequences of any lengths


class RotaryTables:
    """The tables of a model, one for each RotarySpec and dtype, sized for the longest text so far."""

    def __init__(self) -> None:
        self._kept: dict[Any, tuple[Any, Any]] = {}

    def angles(
        self,
        run: Pass,
        spec: RotarySpec,
        offsets: np.ndarray,
        given: np.ndarray | None,
        dtype: np.typing.DTypeLike,
        positions: NativeArray | None = None,
    ) -> RotaryAngles:
        """Return the angles of packed tokens in a model that computes in `dtype`.

        `offsets` are the sequences' offsets and `given` the position of each token, (tokens,), or None if they count
        from each sequence's start, both in host memory; `positions` are `given` in the active backend's memory. Scaling
        that depends on the length uses the length of each text, up to its last position, not of the batch's longest
        text.
        """
        kind = "float64" if np.dtype(dtype).itemsize == 8 else "float32"
        rows = int(np.diff(offsets).max(initial=0) if given is None else given.max(initial=-1) + 1)
        if spec.scaling == "dynamic":
            if rows > spec.trained_length:
                return _angles_of_each_text(run, spec, offsets, given, kind)
            spec = replace(spec, scaling=None)  # no text exceeds the trained length
        tokens = int(offsets[-1])
        if given is None and tokens <= MOST_RECORDED:
            rows = tokens
        key = spec, kind, run.place
        tables = self._kept.get(key)
        if tables is None or len(tables[0]) < rows:
            rows = max(FEWEST_ROWS, 1 << max(rows - 1, 0).bit_length())
            cos, sin = _tables(spec, rows, kind)
            tables = self._kept[key] = run.to_backend(cos), run.to_backend(sin)
        cos, sin = tables
        return RotaryAngles(
            cos, sin, given if positions is None else positions, can_be_recorded=given is None and len(cos) >= tokens
        )


def _angles_of_each_text(
    run: Pass, spec: RotarySpec, offsets: np.ndarray, given: np.ndarray | None, kind: str
) -> RotaryAngles:
    """Return angles from a table for each length that occurs, one below the other."""
    tables, first_rows, rows = [], {}, 0
    places = np.empty(offsets[-1], np.int32)
    for start, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        positions = np.arange(end - start) if given is None else given[start:end]
        length = max(int(positions.max(initial=-1)) + 1, spec.trained_length)
        if length not in first_rows:
            tables.append(_tables(spec, length, kind))
            first_rows[length], rows = rows, rows + length
        places[start:end] = first_rows[length] + positions
    cos, sin = (np.concatenate(parts) for parts in zip(*tables, strict=True))
    return RotaryAngles(run.to_backend(cos), run.to_backend(sin), run.to_backend(places))


def _tables(spec: RotarySpec, length: int, kind: str) -> tuple[np.ndarray, np.ndarray]:
    scaling = {"scaling": spec.scaling, "factor": spec.factor, "trained_length": spec.trained_length}
    return kernels.rotary_tables(length, spec.rotary_dim, spec.theta, **scaling, dtype=kind)
