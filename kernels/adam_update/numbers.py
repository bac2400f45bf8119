"""The factors of one step of Adam's family."""

from typing import NamedTuple

import numpy as np


class Numbers(NamedTuple):
    """The factors of a step, in the dtype of the arrays.

    g = grad_scale grad, m = keep1 m + take1 g, v = keep2 v + take2 g^2; m' = scale1 m, sqrt(v') = scale2 sqrt(v).
    """

    lr: np.floating
    keep1: np.floating
    take1: np.floating
    keep2: np.floating
    take2: np.floating
    scale1: np.floating
    scale2: np.floating
    eps: np.floating
    weight_decay: np.floating
    grad_scale: np.floating

    @classmethod
    def at_step(cls, dtype, lr, betas, eps, weight_decay, step, grad_scale=1.0):
        """The numbers of one step."""
        scales = 1 / (1 - betas[0] ** step), (1 - betas[1] ** step) ** -0.5
        moments = betas[0], 1 - betas[0], betas[1], 1 - betas[1]
        return cls(*map(dtype.type, (lr, *moments, *scales, eps, weight_decay, grad_scale)))
