"""Reading the folder of a published sparse encoder, as sentence-transformers writes it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertcore.checkpoint import CheckpointError
from bertcore.checkpoint.files import CONFIG_NAME, read_json_object
from bertcore.tasks.folder import (
    MODULES_NAME,
    SETTINGS_NAME,
    Prompts,
    check_kinds,
    opened_folder,
    positive_integer,
    read_modules,
    read_prompts,
    read_saved_settings,
    read_transformer,
)

STRATEGIES, ACTIVATIONS = ("max", "sum"), ("relu", "log1p_relu")
TRANSFORMERS = ("Transformer", "MLMTransformer")


@dataclass(frozen=True)
class SparseSettings:
    """What a folder says of how texts become sparse embeddings.

    Attributes:
        model_folder: where config.json, the weights and the tokenizer are.
        strategy: "max" or "sum" of the weights that a word has at the tokens.
        activation: "relu", log(1 + relu(logit)), or "log1p_relu", the logarithm twice.
        max_active_dims: how many words a text has at most; None for no limit.
        max_seq_length, do_lower_case: as in a sentence encoder's settings.
        prompts: texts to put before an input.
    """

    model_folder: Path
    strategy: str = "max"
    activation: str = "relu"
    max_active_dims: int | None = None
    max_seq_length: int | None = None
    do_lower_case: bool = False
    prompts: Prompts = field(default_factory=Prompts)


def read_sparse_settings(folder: Any) -> SparseSettings:
    """The settings of a sparse encoder's folder; a plain masked language model's is SPLADE's "max".

    Raises CheckpointError: which file is wrong, or which module is not supported.
    """
    folder = opened_folder(folder, "sparse encoder")
    modules, where, pooling = read_modules(folder), folder, {}
    if modules is not None:
        check_kinds(folder, modules, (*TRANSFORMERS, "SpladePooling"))
        kinds = [module.kind for module in modules]
        if len(modules) != 2 or kinds[0] not in TRANSFORMERS or kinds[1] != "SpladePooling":
            raise CheckpointError(
                f"{folder / MODULES_NAME} has the modules {', '.join(kinds) or 'none'}, expected MLMTransformer (or "
                "Transformer for fill-mask), SpladePooling"
            )
        where, pooling = modules[0].folder, _read_pooling(modules[1].folder / CONFIG_NAME)
    most = positive_integer(folder / SETTINGS_NAME, read_saved_settings(folder), "max_active_dims")
    texts = read_transformer(where, "fill-mask")
    return SparseSettings(where, **pooling, max_active_dims=most, **texts, prompts=read_prompts(folder))


def _read_pooling(file: Path) -> dict[str, str]:
    config = read_json_object(file)
    found = {}
    for name, key, known in (
        ("strategy", "pooling_strategy", STRATEGIES),
        ("activation", "activation_function", ACTIVATIONS),
    ):
        found[name] = config.get(key) or known[0]
        if found[name] not in known:
            raise CheckpointError(f"{file}: {key} is {found[name]!r}, expected one of {', '.join(known)}")
    return found
