"""The families that bertcore knows, by the model_type of their configs."""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import bertcore.models
from bertcore.checkpoint import NameRules
from bertcore.models.spec import EncoderSpec

# Modules of this package that are not a family.
_SHARED = {"encoder", "inputs", "model", "outputs", "registry", "spec"}


@dataclass(frozen=True)
class Family:
    """A family is data: how to read its config, and its names in a checkpoint.

    Attributes:
        model_type: as in config.json.
        spec_from_config: config -> EncoderSpec.
        name_rules: the prefix, heads and spellings of its checkpoints.
        encoder_names, layer_names, head_names: the part of the blocks -> the checkpoint's name of it, where
            "{layer}" stands for the layer's number. Encoder and layer names are without the prefix.
    """

    model_type: str
    spec_from_config: Callable[[Mapping[str, Any]], EncoderSpec]
    name_rules: NameRules
    encoder_names: Mapping[str, str]
    layer_names: Mapping[str, str]
    head_names: Mapping[str, str]


_families: dict[str, Family] = {}


def register(family: Family) -> None:
    """Make a family known; called by the family's own module."""
    _families[family.model_type] = family


def known_families() -> list[str]:
    """The model_types that can be loaded."""
    for module in pkgutil.iter_modules(bertcore.models.__path__):
        if module.name not in _SHARED:
            importlib.import_module(f"bertcore.models.{module.name}")
    return sorted(_families)


def family_of(config: Mapping[str, Any]) -> Family:
    """The family of a config; ValueError names the known ones."""
    model_type, known = config.get("model_type"), known_families()
    if model_type not in known:
        raise ValueError(f"config: model_type is {model_type!r}, known are: {', '.join(known)}")
    return _families[model_type]
