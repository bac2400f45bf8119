"""Parameters by name: read and replace the values of a model."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext

import numpy as np

from bertcore import checkpoint
from bertcore.arguments import INT8
from bertcore.nn.parameter import Block


class NamedParameters(Block):
    """A block whose parameters can be read and replaced by their names in a checkpoint.

    Attributes:
        dtype: the dtype of the parameters, one of DTYPES.
    """

    dtype = "float32"

    def expected_tensors(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every tensor in a checkpoint of this model, by name."""
        return {name: shape for parameter in self.parameters() for name, shape in parameter.expected.items()}

    def expected_scales(self, *, grouped: bool = False) -> dict[str, tuple[int, ...]]:
        """Return the shape of the scales of each tensor that a checkpoint may store in int8, by the tensor's name."""
        found = (parameter.expected_scales(grouped=grouped) for parameter in self.parameters())
        return {name: shape for scales in found for name, shape in scales.items()}

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return the parameters in host memory, by their names in a checkpoint; read-only, and views where possible.

        They have the model's dtype, except that the vectors (biases, layer norms) of a bfloat16 model are float32, as
        the CPU computes with them, and all parameters of an int8 model are float32: the integers times their scales.
        """
        arrays = {}
        for parameter in self.parameters():
            view = parameter.array().view()
            if self.dtype in INT8:
                view = view.astype(np.float32, copy=False)
            view.flags.writeable = False
            arrays.update(parameter.parts(view))
        return arrays

    def named_parameters(self) -> Iterator[tuple[str, np.ndarray]]:
        return iter(self.state_dict().items())

    def load_state_dict(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Replace the parameters' values by copies of `arrays`, converted to the model's dtype.

        `arrays` maps names to arrays, as `state_dict` gives them.

        A call in another thread may see a mixture of old and new values meanwhile.

        Raises:
            TypeError: if a value is not a NumPy array of real numbers; nothing is replaced then.
            ValueError: if names are missing or unknown, or an array has the wrong shape, or holds inf or NaN, which
                int8 cannot represent; nothing is replaced then.
        """
        expected = self.expected_tensors()
        if set(arrays) != set(expected):
            missing, unknown = sorted(set(expected) - set(arrays)), sorted(set(arrays) - set(expected))
            raise ValueError(f"arrays: missing are {missing or 'none'}, unknown are {unknown or 'none'}")
        for name, shape in expected.items():
            if not isinstance(arrays[name], np.ndarray):
                raise TypeError(f"arrays[{name!r}] is {type(arrays[name]).__qualname__}, expected a NumPy array")
            if arrays[name].shape != shape:
                raise ValueError(f"arrays[{name!r}] has shape {arrays[name].shape}, expected {shape}")
            if arrays[name].dtype.kind not in "biufV":
                raise TypeError(f"arrays[{name!r}] holds {arrays[name].dtype}, expected real numbers")
            if self.dtype in INT8 and not np.isfinite(arrays[name].astype(np.float32, copy=False)).all():
                raise ValueError(f"arrays[{name!r}] holds inf or NaN, which int8 cannot represent")
        with self._backend_to_fill_for():
            for parameter in self.parameters():
                parameter.fill({name: np.array(arrays[name]) for name in parameter.names}, parameter.precision)

    def load_weights(self, folder: str | os.PathLike[str]) -> None:
        """Load the parameter values that `save_pretrained` wrote into `folder`.

        Raises CheckpointError, a ValueError, if they belong to another model; nothing is replaced then.
        """
        stored = self._stored(folder)
        missing = [name for name in self.expected_tensors() if name not in stored]
        if missing:
            raise checkpoint.CheckpointError(f"{folder} belongs to another model: it has no {missing[0]}")
        self.load_state_dict({name: stored[name] for name in self.expected_tensors()})

    def _stored(self, folder: str | os.PathLike[str]) -> Mapping[str, np.ndarray]:
        """Return the tensors that `save_pretrained` wrote, by the names of the parameters."""
        return checkpoint.open_checkpoint(folder)

    def num_parameters(self) -> int:
        """Return the number of elements of all parameters; shared ones count once."""
        return sum(math.prod(shape) for shape in self.expected_tensors().values())

    def _backend_to_fill_for(self) -> AbstractContextManager[None]:
        return nullcontext()
