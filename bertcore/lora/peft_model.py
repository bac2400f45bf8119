"""A model with low-rank adapters (Hu et al. 2021, arXiv:2106.09685) beside its weights; only they train.

The output of two narrow linear maps is added to the output of a linear map.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from bertcore import checkpoint, kernels
from bertcore.arguments import INT8, warn_caller
from bertcore.checkpoint.files import locked
from bertcore.lora.config import ALL_LINEAR, LoraConfig
from bertcore.models.model import Model
from bertcore.nn import functional
from bertcore.nn.forms import storage_dtype
from bertcore.nn.functional.dense import LowRankWeight
from bertcore.nn.operation import operation
from bertcore.nn.parameter import Block, Parameter, PerVersion, update_together
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

    `down` is (rank, in_features) of each name, joined, initially uniform within 1 / sqrt(in_features); `up` is
    (out_features, rank), initially zero, so that the map does not change.
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

    def weight(self, run: Pass, base: Tensor | kernels.PreparedWeight) -> LowRankWeight:
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

    def _up(self, run: Pass) -> Tensor | kernels.PreparedWeight:
        """Return `placed_up`, prepared once for each version in inference."""
        if run.tape is not None and not self.up.is_frozen:
            return self.placed_up(run)
        prepared = partial(kernels.prepare_weight, backend=run.backend)
        return self._scaled_up.get(run, self.up.version, lambda: prepared(self.placed_up(run)))


class MixedAdapter(Block):
    """The adapters of one map whose tensors have different ranks or scales, with the methods of one."""

    def __init__(self, parts: Sequence[LowRankAdapter]):
        self.parts = list(parts)
        self.names = tuple(name for part in parts for name in part.names)

    @property
    def adapted(self) -> Parameter:
        return self.parts[0].adapted

    @property
    def precision(self) -> str:
        return self.parts[0].precision

    def initialise(self, rng: np.random.Generator) -> None:
        for part in self.parts:
            part.initialise(rng)

    def weight(self, run: Pass, base: Tensor | kernels.PreparedWeight) -> LowRankWeight:
        down = functional.concatenate(run, *(part.down.value(run) for part in self.parts))
        up = functional.concatenate(run, *(part.placed_up(run) for part in self.parts), axis=1)
        return LowRankWeight(base, down, up, self.parts[0].dropout)

    def product(self) -> np.ndarray:
        return sum(part.product() for part in self.parts)


CONFIG_NAME, WEIGHTS_NAME = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."  # of tensors in the file
BASE = ".base_layer."  # in the names of an adapted module's own tensors
COPIES = re.compile(r"\.(modules_to_save|original_module)\.|\.decoder\.bias$")  # of tensors that a file may have twice


def get_peft_model(model: Model[Any], peft_config: LoraConfig, *, seed: int = 0) -> PeftModel:
    """Return `model` with new adapters; everything else is frozen, except `modules_to_save`.

    At first the adapters change nothing: the factor next to the input is drawn uniformly within 1 / sqrt(in_features),
    by `seed`, and the other is zero.

    Raises:
        ValueError: naming the target that matches no linear layer or module; or if the model has adapters already, or
            is int8.
    """
    adapted, rng = PeftModel(model, peft_config), np.random.default_rng(seed)
    for adapter in adapted.adapters:
        adapter.initialise(rng)
    return adapted._attached()


def _of_the_model(name: str) -> property:
    return property(
        lambda self: getattr(self._model, name),
        lambda self, value: setattr(self._model, name, value),
        doc=f"`Model.{name}`.",
    )


class PeftModel(Block):
    """A model with adapters, one for each adapted weight; made by `get_peft_model` or `from_pretrained`.

    Calls and attributes are the model's, except that `parameters` includes the adapters, and that `state_dict`,
    `load_state_dict` and `save_pretrained` cover only trained tensors. `peft_config` has the adapters' settings.
    """

    def __init__(self, model: Model[Any], peft_config: LoraConfig):
        if isinstance(model, PeftModel) or any(parameter.adapter is not None for parameter in model.parameters()):
            raise ValueError("model has adapters already: merge_and_unload them first")
        if not isinstance(peft_config, LoraConfig):
            raise TypeError(f"peft_config is {type(peft_config).__name__}, expected a LoraConfig")
        self._model, self.peft_config = model, peft_config.for_model(model.config["model_type"])
        peft_config = self.peft_config
        self._saved = _saved_parameters(model, peft_config)
        self.adapters = list(_adapters(model, peft_config, self._saved))
        self._adapted = {name.removesuffix(".weight") for adapter in self.adapters for name in adapter.names}
        self._biases = self._trained_biases()
        self._was_frozen = {parameter: parameter.is_frozen for parameter in model.parameters()}

    @classmethod
    def from_pretrained(cls, model: Model[Any], folder: str | os.PathLike[str], *, is_trainable: bool = False) -> Self:
        """Return `model` with the adapters that PEFT or `save_pretrained` wrote into `folder`.

        Args:
            model: the model that the adapters were trained with.
            folder: has adapter_config.json and adapter_model.safetensors.
            is_trainable: whether training continues; otherwise the adapters are frozen, too.

        Raises:
            CheckpointError: for missing or damaged files, adapters of another kind, and tensors that are missing,
                unknown or do not fit; the model stays as it was.
            ValueError: if the model has adapters already or lacks the layers, or is int8 and to be trained.
        """
        file = Path(folder) / CONFIG_NAME
        with locked(Path(folder), shared=True):  # both files of one save
            adapted = cls(model, LoraConfig.from_file(checkpoint.read_config(folder, CONFIG_NAME), file))
            adapted.load_weights(folder)
        return adapted._attached(is_trainable=is_trainable)

    def _attached(self, *, is_trainable: bool = True) -> Self:
        if is_trainable and self._model.dtype in INT8:
            raise ValueError(f"model is in {self._model.dtype}, which has no gradients, expected bfloat16 or float32")
        for parameter in self.parameters():
            parameter.is_frozen = not is_trainable or parameter not in self._trained()
        for parameter, names in self._biases.items():
            parameter.trained_names = frozenset(names)
        for adapter in self.adapters:
            adapter.adapted.adapt(adapter)
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self._model, name)

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Run the model; see `Model.__call__`."""
        return self._model(*args, **options)

    def train(self, seed: int | None = None) -> Self:
        """Set training mode, as `Model.train` does; `lora_dropout` follows it, too."""
        self._model.train(seed)
        return self

    def eval(self) -> Self:
        self._model.eval()
        return self

    training, passes = _of_the_model("training"), _of_the_model("passes")

    def get_base_model(self) -> Model[Any]:
        """Return the model itself; its weights keep the adapters until they are merged."""
        return self._model

    def merge_and_unload(self) -> Model[Any]:
        """Add the adapters' products to the weights, and return the model without adapters.

        Parameters that were frozen before are frozen again. In a bfloat16 or int8 model the sums are rounded to its
        precision. Raises ValueError for a sum that int8 cannot represent (inf, NaN); the model stays as it was.
        """
        weights = [adapter.adapted for adapter in self.adapters]
        stored = (each.adapted.array().astype(storage_dtype(each.precision), copy=False) for each in self.adapters)
        update_together(weights, [array + each.product() for array, each in zip(stored, self.adapters, strict=True)])
        for weight in weights:
            weight.adapt(None)
        for parameter, was_frozen in self._was_frozen.items():
            parameter.is_frozen, parameter.trained_names = was_frozen, None
        self.adapters, self._biases = [], {}
        return self._model

    def get_nb_trainable_parameters(self) -> tuple[int, int]:
        """Return the number of trained values, and of all values."""
        trained = (parameter for parameter in self.parameters() if not parameter.is_frozen)
        shapes = (shape for parameter in trained for shape in self._expected(parameter).values())
        return sum(map(math.prod, shapes)), sum(math.prod(parameter.shape) for parameter in self.parameters())

    def print_trainable_parameters(self) -> None:
        """Print `get_nb_trainable_parameters` and their ratio."""
        trained, total = self.get_nb_trainable_parameters()
        print(f"trainable params: {trained:,} || all params: {total:,} || trainable%: {100 * trained / total:.4f}")

    def expected_tensors(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each trained tensor, by name."""
        return {name: shape for parameter in self._trained() for name, shape in self._expected(parameter).items()}

    def _expected(self, parameter: Parameter) -> dict[str, tuple[int, ...]]:
        return {name: parameter.expected[name] for name in self._biases.get(parameter, parameter.names)}

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return the trained tensors, of adapters and modules_to_save, in host memory, by name."""
        parts = (part for parameter in self._trained() for part in parameter.parts(parameter.array()))
        expected = self.expected_tensors()
        return {name: part for name, part in parts if name in expected}

    def load_state_dict(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Replace the trained tensors by `arrays`, in the form of `state_dict`; they are copied.

        Raises:
            ValueError: naming the array that is missing, unknown or of a wrong shape; nothing is replaced then.
        """
        expected = self.expected_tensors()
        for name in sorted(set(arrays) ^ set(expected)):
            raise ValueError(f"arrays: {name!r} is {'missing' if name in expected else 'unknown'}")
        for name, shape in expected.items():
            if arrays[name].shape != shape:
                raise ValueError(f"arrays[{name!r}] has shape {arrays[name].shape}, expected {shape}")
        self._fill(arrays)

    def load_weights(self, folder: str | os.PathLike[str]) -> None:
        """Replace the trained tensors by those that `save_pretrained`, or PEFT, wrote into `folder`.

        Raises CheckpointError, a ValueError, for tensors that are missing, unknown or do not fit; nothing is replaced.
        """
        tensors = checkpoint.open_checkpoint(Path(folder) / WEIGHTS_NAME)
        expected, given = self.expected_tensors(), {}
        for name in tensors:
            short = name.removeprefix(PREFIX).replace(BASE, ".")
            if short in expected or not COPIES.search(name):
                given[short] = tensors[name]
        own = {name: part for each in self._biases for name, part in each.parts(each.array()) if name in expected}
        if self.peft_config.bias == "lora_only" and own and own.keys().isdisjoint(given):
            # Earlier versions of PEFT did not write them, and today's leaves the model's own as they are.
            warn_caller(f"{tensors.source} has no biases, expected some for bias 'lora_only': the model's own stay")
            given |= own
        try:
            self.load_state_dict(given)
        except ValueError as error:
            raise checkpoint.CheckpointError(f"{tensors.source}: {error}") from error

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write adapter_config.json and adapter_model.safetensors, which PEFT loads, too, if it knows the model.

        The base model is not written: `get_base_model().save_pretrained` does that, without adapters.
        """
        config = self.peft_config.to_file()
        if self.peft_config.target_modules == ALL_LINEAR:
            config["target_modules"] = sorted(self._adapted)
        layouts = [adapter.adapted.layout for adapter in self.adapters]
        config["fan_in_fan_out"] = any(layout is not None and layout.axes == (1, 0) for layout in layouts)
        tensors = {}
        for name, array in self.state_dict().items():
            module, _, kind = name.rpartition(".")
            tensors[PREFIX + (f"{module}{BASE}{kind}" if module in self._adapted else name)] = array
        checkpoint.save_checkpoint(folder, config, tensors, config_name=CONFIG_NAME, weights_name=WEIGHTS_NAME)

    def _trained(self) -> list[Parameter]:
        of_adapters = (parameter for adapter in self.adapters for parameter in adapter.parameters())
        return [*of_adapters, *self._biases, *self._saved]

    def _trained_biases(self) -> dict[Parameter, list[str]]:
        """Return the names of each parameter's tensors that are trained because of `bias`."""
        found, is_all = {}, self.peft_config.bias == "all"
        for parameter in self._model.parameters() if self.peft_config.bias != "none" else ():
            modules = [name.removesuffix(".bias") for name in parameter.names if name.endswith(".bias")]
            names = [f"{module}.bias" for module in modules if is_all or module in self._adapted]
            if names and parameter not in self._saved:
                found[parameter] = names
        return found

    def _fill(self, arrays: Mapping[str, np.ndarray]) -> None:
        of_adapters = {parameter: adapter.precision for adapter in self.adapters for parameter in adapter.parameters()}
        for parameter in self._trained():
            precision = of_adapters.get(parameter, parameter.precision)
            whole = dict(parameter.parts(parameter.array())) if parameter in self._biases else {}
            parts = {name: np.array(arrays.get(name, whole.get(name))) for name in parameter.names}
            parameter.fill(parts, precision)


def _adapters(model: Model, config: LoraConfig, saved: Collection[Parameter]) -> Iterator[Any]:
    """Yield the adapters of all targets; a parameter that is trained in full gets none."""
    found = False
    for parameter in _candidates(model, config):
        names = [name for name in parameter.names if config.is_target(name.removesuffix(".weight"))]
        if not names or parameter in saved:
            continue
        if not _is_linear(parameter):
            raise ValueError(f"target_modules: {names[0]} is not the weight of a linear layer, which LoRA requires")
        found, groups = True, {}
        for name in names:
            groups.setdefault(config.rank_and_scale(name.removesuffix(".weight")), []).append(name)
        options = ((some, {"rank": rank, "scale": scale}) for (rank, scale), some in groups.items())
        parts = [LowRankAdapter(parameter, some, **sizes, dropout=config.lora_dropout) for some, sizes in options]
        yield parts[0] if len(parts) == 1 else MixedAdapter(parts)
    if not found:
        raise ValueError(f"target_modules is {config.target_modules!r}, which matches no linear layer of the model")


def _candidates(model: Model, config: LoraConfig) -> list[Parameter]:
    if config.target_modules != ALL_LINEAR:
        return list(model.parameters())
    poolers = set() if model.encoder.pooler is None else set(model.encoder.pooler.parameters())
    return [each for each in model.encoder.parameters() if _is_linear(each) and each not in poolers]


def _is_linear(parameter: Parameter) -> bool:
    """Return whether this is a linear layer's weight: convolutions have weights of three axes named "weight".

    Experts' weights do not count as layers, here as in PEFT.
    """
    is_convolution = len(parameter.expected[parameter.names[0]]) == 3 and parameter.names[0].endswith(".weight")
    return parameter.uses == {"weight"} and not is_convolution and parameter.chosen_of is None


def _saved_parameters(model: Model, config: LoraConfig) -> list[Parameter]:
    """Return the parameters of modules_to_save, and of the head of the task."""
    saved: dict[Parameter, None] = {}
    for module in [*config.modules_to_save, *config.heads]:
        some = [each for each in model.parameters() if any(f".{module}." in f".{name}" for name in each.names)]
        if not some and module not in config.heads:
            raise ValueError(f"modules_to_save: {module!r} is not a module of the model")
        for parameter in some:
            if not all(f".{module}." in f".{name}" for name in parameter.names):
                names = ", ".join(parameter.names)
                raise ValueError(f"modules_to_save: {names} are one parameter: name all or none of them")
        saved |= dict.fromkeys(some)
    return list(saved)
