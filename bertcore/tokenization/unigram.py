"""SentencePiece's unigram model (Kudo 2018, https://arxiv.org/abs/1804.10959) from its .model file."""

from collections.abc import Mapping
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from bertcore.checkpoint.files import CheckpointError

from .families import TokenizerFamily
from .sentencepiece_file import SentencePieceModel, read_sentencepiece
from .settings import TokenizerSettings

SPACE = "\u2581"  # what stands for a space in pieces


def build(files: list[Path], family: TokenizerFamily, special: Mapping[str, str], settings: TokenizerSettings):
    """The tokenizer of a SentencePiece file; CheckpointError when it is broken or of a kind that no member uses."""
    (file,) = files
    source = read_sentencepiece(file)
    pieces = _vocabulary(source, family, special)
    ids = {piece: number for number, (piece, _) in enumerate(pieces)}
    unknown = ids.get(special["unk_token"], ids.get(source.unknown))
    if unknown is None or len(ids) != len(pieces):
        raise CheckpointError(f"{file} has other first pieces than {family.layout} expects")
    backend = Tokenizer(models.Unigram(pieces, unknown, source.byte_fallback))
    backend.add_tokens([AddedToken(piece, normalized=False, special=control) for piece, control in source.symbols])
    set_steps(backend, family, settings, source)
    return backend


def _vocabulary(source: SentencePieceModel, family: TokenizerFamily, special: Mapping[str, str]):
    def piece(entry):
        return (special[entry], 0.0) if isinstance(entry, str) else entry

    layout = family.layout
    return [*map(piece, layout.head), *source.pieces[layout.skipped :], *map(piece, layout.tail)]


def set_steps(
    backend: Tokenizer, family: TokenizerFamily, settings: TokenizerSettings, source: SentencePieceModel
) -> None:
    """Give the tokenizer the family's steps before and after the model; `source` says what its file has of them."""

    def option(name):
        return bool(settings.option(name, family))

    steps = [step for name in family.normalization for step in NORMALIZERS[name](option, source)]
    if steps:
        backend.normalizer = normalizers.Sequence(steps) if len(steps) > 1 else steps[0]
    prefix = settings.options.get("add_prefix_space")
    prefix = source.add_dummy_prefix if prefix is None else prefix
    scheme = "always" if prefix else "never" if family.splits_at_spaces else "first"
    splits = [pre_tokenizers.WhitespaceSplit()] if family.splits_at_spaces else []
    splits += [pre_tokenizers.Punctuation(behavior="isolated")] if option("split_by_punct") else []
    backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, pre_tokenizers.Metaspace(SPACE, scheme)])
    backend.decoder = decoders.Metaspace(SPACE, scheme)
    if source.byte_fallback:
        backend.decoder = decoders.Sequence([decoders.Metaspace(SPACE, scheme), decoders.ByteFallback()])


# The name of a step -> what makes it, as a list that is empty where the settings or the file leave it out.
NORMALIZERS = {
    "quotes": lambda option, source: [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')],
    "accents": lambda option, source: (
        [] if option("keep_accents") else [normalizers.NFKD(), normalizers.StripAccents()]
    ),
    "lower_case": lambda option, source: [normalizers.Lowercase()] if option("do_lower_case") else [],
    "charsmap": lambda option, source: [normalizers.Precompiled(source.charsmap)] if source.charsmap else [],
    "single_spaces": lambda option, source: [normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " ")],
    "composed": lambda option, source: [normalizers.NFC()],
    "right_strip": lambda option, source: [normalizers.Strip(left=False, right=True)],
}
