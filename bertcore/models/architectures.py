"""The class of a checkpoint, by the `architectures` of its config."""

import os
from collections.abc import Mapping
from typing import Any

from bertcore import checkpoint
from bertcore.models import auto, entities
from bertcore.models.model import Model
from bertcore.models.pretraining import HUB_OPTIONS, AutoModelForPreTraining, AutoModelForSpanBoundary
from bertcore.models.registry import family_of
from bertcore.models.with_heads import head_specs

TASKS = (
    AutoModelForSpanBoundary,  # before AutoModelForMaskedLM, whose name in `architectures` it has
    *(auto.AutoModelForMaskedLM, AutoModelForPreTraining, auto.AutoModelForNextSentencePrediction),
    *(auto.AutoModelForSequenceClassification, auto.AutoModelForTokenClassification),
    *(auto.AutoModelForQuestionAnswering, auto.AutoModelForMultipleChoice, auto.AutoModelForCausalLM),
    *(entities.AutoModelForEntityClassification, entities.AutoModelForEntityPairClassification),
    entities.AutoModelForEntitySpanClassification,
)
# Further endings of the names of transformers' classes.
OTHER_ENDINGS = {
    "ForQuestionAnsweringSimple": auto.AutoModelForQuestionAnswering,  # XLNet's
    "ForCausalLM": auto.AutoModelForCausalLM,
    "NeoBERTLMHead": auto.AutoModelForMaskedLM,
    "NeoBERT": auto.AutoModel,
    "Model": auto.AutoModel,
    "HF_ColBERT": auto.AutoModel,  # its map is MultiVectorEncoder's
}


def _classes(config: Mapping[str, Any]) -> tuple[type[Model], ...]:
    """The classes with heads that users may ask for in the family of `config`."""
    own = (kind for name, kind in family_of(config).models.items() if name == kind.__name__)
    return *TASKS, *own


def class_for(config: Mapping[str, Any]) -> type[Model]:
    """The class that the config's `architectures` names; AutoModel if there are none.

    ValueError where `architectures` names no class that is here.
    """
    names = config.get("architectures") or []
    endings = {kind._architecture: kind for kind in _classes(config)} | OTHER_ENDINGS
    for name in names if isinstance(names, list) else []:
        for ending, kind in endings.items():
            if isinstance(name, str) and name.endswith(ending):
                return kind
    if names:
        raise ValueError(
            f"config: architectures is {names!r}, expected one that ends in {', '.join(endings)}; "
            "AutoModel.from_pretrained loads the encoder without a head"
        )
    return auto.AutoModel


def models_of(config: Mapping[str, Any]) -> dict[str, Model]:
    """A model, without values, of every class that the family of `config` has, by the class's name; AutoModel first.

    They have the names and shapes of what a checkpoint may hold. ValueError for what is wrong with the config.
    """
    models = {"AutoModel": auto.AutoModel.class_for_config(config)(config)}
    specs = head_specs(config)
    for kind in _classes(config):
        own = kind.class_for_config(config)
        if set(own._tasks) <= set(specs):
            models[kind.__name__] = own(config)
    return models


def load_model(folder: str | os.PathLike, **options: Any) -> Model:
    """Load a checkpoint as what it is: the head is the one that its config's `architectures` names.

    Arguments and errors are those of `Model.from_pretrained`.
    """
    hub = {name: options.pop(name) for name in HUB_OPTIONS if name in options}
    folder = checkpoint.resolve(folder, **hub)
    with checkpoint.naming_config(folder):
        kind = class_for(checkpoint.read_config(folder))
    return kind.from_pretrained(folder, **options)
