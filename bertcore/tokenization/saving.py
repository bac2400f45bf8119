"""Writing a tokenizer that transformers and bertcore read back."""

import json
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .families import FAMILIES, GENERIC, TokenizerFamily
from .settings import GENERIC_CLASSES, TOKENIZER_CONFIG_NAME, TokenizerSettings

if TYPE_CHECKING:
    from .tokenizer import Tokenizer

TOKENIZER_JSON = "tokenizer.json"


def save_tokenizer(
    folder, tokenizer: "Tokenizer", family: TokenizerFamily, settings: TokenizerSettings
) -> tuple[str, ...]:
    """Writes tokenizer.json and tokenizer_config.json into `folder`; see `Tokenizer.save_pretrained`."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = json.dumps(_config(tokenizer, family, settings), indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    contents = {TOKENIZER_CONFIG_NAME: config, TOKENIZER_JSON: tokenizer._backend.to_str(pretty=True)}
    for name, content in contents.items():
        replace_file(folder / name, content)
    return tuple(str(folder / name) for name in contents)


def _config(tokenizer: "Tokenizer", family: TokenizerFamily, settings: TokenizerSettings) -> dict[str, Any]:
    """What tokenizer_config.json says: more than tokenizer.json where transformers reads it from here alone."""
    from .backend import options_of

    named = tokenizer.special_tokens_map.values()
    extra = [token for token in tokenizer.all_special_tokens if token not in named]
    config = {
        **family.defaults,
        **settings.options,
        **settings.entities,
        **options_of(tokenizer._backend),
        **tokenizer.special_tokens_map,
        "clean_up_tokenization_spaces": tokenizer.clean_up_tokenization_spaces,
        "model_input_names": tokenizer.model_input_names,
        "model_max_length": tokenizer.model_max_length,
        "padding_side": tokenizer.padding_side,
        "truncation_side": tokenizer.truncation_side,
        "tokenizer_class": _class_name(family, settings),
    }
    if tokenizer.pad_token_type_id:
        config["pad_token_type_id"] = tokenizer.pad_token_type_id
    return config | ({"extra_special_tokens": extra} if extra else {})


def _class_name(family: TokenizerFamily, settings: TokenizerSettings) -> str:
    if family is GENERIC and settings.tokenizer_class in ("", *GENERIC_CLASSES):
        return "PreTrainedTokenizerFast"
    return settings.tokenizer_class or next(name for name, one in FAMILIES.items() if one is family)


def replace_file(file: Path, content: str) -> None:
    """Writes a file under a fresh name and puts it in place in one step, so that a failure leaves the old one."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        temporary.write_text(content, encoding="utf-8")
        os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)
