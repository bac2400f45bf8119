"""Dropout, the residual added, layer normalisation over the last axis, forward and backward: how a layer ends."""

from typing import Any

from .. import checks, dispatch

OPTIONAL = ("weight", "bias", "seed")


def dropout_layer_norm(
    input: Any,
    residual: Any,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    *,
    p: float,
    seed: Any,
    backend: str | None = None,
) -> Any:
    """layer_norm(dropout(input, p, seed) + residual, weight, bias, eps), in one pass over memory.

    What is dropped is what `dropout` drops; the sum is not rounded in between. Sources: those of `dropout` and
    `layer_norm`; the order of the three is that of Vaswani et al. 2017, arXiv:1706.03762, section 5.4.

    Args:
        input: (..., width); float32 or float64 on Numba, float32, float16 or bfloat16 on CUDA, any floating dtype on
            NumPy. All arrays share one dtype.
        residual: of the input's shape.
        weight, bias: (width,), or None for 1 and 0.
        eps: added to the variance; not negative.
        p: the probability that an element of `input` is dropped, at least 0 and below 1.
        seed: an integer of 64 bits, at least 0; on CUDA also an array of one uint64, () or (1,), which the kernel reads
            when it runs: each launch of a CUDA graph draws by what is there then.
        backend: "numpy", "numba" or "cupy"; by default the one in force (see `use_backend`).

    Returns:
        An array of the kind, shape and dtype of `input`.

    Raises:
        TypeError, ValueError: for a wrong kind of array, dtype, shape, eps, probability or seed.
        BackendUnavailable: if the backend cannot run here.
    """
    number, seed = checks.seed_or_array("seed", seed)
    call = dispatch.open_call(
        __package__, backend, optional=OPTIONAL, input=input, residual=residual,
        weight=weight, bias=bias, seed=seed,
    )  # fmt: skip
    *arrays, seed = call.arrays
    named = dict(zip(("input", "residual", "weight", "bias"), arrays, strict=True))
    return call.run("dropout_layer_norm", *arrays, *_checked(call.backend, named, eps, p, number, seed))


def dropout_layer_norm_backward(
    grad_output: Any,
    input: Any,
    residual: Any,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    *,
    p: float,
    seed: Any,
    dtype: Any = None,
    backend: str | None = None,
) -> tuple[Any, Any, Any, Any]:
    """The gradients of `dropout_layer_norm`; what was dropped, the sum and its statistics are computed again.

    Args:
        grad_output: the gradient with respect to the output, of the input's shape and dtype.
        input, residual, weight, bias, eps, p, seed, backend: as for `dropout_layer_norm`.
        dtype: of the gradients of weight and bias: that of `input`, by default, or float32 for an input of lower
            precision.

    Returns:
        (grad_input, grad_residual, grad_weight, grad_bias), of the shapes of input, residual, weight and bias; the
        gradient of an absent weight or bias is None.

    Raises:
        As `dropout_layer_norm`.
    """
    number, seed = checks.seed_or_array("seed", seed)
    call = dispatch.open_call(
        __package__, backend, optional=OPTIONAL, grad_output=grad_output,
        input=input, residual=residual, weight=weight, bias=bias, seed=seed,
    )  # fmt: skip
    *arrays, seed = call.arrays
    named = dict(zip(("grad_output", "input", "residual", "weight", "bias"), arrays, strict=True))
    numbers, dtype = _checked(call.backend, named, eps, p, number, seed), checks.gradient_dtype(arrays[1], dtype)
    return call.run("dropout_layer_norm_backward", *arrays, *numbers, dtype)


def _checked(
    backend: str, arrays: dict[str, Any], eps: Any, p: Any, number: int, seed: Any
) -> tuple[float, float, Any]:
    """eps, p and the seed, the number or the array, once they and the arrays are such as the contract says."""
    checks.rows(backend, **arrays)
    checks.seed_array(backend, seed=seed)
    eps, p = checks.number_of(arrays["input"].dtype, "eps", eps, minimum=0), checks.probability("p", p)
    return eps, p, number if seed is None else seed
