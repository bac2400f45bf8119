"""One step of Adam's family, in place; the formulas stand in the contract, the sources too."""

import numpy as np

from ..precision import ieee_arithmetic


def adam_update(sets, lr, betas, eps, weight_decay, step, rule, grad_scale):
    """Update parameters and their moments in place; `sets` has (parameter, grad, first and second moment) of each."""
    if grad_scale is not None and not np.isfinite(grad_scale):
        return
    for parameter, grad, *moments in sets:
        grad = grad if grad_scale is None else grad * grad_scale
        _update(parameter, grad, *moments, lr, betas, eps, weight_decay, step, rule)


@ieee_arithmetic
def _update(parameter, grad, first_moment, second_moment, lr, betas, eps, weight_decay, step, rule):
    first_moment[...] = betas[0] * first_moment + (1 - betas[0]) * grad
    second_moment[...] = betas[1] * second_moment + (1 - betas[1]) * (grad * grad)  # inf stays inf: no inf - inf
    first, second = first_moment / (1 - betas[0] ** step), second_moment / (1 - betas[1] ** step)
    update = first / (np.sqrt(second) + eps) + weight_decay * parameter
    if rule == "stable_adamw" and grad.size:
        lr = lr / max(1.0, np.sqrt(np.mean(surprise(grad, second, eps), dtype=np.float64)))
    if rule == "lamb":
        norms = [np.sqrt(np.sum(array.astype(np.float64) ** 2)) for array in (parameter, update)]
        lr = lr * norms[0] / norms[1] if norms[0] > 0 and norms[1] > 0 else lr
    parameter -= np.asarray(lr * update, parameter.dtype)


def surprise(grad, second, eps):
    """g^2 / max(v', eps^2); 0 where both are 0."""
    root = np.maximum(np.sqrt(second), eps)
    ratio = np.divide(grad, root, out=np.zeros_like(grad), where=root != 0)
    return ratio * ratio
