"""Building the `tokenizers` object from a folder's files. Importing this module imports the library."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, models, processors
from tokenizers.pre_tokenizers import ByteLevel, Metaspace, Sequence

from bertcore.checkpoint.files import CheckpointError, check_complete, listed

from . import byte_bpe, unigram, word_piece
from .added_tokens import AddedTokenSettings
from .engine import library_errors
from .errors import WrongSetting
from .families import FAMILIES, GENERIC, TokenizerFamily
from .settings import GENERIC_CLASSES, SPECIAL_TOKEN_NAMES, TOKENIZER_JSON, TokenizerSettings

# The name of a family's model -> the library's class, and the function that makes a tokenizer of its files.
MODELS = {
    "word_piece": (models.WordPiece, word_piece.build),
    "byte_bpe": (models.BPE, byte_bpe.build),
    "unigram": (models.Unigram, unigram.build),
}
BERT = "BertTokenizer"
PIPELINE_OPTIONS = frozenset([*word_piece.NORMALIZATION, "keep_accents", "split_by_punct", "add_prefix_space"])


@dataclass(frozen=True)
class Built:
    """A tokenizer of the library, its named special tokens ("mask_token" -> "[MASK]"), further ones, its family."""

    backend: Tokenizer
    special_tokens: dict[str, str]
    extra_special_tokens: list[str]
    family: TokenizerFamily


def build_backend(folder: Path, settings: TokenizerSettings) -> Built:
    """The tokenizer in `folder`.

    tokenizer.json is taken as it is, but for what the settings state otherwise; else the family's vocabulary files
    make the tokenizer. Raises CheckpointError when neither is there or readable.
    """
    file = folder / TOKENIZER_JSON
    extra = [token.content for token in settings.extra_special_tokens]
    if file.is_file():
        backend = _from_tokenizer_json(file)
        family = _family_of_model(backend, settings)
        _set_options(backend, settings)
    else:
        family, files = _family_of_files(folder, settings)
        contents = {name: token.content for name, token in special_tokens(family, settings).items()}
        _, build = MODELS[family.model]
        backend = build(files, family, contents, settings)
        extra += [token.content for token in backend.get_added_tokens_decoder().values() if token.special]
    return completed(backend, extra, family, settings)


def completed(backend: Tokenizer, extra: list[str], family: TokenizerFamily, settings: TokenizerSettings) -> Built:
    """The tokenizer with its special tokens, `extra` ones without a name too, and what puts them around texts."""
    special = special_tokens(family, settings)
    _add_tokens(backend, settings, special)
    contents = {name: token.content for name, token in special.items()}
    if backend.post_processor is None:
        backend.post_processor = _post_processor(backend, contents, family, settings)
    return Built(backend, contents, extra, family)


def _from_tokenizer_json(file: Path) -> Tokenizer:
    check_complete(file)
    try:
        with library_errors():
            backend = Tokenizer.from_file(str(file))
    except Exception as error:
        raise CheckpointError(f"{file} cannot be read by the tokenizers library: {error.__cause__ or error}") from error
    if isinstance(backend.model, models.WordPiece | models.WordLevel):
        unknown = backend.model.unk_token
        if backend.token_to_id(unknown) is None:  # it is needed for the first word that is not in the vocabulary
            raise CheckpointError(f"{file} lacks the unknown token {unknown!r}")
    return backend


def _family_of_model(backend: Tokenizer, settings: TokenizerSettings) -> TokenizerFamily:
    """The family that the settings name, if the model is of its kind; a WordPiece that nobody names is BERT's."""
    nameless = BERT if isinstance(backend.model, models.WordPiece) else ""
    family = FAMILIES.get(settings.tokenizer_class or nameless, GENERIC)
    fits = family is not GENERIC and isinstance(backend.model, MODELS[family.model][0])
    return family if fits else GENERIC


def _family_of_files(folder: Path, settings: TokenizerSettings) -> tuple[TokenizerFamily, list[Path]]:
    """The family that the settings name, or BERT when nothing does and there is a vocab.txt; and its files."""
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
        raise CheckpointError(
            f"{folder} has a {name} without {TOKENIZER_JSON}; from older files alone bertcore builds "
            f"{', '.join(FAMILIES)}"
        )
    kinds = {" and ".join(family.vocabulary_files): family.vocabulary_files for family in FAMILIES.values()}
    found = [kind for kind, files in kinds.items() if here.issuperset(files)]
    if not found:
        raise CheckpointError(f"{folder} has neither {TOKENIZER_JSON} nor {' nor '.join(kinds)}; {holds}")
    raise CheckpointError(
        f"{folder} has {found[0]} and does not say whose; tokenizer_class in tokenizer_config.json, or model_type in "
        f"config.json, tells it"
    )


def special_tokens(family: TokenizerFamily, settings: TokenizerSettings) -> dict[str, AddedTokenSettings]:
    """The special tokens by name, the usual names first: the family's, but for what the files state."""
    plain = {
        name: token if isinstance(token, AddedTokenSettings) else AddedTokenSettings(token)
        for name, token in family.special_tokens.items()
    }
    merged = plain | dict(settings.special_tokens)
    return {name: merged[name] for name in (*SPECIAL_TOKEN_NAMES, *merged) if name in merged}


def options_of(backend: Tokenizer) -> dict[str, bool | None]:
    """The settings that the tokenizer follows now, of those that tokenizer_config.json may change in it."""
    options = word_piece.normalization_of(backend)
    for part in _parts(backend):
        if isinstance(part, ByteLevel):
            options["add_prefix_space"] = part.add_prefix_space
        elif isinstance(part, Metaspace):
            options["add_prefix_space"] = part.prepend_scheme != "never"
    return options


def _parts(backend: Tokenizer) -> list:
    """The steps of the pre-tokenizer."""
    found = backend.pre_tokenizer
    return list(found) if isinstance(found, Sequence) else [found]


def _set_options(backend: Tokenizer, settings: TokenizerSettings) -> None:
    """What the settings state wins over tokenizer.json, as in transformers.

    Raises ValueError for an option that the caller gave and that this tokenizer.json cannot follow.
    """
    unable = settings.overridden & PIPELINE_OPTIONS - options_of(backend).keys()
    if unable:
        raise ValueError(f"{TOKENIZER_JSON} has nothing that {', '.join(sorted(unable))} could change")
    word_piece.set_normalization(backend, settings)
    prefix_space = settings.options.get("add_prefix_space")
    if prefix_space is not None:
        _set_prefix_space(backend, prefix_space)


def _set_prefix_space(backend: Tokenizer, wanted: bool) -> None:
    if options_of(backend).get("add_prefix_space", wanted) == wanted:  # LUKE's offsets say otherwise, and stay
        return
    for part in _parts(backend):
        if isinstance(part, ByteLevel):
            part.add_prefix_space = wanted
        elif isinstance(part, Metaspace):
            part.prepend_scheme = "always" if wanted else "never"
    if isinstance(backend.post_processor, processors.RobertaProcessing):
        backend.post_processor.add_prefix_space = wanted


def _add_tokens(backend: Tokenizer, settings: TokenizerSettings, special: Mapping[str, AddedTokenSettings]) -> None:
    """Adds what the files state and the tokenizer lacks: tokens with ids first, then special ones."""
    present = {token.content for token in backend.get_added_tokens_decoder().values()}
    for number, token in settings.added_tokens.items():
        if token.content not in present:
            backend.add_tokens([_added_token(token)])
        if backend.token_to_id(token.content) != number:
            found = backend.token_to_id(token.content)
            message = f"added token {token.content!r} has the id {number}, but the vocabulary gives it {found}"
            raise WrongSetting("", message)
        present.add(token.content)
    missing = [token for token in (*special.values(), *settings.extra_special_tokens) if token.content not in present]
    backend.add_special_tokens([_added_token(token) for token in missing])


def _added_token(token: AddedTokenSettings) -> AddedToken:
    return AddedToken(**vars(token))


def _post_processor(
    backend: Tokenizer, special: Mapping[str, str], family: TokenizerFamily, settings: TokenizerSettings
) -> processors.PostProcessor:
    """What puts the special tokens around the texts."""
    if family.trims_offsets:
        sep, cls = ((special[name], backend.token_to_id(special[name])) for name in ("sep_token", "cls_token"))
        prefix_space = family.offsets_count_prefix or bool(settings.option("add_prefix_space", family))
        return processors.RobertaProcessing(sep, cls, trim_offsets=True, add_prefix_space=prefix_space)
    single, pair = (family.single, family.pair) if family.single else _stated_template(settings, special)
    names = {part.split(":")[0] for part in pair.split()} & special.keys()
    return processors.TemplateProcessing(
        single=_template(single, special),
        pair=_template(pair, special),
        special_tokens=[(special[name], backend.token_to_id(special[name])) for name in sorted(names)],
    )


def _stated_template(settings: TokenizerSettings, special: Mapping[str, str]) -> tuple[str, str]:
    bos, eos = (
        name if name in special and settings.options.get(f"add_{name}") else "" for name in ("bos_token", "eos_token")
    )
    single = f"{bos} $A {eos}"
    return single, f"{single} {bos and bos + ':1'} $B:1 {eos and eos + ':1'}"


def _template(template: str, special: Mapping[str, str]) -> list[str]:
    """The library's form of a template: special tokens by their text, every part with its type."""
    parts = (part.partition(":") for part in template.split())
    return [f"{special.get(name, name)}:{kind or 0}" for name, _, kind in parts]
