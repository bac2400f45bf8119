"""What the files beside a tokenizer say about it: tokenizer_config.json, special_tokens_map.json, added_tokens.json."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertcore.checkpoint.config import read_json_object
from bertcore.checkpoint.errors import CheckpointError

UNKNOWN_LENGTH = int(1e30)  # what transformers calls an unlimited model_max_length

# In the order in which transformers adds those that a vocabulary lacks.
SPECIAL_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

BERT_SPECIAL_TOKENS = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}

# Tokenizers that are BERT's, whatever their name; only what the model is given differs.
BERT_CLASSES = {
    "BertTokenizer": ("input_ids", "token_type_ids", "attention_mask"),
    "ElectraTokenizer": ("input_ids", "token_type_ids", "attention_mask"),
    "MobileBertTokenizer": ("input_ids", "token_type_ids", "attention_mask"),
    "DistilBertTokenizer": ("input_ids", "attention_mask"),
}
ALL_INPUT_NAMES = BERT_CLASSES["BertTokenizer"]

# BERT's normalisation: transformers' name of a setting -> that of `tokenizers.normalizers.BertNormalizer`, whose
# defaults (lower case, accents stripped with it, Chinese characters apart) are transformers' too.
NORMALIZATION = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}


@dataclass(frozen=True)
class AddedTokenSettings:
    """A token matched in the text before it is split; field names are those of `tokenizers.AddedToken`."""

    content: str
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False
    special: bool = True


@dataclass(frozen=True)
class TokenizerSettings:
    """A tokenizer's settings, under transformers' names.

    tokenizer_class: without the ending "Fast"; None when no file says it.
    special_tokens: the named special tokens ("mask_token", ...) that the files state.
    extra_special_tokens: further ones without a name.
    added_tokens: tokens with their ids, beyond the vocabulary file.
    normalization: which of do_lower_case, strip_accents and tokenize_chinese_chars the files state.
    """

    tokenizer_class: str | None = None
    special_tokens: Mapping[str, AddedTokenSettings] = field(default_factory=dict)
    extra_special_tokens: tuple[AddedTokenSettings, ...] = ()
    added_tokens: Mapping[int, AddedTokenSettings] = field(default_factory=dict)
    normalization: Mapping[str, bool | None] = field(default_factory=dict)
    model_max_length: int = UNKNOWN_LENGTH
    padding_side: str = "right"
    truncation_side: str = "right"
    pad_token_type_id: int = 0
    model_input_names: tuple[str, ...] = ALL_INPUT_NAMES


def read_settings(folder: Path) -> TokenizerSettings:
    """The settings in `folder`; transformers' defaults where it says nothing. CheckpointError for broken files."""
    values = _read_optional(folder / "tokenizer_config.json")
    if "added_tokens_decoder" not in values:  # newer files hold all of it in tokenizer_config.json
        values |= _read_optional(folder / "special_tokens_map.json")
    name = values.get("tokenizer_class")
    tokenizer_class = name.removesuffix("Fast") if isinstance(name, str) else None
    special = {key: _added_token(values[key], key) for key in SPECIAL_TOKEN_NAMES if values.get(key) is not None}
    extra = _extra_special_tokens(values)
    return TokenizerSettings(
        tokenizer_class=tokenizer_class,
        special_tokens=special,
        extra_special_tokens=extra,
        added_tokens=_added_tokens(values, folder, {token.content for token in (*special.values(), *extra)}),
        normalization=_normalization(values),
        model_max_length=_number(values, "model_max_length") or _number(values, "max_len") or UNKNOWN_LENGTH,
        padding_side=_side(values, "padding_side", folder),
        truncation_side=_side(values, "truncation_side", folder),
        pad_token_type_id=_number(values, "pad_token_type_id"),
        model_input_names=_input_names(values) or BERT_CLASSES.get(tokenizer_class or "", ALL_INPUT_NAMES),
    )


def _wrong(key: str, value: Any, expected: str) -> CheckpointError:
    return CheckpointError(f"tokenizer files: {key} is {value!r}; expected {expected}")


def _number(values: Mapping[str, Any], key: str) -> int:
    """A number of tokens or an id, UNKNOWN_LENGTH at most; 0 when the files do not say it."""
    value = values.get(key) or 0
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise _wrong(key, value, "a number of at least 0")
    return int(min(value, UNKNOWN_LENGTH))


def _normalization(values: Mapping[str, Any]) -> dict[str, bool | None]:
    stated = {key: values[key] for key in NORMALIZATION if key in values}
    for key, value in stated.items():
        if not isinstance(value, bool | None):
            raise _wrong(key, value, "true, false or null")
    return stated


def _input_names(values: Mapping[str, Any]) -> tuple[str, ...]:
    names = values.get("model_input_names") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise _wrong("model_input_names", names, "a list of names")
    return tuple(names)


def _read_optional(file: Path) -> dict[str, Any]:
    return read_json_object(file) if file.is_file() else {}


def _added_token(value, where: str) -> AddedTokenSettings:
    """Both forms found in files: the token itself, or an object with its matching rules."""
    if isinstance(value, str):
        return AddedTokenSettings(value)
    if isinstance(value, dict) and isinstance(value.get("content"), str):
        flags = {key: bool(value.get(key)) for key in ("lstrip", "rstrip", "single_word", "normalized")}
        return AddedTokenSettings(value["content"], **flags, special=bool(value.get("special", True)))
    raise _wrong(where, value, "a string or an object with its content")


def _extra_special_tokens(values: Mapping[str, Any]) -> tuple[AddedTokenSettings, ...]:
    extra = values.get("extra_special_tokens") or values.get("additional_special_tokens") or []
    if isinstance(extra, dict):
        extra = list(extra.values())
    return tuple(_added_token(value, "extra_special_tokens") for value in extra)


def _added_tokens(values: Mapping[str, Any], folder: Path, special: set[str]) -> dict[int, AddedTokenSettings]:
    """tokenizer_config.json's added_tokens_decoder, or the older added_tokens.json (token -> id)."""
    if "added_tokens_decoder" in values:
        found = values["added_tokens_decoder"]
        if not isinstance(found, dict) or not all(number.isdecimal() for number in found):
            raise _wrong("added_tokens_decoder", found, "an object of tokens by id")
        tokens = {int(number): _added_token(token, "added_tokens_decoder") for number, token in found.items()}
    else:
        by_token = _read_optional(folder / "added_tokens.json")
        if not all(type(number) is int for number in by_token.values()):
            raise _wrong("added_tokens.json", by_token, "an object of ids by token")
        # What is not special matches the normalised text, as transformers has it.
        tokens = {
            number: AddedTokenSettings(token, normalized=token not in special, special=token in special)
            for token, number in by_token.items()
        }
    return dict(sorted(tokens.items()))


def _side(values: Mapping[str, Any], key: str, folder: Path) -> str:
    side = values.get(key) or "right"
    if side not in ("left", "right"):
        raise CheckpointError(f"{folder}/tokenizer_config.json: {key} is {side!r}; expected 'left' or 'right'")
    return side
