"""The parts of late interaction around the encoder: rows of tokens, maps of token vectors, pooling of vectors.

Their settings are read from folders of sentence-transformers, PyLate, Stanford's ColBERT and BGE-M3.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from bertcore.arguments import check_count, check_number, required, warn_caller
from bertcore.checkpoint import CheckpointError, open_checkpoint, read_config
from bertcore.checkpoint.files import CONFIG_NAME, read_json_object
from bertcore.kernels import checks
from bertcore.models.model import NewlyInitialisedWarning
from bertcore.nn import functional
from bertcore.nn.parameter import Block
from bertcore.passes import Pass
from bertcore.tape import Tensor
from bertcore.tasks.folder import (
    BGE_LINEARS,
    MODULES_NAME,
    Module,
    SavedSettings,
    check_kinds,
    opened_folder,
    read_modules,
    read_prompts,
    read_transformer,
    saved_settings,
    transformer_settings,
)
from bertcore.tasks.sentence_encoder.modules import Dense, read_dense, stored
from bertcore.tasks.similarity import normalized

STANFORD, METADATA, BGE = "HF_ColBERT", "artifact.metadata", BGE_LINEARS[0]
LAST = ("MultiVectorMask", "Normalize", "HierarchicalTokenPooling")  # modules after the maps
SIMILARITIES = ("maxsim", "meanmaxsim")
TASKS = ("query", "document")
# Keys that PyLate writes beside the prompts.
PYLATE = (
    "query_length", "document_length", "query_expansion", "do_query_expansion", "attend_to_expansion_tokens",
    "attend_to_mask_tokens", "query_prefix", "document_prefix", "skiplist_words",
)  # fmt: skip
LONGEST = 1 << 16  # tokens of a filled-up query: every query takes as many
PUNCTUATION = tuple(string.punctuation)


@dataclass(frozen=True)
class Expansion:
    """Tokens that fill a query up to a length, by default [MASK]."""

    length: int  # a shorter query is filled up to this many tokens
    strategy: str = "fixed"  # "fixed" cuts longer queries to `length`, "min" leaves them longer
    attend: bool = False  # whether other tokens attend to the filling tokens; their own vectors count either way
    token: str | None = None  # the filling token; None for the mask token


def checked_expansion(value: Expansion | Mapping[str, Any] | bool | None) -> Expansion | None:
    """Return an expansion from a mapping of its fields; None for None and False.

    Raises TypeError for anything else, ValueError for a wrong field.
    """
    if value is None or value is False or isinstance(value, Expansion):
        return value or None
    names = [entry.name for entry in fields(Expansion)]
    if not isinstance(value, Mapping):
        raise TypeError(f"query_expansion is {value!r}, expected a mapping of {', '.join(names)}, or None")
    for name in value:
        checks.choice("a name in query_expansion", name, names)
    if value.get("token") is not None and not isinstance(value["token"], str):
        raise TypeError(f"query_expansion['token'] is {value['token']!r}, expected a string or None")
    length = check_count("query_expansion['length']", value.get("length"))
    if length > LONGEST:
        raise ValueError(f"query_expansion['length'] is {length}, expected at most {LONGEST}")
    checks.choice("query_expansion['strategy']", value.get("strategy"), ("fixed", "min"))
    checks.boolean("query_expansion['attend']", value.get("attend", False))
    return Expansion(**value)


@dataclass(frozen=True)
class TokenPooling:
    """`pool_tokens` of the texts of some tasks."""

    pool_factor: float = 1.0
    num_protected_tokens: int = 1
    normalize_embeddings: bool = False
    tasks: tuple[str, ...] = ("document",)


@dataclass(frozen=True)
class LateSettings:
    """Settings in the folder of a late-interaction encoder."""

    model_folder: Path  # folder of config.json, the weights and the tokenizer
    folders: tuple[Path, ...] = ()  # the folder that was read and those of its modules
    maps: tuple[Module, ...] = ()  # the linear maps of token vectors
    # weights and the prefix of their names if the only map is not a module; None otherwise
    projection: tuple[Path, str] | None = None
    is_new: bool = False  # whether there is no map yet, so that one must be initialised
    normalize: bool = True  # whether vectors are scaled to length 1
    skiplist_words: tuple[str, ...] = ()  # tokens whose vectors do not count in texts of `skiplist_tasks`
    skiplist_tasks: tuple[str, ...] = ("document",)
    skips_first: bool = False  # whether only the first special token is in that list
    keep_only_token_ids: tuple[int, ...] | None = None  # the only tokens of a document that count; None for all
    # texts are cut to this many tokens; None defers to the next one
    query_length: int | None = None
    document_length: int | None = None
    max_seq_length: int | None = None
    expansion: Expansion | None = None  # the tokens that fill up queries; None for no filling
    pooling: TokenPooling | None = None  # pooling of the vectors of a text; None for no pooling
    similarity: str = "maxsim"  # "maxsim" or "meanmaxsim"
    # tokens before a text that the tokenizer must not split, by task
    prefixes: Mapping[str, str] = field(default_factory=dict)
    # text before each text, by name; they begin with the prefixes
    prompts: Mapping[str, str] = field(default_factory=dict)
    do_lower_case: bool = False  # whether texts are lower-cased before they are tokenized


def is_late(folder: Path) -> bool:
    """Return whether a folder holds a late-interaction encoder; BGE-M3 is a sentence encoder first."""
    kinds = [module.kind for module in read_modules(folder) or []]
    if kinds:
        return "MultiVectorMask" in kinds or saved_settings(folder).get("model_type") == "ColBERT"
    return _is_stanford(folder)


def _is_stanford(folder: Path) -> bool:
    return STANFORD in SavedSettings(folder / CONFIG_NAME, read_config(folder)).texts("architectures")


def read_late_settings(folder: Path) -> LateSettings:
    """Read the settings of a folder. A model without token vectors of its own gets a new projection.

    Raises CheckpointError for an invalid file or an unsupported module.
    """
    folder = opened_folder(folder, "late-interaction encoder")
    modules = read_modules(folder)
    if modules is None and _is_stanford(folder):
        return _read_stanford(folder)
    modules = [Module("Transformer", "", folder)] if modules is None else modules
    if (folder / BGE).is_file() and modules:
        where, prompts = modules[0].folder, read_prompts(folder).by_name
        own: dict[str, Any] = {"projection": (folder / BGE, ""), "similarity": "meanmaxsim", "prompts": prompts}
        lengths = read_transformer(where, "feature-extraction")
        return LateSettings(where, (folder, where), skips_first=True, skiplist_tasks=TASKS, **own, **lengths)
    return _read_modules(folder, modules)


def _read_modules(folder: Path, modules: list[Module]) -> LateSettings:
    """Read a folder with modules of sentence-transformers or PyLate, or a model without token vectors."""
    check_kinds(folder, modules, ("Transformer", "Pooling", "Dense", *LAST))
    order = ("Transformer", "Pooling", "Dense", LAST)
    kinds = [module.kind for module in modules]
    places = [next(place for place, some in enumerate(order) if kind in some) for kind in kinds]
    if (
        kinds.count("Transformer") != 1
        or places != sorted(places)
        or len({*kinds} - {"Dense"}) + kinds.count("Dense") != len(kinds)
    ):
        raise CheckpointError(
            f"{folder / MODULES_NAME} has the modules {', '.join(kinds) or 'none'}, expected one Transformer, any "
            f"number of Dense, and at most one each of {', '.join(LAST)}"
        )
    saved = saved_settings(folder)
    found = {module.kind: module.folder / CONFIG_NAME for module in modules}
    is_pylate, dense = saved.get("model_type") == "ColBERT", tuple(each for each in modules if each.kind == "Dense")
    is_late, similarity = is_pylate or LAST[0] in found, saved.get("similarity_fn_name")
    prefixes = {task: _text(saved, f"{task}_prefix") for task in TASKS if f"{task}_prefix" in saved}
    prompts = dict(read_prompts(folder).by_name)
    for task, prefix in prefixes.items():
        prompts[task] = prefix + prompts.get(task, "").removeprefix(prefix)
    if LAST[0] in found:
        mask = _read_mask(found[LAST[0]])
    else:
        by_default = PUNCTUATION if is_pylate or prefixes else ()
        mask = {"skiplist_words": saved.texts("skiplist_words", by_default)}
    return LateSettings(
        modules[0].folder,
        tuple(dict.fromkeys([folder, *(module.folder for module in modules)])),
        dense,
        is_new=not dense and not is_late,
        normalize=is_pylate or not is_late or LAST[1] in found,
        pooling=_read_pooling(found[LAST[2]]) if LAST[2] in found else None,
        similarity=similarity if similarity in SIMILARITIES else SIMILARITIES[0],
        prefixes=prefixes,
        prompts=prompts,
        **mask,
        **_read_lengths(modules[0].folder, saved),
    )


def _read_lengths(where: Path, saved: SavedSettings) -> dict[str, Any]:
    """Return lengths and expansion from the Transformer's file, or else from the settings of the whole model."""
    own = transformer_settings(where)
    found: dict[str, Any] = read_transformer(where, "feature-extraction")
    for key in ("query_length", "document_length"):
        found[key] = own.size(key, saved.size(key))
    given = own if "query_expansion" in own else saved
    if "query_expansion" not in given and any(key in saved for key in PYLATE):
        attend = saved.flag("attend_to_expansion_tokens", saved.flag("attend_to_mask_tokens"))
        if saved.flag("do_query_expansion", True):
            found["expansion"] = Expansion(saved.size("query_length", 32), attend=attend)
            found["query_length"] = own.size("query_length")
        return found
    try:
        found["expansion"] = checked_expansion(given.get("query_expansion"))
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{given.file}: {error}") from error
    return found


def _read_mask(file: Path) -> dict[str, Any]:
    read = SavedSettings(file, read_json_object(file))
    kept = read.get("keep_only_token_ids")
    if kept is not None and not (isinstance(kept, list) and all(type(each) is int for each in kept)):
        raise read.wrong("keep_only_token_ids", "a list of integers, or null")
    return {
        "skiplist_words": read.texts("skiplist_words"),
        "skiplist_tasks": read.texts("skiplist_tasks", ("document",)),
        "keep_only_token_ids": None if kept is None else tuple(kept),
    }


def _read_pooling(file: Path) -> TokenPooling:
    read = SavedSettings(file, read_json_object(file))
    factor, protected = read.get("pool_factor", 1.0), read.get("num_protected_tokens", 1)
    if type(factor) not in (int, float) or not 1 <= factor < 1e6:
        raise read.wrong("pool_factor", "a number of at least 1")
    if type(protected) is not int or protected < 0:
        raise read.wrong("num_protected_tokens", "an integer of at least 0")
    return TokenPooling(factor, protected, read.flag("normalize_embeddings"), read.texts("tasks", ("document",)))


def _read_stanford(folder: Path) -> LateSettings:
    read = SavedSettings(folder / METADATA)
    markers = (("query", "query_token_id", "[unused0]"), ("document", "doc_token_id", "[unused1]"))
    prompts = {task: (_text(read, key) or default) + " " for task, key, default in markers}
    return LateSettings(
        folder,
        (folder,),
        projection=(folder, "linear."),
        skiplist_words=PUNCTUATION if read.flag("mask_punctuation", True) else (),
        document_length=read.size("doc_maxlen"),
        expansion=Expansion(read.size("query_maxlen", 32), attend=read.flag("attend_to_mask_tokens")),
        prefixes=prompts,
        prompts=prompts | dict(read_prompts(folder).by_name),
        **read_transformer(folder, "feature-extraction"),
    )


def _text(read: SavedSettings, key: str) -> str:
    value = read.get(key)
    if value is not None and not isinstance(value, str):
        raise read.wrong(key, "a string or null")
    return value or ""


VECTORS = "token_embeddings"
LINEAR = {"bias": False, "activation_function": "torch.nn.modules.linear.Identity"}


class TokenHead(Block):
    """The maps of hidden states to token vectors, and their scaling to length 1.

    Attributes:
        maps: Dense blocks, whose parameters' names begin with "1_Dense.", ...
        configs: the config of each, as it is saved.
        normalize: whether vectors are scaled to length 1.
        width: length of a vector.
    """

    def __init__(self, settings: LateSettings, hidden_size: int, dtype: str, new_width: int):
        self.maps: list[Dense] = []
        self.configs: list[dict[str, Any]] = []
        self.normalize, self.width = settings.normalize, hidden_size
        for number, module in enumerate(settings.maps, 1):
            self._add(*read_dense(module.folder, self.width, dtype, VECTORS, f"{number}_Dense."))
        if settings.projection is not None:
            self._add_linear(*settings.projection, dtype)
        elif settings.is_new:
            warn_caller(
                f"{settings.model_folder} has no map to token vectors: newly initialised, train before use",
                NewlyInitialisedWarning,
            )
            dense = self._made(new_width, bias=False)
            for parameter in dense.parameters():
                parameter.initialise(np.random.default_rng(0), (3 * hidden_size) ** -0.5, dtype)

    def _add(self, dense: Dense, config: Mapping[str, Any], width: int) -> None:
        self.maps.append(dense)
        self.configs.append(dict(config) | {"module_input_name": VECTORS, "module_output_name": VECTORS})
        self.width = width

    def _made(self, width: int, *, bias: bool) -> Dense:
        sizes = {"in_features": self.width, "out_features": width}
        dense = Dense(sizes, activation=None, bias=bias, residual=False, prefix="1_Dense.")
        self._add(dense, LINEAR | sizes | {"bias": bias}, width)
        return dense

    def _add_linear(self, path: Path, start: str, dtype: str) -> None:
        """Add the map whose weights stand beside the model's, or in a file of their own."""
        opened = open_checkpoint(path)
        shape = opened.info[f"{start}weight"].shape if f"{start}weight" in opened else None
        if shape is None or len(shape) != 2 or shape[1] != self.width:
            what = "is missing" if shape is None else f"has shape {tuple(shape)}"
            raise CheckpointError(f"{opened.source}: {start}weight {what}, expected (vectors, {self.width})")
        dense = self._made(shape[0], bias=f"{start}bias" in opened)
        for parameter in dense.parameters():
            (name,) = parameter.names
            parameter.fill({name: stored(opened, start + name.rpartition(".")[2], parameter.shape, dtype)}, dtype)

    def __call__(self, run: Pass, hidden: Tensor) -> Tensor:
        """Map hidden states, (tokens, hidden), to vectors, (tokens, width)."""
        rows = functional.widened(hidden) if run.tape is None else hidden
        for dense in self.maps:
            rows = dense(run, rows)
        return functional.unit_rows(run, rows) if self.normalize else rows


@dataclass(frozen=True)
class TokenRow:
    """The tokens of one text."""

    ids: np.ndarray  # token ids, int32 (tokens,)
    seen: np.ndarray  # which of them other tokens attend to, booleans
    scored: np.ndarray  # which of them have a vector, booleans

    def __len__(self) -> int:
        return len(self.ids)


def pool_tokens(
    vectors: np.ndarray, pool_factor: float, *, protected_tokens: int = 1, normalize_embeddings: bool = True
) -> np.ndarray:
    """Reduce a text's vectors to the means of clusters, by Ward's method on cosine distances.

    Args:
        vectors: (tokens, dim), of length 1.
        pool_factor: about tokens / pool_factor vectors are kept; 1 keeps all.
        protected_tokens: number of first vectors that are kept unchanged.
        normalize_embeddings: whether to scale the result to length 1.

    Raises ValueError for a `pool_factor` below 1 and negative `protected_tokens`, ImportError if SciPy is missing.
    Source: Clavié et al. 2024, arXiv:2409.14683.
    """
    if check_number("pool_factor", pool_factor) < 1:
        raise ValueError(f"pool_factor is {pool_factor}, expected at least 1")
    check_count("protected_tokens", protected_tokens, 0)
    first, rest = vectors[:protected_tokens], vectors[protected_tokens:]
    count = max(int(len(rest) // pool_factor), 1)
    if count < len(rest):
        hierarchy = required("scipy.cluster.hierarchy")
        distances = (1 - rest @ rest.T).clip(0, 2)[np.triu_indices(len(rest), 1)]
        labels = hierarchy.fcluster(hierarchy.linkage(distances, "ward"), count, "maxclust")
        _, groups = np.unique(labels, return_inverse=True)
        sums = np.zeros((groups.max() + 1, rest.shape[1]), vectors.dtype)
        np.add.at(sums, groups, rest)
        means = sums / np.bincount(groups)[:, None].astype(vectors.dtype)
        vectors = np.concatenate([first, means])
    return normalized(vectors) if normalize_embeddings else vectors
