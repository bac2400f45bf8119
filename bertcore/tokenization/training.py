"""Learn a vocabulary from texts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from bertcore.arguments import check_count

from .families import FAMILIES, TokenizerFamily
from .inputs import check_unicode
from .settings import UNKNOWN_LENGTH, TokenizerSettings
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend
    from tokenizers import models

    from .backend import Built

# The kind of a vocabulary -> the default class, and the name of its builder.
KINDS = {
    "wordpiece": ("BertTokenizer", "word_piece"),
    "bpe": ("RobertaTokenizer", "byte_bpe"),
    "unigram": ("AlbertTokenizer", "unigram"),
}
BYTES = 256
LEAST_LETTERS = 4
REPEATED = 1000  # occurrences of a word in one text
DIGITS = 6  # of scores, which are logarithms of probabilities
# The order of special tokens, by the token that begins a text, as in the published vocabularies, whose ids stand in
# configs (and transformers expects XLNet's unknown token first).
ORDERS = {
    "<s>": ("bos_token", "pad_token", "eos_token", "unk_token", "mask_token"),
    "<cls>": ("unk_token", "bos_token", "eos_token", "cls_token", "sep_token", "pad_token", "mask_token"),
}
ORDER = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token", "bos_token", "eos_token")


def train_tokenizer(
    texts: Iterable[str],
    *,
    kind: str | None = None,
    vocab_size: int = 8192,
    tokenizer_class: str | None = None,
    min_frequency: int = 2,
    lower_case: bool | None = None,
    model_max_length: int = UNKNOWN_LENGTH,
) -> Tokenizer:
    """Train a tokenizer: learn its vocabulary from texts.

    The same texts give the same "wordpiece" and "bpe" vocabularies. For "unigram" two processes may choose differently
    among equally good pieces, which shows when texts are few.

    Args:
        texts: strings, read once; any iterable.
        kind: "wordpiece" (BERT's, https://arxiv.org/abs/1609.08144), "bpe" (byte-level,
            https://openai.com/index/better-language-models) or "unigram" (https://arxiv.org/abs/1804.10959); by
            default the kind of `tokenizer_class`, or "wordpiece".
        vocab_size: the most tokens, special ones included.
        tokenizer_class: the family that gives special tokens and rules, by its name in transformers; by default
            BertTokenizer, RobertaTokenizer or AlbertTokenizer.
        min_frequency: the fewest occurrences of a pair that becomes a token of "wordpiece" or "bpe".
        lower_case: lower-case texts (and, for BERT and ALBERT, strip accents); None for the family's default.
            Byte-level BPE cannot.
        model_max_length: the most tokens that the model takes.

    Raises:
        TypeError: for a text that is not a string, with its number.
        ValueError: for an unknown kind or class, a vocabulary too small for its special tokens and bytes, or empty
            texts.
    """
    name, family = _family(kind, tokenizer_class)
    settings = _settings(name, family, lower_case, check_count("model_max_length", model_max_length, 1))
    min_frequency = check_count("min_frequency", min_frequency, 1)
    return Tokenizer(_trained(texts, family, settings, vocab_size, min_frequency), settings)


def _family(kind: str | None, name: str | None) -> tuple[str, TokenizerFamily]:
    if kind not in (None, *KINDS):
        raise ValueError(f"kind is {kind!r}, expected one of {', '.join(KINDS)}")
    name = name or KINDS[kind or "wordpiece"][0]
    family = FAMILIES.get(name.removesuffix("Fast"))
    if family is None or family.entities:
        known = ", ".join(known for known, one in FAMILIES.items() if not one.entities)
        raise ValueError(f"tokenizer_class is {name!r}, expected one of {known}")
    if kind is not None and KINDS[kind][1] != family.model:
        own = next(known for known, (_, model) in KINDS.items() if model == family.model)
        raise ValueError(f"kind is {kind!r}; a {name} is of the kind {own!r}")
    return name.removesuffix("Fast"), family


def _settings(name: str, family: TokenizerFamily, lower_case: bool | None, longest: int) -> TokenizerSettings:
    options: dict[str, bool | None] = {}
    if lower_case is not None:
        if not isinstance(lower_case, bool):
            raise TypeError(f"lower_case is {lower_case!r}, expected True, False or None")
        can = family.model == "word_piece" or "lower_case" in family.normalization
        if lower_case and not can:
            raise ValueError(f"lower_case is True, but a {name} keeps upper case")
        options = {"do_lower_case": lower_case} if can else {}
    return TokenizerSettings(tokenizer_class=name, options=options, model_max_length=longest)


def _trained(
    texts: Iterable[str], family: TokenizerFamily, settings: TokenizerSettings, vocab_size: int, min_frequency: int
) -> Built:
    """Train the library's tokenizer and add its special tokens."""
    from tokenizers import Tokenizer as Backend

    from .backend import completed, special_tokens
    from .builders import MODELS, set_steps
    from .engine import library_errors

    special = {name: token.content for name, token in special_tokens(family, settings).items()}
    order = ORDERS.get(special.get("cls_token", ""), ORDER)
    first = list(dict.fromkeys(special[name] for name in order if name in special))
    least = len(first) + (BYTES if family.model == "byte_bpe" else LEAST_LETTERS)
    vocab_size = check_count("vocab_size", vocab_size, least)
    backend = Backend(MODELS[family.model]())
    set_steps(backend, family, settings)
    texts = _checked(texts)
    with library_errors():
        if family.model == "word_piece":
            backend.model = _word_piece(backend, texts, first, vocab_size, min_frequency, special["unk_token"])
        elif family.model == "byte_bpe":
            backend.model = _byte_bpe(backend, texts, first, vocab_size, min_frequency)
        else:
            backend.model = _unigram(backend, texts, first, vocab_size, special["unk_token"])
    return completed(backend, [], family, settings)


def _byte_bpe(backend: Backend, texts: Iterator[str], first: list[str], vocab_size: int, least: int) -> models.BPE:
    from tokenizers import pre_tokenizers, trainers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    options = {"vocab_size": vocab_size, "special_tokens": first, "min_frequency": least}
    return _model_of(backend, texts, trainers.BpeTrainer(**options, initial_alphabet=alphabet, show_progress=False))


def _word_piece(
    backend: Backend, texts: Iterator[str], first: list[str], vocab_size: int, min_frequency: int, unknown: str
) -> models.WordPiece:
    """Train WordPiece reproducibly.

    The library numbers letters in the order of a hash table, which differs from run to run, and breaks ties by these
    numbers. So words are counted first, and letters are numbered here.
    """
    from tokenizers import Tokenizer as Backend
    from tokenizers import models, pre_tokenizers, trainers

    counter = trainers.WordPieceTrainer(vocab_size=0, show_progress=False)
    _model_of(backend, texts, counter)
    words = json.loads(counter.__getstate__())["WordPieceTrainer"]["bpe_trainer"]["words"]
    letters = Counter[str]()
    for word, count in words.items():
        for letter in word:
            letters[letter] += count
    # A letter takes two tokens, one that begins a word and one that does not; rare letters give way to words.
    common = sorted(letters, key=lambda letter: (-letters[letter], letter))[: (vocab_size - len(first)) // 4]
    kept, alphabet = set(common), sorted(common)
    known = [*first, *alphabet, *(f"##{letter}" for letter in alphabet)]
    again = Backend(models.WordPiece())
    again.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    options = {"vocab_size": vocab_size, "special_tokens": known, "min_frequency": min_frequency}
    counted = ((word, count) for word, count in sorted(words.items()) if kept.issuperset(word))
    model = _model_of(again, _repeated(counted), trainers.WordPieceTrainer(**options, show_progress=False))
    return models.WordPiece(Backend(model).get_vocab(with_added_tokens=False), unk_token=unknown)


def _repeated(counted: Iterable[tuple[str, int]]) -> Iterator[str]:
    """Yield texts that hold each word as often as it was counted."""
    for word, count in counted:
        for start in range(0, count, REPEATED):
            yield f"{word} " * min(REPEATED, count - start)


def _unigram(backend: Backend, texts: Iterator[str], first: list[str], vocab_size: int, unknown: str) -> models.Unigram:
    """Train a unigram model as reproducibly as the library allows.

    The library sums in the order of a hash table, which differs from run to run, and so do the last bits of scores and
    the order of the letters that it adds at the end. So scores are rounded, and these letters sorted. The last bits
    also decide among equally good pieces, and that stays.
    """
    from tokenizers import Tokenizer as Backend
    from tokenizers import models, trainers

    options = {"vocab_size": vocab_size, "special_tokens": first, "unk_token": unknown}
    model = _model_of(backend, texts, trainers.UnigramTrainer(**options, show_progress=False))
    vocabulary = json.loads(Backend(model).to_str())["model"]["vocab"]
    scores = {piece: round(score, DIGITS) for piece, score in vocabulary if piece not in first}
    pieces = sorted(scores, key=lambda piece: (-scores[piece], piece))
    added = len(pieces) - next((place for place in range(len(pieces), 0, -1) if len(pieces[place - 1]) > 1), 0)
    ordered = [*pieces[: len(pieces) - added], *sorted(pieces[len(pieces) - added :])]
    ranked = [(piece, scores[other]) for piece, other in zip(ordered, pieces, strict=True)]
    return models.Unigram([*((token, 0.0) for token in first), *ranked], first.index(unknown), False)


def _model_of(backend: Backend, texts: Iterator[str], trainer: Any) -> Any:
    backend.train_from_iterator(texts, trainer)
    return backend.model


def _checked(texts: Iterable[str]) -> Iterator[str]:
    if isinstance(texts, str):
        raise TypeError("texts is a string, expected an iterable of strings")
    has_any = False
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"texts[{number}] is {type(text).__name__}, expected a string")
        check_unicode(f"texts[{number}]", text)
        has_any = has_any or bool(text.strip())
        yield text
    if not has_any:
        raise ValueError("texts has no words to learn from")
