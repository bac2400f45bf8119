"""The nearest of a corpus of codes: bits by the number that differ, int8 by the dot product."""

from typing import NamedTuple

from ..arguments import Codes, Integer
from ..arrays import Array
from ..operation import Operation

MOST_ROWS = 1 << 32


class Nearest(NamedTuple):
    """The nearest codes of each query, the best first, of equal ones the first.

    Attributes:
        scores: int32 (queries, kept): numbers of bits that differ, or dot products.
        rows: int64 (queries, kept): their rows in the corpus.
    """

    scores: Array
    rows: Array


NEAREST_CODES = Operation(
    __package__,
    "nearest_codes",
    {"query": Codes("queries width"), "corpus": Codes("rows width"), "top_k": Integer(minimum=1)},
)


def nearest_codes(query: Array, corpus: Array, top_k: int, *, backend: str | None = None) -> Nearest:
    """Find the codes of a corpus that are nearest to each query, by comparison with all of them.

    Codes of uint8 are bits, eight in a byte: the nearest have the fewest bits that differ (the Hamming distance). Codes
    of int8 are numbers: the nearest have the greatest dot products, which are exact.

    Args:
        query: (queries, width) uint8 or int8, on the host: CUDA has no implementation.
        corpus: (rows, width), of the dtype of `query`; it may be mapped memory.
        top_k: number of rows that are kept for each query; all of the corpus if it has fewer.
        backend: "numpy" or "numba"; by default the one in force (see `use_backend`).

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
