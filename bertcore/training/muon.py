"""Muon: momentum whose singular values are made alike, for the matrices of layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bertcore import kernels
from bertcore.nn.parameter import Parameter
from bertcore.training.optimizers import MOMENTS, Group, Optimizer

COEFFICIENTS = 3.4445, -4.7750, 2.0315
STEPS = 5
EPS = 1e-7
RMS = 0.2  # of an update, as AdamW's usually are


class Muon(Optimizer):
    """Momentum that is orthogonalised, for the weights of linear maps in layers; AdamW for all else (Jordan et al.
    2024, https://kellerjordan.github.io/posts/muon/).

    A map is in a layer if its name in a checkpoint has a number ("encoder.layer.0..."): embeddings, poolers and heads,
    biases and norms are AdamW's. Each tensor of a checkpoint is orthogonalised for itself, by five Newton-Schulz steps,
    and an update is as large as AdamW's are (Liu et al. 2025, arXiv:2502.16982), so that the learning rates and the
    weight decay of AdamW serve for both.

    Args:
        model, lr, betas, eps, weight_decay, groups: as for `Optimizer`; betas and eps are AdamW's.
        momentum: how much of the momentum is kept at each step (Nesterov's is applied).
    """

    def __init__(
        self,
        model: Any,
        *,
        lr: float = 1e-3,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        groups: Sequence[Mapping[str, Any]] = (),
    ):
        super().__init__(model, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, groups=groups)
        if not isinstance(momentum, int | float) or not 0 <= momentum < 1:
            raise ValueError(f"momentum is {momentum!r}, expected a number of at least 0 and below 1")
        self.momentum = momentum

    def _kinds(self, parameter: Parameter) -> tuple[str, ...]:
        return ("momentum",) if is_matrix_of_a_layer(parameter) else MOMENTS

    def _change(
        self, group: Group, parameters: list[Parameter], arrays: list[Any], grads: list[Any], number: Any, scale: Any
    ) -> None:
        others: tuple[list[Any], ...] = [], [], []
        for parameter, array, grad in zip(parameters, arrays, grads, strict=True):
            if is_matrix_of_a_layer(parameter):
                whole = array, grad, *self._moments_of(parameter, array)
                for tensors in zip(*map(parameter.pieces, whole), strict=True):
                    self._change_matrix(group, *tensors, scale)
            else:
                for some, one in zip(others, (parameter, array, grad), strict=True):
                    some.append(one)
        super()._change(group, *others, number, scale)

    def _change_matrix(self, group: Group, array: Any, grad: Any, momentum: Any, scale: Any) -> None:
        kept, xp = self.momentum, kernels.array_module(array)
        part = (1 - kept) * (grad if scale is None else grad * scale)
        moved = momentum * kept + part
        direction = orthogonalized(part + kept * moved)
        changed = array * (1 - group.lr * group.weight_decay)
        changed -= group.lr * RMS * max(array.shape) ** 0.5 * direction
        if scale is not None:
            is_step = xp.isfinite(scale)
            moved, changed = xp.where(is_step, moved, momentum), xp.where(is_step, changed, array)
        momentum[...], array[...] = moved, changed


def is_matrix_of_a_layer(parameter: Parameter) -> bool:
    """Whether it is the weight of a linear map and nothing else, and its name has a number."""
    has_number = any(part.isdecimal() for part in parameter.names[0].split("."))
    return parameter.uses == {"weight"} and has_number and len(parameter.shape) == 2


def orthogonalized(matrix: Any) -> Any:
    """A matrix with the singular vectors of `matrix`, (rows, columns), and singular values near 1 (about 0.7 to 1.2).

    Each of the five steps takes x to a x + b (x x') x + c (x x')² x, an odd polynomial of the singular values. Those
    that are tiny beside the norm of `matrix`, or beside 1e-7 if that is larger, stay smaller.
    """
    if not matrix.size:
        return matrix
    if matrix.shape[0] > matrix.shape[1]:
        return orthogonalized(matrix.T).T
    a, b, c = COEFFICIENTS
    xp = kernels.array_module(matrix)
    x = matrix / xp.maximum(kernels.joint_norm([matrix]), EPS).astype(matrix.dtype)
    for _ in range(STEPS):
        squares = kernels.linear(x, x)
        factor = kernels.linear(c * squares, squares, residual=b * squares)  # symmetric, as its factors are
        x = kernels.linear(factor, x.T, residual=a * x)
    return x
