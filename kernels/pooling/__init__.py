"""One vector for each packed sequence, from those of its tokens, forward and backward."""

from typing import Any

from .. import checks, dispatch

MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")


def pooling(
    input: Any,
    cu_seqlens: Any,
    mode: str = "mean",
    *,
    skipped: int = 0,
    dtype: Any = None,
    backend: str | None = None,
) -> Any:
    """A vector for each sequence: the mean of its tokens, or another mode; zeros for one without tokens.

    "mean_sqrt_len_tokens" divides the sum by the square root of the number of tokens, "weightedmean" gives the n-th
    token of a sequence the weight n (Muennighoff 2022, arXiv:2202.08904), "cls" takes the first token and "lasttoken"
    the last. The order of a sum depends on its sequence alone: neighbours cannot change its bits.

    Args:
        input: packed tokens, (tokens, width); float32 or float64 on Numba, float32, float16 or bfloat16 on CUDA, any
            floating dtype on NumPy.
        cu_seqlens: integer offsets of the sequences, (sequences + 1,), from 0 to the number of tokens. On a GPU their
            values are not checked.
        mode: one of MODES, as sentence-transformers calls them.
        skipped: how many of the first tokens of each sequence do not count, at least 0.
        dtype: of the result, which is computed in float32 from half precision; by default that of `input`.
        backend: "numpy", "numba" or "cupy"; by default the one in force (see `use_backend`).

    Returns:
        (sequences, width), of the kind of `input`.

    Raises:
        TypeError, ValueError: for a wrong kind of array, dtype, shape, offset or mode.
        BackendUnavailable: if the backend cannot run here.
    """
    call = dispatch.open_call(__package__, backend, input=input, cu_seqlens=cu_seqlens)
    input, cu_seqlens = call.arrays
    cu_seqlens, skipped = _checked(call.backend, input, cu_seqlens, mode, skipped)
    dtype = input.dtype if dtype is None else checks.floating_dtype("dtype", dtype)
    return call.run("pooling", input, cu_seqlens, mode, skipped, dtype)


def pooling_backward(
    grad_output: Any,
    input: Any,
    cu_seqlens: Any,
    mode: str = "mean",
    *,
    skipped: int = 0,
    backend: str | None = None,
) -> Any:
    """The gradient of the tokens; of "max" the first of the largest has it.

    Args:
        grad_output: the gradient with respect to the output, (sequences, width), of the dtype of `input`.
        input, cu_seqlens, mode, skipped, backend: as for `pooling`.

    Returns:
        (tokens, width), of the kind and dtype of `input`.

    Raises:
        As `pooling`.
    """
    call = dispatch.open_call(__package__, backend, grad_output=grad_output, input=input, cu_seqlens=cu_seqlens)
    grad_output, input, cu_seqlens = call.arrays
    cu_seqlens, skipped = _checked(call.backend, input, cu_seqlens, mode, skipped)
    checks.floating(call.backend, grad_output=grad_output, input=input)
    checks.shape((cu_seqlens.shape[0] - 1, input.shape[1]), grad_output=grad_output)
    return call.run("pooling_backward", grad_output, input, cu_seqlens, mode, skipped)


def _checked(backend: str, input: Any, cu_seqlens: Any, mode: str, skipped: int) -> tuple[Any, int]:
    checks.floating(backend, input=input)
    checks.shape((None, None), input=input)
    checks.choice("mode", mode, MODES)
    cu_seqlens = checks.offsets("cu_seqlens", cu_seqlens, "input", input.shape[0])
    return cu_seqlens, checks.integer_number("skipped", skipped, minimum=0)
