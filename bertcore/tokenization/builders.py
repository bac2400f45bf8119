"""Make a tokenizer of the library from a family's vocabulary files, and set its normalization.

WordPiece (BERT's), byte-level BPE (GPT-2's, https://openai.com/index/better-language-models) and SentencePiece's
unigram model (Kudo 2018, https://arxiv.org/abs/1804.10959).
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from bertcore.checkpoint.files import CheckpointError, listed, read_complete, read_json_object

from .families import TokenizerFamily
from .sentencepiece_file import SentencePieceModel, read_sentencepiece
from .settings import TOKENIZER_JSON, TokenizerSettings

# A family's model -> the library's class.
MODELS = {"word_piece": models.WordPiece, "byte_bpe": models.BPE, "unigram": models.Unigram}
SPACE = "\u2581"  # stands for a space in SentencePiece's pieces

# transformers' name of a setting -> its name in `tokenizers.normalizers.BertNormalizer`, which has the same defaults
# (lower case, accents stripped with it, Chinese characters apart).
NORMALIZATION = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
PIPELINE_OPTIONS = frozenset([*NORMALIZATION, "keep_accents", "split_by_punct", "add_prefix_space"])

# The name of a step -> a function that makes it, as a list: empty if the settings or the file omit the step.
NORMALIZERS: Mapping[str, Callable[[Callable[[str], bool], SentencePieceModel], list[normalizers.Normalizer]]] = {
    "quotes": lambda option, source: [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')],
    "accents": lambda option, _: [] if option("keep_accents") else [normalizers.NFKD(), normalizers.StripAccents()],
    "lower_case": lambda option, source: [normalizers.Lowercase()] if option("do_lower_case") else [],
    "charsmap": lambda option, source: [normalizers.Precompiled(source.charsmap)] if source.charsmap else [],
    "single_spaces": lambda option, source: [normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " ")],
    "composed": lambda option, source: [normalizers.NFC()],
    "right_strip": lambda option, source: [normalizers.Strip(left=False, right=True)],
}


def build(
    files: list[Path], family: TokenizerFamily, special: Mapping[str, str], settings: TokenizerSettings
) -> Tokenizer:
    """Make the tokenizer of a family's vocabulary files. Raises CheckpointError if they are broken."""
    source = None
    if family.model == "word_piece":
        backend = Tokenizer(_word_piece(*files, special["unk_token"]))
    elif family.model == "byte_bpe":
        backend = Tokenizer(_byte_bpe(*files))
    else:
        source = read_sentencepiece(*files)
        backend = Tokenizer(_unigram(*files, source, family, special))
        extra = tuple((entry[0], True) for entry in family.pieces.tail if isinstance(entry, tuple))
        symbols = (*source.symbols, *extra)
        backend.add_tokens([AddedToken(piece, normalized=False, special=control) for piece, control in symbols])
    set_steps(backend, family, settings, source)
    return backend


def _word_piece(file: Path, unknown: str) -> models.WordPiece:
    """Read a vocab.txt, one token a line."""
    read_complete(file)  # its size is checked
    try:
        model = models.WordPiece.from_file(str(file), unk_token=unknown)
    except Exception as error:  # the library raises Exception itself for a file it cannot read
        raise CheckpointError(f"{file} cannot be read as a vocabulary: {error}") from error
    if model.token_to_id(unknown) is None:
        raise CheckpointError(f"{file} lacks the unknown token {unknown!r}")
    return model


def _byte_bpe(vocabulary_file: Path, merges_file: Path) -> models.BPE:
    """Read a vocab.json (token -> id, without gaps) and a merges.txt (two tokens a line, in order of their rank)."""
    vocabulary = _read_vocabulary(vocabulary_file)
    merges = _read_merges(merges_file, vocabulary)
    try:
        return models.BPE(vocabulary, merges, continuing_subword_prefix="", end_of_word_suffix="")
    except Exception as error:  # the library raises Exception itself, for a lone surrogate in a token
        raise CheckpointError(f"{vocabulary_file} cannot be read by the tokenizers library: {error}") from error


def _read_vocabulary(file: Path) -> dict[str, int]:
    vocabulary = read_json_object(file)
    wrong = [token for token, number in vocabulary.items() if type(number) is not int]
    if wrong:
        raise CheckpointError(f"{file}: the id of {wrong[0]!r} is {vocabulary[wrong[0]]!r}, expected an integer")
    if json.loads(read_complete(file), object_pairs_hook=len) != len(vocabulary):
        raise CheckpointError(f"{file}: a token occurs twice")
    ids = set(vocabulary.values())
    if len(ids) != len(vocabulary):
        raise CheckpointError(f"{file}: {len(vocabulary)} tokens share {len(ids)} ids, expected one for each")
    if ids != set(range(len(ids))):
        missing = listed([str(number) for number in range(len(ids)) if number not in ids])
        raise CheckpointError(f"{file}: {len(ids)} tokens have ids other than 0 to {len(ids) - 1}: {missing} missing")
    return vocabulary


def _read_merges(file: Path, vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    try:
        lines = read_complete(file).decode("utf-8").replace("\r\n", "\n").split("\n")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{file} is not UTF-8: {error}") from error
    first = 1 if lines[0].startswith("#version") else 0
    merges = []
    for number, line in enumerate(lines[first:], first + 1):
        if not line.strip("\r"):
            continue
        parts = tuple(line.rstrip("\r").split(" "))
        if len(parts) != 2:
            raise CheckpointError(f"{file}: line {number} has {len(parts)} parts, expected two tokens")
        unknown = [token for token in (*parts, "".join(parts)) if token not in vocabulary]
        if unknown:
            raise CheckpointError(f"{file}: line {number} merges {parts}; the vocabulary lacks {unknown[0]!r}")
        merges.append(parts)
    return merges


def _unigram(
    file: Path, source: SentencePieceModel, family: TokenizerFamily, special: Mapping[str, str]
) -> models.Unigram:
    def piece(entry):
        return (special[entry], 0.0) if isinstance(entry, str) else entry

    changes = family.pieces
    pieces = [*map(piece, changes.head), *source.pieces[changes.skipped :], *map(piece, changes.tail)]
    ids = {piece: number for number, (piece, _) in enumerate(pieces)}
    unknown = ids.get(special["unk_token"], ids.get(source.unknown))
    if unknown is None or len(ids) != len(pieces):
        raise CheckpointError(f"{file} has first pieces that differ from those of {changes}")
    return models.Unigram(pieces, unknown, source.byte_fallback)


def set_steps(
    backend: Tokenizer, family: TokenizerFamily, settings: TokenizerSettings, source: SentencePieceModel | None = None
) -> None:
    """Set the family's steps before and after the model; `source` is the SentencePiece file, if it has one."""
    if family.model == "word_piece":
        backend.normalizer = normalizers.BertNormalizer()
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.WordPiece(prefix="##")
        _set_normalization(backend, settings)
    elif family.model == "byte_bpe":
        prefix_space = bool(settings.option("add_prefix_space", family))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
        backend.decoder = decoders.ByteLevel()
    else:
        _set_unigram_steps(backend, family, settings, source or SentencePieceModel((), (), ""))


def _set_unigram_steps(
    backend: Tokenizer, family: TokenizerFamily, settings: TokenizerSettings, source: SentencePieceModel
) -> None:
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


def options_of(backend: Tokenizer) -> dict[str, bool | None]:
    """Return the tokenizer's current values of the settings that tokenizer_config.json may change in it."""
    options = {}
    if isinstance(backend.normalizer, normalizers.BertNormalizer):
        options = {key: getattr(backend.normalizer, attribute) for key, attribute in NORMALIZATION.items()}
    for step in _pre_tokenizers(backend):
        if isinstance(step, pre_tokenizers.ByteLevel):
            options["add_prefix_space"] = step.add_prefix_space
        elif isinstance(step, pre_tokenizers.Metaspace):
            options["add_prefix_space"] = step.prepend_scheme != "never"
    return options


def set_options(backend: Tokenizer, settings: TokenizerSettings) -> None:
    """Change a tokenizer from tokenizer.json as the settings state: they win, as in transformers.

    Raises ValueError for an option that the caller gave and that this tokenizer.json cannot follow.
    """
    unable = settings.overridden & PIPELINE_OPTIONS - options_of(backend).keys()
    if unable:
        raise ValueError(f"{TOKENIZER_JSON} has nothing that {', '.join(sorted(unable))} could change")
    _set_normalization(backend, settings)
    prefix_space = settings.options.get("add_prefix_space")
    # An equal value changes nothing, so that LUKE's own setting for offsets stays.
    if prefix_space is None or options_of(backend).get("add_prefix_space", prefix_space) == prefix_space:
        return
    for step in _pre_tokenizers(backend):
        if isinstance(step, pre_tokenizers.ByteLevel):
            step.add_prefix_space = prefix_space
        elif isinstance(step, pre_tokenizers.Metaspace):
            step.prepend_scheme = "always" if prefix_space else "never"
    if isinstance(backend.post_processor, processors.RobertaProcessing):
        backend.post_processor.add_prefix_space = prefix_space


def _set_normalization(backend: Tokenizer, settings: TokenizerSettings) -> None:
    if isinstance(backend.normalizer, normalizers.BertNormalizer):
        for key in NORMALIZATION.keys() & settings.options.keys():
            setattr(backend.normalizer, NORMALIZATION[key], settings.options[key])


def _pre_tokenizers(backend: Tokenizer) -> list[pre_tokenizers.PreTokenizer]:
    found = backend.pre_tokenizer
    return list(found) if isinstance(found, pre_tokenizers.Sequence) else [found]
