"""Choose the class of a checkpoint from `architectures` in its config."""

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
    AutoModelForSpanBoundary,  # before AutoModelForMaskedLM, as both have the same name in `architectures`
    *(auto.AutoModelForMaskedLM, AutoModelForPreTraining, auto.AutoModelForNextSentencePrediction),
    *(auto.AutoModelForSequenceClassification, auto.AutoModelForTokenClassification),
    *(auto.AutoModelForQuestionAnswering, auto.AutoModelForMultipleChoice, auto.AutoModelForCausalLM),
    *(entities.AutoModelForEntityClassification, entities.AutoModelForEntityPairClassification),
    entities.AutoModelForEntitySpanClassification,
)
# Other endings of transformers' class names.
OTHER_ENDINGS = {
    "ForQuestionAnsweringSimple": auto.AutoModelForQuestionAnswering,  # XLNet's
    "ForCausalLM": auto.AutoModelForCausalLM,
    "NeoBERTLMHead": auto.AutoModelForMaskedLM,
    "NeoBERT": auto.AutoModel,
    "Model": auto.AutoModel,
    "HF_ColBERT": auto.AutoModel,  # MultiVectorEncoder reads its projection
}


def _classes(config: Mapping[str, Any]) -> tuple[type[Model], ...]:
    """Return the classes with heads that the family of `config` offers."""
    own = (kind for name, kind in family_of(config).models.items() if name == kind.__name__)
    return *TASKS, *own


def class_for(config: Mapping[str, Any]) -> type[Model]:
    """Return the class that the config's `architectures` names; AutoModel if it is absent or empty.

    Raises ValueError if bertcore lacks all named classes.
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
    """Return a model without values for every class of the family of `config`, by class name; AutoModel first.

    The models have the names and shapes of the tensors that a checkpoint may hold. Raises ValueError for a wrong
    config.
    """
    models = {"AutoModel": auto.AutoModel.class_for_config(config)(config)}
    specs = head_specs(config)
    for kind in _classes(config):
        own = kind.class_for_config(config)
        if set(own.tasks) <= set(specs):
            models[kind.__name__] = own(config)
    return models


def load_model(folder: str | os.PathLike[str], **options: Any) -> Model[Any]:
    """Load a checkpoint with the head that `architectures` in its config names.

    Arguments and errors are the same as for `Model.from_pretrained`.
    """
    hub = {name: options.pop(name) for name in HUB_OPTIONS if name in options}
    folder = checkpoint.resolve(folder, **hub)
    with checkpoint.naming_config(folder):
        kind = class_for(checkpoint.read_config(folder))
    return kind.from_pretrained(folder, **options)
