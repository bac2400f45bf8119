"""The kinds of encoders, and a folder opened as the encoder that it holds."""

import os
from pathlib import Path
from typing import Any

from bertcore.checkpoint import read_config
from bertcore.tasks.cross_encoder import CrossEncoder
from bertcore.tasks.folder import opened_folder, read_routes
from bertcore.tasks.multi_vector import MultiVectorEncoder
from bertcore.tasks.multi_vector.settings import is_late, read_late_settings
from bertcore.tasks.sentence_encoder import SentenceEncoder
from bertcore.tasks.sentence_encoder.settings import read_settings
from bertcore.tasks.sparse_encoder import SparseEncoder
from bertcore.tasks.sparse_modules import IDF_NAME

SPARSE = {"SpladePooling", "SparseStaticEmbedding", "SparseAutoEncoder"}
ENCODERS: dict[str, Any] = {
    "dense": SentenceEncoder,
    "late": MultiVectorEncoder,
    "sparse": SparseEncoder,
    "classifier": CrossEncoder,
}


def kind_of(folder: str | os.PathLike) -> str:
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


def read_encoder_settings(folder: Any) -> Any:
    """Return the settings of an encoder of single texts: a LateSettings or the Settings of a sentence encoder."""
    return read_late_settings(folder) if is_late(opened_folder(folder, "model")) else read_settings(folder)


def load_encoder(folder: str | os.PathLike, **options: Any) -> Any:
    """Open a folder as what it holds: a SentenceEncoder, MultiVectorEncoder, SparseEncoder or CrossEncoder.

    `options` are those of the class, whose errors this raises.
    """
    return ENCODERS[kind_of(folder)](Path(folder), **options)
