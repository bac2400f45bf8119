"""Fine-tuning of a few parameters: adapters of low rank beside frozen weights (Hu et al. 2021, arXiv:2106.09685).

model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules=["query", "value"]))
model.print_trainable_parameters()
...  # train it as any model
model.save_pretrained("adapter")  # the adapters alone, in the format of the library PEFT
model = PeftModel.from_pretrained(AutoModel.from_pretrained("base"), "adapter").merge_and_unload()
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np

from bertcore import checkpoint
from bertcore.arguments import INT8, check_count, check_number
from bertcore.checkpoint.files import locked
from bertcore.kernels import checks
from bertcore.models.model import Model
from bertcore.nn.forms import storage_dtype
from bertcore.nn.low_rank_adapter import LowRankAdapter
from bertcore.nn.parameter import Block, Parameter, update_together

__all__ = ["LoraConfig", "PeftModel", "get_peft_model"]

CONFIG_NAME, WEIGHTS_NAME = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."  # of tensors in the file
ALL_LINEAR = "all-linear"


def get_peft_model(model: Model, peft_config: LoraConfig, *, seed: int = 0) -> PeftModel:
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


def _of_the_model(name: str) -> Any:
    return property(
        lambda self: getattr(self._model, name),
        lambda self, value: setattr(self._model, name, value),
        doc=f"`Model.{name}`.",
    )


class PeftModel(Block):
    """A model with adapters; made by `get_peft_model` or `from_pretrained`.

    Calls and attributes are the model's, except that `parameters` includes the adapters, and that `state_dict`,
    `load_state_dict` and `save_pretrained` cover only what is trained.

    Attributes:
        peft_config: the settings of the adapters.
        adapters: one for each adapted weight.
    """

    def __init__(self, model: Model, peft_config: LoraConfig):
        if isinstance(model, PeftModel) or any(parameter.adapter is not None for parameter in model.parameters()):
            raise ValueError("model has adapters already: merge_and_unload them first")
        if not isinstance(peft_config, LoraConfig):
            raise TypeError(f"peft_config is {type(peft_config).__name__}, expected a LoraConfig")
        self._model, self.peft_config = model, peft_config
        self._saved = _saved_parameters(model, peft_config)
        self.adapters = list(_adapters(model, peft_config, self._saved))
        self._was_frozen = {parameter: parameter.is_frozen for parameter in model.parameters()}

    @classmethod
    def from_pretrained(cls, model: Model, folder: str | os.PathLike, *, is_trainable: bool = False) -> Self:
        """Return `model` with the adapters that PEFT or `save_pretrained` wrote into `folder`.

        Args:
            model: the model that the adapters were trained with.
            folder: has adapter_config.json and adapter_model.safetensors.
            is_trainable: whether training continues; otherwise the adapters are frozen, too.

        Raises:
            CheckpointError: for missing or damaged files, and tensors that are missing, unknown or do not fit; the
                model stays as it was.
            ValueError: for adapters of another kind.
        """
        file = Path(folder) / CONFIG_NAME
        with locked(Path(folder), shared=True):  # both files of one save
            adapted = cls(model, LoraConfig.from_file(checkpoint.read_config(folder, CONFIG_NAME), file))
            adapted.load_weights(folder)
        return adapted._attached(is_trainable=is_trainable)

    def _attached(self, *, is_trainable: bool = True) -> Self:
        if is_trainable and self._model.dtype in INT8:
            problem = "whose maps have no gradients: train adapters beside bfloat16 or float32"
            raise ValueError(f"model is in {self._model.dtype}, {problem}")
        for parameter in self.parameters():
            parameter.is_frozen = not is_trainable or parameter not in self._trained()
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
        """`Model.train`, which `lora_dropout` follows as well."""
        self._model.train(seed)
        return self

    def eval(self) -> Self:
        """`Model.eval`."""
        self._model.eval()
        return self

    training, passes = _of_the_model("training"), _of_the_model("passes")

    def get_base_model(self) -> Model:
        """Return the model itself; its weights keep the adapters until they are merged."""
        return self._model

    def merge_and_unload(self) -> Model:
        """Add the adapters' products to the weights, and return the model without adapters.

        Parameters that were frozen before are frozen again. In a bfloat16 or int8 model the sums are rounded to its
        precision. Raises ValueError for a sum that int8 cannot represent (inf, NaN); the model stays as it was.
        """
        weights = [adapter.adapted for adapter in self.adapters]
        sums = [
            weight.array().astype(storage_dtype(adapter.precision), copy=False) + adapter.product()
            for weight, adapter in zip(weights, self.adapters, strict=True)
        ]
        update_together(weights, sums)
        for weight in weights:
            weight.adapt(None)
        for parameter, was_frozen in self._was_frozen.items():
            parameter.is_frozen = was_frozen
        self.adapters = []
        return self._model

    def get_nb_trainable_parameters(self) -> tuple[int, int]:
        """Return the number of trained values, and of all values."""
        sizes = [(math.prod(parameter.shape), parameter.is_frozen) for parameter in self.parameters()]
        return sum(size for size, is_frozen in sizes if not is_frozen), sum(size for size, _ in sizes)

    def print_trainable_parameters(self) -> None:
        """Print `get_nb_trainable_parameters` and their ratio."""
        trained, total = self.get_nb_trainable_parameters()
        print(f"trainable params: {trained:,} || all params: {total:,} || trainable%: {100 * trained / total:.4f}")

    def expected_tensors(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each trained tensor, by name."""
        return {name: shape for parameter in self._trained() for name, shape in parameter.expected.items()}

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return the trained tensors, of adapters and modules_to_save, in host memory, by name."""
        return {name: part for parameter in self._trained() for name, part in parameter.parts(parameter.array())}

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

    def load_weights(self, folder: str | os.PathLike) -> None:
        """Replace the trained tensors by those that `save_pretrained`, or PEFT, wrote into `folder`.

        Raises CheckpointError, a ValueError, for tensors that are missing, unknown or do not fit; nothing is replaced.
        """
        tensors = checkpoint.open_checkpoint(Path(folder) / WEIGHTS_NAME)
        given = {name.removeprefix(PREFIX): tensors[name] for name in tensors if name.startswith(PREFIX)}
        try:
            self.load_state_dict(given if len(given) == len(tensors) else tensors)
        except ValueError as error:
            raise checkpoint.CheckpointError(f"{tensors.source}: {error}") from error

    def save_pretrained(self, folder: str | os.PathLike) -> None:
        """Write adapter_config.json and adapter_model.safetensors, which PEFT loads, too, if it knows the model.

        The base model is not written: `get_base_model().save_pretrained` does that, without adapters.
        """
        config = self.peft_config.to_file()
        if self.peft_config.target_modules == ALL_LINEAR:
            config["target_modules"] = sorted(
                name.removesuffix(".weight") for adapter in self.adapters for name in adapter.names
            )
        layouts = [adapter.adapted.layout for adapter in self.adapters]
        config["fan_in_fan_out"] = any(layout is not None and layout.axes == (1, 0) for layout in layouts)
        tensors = {PREFIX + name: array for name, array in self.state_dict().items()}
        checkpoint.save_checkpoint(folder, config, tensors, config_name=CONFIG_NAME, weights_name=WEIGHTS_NAME)

    def _trained(self) -> list[Parameter]:
        return [*(parameter for adapter in self.adapters for parameter in adapter.parameters()), *self._saved]

    def _fill(self, arrays: Mapping[str, np.ndarray]) -> None:
        of_adapters = {parameter: adapter.precision for adapter in self.adapters for parameter in adapter.parameters()}
        for parameter in self._trained():
            precision = of_adapters.get(parameter, parameter.precision)
            parameter.fill({name: np.array(arrays[name]) for name in parameter.names}, precision)


def _adapters(model: Model, config: LoraConfig, saved: Collection[Parameter]) -> Iterator[LowRankAdapter]:
    """Yield the adapters of all targets; a parameter that is trained in full gets none."""
    options = {"rank": config.r, "scale": config.scale, "dropout": config.lora_dropout}
    found = False
    for parameter in _candidates(model, config):
        names = [name for name in parameter.names if config.is_target(name.removesuffix(".weight"))]
        if not names or parameter in saved:
            continue
        if not _is_linear(parameter):
            raise ValueError(f"target_modules: {names[0]} is not the weight of a linear layer, which LoRA requires")
        found = True
        yield LowRankAdapter(parameter, names, **options)
    if not found:
        raise ValueError(f"target_modules is {config.target_modules!r}, which matches no linear layer of the model")


def _candidates(model: Model, config: LoraConfig) -> list[Parameter]:
    if config.target_modules != ALL_LINEAR:
        return list(model.parameters())
    poolers = set() if model.encoder.pooler is None else set(model.encoder.pooler.parameters())
    return [each for each in model.encoder.parameters() if _is_linear(each) and each not in poolers]


def _is_linear(parameter: Parameter) -> bool:
    """Return whether this is a linear layer's weight: convolutions have weights of three axes named "weight"."""
    is_convolution = len(parameter.expected[parameter.names[0]]) == 3 and parameter.names[0].endswith(".weight")
    return parameter.uses == {"weight"} and not is_convolution


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


CLASSIFIERS = ("classifier", "score")
HEADS = {"SEQ_CLS": CLASSIFIERS, "TOKEN_CLS": CLASSIFIERS, "QUESTION_ANS": ("qa_outputs",)}
TASKS = (None, *HEADS, "CAUSAL_LM", "FEATURE_EXTRACTION", "SEQ_2_SEQ_LM")

# Keys of PEFT that do not change what is computed from the tensors in the file (init_lora_weights: see below).
IGNORED_KEYS = {
    *(
        "init_lora_weights",
        "auto_mapping",
        "base_model_name_or_path",
        "revision",
        "inference_mode",
        "peft_type",
        "peft_version",
    ),
    *("fan_in_fan_out", "megatron_core", "qalora_group_size", "ensure_weight_tying"),
    *("loftq_config", "eva_config", "corda_config", "lora_ga_config", "layers_pattern"),
}

# Values of init_lora_weights that leave the model's own weights as they are. Others (PiSSA, OLoRA, CorDA, LoftQ,
# LoRA-GA) subtract the first product from them: such adapters do not belong to the published model.
INITIAL_VALUES = (None, True, False, "gaussian", "orthogonal", "eva", "mica")


@dataclass(kw_only=True)
class LoraConfig:
    """Settings of low-rank adapters; names and meanings are those of PEFT's LoraConfig.

    Attributes:
        r: the rank of each product.
        target_modules: the linear layers to adapt: endings of their names in a checkpoint ("query" matches every
            layer's), a regular expression for whole names, or "all-linear", all linear layers of the encoder.
        lora_alpha: the product is multiplied by lora_alpha / r.
        lora_dropout: the dropout rate of the adapters' input in training.
        modules_to_save: endings of the names of modules that are trained in full and saved beside the adapters, such as
            a new head.
        use_rslora: multiply the product by lora_alpha / sqrt(r) instead (Kalajdzievski 2023, arXiv:2312.03732).
        bias: "none", PEFT's name for biases that are not trained; nothing else.
        task_type: "SEQ_CLS", "TOKEN_CLS" and "QUESTION_ANS" add their head to modules_to_save; others add nothing.

    Raises:
        TypeError, ValueError: naming the attribute that is wrong, and the values expected.
    """

    target_modules: Sequence[str] | str
    r: int = 8
    lora_alpha: float = 8
    lora_dropout: float = 0.0
    modules_to_save: Sequence[str] | None = None
    use_rslora: bool = False
    task_type: str | None = None
    bias: str = "none"

    def __post_init__(self) -> None:
        check_count("r", self.r)
        self.lora_alpha = check_number("lora_alpha", self.lora_alpha, above_zero=True)
        self.lora_dropout = check_number("lora_dropout", self.lora_dropout)
        if self.lora_dropout >= 1:
            raise ValueError(f"lora_dropout is {self.lora_dropout}, expected a rate below 1")
        checks.choice("task_type", self.task_type, TASKS)
        checks.choice("bias", self.bias, ("none",))
        if isinstance(self.target_modules, str):
            try:
                re.compile(self.target_modules)
            except re.error as error:
                expected = f"expected a regular expression: {error}"
                raise ValueError(f"target_modules is {self.target_modules!r}, {expected}") from error
        else:
            self.target_modules = _names("target_modules", self.target_modules)
        self.modules_to_save = _names("modules_to_save", self.modules_to_save or [])

    @property
    def scale(self) -> float:
        """The factor on the products."""
        return self.lora_alpha / (self.r**0.5 if self.use_rslora else self.r)

    @property
    def heads(self) -> tuple[str, ...]:
        """The modules that the task trains in full, where the model has them."""
        return HEADS.get(self.task_type, ())

    def is_target(self, module: str) -> bool:
        """Return whether the linear layer of this name gets an adapter."""
        if self.target_modules == ALL_LINEAR:
            return True
        if isinstance(self.target_modules, str):
            return re.fullmatch(self.target_modules, module) is not None
        return any(f".{module}".endswith(f".{target}") for target in self.target_modules)

    def to_file(self) -> dict[str, Any]:
        """Return the contents of adapter_config.json."""
        fixed = {"peft_type": "LORA", "inference_mode": True, "base_model_name_or_path": None}
        return asdict(self) | {"modules_to_save": [*self.modules_to_save, *self.heads] or None} | fixed

    @classmethod
    def from_file(cls, config: Mapping[str, Any], source: Any) -> Self:
        """Return the config that the contents of an adapter_config.json describe; errors name its place, `source`.

        Raises ValueError for other kinds of adapters, and for keys that ask for something unsupported.
        """
        if config.get("peft_type") != "LORA":
            raise ValueError(f"{source}: peft_type is {config.get('peft_type')!r}, expected 'LORA'")
        initial = config.get("init_lora_weights")
        if initial not in INITIAL_VALUES:
            raise ValueError(
                f"{source}: init_lora_weights is {initial!r}, which changes the model's own weights, too; convert the "
                "adapters with PEFT: save_pretrained(..., path_initial_model_for_weight_conversion=...)"
            )
        known = {field.name for field in fields(cls)}
        asked = [key for key, value in config.items() if value and key not in known | IGNORED_KEYS]
        if asked:
            raise ValueError(f"{source} asks for options that are not supported: {', '.join(asked)}")
        if not config.get("target_modules"):
            raise ValueError(f"{source} has no target_modules")
        given = {key: config[key] for key in known & config.keys()}
        try:
            heads = HEADS.get(given.get("task_type"), ())
            saved = [name for name in given.get("modules_to_save") or () if name not in heads]
            return cls(**given | {"modules_to_save": saved})
        except (TypeError, ValueError) as error:
            raise ValueError(f"{source}: {error}") from error


def _names(label: str, given: Any) -> list[str]:
    is_list = isinstance(given, Iterable) and not isinstance(given, str)
    if not is_list or not all(isinstance(name, str) and name for name in given):
        raise TypeError(f"{label} is {given!r}, expected a list of names")
    return list(dict.fromkeys(given))
