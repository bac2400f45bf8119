"""Reading the folder of a published sentence encoder, as sentence-transformers writes it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from bertcore.checkpoint import CheckpointError
from bertcore.checkpoint.config import checkpoint_folder, read_json_object
from bertcore.tasks.sentence_encoder.pooling import POOLING

MODULES_NAME = "modules.json"
PROMPTS_NAME = "config_sentence_transformers.json"

# The settings of the Transformer module; early versions of sentence-transformers named the file after the family.
TRANSFORMER_NAMES = [
    f"sentence_{family}_config.json"
    for family in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
]

# Before pooling_mode there was a flag for each mode, in the order in which several modes are joined.
POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}

WIDTH_KEYS = ("embedding_dimension", "word_embedding_dimension")  # since sentence-transformers 6, and before


@dataclass(frozen=True)
class Settings:
    """What a folder says of how texts become embeddings.

    Attributes:
        model_folder: where config.json, the weights and the tokenizer are.
        folders: the folder that was read and those of its modules.
        pooling_file: where the pooling stands; None for a plain model.
        width: of the hidden states that are pooled, and the key that says so; None if the folder does not say.
        pooling: modes of `pooling.POOLING`; the vectors of several are joined.
        normalize: whether embeddings are scaled to length 1.
        max_seq_length: texts are cut to this many tokens; None leaves it to the tokenizer and the model.
        do_lower_case: whether texts are lower-cased before they are tokenized.
        prompts: texts to put before an input, by name.
        default_prompt_name: the prompt to use when none is asked for.
    """

    model_folder: Path
    folders: tuple[Path, ...] = ()
    pooling_file: Path | None = None
    width: tuple[str, int] | None = None
    pooling: tuple[str, ...] = ("mean",)
    normalize: bool = False
    max_seq_length: int | None = None
    do_lower_case: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None


def read_settings(folder) -> Settings:
    """The settings of a sentence encoder's folder.

    A folder without modules.json is a plain model: mean pooling and no normalisation, as sentence-transformers does.

    Raises CheckpointError: which file is wrong, or which module is not supported.
    """
    if Path(folder).is_file():  # the weights are found by the settings: one file cannot be chosen
        raise CheckpointError(f"{folder} is a file; expected the folder of a sentence encoder, or of a plain model")
    folder = checkpoint_folder(folder)
    model_folder, modules, pooling, normalize = folder, [], {}, False
    if (folder / MODULES_NAME).is_file():
        modules, normalize = _read_modules(folder / MODULES_NAME)
        model_folder, pooling = modules[0], _read_pooling(modules[1] / "config.json")
    return Settings(
        model_folder=model_folder,
        folders=tuple(dict.fromkeys([folder, *modules])),
        normalize=normalize,
        **pooling,
        **_read_transformer_settings(model_folder),
        **_read_prompts(folder / PROMPTS_NAME),
    )


def _read_modules(file: Path) -> tuple[list[Path], bool]:
    """The folders of the modules, Transformer and Pooling first, and whether Normalize follows them."""
    try:
        modules = json.loads(file.read_text(encoding="utf-8"))
        listed = [(str(module["type"]), str(module["path"])) for module in modules]
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror or error}") from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CheckpointError(f"{file} is not a list of modules with type and path: {error!r}") from error
    kinds = [kind.rpartition(".")[2] for kind, _ in listed]
    for (kind, _), name in zip(listed, kinds, strict=True):
        if name not in ("Transformer", "Pooling", "Normalize"):
            raise CheckpointError(
                f"{file} has the module {kind}, which is not supported; supported are Transformer, Pooling, Normalize"
            )
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise CheckpointError(
            f"{file} has the modules {', '.join(kinds) or 'none'}; "
            "expected Transformer, Pooling and, if wanted, Normalize"
        )
    return [_inside(file, path) for _, path in listed], kinds[-1] == "Normalize"


def _inside(file: Path, path: str) -> Path:
    """The folder `path` beside `file`; the list is downloaded data and may not point elsewhere."""
    relative = PurePosixPath(path)
    if relative.is_absolute() or ".." in relative.parts or "\\" in path or ":" in path:
        raise CheckpointError(f"{file} names the path {path!r}; expected a folder inside {file.parent}")
    return file.parent / relative


def _flag(file: Path, config: Mapping[str, Any], key: str) -> bool:
    """True or false, false when the key is absent or null; "false" is refused, for it would count as true."""
    value = config.get(key)
    if value is not None and not isinstance(value, bool):
        raise CheckpointError(f"{file}: {key} is {value!r}, expected true or false")
    return bool(value)


def _read_pooling(file: Path) -> dict[str, Any]:
    config = read_json_object(file)
    if config.get("include_prompt", True) is not True:
        raise CheckpointError(f"{file}: include_prompt is {config['include_prompt']!r}, supported is true")
    modes = config.get("pooling_mode")
    if modes is None:
        modes = [mode for flag, mode in POOLING_FLAGS.items() if _flag(file, config, flag)] or ["mean"]
    modes = [modes] if isinstance(modes, str) else modes
    if not isinstance(modes, list) or not modes or not all(isinstance(mode, str) for mode in modes):
        raise CheckpointError(f"{file}: pooling_mode is {modes!r}, expected one or several of {', '.join(POOLING)}")
    unknown = [mode for mode in modes if mode not in POOLING]
    if unknown:
        raise CheckpointError(f"{file}: pooling {unknown[0]!r} is not supported; supported are {', '.join(POOLING)}")
    return {"pooling_file": file, "pooling": tuple(modes), "width": _read_width(file, config)}


def _read_width(file: Path, config: Mapping[str, Any]) -> tuple[str, int] | None:
    for key in WIDTH_KEYS:
        width = config.get(key)
        if width is not None:
            if type(width) is not int or width < 1:
                raise CheckpointError(f"{file}: {key} is {width!r}, expected a positive integer or null")
            return key, width
    return None


def _read_transformer_settings(folder: Path) -> dict[str, Any]:
    file = next((folder / name for name in TRANSFORMER_NAMES if (folder / name).is_file()), folder)
    config = {} if file == folder else read_json_object(file)
    length = config.get("max_seq_length")
    if length is not None and (type(length) is not int or length < 1):
        raise CheckpointError(f"{file}: max_seq_length is {length!r}, expected a positive integer or null")
    task = config.get("transformer_task", "feature-extraction")
    if task != "feature-extraction":
        raise CheckpointError(f"{file}: transformer_task is {task!r}, supported is 'feature-extraction'")
    return {"max_seq_length": length, "do_lower_case": _flag(file, config, "do_lower_case")}


def _read_prompts(file: Path) -> dict[str, Any]:
    config = read_json_object(file) if file.is_file() else {}
    prompts, default = config.get("prompts"), config.get("default_prompt_name")
    prompts = {} if prompts is None else prompts
    if not isinstance(prompts, dict) or not all(isinstance(prompt, str) for prompt in prompts.values()):
        raise CheckpointError(f"{file}: prompts is {prompts!r}, expected an object of texts by name")
    if default is not None and not isinstance(default, str):
        raise CheckpointError(f"{file}: default_prompt_name is {default!r}, expected the name of a prompt, or null")
    if default is not None and default not in prompts:
        raise CheckpointError(f"{file}: default_prompt_name is {default!r}, known are {', '.join(prompts) or 'none'}")
    return {"prompts": prompts, "default_prompt_name": default}
