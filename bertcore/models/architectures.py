"""Which class a checkpoint is of, by the `architectures` of its config."""

import os
from collections.abc import Mapping
from typing import Any

from bertcore import checkpoint
from bertcore.models import auto, entities
from bertcore.models.model import Model
from bertcore.models.pretraining import AutoModelForPreTraining
from bertcore.models.with_heads import head_specs

# How the names of transformers' classes end -> the class here.
ARCHITECTURES = {
    **{
        kind._architecture: kind
        for kind in (
            *(auto.AutoModelForMaskedLM, AutoModelForPreTraining, auto.AutoModelForNextSentencePrediction),
            *(auto.AutoModelForSequenceClassification, auto.AutoModelForTokenClassification),
            *(auto.AutoModelForQuestionAnswering, auto.AutoModelForMultipleChoice, auto.AutoModelForCausalLM),
            *(entities.AutoModelForEntityClassification, entities.AutoModelForEntityPairClassification),
            entities.AutoModelForEntitySpanClassification,
        )
    },
    "ForQuestionAnsweringSimple": auto.AutoModelForQuestionAnswering,  # XLNet's
    "ForCausalLM": auto.AutoModelForCausalLM,
    "Model": auto.AutoModel,
}


def class_for(config: Mapping[str, Any]) -> type[Model]:
    """The class that the config's `architectures` names; AutoModel if there are none.

    ValueError: what names no class that is here.
    """
    names = config.get("architectures") or []
    for name in names if isinstance(names, list) else []:
        for ending, kind in ARCHITECTURES.items():
            if isinstance(name, str) and name.endswith(ending):
                return kind
    if names:
        raise ValueError(
            f"config: architectures is {names!r}, expected one that ends in {', '.join(ARCHITECTURES)}; "
            "AutoModel.from_pretrained loads the encoder without a head"
        )
    return auto.AutoModel


def models_of(config: Mapping[str, Any]) -> dict[str, Model]:
    """A model without values of every class that the family of `config` has, by the class's name; AutoModel first.

    They tell names and shapes of what a checkpoint may hold. ValueError: what is wrong with the config.
    """
    models = {"AutoModel": auto.AutoModel(config)}
    specs = head_specs(config)
    for kind in dict.fromkeys(ARCHITECTURES.values()):
        own = kind._for(config)
        if kind is not auto.AutoModel and set(own._tasks) <= set(specs):
            models[kind.__name__] = own(config)
    return models


def load_model(folder: str | os.PathLike, **options: Any) -> Model:
    """Load a checkpoint as what it is: the head is the one that its config's `architectures` names.

    Arguments and errors are those of `Model.from_pretrained`.
    """
    hub = {
        name: options.pop(name) for name in ("revision", "token", "cache_dir", "local_files_only") if name in options
    }
    folder = checkpoint.resolve(folder, **hub)
    return class_for(checkpoint.read_config(folder)).from_pretrained(folder, **options)
