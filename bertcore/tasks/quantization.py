"""Quantization of embeddings to one byte or one bit per dimension, bit for bit as in sentence-transformers."""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from bertcore.arguments import as_float32, check_numbers, warn_caller
from bertcore.kernels import checks

FEW = 100  # fewer embeddings give unstable ranges; the number at which sentence-transformers warns
PRECISIONS = ("float32", "int8", "uint8", "binary", "ubinary")


def quantize_embeddings(
    embeddings: np.ndarray,
    precision: str,
    ranges: np.ndarray | None = None,
    calibration_embeddings: np.ndarray | None = None,
) -> np.ndarray:
    """Quantize embeddings to fewer bits, for a smaller index and faster search.

    Args:
        embeddings: (n, dim) or (dim,) floating point.
        precision: "float32"; "int8" or "uint8": the range of each dimension in 256 steps; "ubinary" or "binary": the
            sign of each dimension, eight in a byte, shifted by -128 for "binary".
        ranges: (2, dim), minimum and maximum of each dimension, for int8 and uint8.
        calibration_embeddings: (m, dim), from which ranges are computed if not given; by default the embeddings, with a
            warning below 100: embeddings with different ranges are not comparable.

    Returns:
        float32, int8 or uint8 (n, dim); int8 ("binary") or uint8 ("ubinary") (n, ceil(dim / 8)).

    Raises:
        TypeError: the embeddings are integers.
        ValueError: the precision is unknown, a shape is wrong, a value is inf or NaN, or ranges would come from a
            single embedding.
    """
    checks.choice("precision", precision, PRECISIONS)
    embeddings = check_numbers("embeddings", embeddings)
    if embeddings.dtype.kind != "f":
        raise TypeError(f"embeddings has dtype {embeddings.dtype}, expected floating point: it is already quantized")
    if embeddings.ndim not in (1, 2):
        raise ValueError(f"embeddings has shape {embeddings.shape}, expected (n, dim) or (dim,)")
    if not np.isfinite(embeddings).all():
        raise ValueError("embeddings holds inf or NaN, expected finite numbers")
    if precision == "float32":
        return as_float32("embeddings", embeddings)
    if precision in ("binary", "ubinary"):
        packed = np.packbits(embeddings > 0, axis=-1)
        return packed if precision == "ubinary" else (packed.astype(np.int16) - 128).astype(np.int8)
    starts, steps = _steps(embeddings, ranges, calibration_embeddings)
    values = np.clip(np.floor((embeddings - starts) / steps), 0, 255)
    return values.astype(np.uint8) if precision == "uint8" else (values - 128).astype(np.int8)


class Codes:
    """Rows of `dimension` numbers as int8, by `ranges` (2, dim), or as bits: whether above `center` (dim,), or above 0.

    Both are compared with queries in float32: `asked` returns codes of queries, and factors from integers to scores.
    """

    def __init__(self, dimension: int, *, ranges: np.ndarray | None = None, center: np.ndarray | float = 0.0):
        self.dimension, self.ranges, self.center = dimension, ranges, center
        if ranges is not None:
            start, self.step = _steps(np.empty((0, dimension), np.float32), ranges, None)
            self.middle = start + 128.5 * self.step  # the number whose code is 0

    @classmethod
    def of_sample(cls, rows: np.ndarray) -> Self:
        """Return codes with the ranges and the center of some rows, (n, dim)."""
        axis = 0 if len(rows) >= FEW else None  # a dimension's range from few rows would not cover others
        ranges = np.empty((2, rows.shape[1]), np.float32)
        ranges[0], ranges[1] = rows.min(axis=axis), rows.max(axis=axis)
        return cls(rows.shape[1], ranges=ranges, center=rows.mean(axis=0))

    @classmethod
    def read(cls, facts: Mapping[str, Any], dimension: int) -> Self:
        """Return codes from what `facts` returned. Raises TypeError or ValueError for others."""
        made = {}
        for name, shape in (("ranges", (2, dimension)), ("center", (dimension,))):
            made[name] = as_float32(name, check_numbers(name, facts.get(name)))
            if made[name].shape != shape or not np.isfinite(made[name]).all():
                raise ValueError(f"{name} has shape {made[name].shape}, expected finite numbers {shape}")
        return cls(dimension, **made)

    def facts(self) -> dict[str, Any]:
        """Return the ranges and the center as lists, for JSON."""
        return {name: np.asarray(getattr(self, name)).tolist() for name in ("ranges", "center")}

    def int8(self, rows: np.ndarray) -> np.ndarray:
        """Return codes (n, dim); numbers beyond the ranges are clipped."""
        return quantize_embeddings(rows, "int8", ranges=self.ranges)

    def bits(self, rows: np.ndarray) -> np.ndarray:
        """Return codes (n, ceil(dim / 8)), uint8."""
        return quantize_embeddings(rows - self.center, "ubinary")

    def decoded(self, codes: np.ndarray) -> np.ndarray:
        """Return the decoded rows, float32; for bits, zeros and ones."""
        if codes.dtype == np.uint8:
            return np.unpackbits(codes, axis=-1, count=self.dimension).astype(np.float32)
        return codes * self.step + self.middle

    def asked(self, queries: np.ndarray, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return codes of queries, and `scale` and `shift` (n, 1): a score is an integer times `scale` plus `shift`.

        int8 codes represent queries times the step of each dimension, so that products equal those of decoded rows.
        """
        if dtype == np.uint8:
            ones = np.ones((len(queries), 1), np.float32)
            return self.bits(queries), -2 / self.dimension * ones, ones
        weighted = queries * self.step
        scale = np.abs(weighted).max(axis=1, keepdims=True, initial=0) / 127
        codes = np.rint(weighted / np.where(scale == 0, 1, scale)).astype(np.int8)
        return codes, scale, queries @ self.middle[:, None]


def _steps(embeddings: np.ndarray, ranges: Any, calibration: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the minimum and the step of each dimension, float32."""
    width = embeddings.shape[-1]
    if ranges is None:
        name, source = "embeddings", embeddings
        if calibration is not None:
            name, source = "calibration_embeddings", check_numbers("calibration_embeddings", calibration)
        if source.size == 0 and embeddings.size == 0:  # nothing to quantize
            return np.zeros(width, np.float32), np.ones(width, np.float32)
        if source.ndim != 2 or source.shape[1] != width or len(source) < (2 if calibration is None else 1):
            raise ValueError(
                f"{name} has shape {source.shape}, expected several rows of {width} to take ranges from: give "
                "ranges, or calibration_embeddings"
            )
        if calibration is None and len(source) < FEW:
            warn_caller(
                f"the ranges come from only {len(source)} embeddings, and differ from those of other calls: give "
                "ranges, or calibration_embeddings"
            )
        ranges = np.stack([source.min(axis=0), source.max(axis=0)])
    ranges = as_float32("ranges", check_numbers("ranges", ranges))
    if ranges.shape != (2, width):
        raise ValueError(f"ranges has shape {ranges.shape}, expected (2, {width})")
    if not np.isfinite(ranges).all() or (ranges[0] > ranges[1]).any():
        raise ValueError("ranges holds inf or NaN, or a minimum above the maximum, expected finite numbers in order")
    steps = (ranges[1] - ranges[0]) / 255
    return ranges[0], np.where(steps == 0, 1, steps).astype(np.float32)
