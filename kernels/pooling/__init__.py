"""One vector for each packed sequence, forward and backward."""

from typing import Any, NamedTuple

from ..arguments import Choice, Floats, Integer, Offsets, ResultDtype
from ..arrays import Array, ArrayT, DTypeLike
from ..operation import Operation

MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")


class PoolingSaved(NamedTuple):
    """The arrays and numbers that `pooling` keeps for its backward."""

    input: Array
    cu_seqlens: Array
    mode: str
    skipped: int


POOLING = Operation(
    __package__,
    "pooling",
    {
        "input": Floats("tokens width"),
        "cu_seqlens": Offsets(of="input"),
        "mode": Choice(*MODES),
        "skipped": Integer(minimum=0),
        "dtype": ResultDtype(),
    },
    saves=PoolingSaved,
    gradients=("input",),
    output=lambda saved: ((saved.cu_seqlens.shape[0] - 1, saved.input.shape[1]), saved.input.dtype),
)


def pooling(
    input: ArrayT,
    cu_seqlens: Array,
    mode: str = "mean",
    *,
    skipped: int = 0,
    dtype: DTypeLike | None = None,
    save: bool = False,
    backend: str | None = None,
) -> Any:
    """Pool each sequence into one vector: the mean of its tokens, or another mode; zeros without tokens.

    "mean_sqrt_len_tokens" divides the sum by the square root of the number of tokens, "weightedmean" gives the n-th
    token of a sequence the weight n (Muennighoff 2022, arXiv:2202.08904), "cls" takes the first token and "lasttoken"
    the last. The order of a sum depends only on its sequence, so other sequences cannot change its bits.

    Args:
        input: packed tokens, (tokens, width); float32 or float64 on Numba, float32, float16 or bfloat16 on CUDA, any
            floating dtype on NumPy.
        cu_seqlens: integer offsets of the sequences, (sequences + 1,), from 0 to the number of tokens. On a GPU their
            values are not checked.
        mode: one of MODES, with sentence-transformers' names.
        skipped: number of first tokens of each sequence to ignore, at least 0.
        dtype: dtype of the result, by default the input's; half precision is computed in float32.
        save: also return the state that `pooling_backward` needs.
        backend: "numpy", "numba" or "cupy"; by default the active one (see `use_backend`).

    Returns:
        (sequences, width), of the kind of `input`; with `save`, a tuple of it and a `PoolingSaved`.

    Raises:
        TypeError: for a wrong kind of array or dtype.
        ValueError: for a wrong shape, offset or mode.
        BackendUnavailable: if the backend cannot run here.
    """
    return POOLING.call(backend, save, input, cu_seqlens, mode, skipped, dtype)


def pooling_backward(grad_output: ArrayT, saved: PoolingSaved, *, backend: str | None = None) -> ArrayT:
    """Return the gradient of the tokens; for "max" the first of the largest receives it.

    Args:
        grad_output: the gradient with respect to the output, (sequences, width), of the dtype of `input`.
        saved: the state that `pooling` returned with `save=True`.
        backend: as for `pooling`; errors are the same.

    Returns:
        (tokens, width), of the kind and dtype of `input`.
    """
    return POOLING.call_backward(backend, grad_output, saved)
