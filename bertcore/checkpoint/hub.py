"""From the name of a checkpoint to its files: what is on this machine, or what the Hugging Face hub has.

Only the files that are wanted are fetched, into the cache that transformers uses, too. Of several formats of the
weights one is fetched, safetensors before pickles; weights of other frameworks never. When the hub cannot be reached,
what the cache has of the revision is used, as the package huggingface_hub does.
"""

import contextlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .files import CONFIG_NAME, WEIGHTS_ENDINGS, CheckpointError
from .weights import WEIGHTS_NAMES, read_weight_map

Wanted = Literal["model", "tokenizer", "sentence_encoder"]

TOKENIZER_NAMES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.txt", "vocab.json", "merges.txt", "spiece.model", "spm.model", "sentencepiece.bpe.model",
    "entity_vocab.json",
)  # fmt: skip
FAMILIES = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
SENTENCE_NAMES = tuple(f"sentence_{family}_config.json" for family in FAMILIES)
MODULES_NAME = "modules.json"
MODULES_WITH_WEIGHTS = ("Dense", "LayerNorm")  # beside the first one
SMALL_NAMES: dict[Wanted, tuple[str, ...]] = {
    "model": (CONFIG_NAME,),
    "tokenizer": (CONFIG_NAME, *TOKENIZER_NAMES),
    "sentence_encoder": (
        CONFIG_NAME, MODULES_NAME, "config_sentence_transformers.json", *SENTENCE_NAMES, *TOKENIZER_NAMES,
    ),
}  # fmt: skip

# NAME or ORGANISATION/NAME. huggingface_hub refuses a few more, with a message of its own.
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)


def resolve(
    name: str | os.PathLike,
    wanted: Wanted = "model",
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | os.PathLike | None = None,
    local_files_only: bool = False,
) -> Path:
    """Where the checkpoint `name` is on this machine, fetched from the hub where it must be.

    Args:
        name: a folder or a file of weights, or a model's id on the hub ("ORGANISATION/NAME"). What exists here wins;
            a PathLike, and text that cannot be an id, is never looked for on the hub.
        wanted: what is fetched: the config and the weights, the tokenizer's files, or all a sentence encoder needs.
        revision: a branch, tag or commit on the hub; "main" by default. This and what follows matters for ids only.
        token: the hub's access token; True for the saved one, False for none. By default the saved one, if any.
        cache_dir: the folder of the cache; by default as huggingface_hub has it (HF_HOME, HF_HUB_CACHE).
        local_files_only: use only what is in the cache and make no request, as with HF_HUB_OFFLINE=1.

    Raises:
        CheckpointError: there is no such model, revision or file, access needs a token, the hub cannot be reached and
            the cache lacks it, or huggingface_hub is not installed; the message says what to do; the name is
            empty.
        TypeError: `name` is neither text nor a path.

    A path that does not exist is returned unchanged: whatever opens it says what was expected there.
    """
    expected = "expected its folder, a file of weights or an id on the hub"
    if not isinstance(name, str | os.PathLike):
        raise TypeError(f"the checkpoint is {name!r}, {expected}")
    if name == "":  # as a path it would be the folder that one is in
        raise CheckpointError(f"the checkpoint's name is empty, {expected}")
    if not _is_hub_id(name):
        return Path(name)
    source = _Source(str(name), revision, token, cache_dir, local_files_only)
    with _explained(source):
        folder = source.snapshot(SMALL_NAMES[wanted])
        modules = [("", "")]
        if wanted == "sentence_encoder":
            modules = _modules(folder / MODULES_NAME) or modules
            source.snapshot([*SMALL_NAMES[wanted], *_module_files([part for _, part in modules])])
        if wanted != "tokenizer":
            later = [part for kind, part in modules[1:] if kind.endswith(MODULES_WITH_WEIGHTS)]
            for part in [modules[0][1], *later]:
                _fetch_weights(source, folder, part)
    return folder


def _is_hub_id(name: str | os.PathLike) -> bool:
    return (
        isinstance(name, str)
        and not os.path.lexists(name)
        and HUB_ID.fullmatch(name) is not None
        and not name.endswith(WEIGHTS_ENDINGS)
    )


@dataclass(frozen=True)
class _Source:
    """A model on the hub."""

    name: str
    revision: str | None
    token: str | bool | None
    cache_dir: str | os.PathLike | None
    local_files_only: bool

    def snapshot(self, names) -> Path:
        """The folder of the revision in the cache, with those of the files `names` that the hub has."""
        from huggingface_hub import snapshot_download

        folder = snapshot_download(
            self.name, revision=self.revision, token=self.token, cache_dir=self.cache_dir,
            local_files_only=self.local_files_only, allow_patterns=list(names),
        )  # fmt: skip
        return Path(folder)

    def file(self, name: str, commit: str) -> Path | None:
        """One file of a commit, fetched if the cache lacks it; None when there is no such file."""
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

        try:
            file = hf_hub_download(
                self.name, name, revision=commit, token=self.token, cache_dir=self.cache_dir,
                local_files_only=self.local_files_only,
            )  # fmt: skip
        except LocalEntryNotFoundError:  # unknown: no request could be made
            raise
        except EntryNotFoundError:
            return None
        return Path(file)


def _modules(modules: Path) -> list[tuple[str, str]]:
    """(type, folder) of a sentence encoder's modules, the model's first; [] when modules.json does not say.

    Errors in the file are reported when it is loaded.
    """
    try:
        listed = json.loads(modules.read_text(encoding="utf-8"))
        types, paths = [str(module.get("type")) for module in listed], [module["path"] for module in listed]
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return []
    if not all(isinstance(path, str) and re.fullmatch(r"[\w-]*(/[\w-]+)*/?", path) for path in paths):
        return []
    return [(kind, path.strip("/")) for kind, path in zip(types, paths, strict=True)]


def _module_files(folders: list[str]) -> Iterator[str]:
    first, *others = folders
    if first:
        yield from (f"{first}/{name}" for name in SMALL_NAMES["sentence_encoder"])
    yield from (f"{folder}/{CONFIG_NAME}" for folder in others)


def _fetch_weights(source: _Source, snapshot: Path, folder: str) -> None:
    """Fetches the first of WEIGHTS_NAMES that the model has in `folder`, with its shards.

    What is in the cache comes first: a commit does not change, so that this saves requests. A model that has none of
    them is an error when it is loaded.
    """
    start = f"{folder}/" if folder else ""
    for name in sorted(WEIGHTS_NAMES, key=lambda name: not (snapshot / folder / name).is_file()):
        file = source.file(start + name, snapshot.name)
        if file is not None:
            shards = sorted(set(read_weight_map(file).values())) if name.endswith(".json") else []
            for shard in shards:
                source.file(start + shard, snapshot.name)
            return


@contextlib.contextmanager
def _explained(source: _Source) -> Iterator[None]:
    """A block in which what huggingface_hub raises becomes a CheckpointError."""
    try:
        from huggingface_hub import errors
    except ImportError as error:
        raise CheckpointError(
            f"{source.name} does not exist here; to fetch the model of that name from the Hugging Face hub, "
            "pip install huggingface_hub"
        ) from error
    # The base class of every error of the HTTP library in use: requests, httpx or httpx2 by version.
    transport = errors.HfHubHTTPError.__bases__[0]
    try:
        yield
    except CheckpointError:
        raise
    except (OSError, ValueError, transport) as error:
        raise CheckpointError(_explain(source, error)) from error


def _explain(source: _Source, error: Exception) -> str:
    """What went wrong and what to do about it. `error` itself may have many lines; it stays the cause."""
    from huggingface_hub import constants, errors

    name, hub = source.name, constants.ENDPOINT
    here = f"{name} does not exist here"
    if isinstance(error, errors.GatedRepoError):
        return (
            f"{name} on the hub is gated: ask for access at {hub}/{name}, "
            "then pass token=... or log in once with `hf auth login`"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{name} on the hub has no revision {source.revision!r} (a branch, tag or commit)"
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            f"{here}, and the hub ({hub}) has no model of that name, or only for those who may see it: "
            "check the spelling; for a private one pass token=... or log in with `hf auth login`"
        )
    if isinstance(error, errors.LocalEntryNotFoundError):
        if source.local_files_only or constants.HF_HUB_OFFLINE:
            reason = "local_files_only" if source.local_files_only else "HF_HUB_OFFLINE"
            revision = f" at revision {source.revision}" if source.revision else ""
            return (
                f"{here}, the cache {source.cache_dir or constants.HF_HUB_CACHE} lacks it or a part of it{revision}, "
                f"and {reason} forbids to ask the hub: fetch it once without"
            )
        return (
            f"{here}, the cache lacks it or a part of it, and the hub ({hub}) cannot be reached: {_first_line(error)}"
        )
    return f"{name} cannot be fetched from the hub ({hub}): {_first_line(error)}"


def _first_line(error: BaseException) -> str:
    """The reason, in a line: that of the deepest cause, as huggingface_hub wraps what the network said."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
