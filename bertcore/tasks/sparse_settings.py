"""The settings in the folders of sparse encoders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertcore.checkpoint import CheckpointError
from bertcore.checkpoint.files import CONFIG_NAME, read_json_object, write_json
from bertcore.tasks.folder import (
    BGE_LINEARS,
    MODULES_NAME,
    ROUTER_NAME,
    SETTINGS_NAME,
    Module,
    SavedSettings,
    check_kinds,
    module_entries,
    opened_folder,
    read_routes,
    read_transformer,
    saved_settings,
)
from bertcore.tasks.sentence_encoder.modules import MAPS
from bertcore.tasks.sentence_encoder.settings import Settings, read_settings
from bertcore.tasks.similarity import SIMILARITIES

STRATEGIES, ACTIVATIONS = ("max", "sum"), ("relu", "log1p_relu")
TRANSFORMERS = ("Transformer", "MLMTransformer")
BASE, OWN = "sentence_transformers.base.modules", "sentence_transformers.sparse_encoder.modules"
TYPES = {
    "Router": f"{BASE}.router.Router",
    "Transformer": f"{BASE}.transformer.Transformer",
    "Pooling": f"{OWN}.splade_pooling.SpladePooling",
    "Static": f"{OWN}.sparse_static_embedding.SparseStaticEmbedding",
    "AutoEncoder": f"{OWN}.sparse_auto_encoder.SparseAutoEncoder",
}
QUERY, DOCUMENT, POOLING = "query_0_SparseStaticEmbedding", "document_0_Transformer", "document_1_SpladePooling"


@dataclass(frozen=True)
class SparseSettings:
    """Settings in the folder of a sparse encoder, or of one of its routes."""

    model_folder: Path  # folder of config.json, the weights and the tokenizer
    folders: tuple[Path, ...] = ()  # the folder that was read and those of its modules
    # whether texts are represented by a fixed weight per token, without a model (inference-free SPLADE)
    is_static: bool = False
    # the settings of the sentence encoder under a SparseAutoEncoder (CSR); None without one
    dense: Settings | None = None
    head_folder: Path | None = None  # the folder of the SparseAutoEncoder; None for a new one
    linear: Path | None = None  # BGE-M3's map from a token's state to its weight; None for other models
    strategy: str = "max"  # "max" or "sum" over the tokens of a text
    activation: str = "relu"  # "relu", log(1 + relu(logit)), or "log1p_relu", the logarithm twice
    max_active_dims: int | None = None  # most weights of a text; None for no limit
    similarity: str = "dot"  # name of the similarity
    # as in a sentence encoder's settings
    max_seq_length: int | None = None
    do_lower_case: bool = False

    @property
    def kind(self) -> str:
        """Either "static", "autoencoder" or "splade"."""
        return "static" if self.is_static else "splade" if self.dense is None else "autoencoder"

    @property
    def pooling_config(self) -> dict[str, str]:
        """The config of a SpladePooling."""
        return {"pooling_strategy": self.strategy, "activation_function": self.activation}


def read_sparse_settings(folder: Any, modules: list[Module] | None = None) -> SparseSettings:
    """Read the settings of a sparse encoder's folder, or of one of its routes, which has these `modules`.

    A plain masked language model uses SPLADE's "max", a sentence encoder gets a new SparseAutoEncoder.

    Raises CheckpointError for an invalid file or an unsupported module.
    """
    folder = opened_folder(folder, "sparse encoder")
    if modules is None and (routes := read_routes(folder)):
        modules = routes.modules[routes.first]
    read = saved_settings(folder)
    more: dict[str, Any] = {"max_active_dims": read.size("max_active_dims")}
    more["similarity"] = read.choice("similarity_fn_name", *sorted(SIMILARITIES, key=lambda name: name != "dot"))
    if (linear := folder / BGE_LINEARS[1]).is_file():
        where = modules[0].folder if modules else folder
        return SparseSettings(where, linear=linear, **more, **read_transformer(where, "feature-extraction"))
    if modules is None:
        return SparseSettings(folder, (folder,), **more, **read_transformer(folder, "fill-mask"))
    more["folders"] = tuple(dict.fromkeys([folder, *(module.folder for module in modules)]))
    supported = (*TRANSFORMERS, "SpladePooling", "SparseStaticEmbedding", "Pooling", *MAPS, "SparseAutoEncoder")
    check_kinds(folder, modules, supported)
    kinds, where = [module.kind for module in modules], modules[0].folder if modules else folder
    if kinds == ["SparseStaticEmbedding"]:
        return SparseSettings(where, is_static=True, **more)
    if kinds[:2] == ["Transformer", "Pooling"]:
        has_head = kinds[-1] == "SparseAutoEncoder"
        dense = read_settings(folder, modules[:-1] if has_head else modules)
        texts = {"max_seq_length": dense.max_seq_length, "do_lower_case": dense.do_lower_case}
        return SparseSettings(where, dense=dense, head_folder=modules[-1].folder if has_head else None, **more, **texts)
    if len(kinds) != 2 or kinds[0] not in TRANSFORMERS or kinds[1] != "SpladePooling":
        raise CheckpointError(
            f"{folder / MODULES_NAME} has the modules {', '.join(kinds) or 'none'}, expected MLMTransformer (or "
            "Transformer for fill-mask) and SpladePooling, SparseStaticEmbedding alone, or Transformer, Pooling and, "
            "last, SparseAutoEncoder"
        )
    file = modules[1].folder / CONFIG_NAME
    read = SavedSettings(file, read_json_object(file))
    more |= {"strategy": read.choice("pooling_strategy", *STRATEGIES)}
    more |= {"activation": read.choice("activation_function", *ACTIVATIONS)}
    return SparseSettings(where, **more, **read_transformer(where, "fill-mask"))


def write_router(target: Path, document: SparseSettings, max_seq_length: int, saved: Mapping[str, Any]) -> None:
    """Write the settings of the Router that sentence-transformers uses instead of an idf.json.

    `document` are the settings of the route of documents, `saved` those of the encoder.
    """
    kinds = {QUERY: "Static", DOCUMENT: "Transformer", POOLING: "Pooling"}
    router = {
        "types": {name: TYPES[kind] for name, kind in kinds.items()},
        "structure": {"query": [QUERY], "document": [DOCUMENT, POOLING]},
        "parameters": {"default_route": "document", "allow_empty_key": True, "route_mappings": {}},
    }
    transformer = {"transformer_task": "fill-mask", "max_seq_length": max_seq_length}
    write_json(target / DOCUMENT / "sentence_bert_config.json", transformer)
    write_json(target / POOLING / CONFIG_NAME, document.pooling_config)
    write_json(target / ROUTER_NAME, router)
    write_json(target / MODULES_NAME, module_entries({"": TYPES["Router"]}))
    write_json(target / SETTINGS_NAME, saved)
