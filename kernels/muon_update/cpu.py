"""One step of Muon on the CPU: the definition, with the products of linear's CPU implementation.

Each matrix needs 15 small products: the checks of the public function would take a tenth of a step.
"""

from ..linear.cpu import linear
from .reference import update


def muon_update(sets, lr, beta, weight_decay, grad_scale):
    """Update matrices and their momenta in place; `sets` has (parameter, grad, momentum) of each."""
    update(sets, lr, beta, weight_decay, grad_scale, _product)


def _product(left, right, addend):
    return linear(left, right, None, None, addend)
