"""Search a corpus of codes: bits by Hamming distance, int8 by dot product."""

from typing import NamedTuple

from ..arguments import Integer, QuantizedRows
from ..arrays import Array
from ..operation import Operation

MOST_ROWS = 1 << 32


class Nearest(NamedTuple):
    """The nearest codes of each query, best first, ties by row.

    Attributes:
        scores: int32 (queries, kept): Hamming distances, or dot products.
        rows: int64 (queries, kept): their rows in the corpus.
    """

    scores: Array
    rows: Array


NEAREST_CODES = Operation(
    __package__,
    "nearest_codes",
    {"query": QuantizedRows("queries width"), "corpus": QuantizedRows("rows width"), "top_k": Integer(minimum=1)},
)


def nearest_codes(query: Array, corpus: Array, top_k: int, *, backend: str | None = None) -> Nearest:
    """Find the codes of a corpus that are nearest to each query, by comparing with all of them.

    uint8 codes are bits, eight in a byte: the nearest have the smallest Hamming distance. int8 codes are numbers: the
    nearest have the greatest dot products, which are exact.

    Args:
        query: (queries, width) uint8 or int8, on the host: there is no CUDA implementation.
        corpus: (rows, width), of the dtype of `query`; it may be memory-mapped.
        top_k: number of rows to return for each query; all rows if the corpus has fewer.
        backend: "numpy" or "numba"; by default the active one (see `use_backend`).

    Returns:
        A `Nearest`: scores and rows, (queries, min(top_k, rows)).

    Raises:
        TypeError: for a wrong kind of array or dtype.
        ValueError: for a wrong shape, or a corpus of 2^32 rows or more.
        NotImplementedError: on backend "cupy".
        BackendUnavailable: if the backend cannot run here.
    """
    call = NEAREST_CODES.open(backend, query, corpus, top_k)
    if (rows := call.given[1].shape[0]) >= MOST_ROWS:
        raise ValueError(f"corpus has {rows} rows, expected fewer than {MOST_ROWS}")
    return Nearest(*call.run())
