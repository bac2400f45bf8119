"""Adapters of low rank (Hu et al. 2021, arXiv:2106.09685) that a checkpoint holds beside its weights.

For an adapted weight of (rows, columns) a file has NAME.parametrizations.weight.original and two stacks of factors with
an entry for each adapter: NAME.parametrizations.weight.0.lora_A of (adapters, rank, columns), and lora_B of (adapters,
rows, rank). In tables of embeddings lora_A is the one with the rows. So PyTorch writes weights that are parametrized.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .errors import CheckpointError
from .reading import Checkpoint

PARAMETRIZED = ".parametrizations.weight."
ORIGINAL, FACTORS = f"{PARAMETRIZED}original", (f"{PARAMETRIZED}0.lora_A", f"{PARAMETRIZED}0.lora_B")


@dataclass(frozen=True)
class Adapters:
    """What a config says of the adapters in its checkpoint.

    Attributes:
        tasks: their names, in the order in which they are stacked.
        scale: what the product of two factors is multiplied by.
    """

    tasks: tuple[str, ...] = ()
    scale: float = 1.0


class AdaptedCheckpoint(Checkpoint):
    """A checkpoint of adapted weights under their plain names, each with one adapter's product of factors added.

    Args:
        checkpoint: as it was opened.
        adapter: the index of the adapter; None reads the original weights.
        scale: as in Adapters.

    Raises CheckpointError, naming the tensor, for an adapter that is not there and factors that do not fit.
    """

    def __init__(self, checkpoint: Checkpoint, adapter: int | None, scale: float):
        self.source, self.metadata = checkpoint.source, checkpoint.metadata
        self._checkpoint, self._adapter, self._scale = checkpoint, adapter, scale
        self._names = {
            name.replace(ORIGINAL, ".weight"): name for name in checkpoint if not name.endswith(FACTORS)
        }  # plain -> the file's
        self.info = {plain: self._info(name) for plain, name in self._names.items()}
        if adapter is not None and not any(map(self._is_adapted, self._names.values())):
            raise CheckpointError(f"{self.source} holds no adapters, though its config lists some")

    def _is_adapted(self, name: str) -> bool:
        return self._adapter is not None and name.endswith(ORIGINAL)

    def _info(self, name: str):
        info = self._checkpoint.info[name]
        if not self._is_adapted(name):
            return info
        self._order(name, info.shape)
        return dataclasses.replace(info, dtype="F32")

    def _order(self, name: str, shape: tuple[int, ...]) -> tuple[str, str]:
        """The names of the factors, in the order in which they are multiplied."""
        names = [name.replace(ORIGINAL, factor) for factor in FACTORS]
        stacks = [self._checkpoint.info[factor].shape if factor in self._checkpoint else None for factor in names]
        for first, second in ((1, 0), (0, 1)):
            left, right = stacks[first], stacks[second]
            if _fit(left, right, shape) and self._adapter < left[0]:
                return names[first], names[second]
        raise CheckpointError(
            f"{self.source}: {names[0]} and lora_B have the shapes {stacks[0]} and {stacks[1]}, expected at least "
            f"{self._adapter + 1} pairs of factors of a matrix of {shape}"
        )

    def __getitem__(self, name: str) -> np.ndarray:
        stored = self._names[name]
        array = self._checkpoint[stored]
        if not self._is_adapted(stored):
            return array
        left, right = (
            self._checkpoint[factor][self._adapter].astype(np.float32) for factor in self._order(stored, array.shape)
        )
        return array.astype(np.float32) + self._scale * (left @ right)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name) -> bool:
        return name in self._names


def _fit(left: tuple[int, ...] | None, right: tuple[int, ...] | None, shape: tuple[int, ...]) -> bool:
    """Whether stacks of these shapes hold factors of a matrix of `shape`."""
    if left is None or right is None or not len(left) == len(right) == 3:
        return False
    return left[0] == right[0] and left[2] == right[1] and (left[1], right[2]) == shape
