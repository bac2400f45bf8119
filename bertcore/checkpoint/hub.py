"""Resolve the name of a checkpoint to its files: on this machine, or on the Hugging Face hub.

Only the wanted files are fetched, into the cache that transformers also uses. Weights are fetched in one format,
safetensors before pickles; weights of other frameworks are never fetched. If the hub cannot be reached, the cached
files of the revision are used, as the package huggingface_hub does.
"""

import contextlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bertcore.file_readers import FILE_READERS, opened_file

from .files import CONFIG_NAME, HEAD_NAME, WEIGHTS_ENDINGS, CheckpointError, listed
from .weights import WEIGHTS_NAMES, read_weight_map

Wanted = Literal["model", "tokenizer", "sentence_encoder", "gliner"]

TOKENIZER_NAMES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.txt", "vocab.json", "merges.txt", "spiece.model", "spm.model", "sentencepiece.bpe.model",
    "entity_vocab.json",
)  # fmt: skip
FAMILIES = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
SENTENCE_NAMES = tuple(f"sentence_{family}_config.json" for family in FAMILIES)
MODULES_NAME = "modules.json"
MODULES_WITH_WEIGHTS = ("Dense", "LayerNorm")  # beside the first one
OF_TASKS = ("adapters/*/adapter_config.json", "adapters/*/adapter_model.safetensors")  # jina-embeddings-v5
SMALL_NAMES: dict[Wanted, tuple[str, ...]] = {
    "model": (CONFIG_NAME, *OF_TASKS),
    "tokenizer": (CONFIG_NAME, *TOKENIZER_NAMES),
    "gliner": ("gliner_config.json", *TOKENIZER_NAMES),
    "sentence_encoder": (
        CONFIG_NAME, "gliner_config.json", MODULES_NAME, "config_sentence_transformers.json", *SENTENCE_NAMES,
        *TOKENIZER_NAMES, *OF_TASKS,
        "colbert_linear.pt", "sparse_linear.pt", HEAD_NAME,
    ),
}  # fmt: skip

# NAME or ORGANISATION/NAME. huggingface_hub rejects a few more, with a message of its own.
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)


def resolve(
    name: str | os.PathLike[str],
    wanted: Wanted = "model",
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    local_files_only: bool = False,
) -> Path:
    """Return the place of the checkpoint `name` on this machine, after fetching it from the hub if necessary.

    Args:
        name: a folder, a file of weights, a file of FILE_READERS (GGUF, unpacked into the cache), or a model's id on
            the hub ("ORGANISATION/NAME"). Local files win; a PathLike, and text that cannot be an id, is never looked
            for on the hub.
        wanted: the files to fetch: the config and the weights, the tokenizer's, or all that a sentence encoder, or a
            GLiNER model, needs.
        revision: a branch, tag or commit on the hub; "main" by default. This and the following matter for ids only.
        token: the hub's access token; True for the saved one, False for none. By default the saved one, if any.
        cache_dir: the folder of the cache; by default huggingface_hub's (HF_HOME, HF_HUB_CACHE).
        local_files_only: use only the cache and make no request, as with HF_HUB_OFFLINE=1.

    Raises:
        CheckpointError: the name is empty; the model, revision or file does not exist; access needs a token; the hub
            cannot be reached and the cache lacks it; huggingface_hub is not installed. The message says what to do.
        TypeError: `name` is neither text nor a path.

    A path that does not exist is returned unchanged; opening it raises an error that says what was expected.
    """
    expected = "expected its folder, a file of weights or an id on the hub"
    if not isinstance(name, str | os.PathLike):
        raise TypeError(f"the checkpoint is {name!r}, {expected}")
    if name == "":  # as a path it would be the current folder
        raise CheckpointError(f"the checkpoint's name is empty, {expected}")
    is_id = isinstance(name, str) and not os.path.lexists(name) and HUB_ID.fullmatch(name)
    if not is_id or str(name).endswith((*WEIGHTS_ENDINGS, *FILE_READERS)):
        file = _file_of_model(Path(name))
        return Path(name) if file is None else opened_file(file)
    options = {"revision": revision, "token": token, "cache_dir": cache_dir, "local_files_only": local_files_only}
    source = _Source(str(name), options)
    with _explained(source):
        folder = source.snapshot(SMALL_NAMES[wanted])
        modules = [("", "")]
        if wanted == "sentence_encoder":
            modules = _modules(folder / MODULES_NAME) or modules
            names = [f"{modules[0][1]}/{name}" for name in SMALL_NAMES[wanted] if modules[0][1]]
            names += [f"{part}/{CONFIG_NAME}" for _, part in modules[1:]]
            source.snapshot([*SMALL_NAMES[wanted], *names])
        if wanted != "tokenizer":
            later = [part for kind, part in modules[1:] if kind.endswith(MODULES_WITH_WEIGHTS)]
            for part in [modules[0][1], *later]:
                _fetch_weights(source, folder, part)
    return folder


def _file_of_model(path: Path) -> Path | None:
    """Return the file of a whole model at `path`, or in the folder `path` in place of a checkpoint; else None.

    Raises CheckpointError for a folder with several.
    """
    if path.is_file():
        return path if path.suffix in FILE_READERS else None
    if not path.is_dir() or any((path / name).exists() for name in (CONFIG_NAME, MODULES_NAME, *WEIGHTS_NAMES)):
        return None
    files = sorted(file for file in path.glob("*") if file.suffix in FILE_READERS)
    if len(files) > 1:
        raise CheckpointError(f"{path} holds {listed([file.name for file in files])}, expected the name of one file")
    return files[0] if files else None


@dataclass(frozen=True)
class _Source:
    """A model on the hub."""

    name: str
    options: Mapping[str, Any]  # of huggingface_hub: revision, token, cache_dir, local_files_only

    def snapshot(self, names: Iterable[str]) -> Path:
        """Return the folder of the revision in the cache, with the files `names` that the hub has."""
        from huggingface_hub import constants, snapshot_download

        # Even offline, huggingface_hub 1.33 asks the hub for the files of a revision that is a commit.
        is_local = self.options["local_files_only"] or constants.HF_HUB_OFFLINE
        options = {**self.options, "local_files_only": is_local}
        return Path(snapshot_download(self.name, **options, allow_patterns=list(names)))

    def file(self, name: str, commit: str) -> Path | None:
        """Return one file of a commit, fetched if the cache lacks it; None if it does not exist."""
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

        try:
            return Path(hf_hub_download(self.name, name, **{**self.options, "revision": commit}))
        except LocalEntryNotFoundError:  # unknown: no request could be made
            raise
        except EntryNotFoundError:
            return None


def _modules(modules: Path) -> list[tuple[str, str]]:
    """Return (type, folder) of a sentence encoder's modules, the model's first; [] without a readable modules.json."""
    try:
        listed = json.loads(modules.read_text(encoding="utf-8"))
        types, paths = [str(module.get("type")) for module in listed], [module["path"] for module in listed]
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return []
    if not all(isinstance(path, str) and re.fullmatch(r"[\w-]*(/[\w-]+)*/?", path) for path in paths):
        return []
    return [(kind, path.strip("/")) for kind, path in zip(types, paths, strict=True)]


def _fetch_weights(source: _Source, snapshot: Path, folder: str) -> None:
    """Fetch the first of WEIGHTS_NAMES in `folder`, with its shards; cached files come first."""
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
    """Turn errors of huggingface_hub in the block into CheckpointError."""
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
    """Say in one line what went wrong and what to do. `error` itself, which may have many lines, stays the cause."""
    from huggingface_hub import constants, errors

    name, hub, options = source.name, constants.ENDPOINT, source.options
    here = f"{name} does not exist here"
    if isinstance(error, errors.GatedRepoError):
        return (
            f"{name} on the hub is gated: ask for access at {hub}/{name}, "
            "then pass token=... or log in once with `hf auth login`"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{name} on the hub has no revision {options['revision']!r} (a branch, tag or commit)"
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            f"{here}, and the hub ({hub}) has no model of that name, or it is private: "
            "check the spelling, or pass token=... or log in with `hf auth login`"
        )
    if isinstance(error, errors.LocalEntryNotFoundError):
        if options["local_files_only"] or constants.HF_HUB_OFFLINE:
            reason = "local_files_only" if options["local_files_only"] else "HF_HUB_OFFLINE"
            revision = f" at revision {options['revision']}" if options["revision"] else ""
            cache = options["cache_dir"] or constants.HF_HUB_CACHE
            return (
                f"{here}, the cache {cache} lacks all or part of it{revision}, "
                f"and {reason} forbids asking the hub: fetch it once without {reason}"
            )
        return f"{here}, the cache lacks all or part of it, and the hub ({hub}) cannot be reached: {_first_line(error)}"
    return f"{name} cannot be fetched from the hub ({hub}): {_first_line(error)}"


def _first_line(error: BaseException) -> str:
    """Return the deepest cause in one line, as huggingface_hub wraps network errors."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
