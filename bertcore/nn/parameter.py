"""Parameters: a model's arrays, under the names they have in a checkpoint, in the form that each backend wants."""

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.tape import current_tape

_preparing = threading.RLock()


class Parameter:
    """One array of a model.

    A parameter may join several tensors of a checkpoint along their first axis (query, key and value become one
    matrix); `names` are theirs, and names are what users see: in gradients, in errors, in saved files.

    Args:
        names: the name in the checkpoint, or the names of the equal parts along the first axis.
        shape: the shape of one part.
        initial: "normal" (mean 0, the model's initializer range), "zeros" or "ones", for a model made from a config.
    """

    def __init__(self, *names: str, shape: tuple[int, ...], initial: str = "normal"):
        self.names = names
        self.part_shape = shape
        self.initial = initial
        self._forms: dict[str, Any] = {}
        self._is_used_as_array = False

    @property
    def expected(self) -> dict[str, tuple[int, ...]]:
        """The shape of each checkpoint tensor of this parameter, by name."""
        return dict.fromkeys(self.names, self.part_shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole array, its parts joined."""
        return (len(self.names) * self.part_shape[0], *self.part_shape[1:])

    def fill(self, arrays: Mapping[str, np.ndarray], dtype: np.dtype) -> None:
        """Take the parameter's values from `arrays`, by name; an array of the right dtype is not copied."""
        self.dtype = np.dtype(dtype)
        parts = [np.asarray(arrays[name], dtype) for name in self.names]
        self._forms = {"host": parts[0] if len(parts) == 1 else np.concatenate(parts)}

    def parts(self, array: Any) -> Iterator[tuple[str, Any]]:
        """(name, part) for the checkpoint tensors joined in `array` (the parameter's values, or their gradient)."""
        rows = self.part_shape[0]
        for index, name in enumerate(self.names):
            yield name, array if len(self.names) == 1 else array[index * rows : (index + 1) * rows]

    def array(self) -> np.ndarray:
        """The values in host memory, in the checkpoint's layout."""
        return self._form("host", self._recover)

    def _recover(self) -> np.ndarray:
        # The host array was let go for a prepared weight, which gives it back exactly.
        prepared = next((form for name, form in self._forms.items() if name.startswith("weight ")), None)
        if prepared is None:
            raise RuntimeError(
                f"{self.names[0]} has no values yet: models are made by from_pretrained(folder) or from_config(config)"
            )
        array = prepared.to_array()
        return array if isinstance(array, np.ndarray) else array.get()

    def _form(self, name: str, make: Callable[[], Any]) -> Any:
        form = self._forms.get(name)
        if form is None:
            with _preparing:
                form = self._forms.get(name)
                if form is None:
                    form = self._forms[name] = make()
        return form

    def _backend_array(self) -> Any:
        if kernels.get_backend() == "cupy":
            return self._form("device", lambda: kernels.to_backend(self.array()))
        return self.array()

    @property
    def value(self) -> Any:
        """The array for the backend in force; a Variable while a tape records."""
        self._is_used_as_array = True
        return self._recorded_array()

    def _recorded_array(self) -> Any:
        tape = current_tape()
        return self._backend_array() if tape is None else tape.leaf(self, self._backend_array)

    @property
    def weight(self) -> Any:
        """The weight of a linear map, prepared once for the backend in force; a Variable while a tape records."""
        backend = kernels.get_backend()
        if backend == "numpy" or current_tape() is not None:  # the reference has nothing to prepare
            return self._recorded_array()
        return self._form(f"weight {backend}", lambda: self._prepare(backend))

    def _prepare(self, backend: str) -> Any:
        prepared = kernels.prepare_weight(kernels.to_backend(self.array()), backend=backend)
        # Let go: the prepared form gives it back if it is ever asked for. Not so an embedding's table that is a weight
        # too: it is asked for in every pass, and would be unpacked from panels into new memory.
        if not self._is_used_as_array:
            self._forms.pop("host", None)
        return prepared


class Block:
    """A part of a model: its attributes are parameters, further blocks, or lists of blocks."""

    def parameters(self) -> Iterator[Parameter]:
        """The parameters of this block and of those within it, each once, in the order they were made."""
        return iter(dict.fromkeys(self._walk()))

    def _walk(self) -> Iterator[Parameter]:
        for attribute in vars(self).values():
            for item in attribute if isinstance(attribute, list) else [attribute]:
                if isinstance(item, Parameter):
                    yield item
                elif isinstance(item, Block):
                    yield from item._walk()
