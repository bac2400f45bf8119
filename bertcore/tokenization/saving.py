"""Writing a tokenizer that transformers and bertcore read back."""

import json
from collections.abc import Mapping
from typing import Any

from bertcore.checkpoint.files import made_folder, replace_files

from .families import FAMILIES, GENERIC, TokenizerFamily
from .settings import GENERIC_CLASSES, TOKENIZER_CONFIG_NAME, TOKENIZER_JSON, TokenizerSettings
from .vocabulary import Vocabulary


def file_contents(
    vocabulary: Vocabulary, stated: Mapping[str, Any], family: TokenizerFamily, settings: TokenizerSettings
) -> dict[str, str]:
    """What tokenizer.json and tokenizer_config.json say; `stated` are settings of the tokenizer, by name."""
    from .backend import options_of

    named = vocabulary.special_tokens_map.values()
    extra = [token for token in vocabulary.all_special_tokens if token not in named]
    config = {  # more than tokenizer.json has, where transformers reads it from here alone
        **family.defaults,
        **settings.options,
        **settings.entities,
        **options_of(vocabulary._backend),
        **vocabulary.special_tokens_map,
        "clean_up_tokenization_spaces": vocabulary.clean_up_tokenization_spaces,
        **stated,
        "tokenizer_class": _class_name(family, settings),
    }
    if extra:
        config["extra_special_tokens"] = extra
    text = json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    return {TOKENIZER_JSON: vocabulary._backend.to_str(pretty=True), TOKENIZER_CONFIG_NAME: text}


def write_contents(folder, contents: Mapping[str, str]) -> tuple[str, ...]:
    """Write files, name -> text, into `folder`, which is made when it is not there; all of them or none."""
    folder = made_folder(folder)

    def writer(text: str):
        return lambda file: file.write_text(text, encoding="utf-8")

    replace_files(folder, {name: writer(text) for name, text in contents.items()})
    return tuple(str(folder / name) for name in contents)


def _class_name(family: TokenizerFamily, settings: TokenizerSettings) -> str:
    if family is GENERIC and settings.tokenizer_class in ("", *GENERIC_CLASSES):
        return "PreTrainedTokenizerFast"
    return settings.tokenizer_class or next(name for name, one in FAMILIES.items() if one is family)
