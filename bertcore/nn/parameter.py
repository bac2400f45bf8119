"""Parameters: a model's arrays by their names in a checkpoint, in the forms used for computing."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, Self, TypeVar

import numpy as np

from bertcore import checkpoint, kernels
from bertcore.arguments import INT8
from bertcore.checkpoint.config import INPUT_SCALE, SCALE
from bertcore.kernels.arrays import NativeArray
from bertcore.kernels.linear import LOW_PRECISION
from bertcore.nn.forms import Copies, Forms, refreshed_copies, release_pages, storage_dtype
from bertcore.nn.layout import JoinedTensors, Layout, Scales
from bertcore.passes import Pass
from bertcore.tape import Tensor

INITIAL_NUMBERS = 1 << 17  # drawn at once: 1 MB

_moment = object()  # replaced at each change of any parameter of this process


class Parameter(JoinedTensors):
    """One array of a model; it may join several tensors of a checkpoint.

    Its values may change: `update` replaces them, and `version` grows. Objects derived from them (prepared weights,
    recorded programs, tables of positions) are kept for one version.

    Args:
        names, shape, layout: as in `JoinedTensors`.
        use: "weight" of a linear map, "table" of embeddings, or "vector" for everything else.
        initial: "normal" (mean 0, the model's initializer range), "zeros" or "ones", for a model made from a config.
    """

    def __init__(
        self,
        *names: str,
        shape: tuple[int, ...] | None = None,
        use: str = "vector",
        initial: str = "normal",
        layout: Layout | None = None,
    ):
        super().__init__(names, shape, layout)
        self.uses = frozenset({use})  # see `used_as`
        self.initial = initial
        # the dtype that the model was loaded with, one of `bertcore.arguments.DTYPES`, and NumPy's for it
        self.precision, self.dtype = "float32", np.dtype(np.float32)
        self.adapter: Any = None  # the `LowRankAdapter` that is added to the map whose weight this is; see `adapt`
        # for experts' weights, one below the other: (number that a token passes, number of all)
        self.chosen_of: tuple[int, int] | None = None
        self._changes = 0
        self.is_frozen = False  # whether it gets no gradient; it is then a plain array even under a tape
        self.trained_names: frozenset[str] | None = None  # whose gradient is not set to 0; None for all
        self._filled: Forms | None = None

    def __repr__(self) -> str:
        return f"<Parameter {' + '.join(self.names)}: {self.precision} {self.shape}>"

    def used_as(self, use: str) -> Self:
        """Return this parameter with one more declared use: a table that is also a decoder's weight.

        Raises RuntimeError once it has values, whose forms depend on their uses.
        """
        if self._filled is not None:
            raise RuntimeError(f"{self.names[0]} already has values: declare its uses before filling it")
        self.uses |= {use}
        return self

    # --- values in ------------------------------------------------------------------------------------

    def fill(self, arrays: Mapping[str, np.ndarray], precision: str) -> None:
        """Take the values from `arrays`, by name (int8 with its scales), for a model of `precision`.

        An array of the right dtype is not copied.
        """
        self._take(*self.joined(arrays), precision)
        for name in self.names:
            release_pages(arrays[name])

    def update(self, array: NativeArray) -> None:
        """Replace the values by `array`, of the parameter's `shape`, converted to the model's dtype.

        An array of the right dtype is not copied: the parameter owns it from then on. CuPy arrays stay on their device.

        Raises TypeError for anything but an array, ValueError for another shape and for inf or NaN, which int8 cannot
        represent; nothing is replaced then.
        """
        if not hasattr(array, "shape"):
            raise TypeError(f"array is {type(array).__qualname__}, expected a NumPy or CuPy array")
        if array.shape != self.shape:
            raise ValueError(f"array has shape {array.shape}, expected {self.shape} for {', '.join(self.names)}")
        self._take(array, None, self.precision)

    def change(self, change: Callable[[Any], None]) -> None:
        """Call `change` with an array of the values, which it changes in place.

        The array has the parameter's `shape` and the model's dtype, is contiguous, and stays the parameter's own
        between changes, so that values are copied only the first time. Views of it from `state_dict` change with it.

        Raises ValueError for a model in bfloat16 or int8 on the CPU, which is only for inference.
        """
        change_together([self], lambda arrays: change(*arrays))

    def initialise(self, rng: np.random.Generator, spread: float, precision: str) -> None:
        """Set the values of a new model; `spread` is the standard deviation of random ones."""
        self.fill(self.initial_tensors(self.names, rng, spread, precision), precision)

    def initial_tensors(
        self, names: Collection[str], rng: np.random.Generator, spread: float, precision: str
    ) -> dict[str, np.ndarray]:
        """Return the tensors among `names` with a new model's values, in float32 if `precision` is low."""
        dtype = storage_dtype("float32" if precision in LOW_PRECISION else precision)
        tensors = {name: np.empty(shape, dtype) for name, shape in self.expected.items() if name in names}
        for tensor in tensors.values():
            if self.initial != "normal":
                tensor[...] = {"zeros": 0, "ones": 1}[self.initial]
                continue
            flat = tensor.reshape(-1)
            for first in range(0, flat.size, INITIAL_NUMBERS):  # so that the whole tensor is never in float64
                some = flat[first : first + INITIAL_NUMBERS]
                some[...] = rng.normal(0.0, spread, some.size)
        return tensors

    def _take(self, array: NativeArray, scales: Scales | None, precision: str) -> None:
        self._renew(Forms(", ".join(self.names), self.uses, precision, array, scales))

    def _renew(self, forms: Forms) -> None:
        global _moment
        self.precision, self.dtype, self._filled = forms.precision, forms.dtype, forms
        self._changes += 1
        _moment = object()

    def adapt(self, adapter: Any) -> None:
        """Add the `LowRankAdapter` `adapter` to `weight`; None removes it."""
        global _moment
        self._changes, self.adapter = self.version + 1, adapter
        _moment = object()

    @property
    def version(self) -> int:
        """The number of times that the values, or those of its adapter, have been replaced."""
        return self._changes if self.adapter is None else self._changes + self.adapter.version

    # --- values out -----------------------------------------------------------------------------------

    @property
    def forms(self) -> Forms:
        """The forms of the current values."""
        forms = self._filled
        if forms is None:
            raise RuntimeError(
                f"{self.names[0]} has no values yet: models are made by from_pretrained(folder) or from_config(config)"
            )
        return forms

    @property
    def is_low_on_cpu(self) -> bool:
        """True if the active backend multiplies float32 activations by a low-precision weight."""
        return self.forms.is_low_on_cpu

    def array(self) -> np.ndarray:
        """Return the values in host memory; an int8 weight's integers are multiplied by their scales."""
        return self.forms.on_host()

    def tensors(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield (name, array) of the tensors to save in a checkpoint; for an int8 weight, integers and scales."""
        if self.dtype != np.int8 or self.uses != {"weight"}:
            yield from self.parts(self.array())
            return
        weight = self.forms.any_weight()
        values, scale = weight.integers(), weight.scale
        scales = self.pieces(scale) if weight.is_grouped else dict(self.parts(scale[:, None])).values()
        for (name, part), part_scale in zip(self.parts(values), scales, strict=True):
            yield name, part
            yield name + SCALE, part_scale
            if weight.input_scale is not None:
                yield name + INPUT_SCALE, weight.input_scale

    # --- values for computing -------------------------------------------------------------------------

    def value(self, run: Pass) -> Tensor:
        """Return the array for the pass's backend; a Variable if its tape records."""
        forms, trains = self._filled or self.forms, run.tape is not None and not self.is_frozen
        found = forms.reads.get(("array", trains, run.place))
        if found is None:
            found = forms.read("array", trains, run.place)
        return run.tape.leaf(self, found, ("array", run.autocast), self.dtype) if trains else found

    def weight(self, run: Pass) -> Any:
        """Return the weight of a linear map, prepared for the pass's backend.

        If the pass's tape records, it is a Variable of the array used in training. With an adapter it is a
        `LowRankWeight`, which `functional.linear` takes.
        """
        forms, trains = self._filled or self.forms, run.tape is not None and not self.is_frozen
        found = forms.reads.get(("weight", trains, run.place))
        if found is None:
            found = forms.read("weight", trains, run.place)
        if trains:
            found = run.tape.leaf(self, found, ("weight", run.autocast), self.dtype)
        return found if self.adapter is None else self.adapter.weight(run, found)

    def read_in_training(self, run: Pass) -> NativeArray | Forms:
        """Return the array that a pass under a tape reads, or the forms of a frozen parameter.

        The array stays the same if the values change in place; forms change with the values.
        """
        return self.forms if self.is_frozen else self.forms.read("array", True, run.place)


def change_together(parameters: Sequence[Parameter], change: Callable[[list[Any]], None]) -> None:
    """Call `Parameter.change` for several at once: `change` gets the list of their arrays."""
    before = [parameter._filled or parameter.forms for parameter in parameters]
    for forms in before:
        if forms.is_low:
            forms.check_trainable()
    on_gpu = kernels.get_backend() == "cupy"
    arrays = [one.own_array() if on_gpu or not one.is_own or one.array is None else one.array for one in before]
    copies: list[Copies] = [{} for _ in before]
    try:
        change(arrays)
        copies = refreshed_copies(before, arrays)
    finally:  # changes made before an error remain; outdated copies are dropped
        for parameter, forms, array, kept in zip(parameters, before, arrays, copies, strict=True):
            parameter._renew(forms.next_version(array, kept))


def update_together(parameters: Sequence[Parameter], arrays: Sequence[Any]) -> None:
    """Call `Parameter.update` for several at once; if one array is rejected, no parameter changes."""
    taken = [
        Forms(", ".join(parameter.names), parameter.uses, parameter.precision, array)
        for parameter, array in zip(parameters, arrays, strict=True)
    ]
    for parameter, forms in zip(parameters, taken, strict=True):
        parameter._renew(forms)


class Block:
    """A part of a model: its attributes are parameters, further blocks, or lists of blocks."""

    _version_at: tuple[object, int] = object(), 0

    def __repr__(self) -> str:
        shapes = [f"{parameter.names[0]} {parameter.shape}" for parameter in self.parameters()]
        more = f", and {len(shapes) - 3} more" if len(shapes) > 3 else ""
        return f"<{type(self).__name__}: {', '.join(shapes[:3]) or 'no parameters'}{more}>"

    def parameters(self) -> Iterator[Parameter]:
        """Return the parameters of this block and of blocks within it, each once, in the order of creation."""
        found: dict[Parameter, None] = {}
        for _, item in self.attributes():
            if isinstance(item, Parameter):
                found[item] = None
        return iter(found)

    def attributes(self) -> list[tuple[str, Any]]:
        """Return (name, value) of all attributes of this block and blocks within it, except blocks; lists by item."""
        found: list[tuple[str, Any]] = []
        self._note_attributes(found)
        return found

    def _note_attributes(self, found: list[tuple[str, Any]]) -> None:  # takes half the time of a generator
        for name, attribute in list(vars(self).items()):  # another thread may note the version meanwhile
            for item in attribute if isinstance(attribute, list) else [attribute]:
                if isinstance(item, Block):
                    item._note_attributes(found)
                else:
                    found.append((name, item))

    def in_use(self) -> list[Any]:
        """Return all objects that the current passes read; holding the list keeps them alive."""
        found: list[Any] = []
        for _, item in self.attributes():
            if isinstance(item, PerVersion):
                found.append(item.kept)
            elif isinstance(item, Parameter):
                found += [item.forms] if item.adapter is None else [item.forms, *item.adapter.in_use()]
        return found

    def token_weights(self) -> Iterator[Parameter]:
        """Yield the weights of the linear maps that every token passes, as often as it passes them.

        `other_weights`, maps of positions or entities, are left out.
        """
        others = set(self.other_weights())
        for attribute in list(vars(self).values()):
            for item in attribute if isinstance(attribute, list) else [attribute]:
                if isinstance(item, Block):
                    yield from (weight for weight in item.token_weights() if weight not in others)
                elif isinstance(item, Parameter) and "weight" in item.uses and item not in others:
                    yield item

    def other_weights(self) -> Iterator[Parameter]:
        """Return the weights of maps that tokens do not pass."""
        return iter(())

    @property
    def version(self) -> int:
        """A number that grows whenever values of its parameters are replaced."""
        moment = _moment
        at, version = self._version_at
        if at is not moment:  # a parameter of the process has changed
            version = 0
            for parameter in self.parameters():
                version += parameter.version
            self._version_at = moment, version
        return version


Made = TypeVar("Made")


class PerVersion(Generic[Made]):
    """A cache of values computed from parameters: one for each `Pass.place`, recomputed for another version."""

    def __init__(self) -> None:
        self.kept: tuple[Any, dict[Any, Made]] = None, {}  # the version, and the cached values by place

    def __reduce__(self) -> tuple[Any, ...]:
        return PerVersion, ()  # a copy of a block makes its own

    def get(self, run: Pass, version: object, make: Callable[[], Made]) -> Made:
        """Return the cached value for this version at the pass's place; `make` computes a missing one."""
        known, made = self.kept
        if known != version:
            made = {}
            self.kept = version, made
        found = made.get(run.place)
        if found is None:
            found = made[run.place] = make()
        return found


class NamedParameters(Block):
    """A block whose parameters can be read and replaced by their names in a checkpoint."""

    dtype = "float32"  # of the parameters, one of DTYPES

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
