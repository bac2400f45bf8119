"""A tokenizer's settings: tokenizer_config.json, special_tokens_map.json, added_tokens.json, and the caller's own."""

import contextlib
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertcore.checkpoint.files import CONFIG_NAME, CheckpointError, model_type_of, read_json_object

from .families import CLASS_OF_MODEL_TYPE, SPECIAL_TOKEN_NAMES, AddedTokenSettings, TokenizerFamily

TOKENIZER_JSON = "tokenizer.json"
TOKENIZER_CONFIG_NAME = "tokenizer_config.json"
MOST_ID = 2**31 - 1  # ids are int32 in many places
UNKNOWN_LENGTH = int(1e30)  # transformers' value for an unlimited model_max_length

# Settings that are true, false or null (not stated).
OPTIONS = (
    "do_lower_case", "strip_accents", "tokenize_chinese_chars", "keep_accents", "add_prefix_space", "split_by_punct",
    "add_bos_token", "add_eos_token", "clean_up_tokenization_spaces",
)  # fmt: skip
OTHER_SETTINGS = (
    "model_max_length", "padding_side", "truncation_side", "pad_token_type_id", "model_input_names",
    "extra_special_tokens",
)  # fmt: skip
ENTITY_SETTINGS = ("task", "max_entity_length", "max_mention_length")  # LUKE's

# Classes of transformers for which tokenizer.json alone decides.
GENERIC_CLASSES = ("PreTrainedTokenizer", "TokenizersBackend")


class WrongSetting(ValueError):
    """The setting `name` is wrong, wherever it was read."""

    def __init__(self, name: str, message: str):
        super().__init__(message)
        self.name = name


@contextlib.contextmanager
def naming_files(folder: Path, given: Collection[str]) -> Iterator[None]:
    """Turn WrongSetting in the block into a CheckpointError that names `folder`, unless the caller gave the setting."""
    try:
        yield
    except WrongSetting as error:
        if error.name in given:
            raise
        raise CheckpointError(f"tokenizer files of {folder}: {error}") from error


@dataclass(frozen=True)
class TokenizerSettings:
    """A tokenizer's settings, under transformers' names: those that the files state, or that the caller gave."""

    tokenizer_class: str = ""  # without the ending "Fast"; "" if no file states it and the model_type is unknown
    special_tokens: Mapping[str, AddedTokenSettings] = field(default_factory=dict)  # with names ("mask_token", ...)
    extra_special_tokens: tuple[AddedTokenSettings, ...] = ()  # without names
    added_tokens: Mapping[int, AddedTokenSettings] = field(default_factory=dict)  # by id, beyond the vocabulary file
    options: Mapping[str, bool | None] = field(default_factory=dict)  # of `OPTIONS`
    model_max_length: int = UNKNOWN_LENGTH
    padding_side: str | None = None  # None: the family decides
    truncation_side: str = "right"
    pad_token_type_id: int = 0
    model_input_names: tuple[str, ...] | None = None  # None: the family decides
    entities: Mapping[str, Any] = field(default_factory=dict)  # of `ENTITY_SETTINGS`
    overridden: frozenset[str] = frozenset()  # the names of those that the caller gave

    def option(self, name: str, family: TokenizerFamily) -> bool | None:
        """Return the setting `name` of `OPTIONS`: the files' value, else the family's default, else None."""
        return self.options.get(name, family.defaults.get(name))


def read_settings(folder: Path, overrides: Mapping[str, Any]) -> TokenizerSettings:
    """Read the settings in `folder`; transformers' defaults stand in for the rest.

    `overrides` are settings by name, which win over the files'. Raises CheckpointError for broken files, WrongSetting
    for a wrong value, TypeError for an unknown name among the overrides.
    """
    known = (*OPTIONS, *OTHER_SETTINGS, *ENTITY_SETTINGS, *SPECIAL_TOKEN_NAMES)
    for name in overrides:
        if name not in known and not name.endswith("_token"):
            raise TypeError(f"{name} is not a setting of a tokenizer, expected one of {', '.join(known)}")
    values = _read_optional(folder / TOKENIZER_CONFIG_NAME)
    if "added_tokens_decoder" not in values:  # newer files hold all of it in tokenizer_config.json
        values |= _read_optional(folder / "special_tokens_map.json")
    values |= overrides
    special = _special_tokens(values)
    extra = _extra_special_tokens(values)
    return TokenizerSettings(
        tokenizer_class=_tokenizer_class(values, folder),
        special_tokens=special,
        extra_special_tokens=extra,
        added_tokens=_added_tokens(values, folder, {token.content for token in (*special.values(), *extra)}),
        options=_options(values),
        model_max_length=_number(values, "model_max_length") or _number(values, "max_len") or UNKNOWN_LENGTH,
        padding_side=_side(values, "padding_side"),
        truncation_side=_side(values, "truncation_side") or "right",
        pad_token_type_id=_number(values, "pad_token_type_id", most=MOST_ID),
        model_input_names=_input_names(values) or None,
        entities={key: values[key] for key in ENTITY_SETTINGS if values.get(key) is not None},
        overridden=frozenset(overrides),
    )


def _tokenizer_class(values: Mapping[str, Any], folder: Path) -> str:
    """Find the class as transformers does: tokenizer_config.json, then config.json's tokenizer_class and model_type."""
    config = _read_optional(folder / CONFIG_NAME)
    of_model = CLASS_OF_MODEL_TYPE.get(str(model_type_of(config)))
    for name in (values.get("tokenizer_class"), config.get("tokenizer_class"), of_model):
        if isinstance(name, str):
            return name.removesuffix("Fast")
        if name is not None:
            raise _wrong("tokenizer_class", name, "the name of a class")
    return ""


def _wrong(key: str, value: object, expected: str) -> WrongSetting:
    return WrongSetting(key, f"{key} is {value!r}, expected {expected}")


def _number(values: Mapping[str, Any], key: str, most: float = math.inf) -> int:
    """Return a count or an id, at most UNKNOWN_LENGTH; 0 if it is not stated."""
    value = values.get(key) or 0
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise _wrong(key, value, "a number of at least 0")
    if value > most:
        raise _wrong(key, value, f"at most {most}")
    return int(min(value, UNKNOWN_LENGTH))


def _options(values: Mapping[str, Any]) -> dict[str, bool | None]:
    # Null leaves a setting to the family; strip_accents null means that it follows do_lower_case.
    optional = {key: values[key] for key in OPTIONS if key in values}
    stated = {key: value for key, value in optional.items() if value is not None or key == "strip_accents"}
    for key, value in stated.items():
        if not isinstance(value, bool | None):
            raise _wrong(key, value, "true, false or null")
    return stated


def _input_names(values: Mapping[str, Any]) -> tuple[str, ...]:
    names = values.get("model_input_names") or []
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise _wrong("model_input_names", names, "a list of names")
    return tuple(names)


def _side(values: Mapping[str, Any], key: str) -> str | None:
    side = values.get(key) or None
    if side not in (None, "left", "right"):
        raise _wrong(key, side, "'left' or 'right'")
    return side


def _read_optional(file: Path) -> dict[str, Any]:
    return read_json_object(file) if file.is_file() else {}


def _added_token(value: object, where: str) -> AddedTokenSettings:
    """Read both forms found in files: the token itself, or an object with its matching rules."""
    if isinstance(value, str):
        return _valid(AddedTokenSettings(value))
    if isinstance(value, dict) and isinstance(value.get("content"), str):
        flags = {key: bool(value.get(key)) for key in ("lstrip", "rstrip", "single_word", "normalized")}
        return _valid(AddedTokenSettings(value["content"], **flags, special=bool(value.get("special", True))))
    raise _wrong(where, value, "a string or an object with its content")


def _valid(token: AddedTokenSettings) -> AddedTokenSettings:
    try:
        token.content.encode()
    except UnicodeEncodeError as error:
        raise WrongSetting("", f"the token {token.content!r} is not valid Unicode") from error
    return token


def _special_tokens(values: Mapping[str, Any]) -> dict[str, AddedTokenSettings]:
    """Collect the usual special tokens, then the model's own ("entity_1_token"), which may stand in a group."""
    named = {key: values[key] for key in SPECIAL_TOKEN_NAMES if values.get(key) is not None}
    groups = (values.get("model_specific_special_tokens"), values.get("extra_special_tokens"))
    own = {key: value for group in groups if isinstance(group, dict) for key, value in group.items()}
    own |= {key: value for key, value in values.items() if key.endswith("_token") and isinstance(value, str | dict)}
    return {key: _added_token(value, key) for key, value in (named | own).items()}


def _extra_special_tokens(values: Mapping[str, Any]) -> tuple[AddedTokenSettings, ...]:
    extra = values.get("extra_special_tokens") or values.get("additional_special_tokens") or []
    if isinstance(extra, dict):  # these have names
        return ()
    if not isinstance(extra, list | tuple):
        raise _wrong("extra_special_tokens", extra, "a list of tokens")
    return tuple(_added_token(value, "extra_special_tokens") for value in extra)


def _added_tokens(values: Mapping[str, Any], folder: Path, special: set[str]) -> dict[int, AddedTokenSettings]:
    """Read tokenizer_config.json's added_tokens_decoder, or the older added_tokens.json (token -> id)."""
    if "added_tokens_decoder" in values:
        found = values["added_tokens_decoder"]
        if not isinstance(found, dict) or not all(number.isdecimal() for number in found):
            raise _wrong("added_tokens_decoder", found, "an object of tokens by id")
        tokens = {int(number): _added_token(token, "added_tokens_decoder") for number, token in found.items()}
    else:
        by_token = _read_optional(folder / "added_tokens.json")
        if not all(type(number) is int for number in by_token.values()):
            raise _wrong("added_tokens.json", by_token, "an object of ids by token")
        # Ordinary tokens match the normalized text, as in transformers.
        of_text = ((token, {"normalized": token not in special, "special": token in special}) for token in by_token)
        tokens = {by_token[token]: _valid(AddedTokenSettings(token, **how)) for token, how in of_text}
    return dict(sorted(tokens.items()))
