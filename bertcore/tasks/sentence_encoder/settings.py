"""The folder of a sentence encoder, as sentence-transformers writes it: reading and saving its settings."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertcore.checkpoint import CheckpointError
from bertcore.checkpoint.files import (
    CONFIG_NAME,
    locked,
    made_folder,
    model_type_of,
    read_json_object,
    replacing,
    write_json,
)
from bertcore.tasks.folder import (
    MODELS,
    MODULES_NAME,
    SETTINGS_NAME,
    TRANSFORMER_NAMES,
    Module,
    SavedSettings,
    check_kinds,
    module_entries,
    opened_folder,
    read_routes,
    read_transformer,
    saved_settings,
)
from bertcore.tasks.sentence_encoder.modules import MAPS, POOLING
from bertcore.tasks.similarity import SIMILARITIES

# Older files have a flag for each mode, in the order in which the vectors of several modes are joined.
POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}

WIDTH_KEYS = ("embedding_dimension", "word_embedding_dimension")  # since sentence-transformers 6, and before
JINA_V5 = "jina_embeddings_v5"


@dataclass(frozen=True)
class Settings:
    """Settings in the folder of a sentence encoder."""

    model_folder: Path  # folder of config.json, the weights and the tokenizer
    folders: tuple[Path, ...] = ()  # the folder that was read and those of its modules
    is_static: bool = False  # whether the model is a table with one vector per token, whose mean is pooled
    # "drop" to leave out unknown words of static embeddings, as Model2Vec does, for its files; "mean" to pool their
    # vector like the others
    unknown: str = "mean"
    pooling_file: Path | None = None  # the pooling's config; None for a plain model
    # key and value of the stated width of the pooled hidden states; None if it is not stated
    width: tuple[str, int] | None = None
    pooling: tuple[str, ...] = ("mean",)  # modes of POOLING; the vectors of several are joined
    include_prompt: bool = True  # whether the tokens of a prompt are pooled, too
    maps: tuple[Module, ...] = ()  # the modules after the pooling except a final Normalize
    normalize: bool = False  # whether a final Normalize scales embeddings to length 1
    # texts are cut to this many tokens; None leaves it to the tokenizer and the model
    max_seq_length: int | None = None
    do_lower_case: bool = False  # whether texts are lower-cased before they are tokenized
    similarity: str = "cosine"  # name of the similarity that the model was trained for
    truncate_dim: int | None = None  # number of first dimensions that are kept; None for all


def read_settings(folder: Any, modules: list[Module] | None = None) -> Settings:
    """Read the settings of a sentence encoder's folder, or of one of its routes, which has these `modules`.

    A folder without modules.json is a plain model: mean pooling and no normalisation, as in sentence-transformers. By
    default `modules` are those of a Router's default route.

    Raises CheckpointError for an invalid file or an unsupported module.
    """
    folder = opened_folder(folder, "sentence encoder")
    with locked(folder, shared=True):
        read = saved_settings(folder)
        options: dict[str, Any] = {"similarity": read.choice("similarity_fn_name", *SIMILARITIES)}
        options["truncate_dim"] = read.size("truncate_dim")
        if modules is None and (routes := read_routes(folder)):
            modules = routes.modules[routes.first]
    if modules is None:
        table = _read_model2vec(folder)
        of_model = {"is_static": True, **table} if table else read_transformer(folder, "feature-extraction")
        return Settings(folder, (folder,), **of_model, **options)
    own = [module.type for module in modules] == ["custom_st.Transformer"]
    if own and SavedSettings(folder / CONFIG_NAME).get("model_type") == JINA_V5:
        how = {"pooling": ("lasttoken",), "normalize": True}  # like the code named there, which is never run
        return Settings(folder, (folder,), **read_transformer(folder, "feature-extraction"), **options, **how)
    is_static = _check_order(folder, modules)
    maps = modules[1 if is_static else 2 :]
    normalize = bool(maps) and maps[-1].kind == "Normalize"
    if is_static:
        options |= _read_model2vec(modules[0].folder)
    else:
        options |= _read_pooling(modules[1].folder / "config.json")
        options |= read_transformer(modules[0].folder, "feature-extraction")
    return Settings(
        model_folder=modules[0].folder,
        folders=tuple(dict.fromkeys([folder, *(module.folder for module in modules)])),
        is_static=is_static,
        maps=tuple(maps[:-1] if normalize else maps),
        **(options | {"normalize": normalize}),
    )


def _read_model2vec(folder: Path) -> dict[str, Any]:
    """Return the settings in Model2Vec's config beside its table; none for another kind of model."""
    read = SavedSettings(folder / CONFIG_NAME)
    if model_type_of(read) != "model2vec":
        return {}
    longest = read.size("max_length") if "max_length" in read else 512
    return {"unknown": "drop", "max_seq_length": longest, "normalize": read.flag("normalize")}


def _check_order(folder: Path, modules: list[Module]) -> bool:
    """Return whether the first module is a StaticEmbedding. Raises CheckpointError for an unsupported order."""
    check_kinds(folder, modules, ("Transformer", "Pooling", "StaticEmbedding", *MAPS))
    kinds = [module.kind for module in modules]
    for start in (["StaticEmbedding"], ["Transformer", "Pooling"]):
        if kinds[: len(start)] == start and set(kinds[len(start) :]) <= set(MAPS):
            return start == ["StaticEmbedding"]
    raise CheckpointError(
        f"{folder / MODULES_NAME} has the modules {', '.join(kinds) or 'none'}, expected Transformer, Pooling (or "
        f"StaticEmbedding alone) and, if wanted, {', '.join(MAPS)}"
    )


def _read_pooling(file: Path) -> dict[str, Any]:
    read = SavedSettings(file, read_json_object(file))
    modes = read.texts("pooling_mode")
    if read.get("pooling_mode") is None:
        modes = tuple(mode for key, mode in POOLING_FLAGS.items() if read.flag(key)) or ("mean",)
    if not modes or not set(modes) <= set(POOLING):
        raise read.wrong("pooling_mode", f"one or several of {', '.join(POOLING)}")
    width = next(((key, read[key]) for key in WIDTH_KEYS if read.size(key)), None)
    return {"pooling_file": file, "pooling": modes, "width": width, "include_prompt": read.flag("include_prompt", True)}


def save_sentence_encoder(
    folder: str | os.PathLike[str],
    model: Any,
    tokenizer: Any,
    *,
    pooling: str | Sequence[str] = "mean",
    normalize: bool = False,
    max_seq_length: int | None = None,
    do_lower_case: bool = False,
    prompts: Mapping[str, str] | None = None,
    default_prompt_name: str | None = None,
) -> None:
    """Write a model, its tokenizer, and the settings of a sentence encoder (modules.json, 1_Pooling/config.json, ...).

    Args:
        folder: created if it is missing; other files in it stay.
        model: an AutoModel, as trained by an objective of sentence embeddings.
        tokenizer: its tokenizer.
        pooling: one or several of "cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean" and "lasttoken".
        normalize: whether embeddings are scaled to length 1.
        max_seq_length: length that texts are cut to, in tokens; None leaves it to tokenizer and model.
        do_lower_case: whether texts are lower-cased before they are tokenized.
        prompts, default_prompt_name: texts to put before an input, by name, and the name of the default one.

    Raises:
        ValueError: the pooling or the default prompt is unknown.
        OSError: a file cannot be written; the error names it.
    """
    modes, prompts = [pooling] if isinstance(pooling, str) else list(pooling), dict(prompts or {})
    unknown = [mode for mode in modes if mode not in POOLING]
    if unknown or not modes:
        raise ValueError(f"pooling is {pooling!r}, expected one or several of {', '.join(POOLING)}")
    if default_prompt_name is not None and default_prompt_name not in prompts:
        raise ValueError(f"default_prompt_name is {default_prompt_name!r}, prompts has {', '.join(prompts) or 'none'}")
    kinds = {"": f"{MODELS}.Transformer", "1_Pooling": f"{MODELS}.Pooling"}
    if normalize:
        kinds["2_Normalize"] = f"{MODELS}.Normalize"
    flags = {flag: mode in modes for flag, mode in POOLING_FLAGS.items()}
    contents = {
        "1_Pooling/config.json": {"word_embedding_dimension": model.spec.hidden_size, **flags},
        MODULES_NAME: module_entries(kinds),
        TRANSFORMER_NAMES[0]: {"max_seq_length": max_seq_length, "do_lower_case": do_lower_case},
        SETTINGS_NAME: {"prompts": prompts, "default_prompt_name": default_prompt_name},
    }
    folder = made_folder(folder)
    for path in filter(None, kinds):
        (folder / path).mkdir(exist_ok=True)
    with replacing(folder, CONFIG_NAME) as new:
        model.save_pretrained(new)
        tokenizer.save_pretrained(new)
        for name, value in contents.items():
            write_json(new / name, value)
