"""AdamW with moments in 8 bits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.kernels.adam_update.reference import BLOCK_8BIT
from bertcore.kernels.arrays import Array
from bertcore.kernels.dispatch import implementation
from bertcore.nn.parameter import Parameter
from bertcore.training.optimizers import MOMENTS, AdamW, Group, Update, check_arrays

LEAST_SIZE = 4096  # elements of a parameter: moments of smaller ones are not quantized
AT_ONCE = 1 << 18  # elements whose moments are in float32 together, a multiple of BLOCK_8BIT


class Moment:
    """The moment of a parameter in 8 bits: a code for each element, a scale for each block of 256.

    Args:
        size: the elements.
        is_signed: whether they may be negative.
    """

    def __init__(self, size: int, is_signed: bool):
        self.is_signed = is_signed
        self.codes, self.scales = np.zeros(size, np.uint8), np.zeros(-(-size // BLOCK_8BIT), np.float32)

    def read(self, start: int) -> np.ndarray:
        """Return up to AT_ONCE elements from `start` on, which begins a block, in float32."""
        codes, scales = self._at(start)
        values = np.empty(codes.size, np.float32)
        self._module.dequantize_moment(codes, scales, values, self.is_signed)
        return values

    def write(self, start: int, values: np.ndarray) -> None:
        """Replace the elements from `start` on."""
        self._module.quantize_moment(values.astype(np.float32, copy=False), *self._at(start), self.is_signed)

    def _at(self, start: int) -> tuple[np.ndarray, np.ndarray]:
        return self.codes[start : start + AT_ONCE], self.scales[start // BLOCK_8BIT :][: AT_ONCE // BLOCK_8BIT]

    @property
    def _module(self) -> Any:
        return implementation(kernels.adam_update.__module__, kernels.resolve_backend(None, on_gpu=False))


class AdamW8bit(AdamW):
    """AdamW whose moments take 2 bytes for each element of a parameter instead of 8, on the CPU.

    They are rounded in blocks of 256 to codes with a wide range (Dettmers et al. 2022, arXiv:2110.02861). Moments of
    parameters of fewer than 4,096 elements stay as they are. Second moments above 0 stay above 0.

    Raises:
        NotImplementedError: in a step on a GPU; nothing is changed then.
    """

    def __init__(self, model: Any, **options: Any):
        super().__init__(model, **options)
        self._quantized: dict[Parameter, tuple[Moment, Moment]] = {}

    def _change(self, group: Group, parts: list[Update], number: int | Array, scale: Array | None) -> None:
        if any(kernels.array_module(array) is not np for _, array, _ in parts):
            raise NotImplementedError("AdamW8bit is for the CPU, and the parameters are on a GPU: use AdamW")
        large = [part for part in parts if part[1].size >= LEAST_SIZE]
        super()._change(group, [part for part in parts if part[1].size < LEAST_SIZE], number, scale)
        options = {"lr": group.lr, "weight_decay": group.weight_decay, "step": number, "betas": self.betas}
        for parameter, *arrays in large:
            moments, (array, grad) = self._quantized_of(parameter), map(np.ravel, arrays)  # a view of the parameter
            for start in range(0, array.size, AT_ONCE):
                some = array[start : start + AT_ONCE]
                read = [moment.read(start).astype(array.dtype, copy=False) for moment in moments]
                rest: dict[str, Any] = {"eps": self.eps, "grad_scale": scale, **options}
                kernels.adam_update(some, grad[start : start + AT_ONCE], *read, **rest)
                for moment, values in zip(moments, read, strict=True):
                    moment.write(start, values)

    def _quantized_of(self, parameter: Parameter) -> tuple[Moment, Moment]:
        if parameter not in self._quantized:
            size = math.prod(parameter.shape)
            self._quantized[parameter] = Moment(size, is_signed=True), Moment(size, is_signed=False)
        return self._quantized[parameter]

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs, as `Optimizer.state_dict`.

        A moment in 8 bits is two flat arrays under the first name of its parameter: "first_moment.codes.NAME", uint8,
        and "first_moment.scales.NAME".
        """
        of_moments = (_arrays_of(parameter, moments) for parameter, moments in self._quantized.items())
        return super().state_dict() | {name: array for arrays in of_moments for name, array in arrays.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; errors are those of `Optimizer.load_state_dict`."""
        found, rest = {}, dict(state) if isinstance(state, Mapping) else state
        for parameter in (parameter for group in self.groups for parameter in group.parameters):
            size = math.prod(parameter.shape)
            moments = Moment(size, is_signed=True), Moment(size, is_signed=False)
            arrays = _arrays_of(parameter, moments)
            if size < LEAST_SIZE or not any(name in state for name in arrays):
                continue
            check_arrays(state, {name: array.shape for name, array in arrays.items()})
            for name, array in arrays.items():
                array[...] = rest.pop(name)
            found[parameter] = moments
        super().load_state_dict(rest)
        self._quantized = found


def _arrays_of(parameter: Parameter, moments: tuple[Moment, Moment]) -> dict[str, np.ndarray]:
    """Return the arrays of a parameter's moments by their names in a state."""
    named, name = zip(MOMENTS, moments, strict=True), parameter.names[0]
    pairs = [{f"{kind}.codes.{name}": each.codes, f"{kind}.scales.{name}": each.scales} for kind, each in named]
    return pairs[0] | pairs[1]
