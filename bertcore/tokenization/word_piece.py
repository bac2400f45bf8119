"""BERT's WordPiece from vocab.txt."""

from collections.abc import Mapping
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from bertcore.checkpoint.files import CheckpointError

from .families import TokenizerFamily
from .settings import TokenizerSettings

# transformers' name of a setting -> that of `tokenizers.normalizers.BertNormalizer`, whose defaults (lower case,
# accents stripped with it, Chinese characters apart) are transformers' too.
NORMALIZATION = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}


def build(files: list[Path], family: TokenizerFamily, special: Mapping[str, str], settings: TokenizerSettings):
    """The tokenizer of a vocab.txt, one token a line. CheckpointError when it cannot be read or lacks unk_token."""
    (file,) = files
    unknown = special["unk_token"]
    try:
        model = models.WordPiece.from_file(str(file), unk_token=unknown)
    except Exception as error:  # the library raises Exception itself for a file it cannot read
        raise CheckpointError(f"{file} cannot be read as a vocabulary: {error}") from error
    if model.token_to_id(unknown) is None:
        raise CheckpointError(f"{file} lacks the unknown token {unknown!r}")
    backend = Tokenizer(model)
    set_steps(backend, settings)
    return backend


def set_steps(backend: Tokenizer, settings: TokenizerSettings) -> None:
    """Give the tokenizer BERT's steps before and after the model."""
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    set_normalization(backend, settings)


def normalization_of(backend: Tokenizer) -> dict[str, bool | None]:
    """The settings that BERT's normalisation follows now; none when the tokenizer has another."""
    if not isinstance(backend.normalizer, normalizers.BertNormalizer):
        return {}
    return {key: getattr(backend.normalizer, attribute) for key, attribute in NORMALIZATION.items()}


def set_normalization(backend: Tokenizer, settings: TokenizerSettings) -> None:
    """Lets BERT's normalisation follow the settings."""
    for key in normalization_of(backend).keys() & settings.options.keys():
        setattr(backend.normalizer, NORMALIZATION[key], settings.options[key])
