"""Build the `tokenizers` object from a folder's files. Importing this module imports the library."""

import base64
import functools
import json
import re
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers, processors

from bertcore.checkpoint.files import CheckpointError, listed, read_complete
from bertcore.checkpoint.patterns import least_length

from .builders import MODELS, build, set_options
from .engine import library_errors
from .families import FAMILIES, GENERIC, SPECIAL_TOKEN_NAMES, AddedTokenSettings, TokenizerFamily
from .sentencepiece_file import check_charsmap
from .settings import GENERIC_CLASSES, MOST_ID, TOKENIZER_JSON, TokenizerSettings, WrongSetting

BERT = "BertTokenizer"


@dataclass(frozen=True)
class Built:
    """A tokenizer of the library with its named special tokens ("mask_token" -> "[MASK]"), further ones, and family."""

    backend: Tokenizer
    special_tokens: dict[str, str]
    extra_special_tokens: list[str]
    family: TokenizerFamily


def build_backend(folder: Path, settings: TokenizerSettings) -> Built:
    """Build the tokenizer in `folder` from tokenizer.json and the settings, else from the family's vocabulary files.

    Raises CheckpointError if neither exists or is readable.
    """
    file = folder / TOKENIZER_JSON
    extra = [token.content for token in settings.extra_special_tokens]
    if file.is_file():
        backend = _from_tokenizer_json(file)
        nameless = BERT if isinstance(backend.model, models.WordPiece) else ""
        family = FAMILIES.get(settings.tokenizer_class or nameless, GENERIC)
        if family is not GENERIC and not isinstance(backend.model, MODELS[family.model]):
            family = GENERIC
        set_options(backend, settings)
    else:
        family, files = _family_of_files(folder, settings)
        contents = {name: token.content for name, token in special_tokens(family, settings).items()}
        backend = build(files, family, contents, settings)
        extra += [entry[0] for entry in reversed(family.pieces.tail) if isinstance(entry, tuple)]
        special = [token.content for token in backend.get_added_tokens_decoder().values() if token.special]
        extra += [token for token in special if token not in extra]
    return completed(backend, extra, family, settings)


def completed(backend: Tokenizer, extra: list[str], family: TokenizerFamily, settings: TokenizerSettings) -> Built:
    """Add the special tokens, named ones and `extra` ones, and the post-processor that puts them around texts."""
    special = special_tokens(family, settings)
    _add_tokens(backend, settings, special)
    contents = {name: token.content for name, token in special.items()}
    if backend.post_processor is None:
        backend.post_processor = _post_processor(backend, contents, family, settings)
    return Built(backend, contents, extra, family)


def _from_tokenizer_json(file: Path) -> Tokenizer:
    content = read_complete(file)
    check_tokenizer_json(file, content)
    try:
        with library_errors():
            backend = Tokenizer.from_buffer(content)
    except Exception as error:
        raise CheckpointError(f"{file} cannot be read by the tokenizers library: {error.__cause__ or error}") from error
    if isinstance(backend.model, models.WordPiece | models.WordLevel):
        unknown = backend.model.unk_token
        if backend.model.token_to_id(unknown) is None:  # the first unknown word would fail; added tokens do not count
            raise CheckpointError(f"{file} lacks the unknown token {unknown!r}")
    return backend


def _family_of_files(folder: Path, settings: TokenizerSettings) -> tuple[TokenizerFamily, list[Path]]:
    """Return the family that the settings name (BERT for an unnamed vocab.txt), and its files."""
    here = {entry.name for entry in folder.iterdir()}
    name = settings.tokenizer_class or (BERT if "vocab.txt" in here else "")
    family = FAMILIES.get(name)
    if family and here.issuperset(family.vocabulary_files):
        return family, [folder / file for file in family.vocabulary_files]
    holds = f"it holds {listed(sorted(here)) or 'nothing'}"
    if family:
        wanted = " and ".join(family.vocabulary_files)
        raise CheckpointError(f"{folder} has neither {TOKENIZER_JSON} nor {wanted}, which make a {name}; {holds}")
    if name and name not in GENERIC_CLASSES:
        known = f"from older files alone bertcore builds {', '.join(FAMILIES)}"
        raise CheckpointError(f"{folder} has a {name} without {TOKENIZER_JSON}; {known}")
    kinds = {" and ".join(family.vocabulary_files): family.vocabulary_files for family in FAMILIES.values()}
    found = [kind for kind, files in kinds.items() if here.issuperset(files)]
    if not found:
        raise CheckpointError(f"{folder} has neither {TOKENIZER_JSON} nor {' nor '.join(kinds)}; {holds}")
    expected = "tokenizer_class in tokenizer_config.json, or model_type in config.json"
    raise CheckpointError(f"{folder} has {found[0]} of an unknown family, expected {expected}")


def special_tokens(family: TokenizerFamily, settings: TokenizerSettings) -> dict[str, AddedTokenSettings]:
    """Return the special tokens by name, the usual names first: the files' tokens, else the family's."""
    merged: dict[str, Any] = {**family.special_tokens, **settings.special_tokens}
    merged = {name: AddedTokenSettings(token) if isinstance(token, str) else token for name, token in merged.items()}
    return {name: merged[name] for name in (*SPECIAL_TOKEN_NAMES, *merged) if name in merged}


def _add_tokens(backend: Tokenizer, settings: TokenizerSettings, special: Mapping[str, AddedTokenSettings]) -> None:
    """Add tokens that the files state and the tokenizer lacks: tokens with ids first, then special ones."""
    present = {token.content for token in backend.get_added_tokens_decoder().values()}
    for number, token in settings.added_tokens.items():
        if token.content not in present:
            backend.add_tokens([AddedToken(**vars(token))])
        if backend.token_to_id(token.content) != number:
            problem = f"has the id {number}, but the vocabulary gives it {backend.token_to_id(token.content)}"
            raise WrongSetting("", f"added token {token.content!r} {problem}")
        present.add(token.content)
    missing = [token for token in (*special.values(), *settings.extra_special_tokens) if token.content not in present]
    backend.add_special_tokens([AddedToken(**vars(token)) for token in missing])


def _post_processor(
    backend: Tokenizer, special: Mapping[str, str], family: TokenizerFamily, settings: TokenizerSettings
) -> processors.PostProcessor:
    """Return the post-processor that puts the special tokens around the texts."""
    if family.trims_offsets:
        sep, cls = ((special[name], backend.token_to_id(special[name])) for name in ("sep_token", "cls_token"))
        prefix_space = family.offsets_count_prefix or bool(settings.option("add_prefix_space", family))
        return processors.RobertaProcessing(sep, cls, trim_offsets=True, add_prefix_space=prefix_space)
    single, pair = family.single, family.pair
    if not single:  # the settings state it
        names = ("bos_token", "eos_token")
        bos, eos = (name if name in special and settings.options.get(f"add_{name}") else "" for name in names)
        single = f"{bos} $A {eos}"
        pair = f"{single} {bos and bos + ':1'} $B:1 {eos and eos + ':1'}"
    names = {part.split(":")[0] for part in pair.split()} & special.keys()
    tokens = [(special[name], backend.token_to_id(special[name])) for name in sorted(names)]
    templates = {"single": _template(single, special), "pair": _template(pair, special)}
    return processors.TemplateProcessing(**templates, special_tokens=tokens)


def _template(template: str, special: Mapping[str, str]) -> list[str]:
    """Return the library's form of a template: special tokens by their text, every part with its type."""
    parts = (part.partition(":") for part in template.split())
    return [f"{special.get(name, name)}:{kind or 0}" for name, _, kind in parts]


MOST_GROWTH = 1024  # of a text by all replacements together; published ones grow it by 18, in theory
MOST_STEPS = 4096  # objects in one part of the file
MOST_TRIAL_SECONDS = 0.005  # of an expression on one short text, which usually takes some microseconds
OTHER_SCRIPTS = "\u03b1\u044f\u05d0\u0627\u0905\u0e01\u3042\u4e2d\ud55c"  # a letter of each, for classes named by \p
MOST_SECONDS = 10.0  # of all expressions on all short texts; published ones take up to 0.05


def check_tokenizer_json(file: Path, content: bytes) -> None:
    """Raise CheckpointError, naming the file, for a tokenizer.json that could exhaust or abort the process."""
    try:
        value = json.loads(content, object_pairs_hook=_object)
        if not isinstance(value, dict):
            raise ValueError(f"it is a JSON {type(value).__name__}, expected an object")
        for part in ("normalizer", "pre_tokenizer", "decoder"):
            _check_growth(part, value.get(part))
            _check_expressions(part, value.get(part))
        _check_template(value.get("post_processor"))
        model = value.get("model")
        vocabulary = model.get("vocab") if isinstance(model, dict) else None
        numbers = list(vocabulary.values()) if isinstance(vocabulary, dict) else []
        for step in _steps([value.get("added_tokens"), value.get("post_processor")]):
            for number in step.values():
                numbers += number if isinstance(number, list) else [number]
        for number in numbers:
            if isinstance(number, int) and not 0 <= number <= MOST_ID:
                raise ValueError(f"it has the id {number}, expected at most {MOST_ID}")
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{file} is not valid JSON: {error}") from error
    except RecursionError as error:
        raise CheckpointError(f"{file} cannot be read: its JSON is nested too deeply") from error
    except ValueError as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):  # readers differ in which one they take
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} occurs twice")
    return found


def _steps(value: object) -> Iterator[dict[str, Any]]:
    """Yield every object in a part of the file, at any depth."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _steps(inner)


def _check_template(value: object) -> None:
    """Raise ValueError for templates with unknown tokens, or with more than MOST_GROWTH around a text."""
    count, steps = 0, list(_steps(value))
    ids = {str(step.get("id")): len(step["ids"]) for step in steps if isinstance(step.get("ids"), list)}
    for step in steps:
        defined = step.get("special_tokens")
        for each in _steps([step.get("single"), step.get("pair")]) if isinstance(defined, dict) else ():
            token = each.get("SpecialToken")
            if isinstance(token, dict) and token.get("id") not in defined:
                raise ValueError(
                    f"post_processor has the special token {token.get('id')!r:.60}, which it does not define"
                )
        named = step.get("SpecialToken")
        count += ids.get(str(named.get("id")), 1) if isinstance(named, dict) else "Sequence" in step
    if count > MOST_GROWTH:
        raise ValueError(f"post_processor puts {count} tokens around a text, expected at most {MOST_GROWTH}")


def _check_expressions(part: str, value: object) -> None:
    """Raise ValueError for a regular expression that takes long on a short text."""
    start = time.thread_time()
    for step in _steps(value):
        match step.get("pattern"):
            case {"Regex": expression} if _is_slow(str(expression)) or time.thread_time() > start + MOST_SECONDS:
                raise ValueError(f"{part} has the expression {expression!r:.200}, which may take exponential time")


@functools.lru_cache(256)
def _is_slow(expression: str) -> bool:
    """Return whether texts that repeat a part of the expression at both ends take long.

    The texts grow slowly, so that exponential time shows before the library's own limit, where it prints a panic.
    Parts are also the characters that it writes as escapes, and letters of other scripts for classes named by \\p.
    Between the ends are all letters of the expression, without which the library may skip the search.
    """
    some = expression[:1000]
    letters = "".join(dict.fromkeys(some))
    codes = (int(code, 16) for code in re.findall(r"\\[xu]\{?([0-9a-fA-F]{2,6})", some))
    escaped = [chr(code) for code in codes if code < 0xD800 or 0xDFFF < code <= sys.maxunicode]  # no surrogates
    named = OTHER_SCRIPTS if "\\p" in some.lower() else ""
    parts = list(dict.fromkeys([*"aA1 -\n", "a ", *named, *escaped[:12], *re.findall(r"\w{2,9}", some), *letters]))[:40]
    try:
        with library_errors():
            split = pre_tokenizers.Split(Regex(expression), "isolated")
            for count in range(4, 31, 2):
                for text in (f"{part * count}\0{letters}{part * count}" for part in parts):
                    if all(_seconds(split, text) > MOST_TRIAL_SECONDS for _ in range(3)):  # more than a chance delay
                        return True
    except (RuntimeError, UnicodeError):  # an invalid expression, which the library reports as it reads the file
        return False
    except ValueError:
        return True
    return False


def _seconds(split: pre_tokenizers.PreTokenizer, text: str) -> float:
    start = time.thread_time()
    split.pre_tokenize_str(text)
    return time.thread_time() - start


def _check_growth(part: str, value: object) -> None:
    """Raise ValueError for a broken character map, or replacements that together grow a text beyond MOST_GROWTH."""
    growth, before, steps = 1.0, 0, list(_steps(value))
    if len(steps) > MOST_STEPS:
        raise ValueError(f"{part} has {len(steps)} objects, expected at most {MOST_STEPS}")
    for step in steps:
        before += len(str(step.get("prepend", "")))
        growth *= 2 if step.get("type") == "ByteLevel" or "trim_offsets" in step else 1  # letters of two bytes
        growth *= 3 if step.get("handle_chinese_chars") else 1  # spaces on both sides
        charsmap = step.get("precompiled_charsmap")
        if charsmap is not None:
            if not isinstance(charsmap, str):
                raise ValueError(f"{part}: precompiled_charsmap is {type(charsmap).__name__}, expected text in base64")
            try:
                growth *= check_charsmap(base64.b64decode(charsmap))
            except ValueError as error:
                raise ValueError(f"{part}: precompiled_charsmap is broken: {error}") from error
        content, pattern = step.get("content"), step.get("pattern")
        if isinstance(content, str) and isinstance(pattern, dict):
            least = len(str(pattern["String"])) if "String" in pattern else least_length(str(pattern.get("Regex")))
            growth *= max(1.0, len(content) / least) if least else 1.0 + len(content)  # put between all characters
    if before > MOST_GROWTH:
        raise ValueError(f"{part} puts {before} characters before a text, expected at most {MOST_GROWTH}")
    if growth > MOST_GROWTH:
        raise ValueError(f"{part} replaces a character by up to {growth:.3g}, expected at most {MOST_GROWTH}")
