"""Check a tokenizer.json before the tokenizers library reads it.

The library takes memory as its files say, grows texts as their rules say, and panics, printed to stderr, at broken
character maps: a file must not abort the process. It bounds the steps of regular expressions on texts itself.
"""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertcore.checkpoint.files import CheckpointError
from bertcore.checkpoint.patterns import least_length

from .sentencepiece_file import check_charsmap
from .settings import MOST_ID

MOST_GROWTH = 1024  # of a text by all replacements together; published ones grow it by 18, in theory
MOST_STEPS = 4096  # objects in one part of the file


def check_tokenizer_json(file: Path, content: bytes) -> None:
    """Raise CheckpointError, naming the file, for a tokenizer.json that could exhaust or abort the process."""
    try:
        value = json.loads(content, object_pairs_hook=_object)
        if not isinstance(value, dict):
            raise ValueError(f"it is a JSON {type(value).__name__}, expected an object")
        for part in ("normalizer", "pre_tokenizer", "decoder"):
            _check_growth(part, value.get(part))
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


def _steps(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every object in a part of the file, at any depth."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _steps(inner)


def _check_template(value: Any) -> None:
    """Raise ValueError for templates that put more than MOST_GROWTH tokens around a text."""
    count, steps = 0, list(_steps(value))
    ids = {str(step.get("id")): len(step["ids"]) for step in steps if isinstance(step.get("ids"), list)}
    for step in steps:
        named = step.get("SpecialToken")
        count += ids.get(str(named.get("id")), 1) if isinstance(named, dict) else "Sequence" in step
    if count > MOST_GROWTH:
        raise ValueError(f"post_processor puts {count} tokens around a text, expected at most {MOST_GROWTH}")


def _check_growth(part: str, value: Any) -> None:
    """Raise ValueError for a broken character map, or replacements that together grow a text beyond MOST_GROWTH."""
    growth, before, steps = 1.0, 0, list(_steps(value))
    if len(steps) > MOST_STEPS:
        raise ValueError(f"{part} has {len(steps)} objects, expected at most {MOST_STEPS}")
    for step in steps:
        before += len(str(step.get("prepend", "")))
        charsmap = step.get("precompiled_charsmap")
        if isinstance(charsmap, str):
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
