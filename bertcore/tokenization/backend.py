"""Building the `tokenizers` object from a folder's files. Importing this module imports the library."""

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from bertcore.checkpoint.errors import CheckpointError, listed

from .settings import (
    BERT_CLASSES,
    BERT_SPECIAL_TOKENS,
    NORMALIZATION,
    SPECIAL_TOKEN_NAMES,
    AddedTokenSettings,
    TokenizerSettings,
)

TOKENIZER_NAME = "tokenizer.json"
VOCABULARY_NAME = "vocab.txt"


def build_backend(folder: Path, settings: TokenizerSettings) -> tuple[Tokenizer, dict[str, str]]:
    """The tokenizer in `folder` and its named special tokens ("mask_token" -> "[MASK]").

    tokenizer.json is taken as it is, but for what the settings state otherwise; vocab.txt alone makes BERT's WordPiece.
    Raises CheckpointError when neither is there or readable.
    """
    if (folder / TOKENIZER_NAME).is_file():
        backend = _from_tokenizer_json(folder / TOKENIZER_NAME)
    elif (folder / VOCABULARY_NAME).is_file():
        backend = _from_vocabulary(folder / VOCABULARY_NAME, settings)
    else:
        here = listed(sorted(entry.name for entry in folder.iterdir()))
        wanted = f"neither {TOKENIZER_NAME} nor {VOCABULARY_NAME}"
        raise CheckpointError(f"{folder} has {wanted}; it holds {here or 'nothing'}")
    special = {name: token.content for name, token in settings.special_tokens.items()}
    if _is_bert(backend, settings):
        special = BERT_SPECIAL_TOKENS | special
        _set_normalization(backend, settings)
    special = {name: special[name] for name in SPECIAL_TOKEN_NAMES if name in special}
    _add_tokens(backend, settings, special)
    if backend.post_processor is None and _is_bert(backend, settings):
        backend.post_processor = _bert_template(backend, special["cls_token"], special["sep_token"])
    return backend, special


def _from_tokenizer_json(file: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises Exception itself for a file it cannot read
        raise CheckpointError(f"{file} cannot be read by the tokenizers library: {error}") from error


def _from_vocabulary(file: Path, settings: TokenizerSettings) -> Tokenizer:
    if settings.tokenizer_class not in (None, *BERT_CLASSES):
        raise CheckpointError(
            f"{file.parent} has a {settings.tokenizer_class} without {TOKENIZER_NAME}; from {VOCABULARY_NAME} alone "
            f"bertcore builds {', '.join(BERT_CLASSES)}"
        )
    stated = settings.special_tokens.get("unk_token")
    unknown = stated.content if stated else BERT_SPECIAL_TOKENS["unk_token"]
    try:
        model = models.WordPiece.from_file(str(file), unk_token=unknown)
    except Exception as error:  # the library raises Exception itself for a file it cannot read
        raise CheckpointError(f"{file} cannot be read as a vocabulary: {error}") from error
    if model.token_to_id(unknown) is None:
        raise CheckpointError(f"{file} lacks the unknown token {unknown!r}")
    backend = Tokenizer(model)
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    return backend


def _is_bert(backend: Tokenizer, settings: TokenizerSettings) -> bool:
    if settings.tokenizer_class is None:
        return isinstance(backend.model, models.WordPiece)
    return settings.tokenizer_class in BERT_CLASSES


def _set_normalization(backend: Tokenizer, settings: TokenizerSettings) -> None:
    """tokenizer_config.json wins over tokenizer.json, as in transformers."""
    if not isinstance(backend.normalizer, normalizers.BertNormalizer):
        return
    for key, value in settings.normalization.items():
        setattr(backend.normalizer, NORMALIZATION[key], value)


def _add_tokens(backend: Tokenizer, settings: TokenizerSettings, special: dict[str, str]) -> None:
    """Adds what the files state and the tokenizer lacks: tokens with ids first, then special ones."""
    present = {token.content for token in backend.get_added_tokens_decoder().values()}
    for number, token in settings.added_tokens.items():
        if token.content not in present:
            backend.add_tokens([_added_token(token)])
        if backend.token_to_id(token.content) != number:
            raise CheckpointError(
                f"tokenizer files: added token {token.content!r} has the id {number}, but the vocabulary gives it "
                f"{backend.token_to_id(token.content)}"
            )
        present.add(token.content)
    named = [settings.special_tokens.get(name, AddedTokenSettings(content)) for name, content in special.items()]
    missing = [token for token in (*named, *settings.extra_special_tokens) if token.content not in present]
    backend.add_special_tokens([_added_token(token) for token in missing])


def _added_token(token: AddedTokenSettings) -> AddedToken:
    return AddedToken(**vars(token))


def _bert_template(backend: Tokenizer, cls: str, sep: str) -> processors.PostProcessor:
    return processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(cls, backend.token_to_id(cls)), (sep, backend.token_to_id(sep))],
    )
