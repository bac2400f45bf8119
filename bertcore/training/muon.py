"""Muon: momentum whose singular values are made alike, for the matrices of layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bertcore import kernels
from bertcore.nn.parameter import Parameter
from bertcore.training.optimizers import MOMENTS, Group, Optimizer


class Muon(Optimizer):
    """Momentum that is orthogonalised, for the weights of linear maps in layers; AdamW for all else (Jordan et al.
    2024, https://kellerjordan.github.io/posts/muon/).

    A map is in a layer if its name in a checkpoint has a number ("encoder.layer.0..."): embeddings, poolers and heads,
    biases and norms are AdamW's. Each tensor of a checkpoint is orthogonalised for itself, by five Newton-Schulz steps,
    and an update is as large as AdamW's are (Liu et al. 2025, arXiv:2502.16982), so that the learning rates and the
    weight decay of AdamW serve for both (`kernels.muon_update`).

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
        matrices: list[tuple[Any, ...]] = []
        others: tuple[list[Any], ...] = [], [], []
        for parameter, array, grad in zip(parameters, arrays, grads, strict=True):
            if is_matrix_of_a_layer(parameter):
                whole = array, grad, *self._moments_of(parameter, array)
                matrices += zip(*map(parameter.pieces, whole), strict=True)
            else:
                for some, one in zip(others, (parameter, array, grad), strict=True):
                    some.append(one)
        super()._change(group, *others, number, scale)
        if matrices:
            options = {"lr": group.lr, "beta": self.momentum, "weight_decay": group.weight_decay}
            kernels.muon_update(*map(list, zip(*matrices, strict=True)), grad_scale=scale, **options)


def is_matrix_of_a_layer(parameter: Parameter) -> bool:
    """Whether it is the weight of a linear map and nothing else, and its name has a number."""
    has_number = any(part.isdecimal() for part in parameter.names[0].split("."))
    return parameter.uses == {"weight"} and has_number and len(parameter.shape) == 2
