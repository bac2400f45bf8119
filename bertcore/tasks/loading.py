"""The kinds of encoders, opening folders as the encoders they hold, and compiling kernels before their first use."""

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from bertcore import checkpoint, kernels
from bertcore.checkpoint import read_config
from bertcore.gradients import value_and_grad
from bertcore.models.architectures import class_for
from bertcore.models.auto import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)
from bertcore.models.model import Model, NewlyInitialisedWarning
from bertcore.models.with_heads import head_specs
from bertcore.tasks.cross_encoder import CrossEncoder
from bertcore.tasks.folder import opened_folder, read_routes
from bertcore.tasks.multi_vector import MultiVectorEncoder
from bertcore.tasks.multi_vector.modules import LateSettings, is_late, read_late_settings
from bertcore.tasks.sentence_encoder import SentenceEncoder
from bertcore.tasks.sentence_encoder.modules import Settings, read_settings
from bertcore.tasks.sparse_encoder import SparseEncoder
from bertcore.tasks.sparse_modules import IDF_NAME

SPARSE = {"SpladePooling", "SparseStaticEmbedding", "SparseAutoEncoder"}
ENCODERS: dict[str, Any] = {
    "dense": SentenceEncoder,
    "late": MultiVectorEncoder,
    "sparse": SparseEncoder,
    "classifier": CrossEncoder,
}


def kind_of(folder: str | os.PathLike[str]) -> str:
    """Return the kind of the model in `folder`, a name of ENCODERS, by its modules.json or its config."""
    folder = opened_folder(folder, "model")
    if is_late(folder):
        return "late"
    routes = read_routes(folder)
    kinds = [module.kind for modules in (routes.modules if routes else {}).values() for module in modules]
    if kinds:
        return "sparse" if not SPARSE.isdisjoint(kinds) else "classifier" if kinds == ["Transformer"] else "dense"
    if (folder / IDF_NAME).is_file():
        return "sparse"
    architectures = read_config(folder).get("architectures") or [""]
    return "classifier" if str(architectures[0]).endswith("ForSequenceClassification") else "dense"


def read_encoder_settings(folder: Path) -> LateSettings | Settings:
    """Return the settings of an encoder of single texts: a LateSettings or the Settings of a sentence encoder."""
    return read_late_settings(folder) if is_late(opened_folder(folder, "model")) else read_settings(folder)


def load_encoder(folder: str | os.PathLike[str], **options: Any) -> Any:
    """Open a folder as the encoder it holds: a SentenceEncoder, MultiVectorEncoder, SparseEncoder or CrossEncoder.

    Options and errors are those of the class.
    """
    return ENCODERS[kind_of(folder)](Path(folder), **options)


LONGEST = 512  # tokens; longer sequences need the same kernels
RANDOM_BERT = {
    "model_type": "bert", "vocab_size": 1000, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 512,
}  # fmt: skip


def models_of(source: Path | None, dtype: str | None) -> tuple[Any, Any]:
    """Return a model with its pooler, and one with its head (None without a head); small BERTs without a folder."""
    if source is None:
        return tuple(
            kind.from_config(RANDOM_BERT, dtype=dtype or "float32") for kind in (AutoModel, AutoModelForMaskedLM)
        )

    folder = read_encoder_settings(source).model_folder
    with checkpoint.naming_config(folder):
        kind = class_for(checkpoint.read_config(folder))
    with warnings.catch_warnings():  # kernels do not depend on weights
        warnings.simplefilter("ignore", NewlyInitialisedWarning)
        encoder = AutoModel.from_pretrained(folder, dtype=dtype)
        return encoder, None if kind is AutoModel else _with_head(kind, folder, encoder)


def _with_head(kind: type, folder: Path, encoder: Any) -> Model:
    """Return the model with its own head if that takes token labels, else with a classifier."""
    if kind in (AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForTokenClassification):
        return kind.from_pretrained(folder, dtype=encoder.dtype)
    if "token_classification" in head_specs(encoder.config):
        return AutoModelForTokenClassification.from_config(encoder.config, dtype=encoder.dtype)
    classes = {"num_labels": 2, "problem_type": "single_label_classification"}
    return AutoModelForSequenceClassification.from_config(encoder.config, dtype=encoder.dtype, **classes)


def warm_up(model: Model, *, gradients: bool = False) -> None:
    """Run `model` on batches that reach every kernel of its forward pass, and with `gradients` of its backward pass."""
    longest = min(model.spec.longest_sequence or LONGEST, LONGEST)
    ragged = np.arange(longest) < np.array([[longest], [1], [longest // 2]])
    model([[1]])
    model(np.ones((3, longest), np.int64), attention_mask=ragged.astype(np.int64))
    model(np.ones((2, 7), np.int64), output_hidden_states=True, output_attentions=True)
    kernels.pooling(*model.encode_packed([np.ones(longest, np.int32), np.ones(3, np.int32)]))
    if gradients:
        labels = np.where(ragged, 1, -100)
        if isinstance(model, AutoModelForSequenceClassification):
            labels = labels[:, 0]
        value_and_grad(model)(np.ones(ragged.shape, np.int64), attention_mask=ragged.astype(np.int64), labels=labels)
