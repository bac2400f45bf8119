"""The families that bertcore knows, by the model_type of their configs."""

import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import bertcore.families
from bertcore.checkpoint import Adapters, NameRules
from bertcore.heads import ClassifierSpec, LanguageModelSpec, SpanBoundarySpec
from bertcore.models.adapter import Adapter
from bertcore.models.spec import ConfigReader
from bertcore.nn.blocks import Embeddings, EncoderLayer, Pooler, SelfAttention
from bertcore.nn.parameter import Block
from bertcore.nn.spec import EncoderSpec

HeadSpec = ClassifierSpec | LanguageModelSpec | SpanBoundarySpec

# The tasks' heads by their names in nearly every family.
TOKEN_HEADS = {
    "token_classification": ClassifierSpec("classifier", "tokens"),
    "question_answering": ClassifierSpec("qa_outputs", "tokens", dropout=0.0),
}


# The same, and heads that classify the pooler's output with one linear map.
POOLED_HEADS = TOKEN_HEADS | dict.fromkeys(
    ("sequence_classification", "multiple_choice"), ClassifierSpec("classifier", "pooler")
)


def summary_head(read: ConfigReader, output: str, *, source: str, activation: str) -> ClassifierSpec:
    """Return the classifier of a sequence's summary, as the config's summary_... keys describe it (ELECTRA, XLNet).

    `output` names its last linear map; `source` and `activation` are the defaults of summary_type and
    summary_activation.
    """
    # Without the argument cls_index, transformers' "cls_index" takes the last token.
    sources = {"first": "first", "last": "last", "mean": "mean", "cls_index": "last"}
    read.require(summary_proj_to_labels=False)
    return ClassifierSpec(
        output,
        source=sources[read.choice("summary_type", source, *sources)],
        dense="sequence_summary.summary" if read.flag("summary_use_proj", True) else None,
        activation=read.activation("summary_activation", activation),
        dropout=read.rate("summary_last_dropout", 0.1),
        dense_dropout=read.rate("summary_first_dropout", 0.0),
    )


def discriminator_head(read: ConfigReader) -> ClassifierSpec:
    """Return ELECTRA's head for replaced tokens."""
    name, activation = "discriminator_predictions", read.activation("hidden_act", "gelu")
    how = {"dense": f"{name}.dense", "activation": activation, "dropout": 0.0, "dense_dropout": 0.0}
    return ClassifierSpec(f"{name}.dense_prediction", "tokens", **how)


def fewer_layers(config: Mapping[str, Any], share: float = 0.5) -> dict[str, Any]:
    """Return a generator's config with a share of the layers, for families without narrower embeddings."""
    layers = ConfigReader(config).size("num_hidden_layers", 12)
    return {**config, "num_hidden_layers": max(1, round(share * layers))}


def in_each_layer(prefix: str, **names: str) -> dict[str, str]:
    """Return `Family.layer_names` that all begin with `prefix`, which contains the layer's number."""
    return {part: prefix + name for part, name in names.items()}


def published_code(*modules: str, repositories: Sequence[str]) -> tuple[str, ...]:
    """Return `Family.code` for modules in a checkpoint's own folder or in the repositories that published them."""
    return *modules, *(f"{repository}--{module}" for repository in repositories for module in modules)


def _no_adapters(read: ConfigReader) -> Adapters:
    return Adapters()


def _unchanged(config: Mapping[str, Any], spec: EncoderSpec) -> Mapping[str, Any]:
    return config


@dataclass(frozen=True)
class Family:
    """The record of a family: how to read its config, its names in a checkpoint, and its blocks.

    Every family's module ends with such a record. Families that resemble another one derive theirs from it with
    `dataclasses.replace`.
    """

    model_type: str  # as in config.json
    architecture: str  # the prefix of transformers' class names ("Bert" in BertForMaskedLM)
    spec_from_config: Callable[[Mapping[str, Any]], EncoderSpec]
    heads: Callable[[ConfigReader], Mapping[str, HeadSpec]]  # by the task's name (`models.auto` has the tasks)
    name_rules: NameRules  # the prefix, heads and spellings of its checkpoints
    # a block's part -> its name in the checkpoint without the prefix, where "{layer}" stands for the layer's number
    # (and "{inner}" for the number within it, see spec.inner_layers)
    encoder_names: Mapping[str, str]
    layer_names: Mapping[str, str]
    # blocks specific to the family; a layer is constructed and called like EncoderLayer
    embeddings: type[Block] = Embeddings
    attention: type[Block] = SelfAttention
    layer: type[Block] = EncoderLayer
    adapter: type[Adapter] = Adapter  # between the model's inputs and the layers, for special inputs or outputs
    pooler: Callable[[str, EncoderSpec], Block] | None = Pooler  # the base model's, called with its name and the spec
    inputs: tuple[str, ...] = ()  # the names of family-specific inputs of a call
    batch_inputs: tuple[str, ...] = ()  # those of a whole batch, without an axis of choices (XLNet's memories)
    # the usual ending of a class's name -> transformers' own for this family
    endings: Mapping[str, str] = field(default_factory=dict)
    # own classes of models, by the name of the class in `models.auto` that they replace, or by their own name
    models: Mapping[str, type] = field(default_factory=dict)
    # whether labels of (sequences, num_labels), without a problem_type in the config, are probabilities of mutually
    # exclusive classes (DeBERTa); otherwise classes are independent
    soft_labels: bool = False
    aliases: tuple[str, ...] = ()  # other model_types that mean the same family
    # modules of custom code that the family replaces, as auto_map names them: "REPOSITORY--module", or "module" in the
    # checkpoint's own folder; see `published_code`. They take precedence over the model_type, and are never run
    code: tuple[str, ...] = ()
    end_of_text: int | None = None  # the token that ends a generated text if the config has no eos_token_id
    # reads the LoRA adapters of a checkpoint from its config
    adapters: Callable[[ConfigReader], Adapters] = _no_adapters
    # the config of a discriminator -> the config of its generator, optionally with a share of its size; for families
    # with a head for replaced tokens
    generator: Callable[..., Mapping[str, Any]] | None = None
    # (config, spec) -> the config in transformers' current spelling, if published ones differ
    config_to_save: Callable[[Mapping[str, Any], EncoderSpec], Mapping[str, Any]] = _unchanged


families_by_type: dict[str, Family] = {}  # by model_type, aliases included


def register(family: Family) -> Family:
    """Register a family and return it; called by the family's own module."""
    families_by_type.update(dict.fromkeys((family.model_type, *family.aliases), family))
    return family


@functools.cache  # listing the folder takes 0.5 ms, and a model looks up its family four times
def _import_families() -> None:
    for module in pkgutil.iter_modules(bertcore.families.__path__):
        importlib.import_module(f"bertcore.families.{module.name}")


def known_families() -> list[str]:
    """Return the model_types that can be loaded, without aliases."""
    _import_families()
    return sorted({family.model_type for family in families_by_type.values()})


def family_of(config: Mapping[str, Any]) -> Family:
    """Return the family of a config. Raises ValueError, listing the known families, for an unknown one."""
    if not isinstance(config, Mapping):
        raise TypeError(
            f"config is {type(config).__name__}, expected a mapping as in config.json, or for from_config a preset's "
            "name; from_pretrained loads a folder"
        )
    model_type, known = config.get("model_type"), known_families()
    if (custom := _custom_code(config)) is not None:
        return _family_of_code(custom)
    if not isinstance(model_type, str) or model_type not in families_by_type:
        raise ValueError(f"config: model_type is {model_type!r}, known are: {', '.join(known)}")
    return families_by_type[model_type]


def _custom_code(config: Mapping[str, Any]) -> list[str] | None:
    """Return the custom code modules that the config names for models (or else for configs); None without any."""
    auto_map = config.get("auto_map") or {}
    if not isinstance(auto_map, Mapping) or not all(isinstance(name, str | list) for name in auto_map.values()):
        raise ValueError(f"config: auto_map is {auto_map!r}, expected an object of names of classes")
    models = [name for key, name in auto_map.items() if key.startswith("AutoModel")] or auto_map.get("AutoConfig")
    if not models:
        return None
    names = [models] if isinstance(models, str) else models
    return sorted({str(name).rpartition(".")[0] for name in names})


def _family_of_code(modules: list[str]) -> Family:
    """Return the family that replaces these modules. Raises ValueError, listing the known ones, for others."""
    stands_for = {module: family for family in families_by_type.values() for module in family.code}
    families = [stands_for.get(module) for module in modules]
    found = {family.model_type: family for family in families if family is not None}
    if len(found) != 1 or None in families:
        raise ValueError(
            f"config: auto_map names custom code, {', '.join(modules)}, which is never run; "
            f"code that bertcore replaces: {', '.join(sorted(stands_for)) or 'none'}"
        )
    (family,) = found.values()
    return family
