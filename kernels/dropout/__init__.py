"""Dropout with an optional residual, forward and backward."""

from typing import Any

from .. import checks, dispatch


def dropout(input: Any, p: float, seed: Any, *, residual: Any = None, backend: str | None = None) -> Any:
    """Each element of `input` is 0 with probability p, else divided by 1 - p; then `residual` is added.

    Which elements are dropped is a function of their place (their number in C order) and of `seed` alone: the same on
    every backend, with any number of threads. So nothing is kept for the backward.
    Sources: Srivastava et al. 2014; the random bits are those of Philox 4x32-10, Salmon et al. 2011.

    Args:
        input: an array of any shape; float32 or float64 on Numba, float32, float16 or
            bfloat16 on CUDA, any floating dtype on NumPy.
        p: the probability that an element is dropped, at least 0 and below 1.
        seed: an integer of 64 bits, at least 0; on CUDA also an array of one uint64, () or (1,), which the kernel reads
            when it runs: each launch of a CUDA graph draws by what is there then.
        residual: of the shape and dtype of `input`, or None.
        backend: "numpy", "numba" or "cupy"; by default the one in force (see `use_backend`).

    Returns:
        An array of the kind, shape and dtype of `input`.

    Raises:
        TypeError, ValueError: for a wrong kind of array, dtype, shape, probability or seed.
        BackendUnavailable: if the backend cannot run here.
    """
    number, seed = checks.seed_or_array("seed", seed)
    call = dispatch.open_call(
        __package__, backend, optional=("residual", "seed"), input=input,
        residual=residual, seed=seed,
    )  # fmt: skip
    input, residual, seed = call.arrays
    checks.floating(call.backend, input=input, residual=residual)
    checks.shape(input.shape, residual=residual)
    checks.seed_array(call.backend, seed=seed)
    return call.run("dropout", input, checks.probability("p", p), number if seed is None else seed, residual)


def dropout_backward(grad_output: Any, p: float, seed: Any, *, backend: str | None = None) -> Any:
    """The gradient of `dropout` with respect to its input: dropout of the gradient of its output.

    Args:
        grad_output: the gradient with respect to the output.
        p, seed, backend: as for `dropout`.

    Returns:
        The gradient with respect to the input, of the same shape and dtype. That of the residual is grad_output.

    Raises:
        As `dropout`.
    """
    number, seed = checks.seed_or_array("seed", seed)
    call = dispatch.open_call(
        __package__, backend, optional=("seed",),
        grad_output=grad_output, seed=seed,
    )  # fmt: skip
    grad_output, seed = call.arrays
    checks.floating(call.backend, grad_output=grad_output)
    checks.seed_array(call.backend, seed=seed)
    return call.run("dropout_backward", grad_output, checks.probability("p", p), number if seed is None else seed)
