"""The settings of low-rank adapters, as the library PEFT has them, and the layers that they select."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any, Self

from bertcore import checkpoint
from bertcore.arguments import check_count, check_number, check_strings
from bertcore.checkpoint.patterns import BoundedPattern
from bertcore.kernels import checks

ALL_LINEAR = "all-linear"
TARGETS = {kind: ["query", "value"] for kind in ("bert", "roberta", "xlm-roberta", "electra")}  # PEFT's, by model_type
TARGETS |= {"deberta": ["in_proj"], "deberta-v2": ["query_proj", "value_proj"], "gpt2": ["c_attn"], "t5": ["q", "v"]}
TARGETS |= {"gemma3_text": ["q_proj", "v_proj"]}


class TaskType(StrEnum):
    """The values of a config's task_type."""

    SEQ_CLS = "SEQ_CLS"
    TOKEN_CLS = "TOKEN_CLS"
    QUESTION_ANS = "QUESTION_ANS"
    CAUSAL_LM = "CAUSAL_LM"
    FEATURE_EXTRACTION = "FEATURE_EXTRACTION"
    SEQ_2_SEQ_LM = "SEQ_2_SEQ_LM"


TASKS = (None, *map(str, TaskType))
CLASSIFIERS = ("classifier", "score")
HEADS = {"SEQ_CLS": CLASSIFIERS, "TOKEN_CLS": CLASSIFIERS, "QUESTION_ANS": ("qa_outputs",)}

# Keys of PEFT that do not change results computed from the file's tensors (init_lora_weights: see below).
IGNORED_KEYS = {
    *("init_lora_weights", "auto_mapping", "base_model_name_or_path", "revision", "inference_mode"),
    *("peft_type", "peft_version"),
    *("fan_in_fan_out", "megatron_core", "qalora_group_size", "ensure_weight_tying"),
    *("loftq_config", "eva_config", "corda_config", "lora_ga_config", "layers_pattern"),
}

# Values of init_lora_weights that leave the model's own weights as they are. Others (PiSSA, OLoRA, CorDA, LoftQ,
# LoRA-GA) subtract the first product from them: such adapters do not belong to the published model.
INITIAL_VALUES = (None, True, False, "gaussian", "orthogonal", "eva", "mica")


@dataclass(kw_only=True)
class LoraConfig:
    """Settings of low-rank adapters; names and meanings follow PEFT's LoraConfig.

    Attributes:
        r: the rank of each product.
        target_modules: the linear layers to adapt: endings of their names in a checkpoint ("query" matches every
            layer's), a regular expression for whole names (a `BoundedPattern`), or "all-linear", all linear layers of
            the encoder. By default PEFT's choice for the kind of model, if it has one: mostly query and value.
        lora_alpha: the product is multiplied by lora_alpha / r.
        lora_dropout: the dropout rate of the adapters' inputs in training.
        modules_to_save: endings of the names of modules that are trained in full and saved beside the adapters, such as
            a new head.
        use_rslora: multiply the product by lora_alpha / sqrt(r) instead (Kalajdzievski 2023, arXiv:2312.03732).
        bias: the biases that are trained and saved, too: "none", "lora_only" of the adapted layers, or "all".
        task_type: "SEQ_CLS", "TOKEN_CLS" and "QUESTION_ANS" add their head to modules_to_save; others add nothing.
        exclude_modules: layers that get no adapter, in either form of target_modules.
        rank_pattern, alpha_pattern: other values of r and lora_alpha for layers whose names end with a key, a regular
            expression; the first key that matches counts.
        layers_to_transform: the number of the one layer whose modules are adapted, or several; all by default.
        layers_pattern: the part of a name before that number; by default any part but the first.

    Raises:
        TypeError, ValueError: naming the attribute that is wrong, and the values expected.
    """

    r: int = 8
    target_modules: Sequence[str] | str | None = None
    lora_alpha: float = 8
    lora_dropout: float = 0.0
    modules_to_save: Sequence[str] | None = None
    use_rslora: bool = False
    task_type: str | None = None
    bias: str = "none"
    exclude_modules: Sequence[str] | str | None = None
    rank_pattern: Mapping[str, int] | None = None
    alpha_pattern: Mapping[str, float] | None = None
    layers_to_transform: Sequence[int] | int | None = None
    layers_pattern: Sequence[str] | str | None = None

    def __post_init__(self) -> None:
        check_count("r", self.r)
        self.lora_alpha = check_number("lora_alpha", self.lora_alpha, above_zero=True)
        self.lora_dropout = check_number("lora_dropout", self.lora_dropout)
        if self.lora_dropout >= 1:
            raise ValueError(f"lora_dropout is {self.lora_dropout}, expected a rate below 1")
        checks.choice("task_type", self.task_type, TASKS)
        checks.choice("bias", self.bias, ("none", "lora_only", "all"))
        if self.target_modules is not None:
            self.target_modules = _patterns("target_modules", self.target_modules)
        self.exclude_modules = _patterns("exclude_modules", self.exclude_modules or [])
        self.layers_pattern = _patterns("layers_pattern", self.layers_pattern or [])
        self.modules_to_save = _names("modules_to_save", self.modules_to_save or [])
        self.rank_pattern, self.alpha_pattern = dict(self.rank_pattern or {}), dict(self.alpha_pattern or {})
        for key, value in self.rank_pattern.items():
            check_count(f"rank_pattern[{_patterns('rank_pattern', key)!r}]", value)
        for key, value in self.alpha_pattern.items():
            check_number(f"alpha_pattern[{_patterns('alpha_pattern', key)!r}]", value, above_zero=True)
        layers = [] if self.layers_to_transform is None else self.layers_to_transform
        numbers = layers if isinstance(layers, Iterable) else [layers]
        self.layers_to_transform = [check_count("layers_to_transform", number, 0) for number in numbers]
        if self.layers_pattern and not self.layers_to_transform:
            raise ValueError("layers_pattern is given without layers_to_transform, expected both")
        if isinstance(self.target_modules, str) and self.layers_to_transform:
            raise ValueError(f"layers_to_transform is {layers!r}, expected None if target_modules is a string")

    def for_model(self, model_type: str) -> Self:
        """Return the config with targets for this kind of model. Raises ValueError if there are no default ones."""
        if self.target_modules is not None:
            return self
        if model_type not in TARGETS:
            raise ValueError(f"target_modules is None, expected names of layers: {model_type} has no default")
        return replace(self, target_modules=TARGETS[model_type])

    def rank_and_scale(self, module: str) -> tuple[int, float]:
        """Return the rank of the product for the linear layer of this name, and the factor on it."""
        rank, alpha = (
            next((value for key, value in given.items() if _matches(rf"(.*\.)?({key})", module)), default)
            for given, default in ((self.rank_pattern, self.r), (self.alpha_pattern, self.lora_alpha))
        )
        return rank, alpha / (rank**0.5 if self.use_rslora else rank)

    @property
    def heads(self) -> tuple[str, ...]:
        """The modules that the task trains in full, where the model has them."""
        return HEADS.get(self.task_type, ())

    def is_target(self, module: str) -> bool:
        """Return whether the linear layer of this name gets an adapter."""
        if _is_named(self.exclude_modules, module):
            return False
        if self.target_modules == ALL_LINEAR:
            return True
        is_named = _is_named(self.target_modules, module)
        if not is_named or not self.layers_to_transform:
            return is_named
        patterns = [self.layers_pattern] if isinstance(self.layers_pattern, str) else self.layers_pattern
        beginnings = [rf"(?:^|.*?\.){pattern}" for pattern in patterns] or [r".*?\.[^.]*"]
        numbers = list(re.finditer(r"\.(?=(\d+)\.)", module))
        found = (number[1] for start in beginnings for number in numbers if _matches(start, module[: number.start()]))
        return int(next(found, "-1")) in self.layers_to_transform

    def to_file(self) -> dict[str, Any]:
        """Return the contents of adapter_config.json."""
        fixed = {"peft_type": "LORA", "inference_mode": True, "base_model_name_or_path": None}
        return asdict(self) | {"modules_to_save": [*self.modules_to_save, *self.heads] or None} | fixed

    @classmethod
    def from_file(cls, config: Mapping[str, Any], source: object) -> Self:
        """Return the config that the contents of an adapter_config.json describe; errors name its place, `source`.

        Raises CheckpointError for other kinds of adapters, and for keys that ask for something unsupported.
        """
        if config.get("peft_type") != "LORA":
            raise checkpoint.CheckpointError(f"{source}: peft_type is {config.get('peft_type')!r}, expected 'LORA'")
        initial = config.get("init_lora_weights")
        if initial not in INITIAL_VALUES:
            problem = f"init_lora_weights is {initial!r}, which changes the model's own weights, too"
            advice = "PEFT's save_pretrained(..., path_initial_model_for_weight_conversion=...) converts the adapters"
            raise checkpoint.CheckpointError(f"{source}: {problem}; {advice}")
        known = {field.name for field in fields(cls)}
        asked = [key for key, value in config.items() if value and key not in known | IGNORED_KEYS]
        if asked:
            raise checkpoint.CheckpointError(f"{source} asks for options that are not supported: {', '.join(asked)}")
        if not config.get("target_modules"):
            raise checkpoint.CheckpointError(f"{source} has no target_modules")
        given = {key: config[key] for key in known & config.keys()}
        try:
            heads = HEADS.get(given.get("task_type"), ())
            saved = [name for name in given.get("modules_to_save") or () if name not in heads]
            return cls(**given | {"modules_to_save": saved})
        except (TypeError, ValueError) as error:
            raise checkpoint.CheckpointError(f"{source}: {error}") from error


_pattern = lru_cache(64)(BoundedPattern)


def _matches(pattern: str, module: str) -> bool:
    try:
        return _pattern(pattern).fullmatch(module)
    except ValueError as error:
        raise ValueError(f"pattern {pattern!r:.80} {error}") from error


def _patterns(label: str, given: object) -> str | list[str]:
    """Return a regular expression, or a list of names."""
    if not isinstance(given, str):
        return _names(label, given)
    try:
        _pattern(given)
    except ValueError as error:
        raise ValueError(f"{label} is {given!r}, expected a regular expression: {error}") from error
    return given


def _is_named(names: Sequence[str] | str, module: str) -> bool:
    """Return whether a regular expression matches the whole name, or the name ends with one of some names."""
    if isinstance(names, str):
        return _matches(names, module)
    return any(f".{module}".endswith(f".{name}") for name in names)


def _names(label: str, given: object) -> list[str]:
    names = list(dict.fromkeys(check_strings(label, given)))
    if "" in names:
        raise ValueError(f"{label} has an empty name, expected at least one character")
    return names
