"""One step of Muon, in place: momentum with equalised singular values."""

from typing import Any

from .. import checks
from ..lists import open_lists


def muon_update(
    parameter: list[Any],
    grad: list[Any],
    momentum: list[Any],
    *,
    lr: float,
    beta: float = 0.95,
    weight_decay: float = 0.0,
    grad_scale: Any = None,
    backend: str | None = None,
) -> None:
    """Update matrices and their momenta in place by one step.

        m = beta m + (1 - beta) grad_scale * grad
        d = beta m + (1 - beta) grad_scale * grad
        parameter = (1 - lr weight_decay) parameter - 0.2 lr sqrt(max(rows, columns)) orthogonalized(d)

    An orthogonalized matrix has the singular vectors of the matrix, and singular values near 1 (about 0.7 to 1.2): five
    steps map x to a x + b (x x') x + c (x x')^2 x, beginning with d / |d|. Singular values that are tiny relative to
    |d|, or to 1e-7 if that is larger, stay smaller. Sources: Jordan et al. 2024,
    https://kellerjordan.github.io/posts/muon/; the factor 0.2 sqrt(...): Liu et al. 2025, arXiv:2502.16982.

    Args:
        parameter, momentum: lists of matrices, C-contiguous and writable; float32 or float64 on Numba and NumPy,
            float32 on CUDA, where matrices of one shape are multiplied together. Momenta are zeros before the first
            step.
        grad: a list of arrays of the same shapes and dtype; they are only read.
        lr: the learning rate, not negative.
        beta: the share of the momentum that is kept, at least 0 and below 1.
        weight_decay: the weight of the parameter itself in the update, not negative.
        grad_scale: a 0-d array of the dtype of the others that multiplies gradients (for example to clip them); if it
            is inf or NaN, nothing is changed. None for 1.
        backend: "numpy", "numba" or "cupy"; by default the active one (see `use_backend`).

    Raises:
        TypeError, ValueError: for a wrong kind of array, dtype, shape or number; nothing is changed then.
        BackendUnavailable: if the backend cannot run here.
    """
    lists = {"parameter": parameter, "grad": grad, "momentum": momentum}
    if not checks.of_one_length(**lists):
        return
    names = {"written": ["parameter", "momentum"], "passing": ["grad"]}
    call, sets = open_lists(__package__, backend, lists, **names, grad_scale=grad_scale)
    *arrays, grad_scale = call.arrays
    for name, (array, *_) in zip(checks.numbers("parameter", len(sets)), sets, strict=True):
        checks.shape((None, None), **{name: array})
    if grad_scale is not None:
        checks.shape((), grad_scale=grad_scale)
    dtype = checks.dtype_of_moments(parameter=arrays[0])
    lr = checks.number_of(dtype, "lr", lr, minimum=0, may_vanish=True)  # schedules end there
    weight_decay = checks.number_of(dtype, "weight_decay", weight_decay, minimum=0, may_vanish=True)
    beta = checks.probability("beta", beta)
    call.compute("muon_update", sets, lr, beta, weight_decay, grad_scale)
