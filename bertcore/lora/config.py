"""LoraConfig: which adapters a model gets, and its form as adapter_config.json."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from bertcore.arguments import check_count, check_number
from bertcore.kernels import checks

CLASSIFIERS = ("classifier", "score")
HEADS = {"SEQ_CLS": CLASSIFIERS, "TOKEN_CLS": CLASSIFIERS, "QUESTION_ANS": ("qa_outputs",)}
TASKS = (None, *HEADS, "CAUSAL_LM", "FEATURE_EXTRACTION", "SEQ_2_SEQ_LM")

# Keys of PEFT that do not change what is computed from the tensors in the file.
UNREAD = (
    *("auto_mapping", "base_model_name_or_path", "revision", "inference_mode", "peft_type", "peft_version"),
    *("fan_in_fan_out", "megatron_core", "qalora_group_size", "ensure_weight_tying"),
    *("loftq_config", "eva_config", "corda_config", "lora_ga_config", "layers_pattern"),
)

# Values of init_lora_weights that leave the model's own weights as they are. Others (PiSSA, OLoRA, CorDA, LoftQ,
# LoRA-GA) subtract the first product from them: such adapters belong to a model that the published one is not.
INITIAL_VALUES = (None, True, False, "gaussian", "orthogonal", "eva", "mica")


@dataclass(kw_only=True)
class LoraConfig:
    """Which low-rank adapters a model gets; names and meanings are those of PEFT's LoraConfig.

    Attributes:
        r: the rank of each product.
        target_modules: the linear maps to adapt: endings of their names in a checkpoint ("query" matches every
            layer's), a regular expression for whole names, or "all-linear", all linear maps of the encoder.
        lora_alpha: the product is multiplied by lora_alpha / r.
        lora_dropout: the dropout rate of the adapters' input in training.
        modules_to_save: endings of the names of modules that are trained in full and saved beside the adapters, such as
            a new head.
        use_rslora: the product is multiplied by lora_alpha / sqrt(r) instead (Kalajdzievski 2023, arXiv:2312.03732).
        bias: "none", PEFT's word for biases that are not trained; nothing else.
        task_type: "SEQ_CLS", "TOKEN_CLS" and "QUESTION_ANS" add their head to modules_to_save; others add nothing.

    Raises:
        TypeError, ValueError: which attribute is wrong, and what was expected.
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
            _check_pattern(self.target_modules)
        else:
            self.target_modules = _names("target_modules", self.target_modules)
        self.modules_to_save = _names("modules_to_save", self.modules_to_save or [])

    @property
    def scale(self) -> float:
        """What the products are multiplied by."""
        return self.lora_alpha / (self.r**0.5 if self.use_rslora else self.r)

    @property
    def heads(self) -> tuple[str, ...]:
        """The modules that the task trains in full, where the model has them."""
        return HEADS.get(self.task_type, ())

    def is_target(self, module: str) -> bool:
        """Whether the linear map of this name gets an adapter; "all-linear" is the caller's to handle."""
        if isinstance(self.target_modules, str):
            return re.fullmatch(self.target_modules, module) is not None
        return any(f".{module}".endswith(f".{target}") for target in self.target_modules)

    def to_file(self) -> dict[str, Any]:
        """The contents of adapter_config.json."""
        fixed = {"peft_type": "LORA", "inference_mode": True, "base_model_name_or_path": None}
        return asdict(self) | {"modules_to_save": [*self.modules_to_save, *self.heads] or None} | fixed

    @classmethod
    def from_file(cls, config: Mapping[str, Any], source: Any) -> Self:
        """The config that the contents of an adapter_config.json describe; errors name its place, `source`.

        Raises ValueError for other kinds of adapters, and for keys that ask for what is not supported.
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
        asked = [key for key, value in config.items() if value and key not in known | {*UNREAD, "init_lora_weights"}]
        if asked:
            raise ValueError(f"{source} asks for what is not here: {', '.join(asked)}")
        if not config.get("target_modules"):
            raise ValueError(f"{source} has no target_modules")
        given = {key: config[key] for key in known & config.keys()}
        try:
            heads = HEADS.get(given.get("task_type"), ())
            saved = [name for name in given.get("modules_to_save") or () if name not in heads]
            return cls(**given | {"modules_to_save": saved})
        except (TypeError, ValueError) as error:
            raise ValueError(f"{source}: {error}") from error


def _check_pattern(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"target_modules is {pattern!r}, which is no regular expression: {error}") from error


def _names(label: str, given: Any) -> list[str]:
    is_list = isinstance(given, Iterable) and not isinstance(given, str)
    if not is_list or not all(isinstance(name, str) and name for name in given):
        raise TypeError(f"{label} is {given!r}, expected a list of names")
    return list(dict.fromkeys(given))
