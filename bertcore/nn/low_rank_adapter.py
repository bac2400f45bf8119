"""Low-rank adapters (Hu et al. 2021, arXiv:2106.09685).

The output of two narrow linear maps, the only ones trained, is added to the output of a linear map.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.nn import functional
from bertcore.nn.functional.dense import LowRankWeight
from bertcore.nn.operation import operation
from bertcore.nn.parameter import Block, Parameter, PerVersion
from bertcore.passes import Pass
from bertcore.tape import Tensor

DOWN, UP = "lora_A", "lora_B"


@operation()
def blocks_in_place(run: Pass, stack: Tensor, *, rows: int, first_rows: Sequence[int], factor: float) -> Tensor:
    """Return a matrix of `rows` rows with the blocks of `stack`, (height, width) each, times `factor`, and zeros.

    The blocks are one below the other in `stack`; each is placed at its first row, in its own columns.
    """
    xp, count = kernels.array_module(stack), len(first_rows)
    height, width = stack.shape[0] // count, stack.shape[1]
    places = [
        (slice(first, first + height), slice(index * width, (index + 1) * width))
        for index, first in enumerate(first_rows)
    ]
    matrix = xp.zeros((rows, count * width), stack.dtype)
    for index, place in enumerate(places):
        matrix[place] = stack[index * height : (index + 1) * height] * factor
    return matrix, lambda grad: (xp.concatenate([grad[place] for place in places]) * xp.asarray(factor, grad.dtype),)


class LowRankAdapter(Block):
    """A linear map's adapter: scale * up @ down is added to the rows of some of the tensors that its weight joins.

    Args:
        weight: the map's weight.
        names: the tensors of `weight` that are adapted; each gets its own factors, named after it.
        rank: the rank of each product.
        scale: the factor of the products.
        dropout: the dropout rate of the products' input in training, the same elements for tensors of one joined map.

    Attributes:
        names, scale, dropout: as given.
        down: (rank, in_features) of each name, joined; initially uniform within 1 / sqrt(in_features).
        up: (out_features, rank) of each name, joined; initially zero, so that the map does not change.
    """

    def __init__(self, weight: Parameter, names: Sequence[str], *, rank: int, scale: float, dropout: float):
        rows, columns = weight.part_shape
        modules = [name.removesuffix(".weight") for name in names]
        self.scale, self.dropout, self.names = scale, dropout, tuple(names)
        self._adapted = (weight,)  # in a tuple, as it is not this block's parameter
        self.first_rows = [rows * weight.names.index(name) for name in names]
        layout = weight.layout
        self._scaled_up: PerVersion[kernels.PreparedWeight] = PerVersion()
        if layout is not None and layout.split is not None:  # rows in a different order from the file's
            layout = replace(layout, shape=(rows, rank), split=(*layout.split[:-1], rank))
        else:
            layout = None
        shape = None if layout else (rows, rank)
        self.down = Parameter(*(f"{name}.{DOWN}.weight" for name in modules), shape=(rank, columns), use="weight")
        self.up = Parameter(
            *(f"{name}.{UP}.weight" for name in modules), shape=shape, layout=layout, use="weight", initial="zeros"
        )

    def initialise(self, rng: np.random.Generator) -> None:
        """Set both factors to the values of a new adapter."""
        limit = 1 / max(self.down.part_shape[1], 1) ** 0.5
        factors = {name: rng.uniform(-limit, limit, shape) for name, shape in self.down.expected.items()}
        self.down.fill(factors, self.precision)
        self.up.initialise(rng, 0.0, self.precision)

    @property
    def adapted(self) -> Parameter:
        """The adapted weight."""
        return self._adapted[0]

    @property
    def precision(self) -> str:
        """The precision of the factors: the adapted weight's, or float32 for low precision on the CPU."""
        return "float32" if self.adapted.is_low_on_cpu else self.adapted.precision

    def weight(self, run: Pass, base: Any) -> LowRankWeight:
        """Return the adapted map's weight, from its own weight `base`, for the active backend."""
        return LowRankWeight(base, self.down.weight(run), self._up(run), self.dropout)

    def product(self) -> np.ndarray:
        """Return scale * up @ down in the shape of the adapted weight, in host memory."""
        placed, _ = blocks_in_place.with_pullback(None, self.up.array(), **self._placement)
        return placed @ self.down.array()

    @property
    def _placement(self) -> dict[str, Any]:
        return {"rows": self.adapted.shape[0], "first_rows": self.first_rows, "factor": self.scale}

    def placed_up(self, run: Pass) -> Tensor:
        """Return scale * up, with each tensor's rows at their place in the map."""
        return blocks_in_place(run, self.up.value(run), **self._placement)

    def _up(self, run: Pass) -> Any:
        """Return `placed_up`, prepared once for each version in inference."""
        if run.tape is not None and not self.up.is_frozen:
            return self.placed_up(run)
        prepared = partial(kernels.prepare_weight, backend=run.backend)
        return self._scaled_up.get(run, self.up.version, lambda: prepared(self.placed_up(run)))


class MixedAdapter(Block):
    """The adapters of one map whose tensors have different ranks or scales."""

    def __init__(self, parts: Sequence[LowRankAdapter]):
        self.parts = list(parts)
        self.names = tuple(name for part in parts for name in part.names)

    @property
    def adapted(self) -> Parameter:
        """The adapted weight."""
        return self.parts[0].adapted

    @property
    def precision(self) -> str:
        """The precision of the factors."""
        return self.parts[0].precision

    def initialise(self, rng: np.random.Generator) -> None:
        """Set all factors to the values of a new adapter."""
        for part in self.parts:
            part.initialise(rng)

    def weight(self, run: Pass, base: Any) -> LowRankWeight:
        """Return the adapted map's weight, from its own weight `base`, for the active backend."""
        down = functional.concatenate(run, *(part.down.value(run) for part in self.parts))
        up = functional.concatenate(run, *(part.placed_up(run) for part in self.parts), axis=1)
        return LowRankWeight(base, down, up, self.parts[0].dropout)

    def product(self) -> np.ndarray:
        """Return the sum of the parts' products, in host memory."""
        return sum(part.product() for part in self.parts)
