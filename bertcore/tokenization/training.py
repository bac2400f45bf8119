"""Learning a vocabulary from texts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from bertcore.arguments import check_count

from .families import FAMILIES, TokenizerFamily
from .settings import UNKNOWN_LENGTH, TokenizerSettings
from .tokenizer import Tokenizer

# The kind of a vocabulary -> a family's class that has it, and what families call it.
KINDS = {
    "wordpiece": ("BertTokenizer", "word_piece"),
    "bpe": ("RobertaTokenizer", "byte_bpe"),
    "unigram": ("AlbertTokenizer", "unigram"),
}
BYTES = 256
LEAST_LETTERS = 4
REPEATED = 1000  # words of a text that stands for a count of them
DIGITS = 6  # of scores, which are logarithms of probabilities
# The order of special tokens by the one that begins a text: that of the published vocabularies, whose ids stand in
# configs (and transformers takes it that XLNet's unknown token is the first).
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
    """A tokenizer whose vocabulary is learnt from texts.

    The same texts give the same "wordpiece" and "bpe". Of "unigram" two processes may keep different ones of pieces
    that are equally good, which is seen where there are few texts.

    Args:
        texts: strings, read once; any iterable.
        kind: "wordpiece" (BERT's, https://arxiv.org/abs/1609.08144), "bpe" (byte-level,
            https://openai.com/index/better-language-models) or "unigram" (https://arxiv.org/abs/1804.10959); by
            default that of `tokenizer_class`, or "wordpiece".
        vocab_size: the most tokens, special ones included.
        tokenizer_class: the family whose special tokens and rules it has, as transformers names it; by default
            BertTokenizer, RobertaTokenizer or AlbertTokenizer.
        min_frequency: how often a pair has to occur to become a token of "wordpiece" or "bpe".
        lower_case: whether texts lose upper case (and, for BERT and ALBERT, accents); None for what the family does.
            Byte-level BPE keeps it.
        model_max_length: the most tokens that the model takes.

    Raises:
        TypeError: for a text that is no string, with its number.
        ValueError: for another kind or class, a vocabulary too small for its special tokens and bytes, or texts that
            hold nothing.
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
            raise ValueError(f"lower_case is True, and a {name} keeps upper case")
        options = {"do_lower_case": lower_case} if can else {}
    return TokenizerSettings(tokenizer_class=name, options=options, model_max_length=longest)


def _trained(
    texts: Iterable[str], family: TokenizerFamily, settings: TokenizerSettings, vocab_size: int, min_frequency: int
) -> Any:
    """The library's tokenizer with its special tokens, as `Tokenizer` takes it."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import models

    from .backend import completed, special_tokens
    from .engine import library_errors

    special = {name: token.content for name, token in special_tokens(family, settings).items()}
    order = ORDERS.get(special.get("cls_token", ""), ORDER)
    first = list(dict.fromkeys(special[name] for name in order if name in special))
    least = len(first) + (BYTES if family.model == "byte_bpe" else LEAST_LETTERS)
    vocab_size = check_count("vocab_size", vocab_size, least)
    empty = {"word_piece": models.WordPiece, "byte_bpe": models.BPE, "unigram": models.Unigram}
    backend = Backend(empty[family.model]())
    _set_steps(backend, family, settings)
    with library_errors():
        if family.model == "word_piece":
            backend.model = _word_piece(
                backend, _checked(texts), first, vocab_size, min_frequency, special["unk_token"]
            )
        elif family.model == "byte_bpe":
            backend.model = _byte_bpe(backend, _checked(texts), first, vocab_size, min_frequency)
        else:
            backend.model = _unigram(backend, _checked(texts), first, vocab_size, special["unk_token"])
    return completed(backend, [], family, settings)


def _byte_bpe(backend: Any, texts: Iterator[str], first: list[str], vocab_size: int, min_frequency: int) -> Any:
    from tokenizers import pre_tokenizers, trainers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    options = {"vocab_size": vocab_size, "special_tokens": first, "min_frequency": min_frequency}
    trainer = trainers.BpeTrainer(**options, initial_alphabet=alphabet, show_progress=False)
    return _model_of(backend, texts, trainer)


def _word_piece(
    backend: Any, texts: Iterator[str], first: list[str], vocab_size: int, min_frequency: int, unknown: str
) -> Any:
    """The library numbers letters in the order of a hash table, which differs from run to run, and breaks ties by
    these numbers. So words are counted first, and letters get their numbers here."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import models, pre_tokenizers, trainers

    counter = trainers.WordPieceTrainer(vocab_size=0, show_progress=False)
    _model_of(backend, texts, counter)
    words = json.loads(counter.__getstate__())["WordPieceTrainer"]["bpe_trainer"]["words"]
    letters = Counter[str]()
    for word, count in words.items():
        for letter in word:
            letters[letter] += count
    # A letter has a form that begins a word and one that does not; rare ones leave room for words.
    common = sorted(letters, key=lambda letter: (-letters[letter], letter))[: (vocab_size - len(first)) // 4]
    kept, alphabet = set(common), sorted(common)
    known = [*first, *alphabet, *(f"##{letter}" for letter in alphabet)]
    again = Backend(models.WordPiece())
    again.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    options = {"vocab_size": vocab_size, "special_tokens": known, "min_frequency": min_frequency}
    counted = ((word, count) for word, count in sorted(words.items()) if kept.issuperset(word))
    model = _model_of(again, _repeated(counted), trainers.WordPieceTrainer(**options, show_progress=False))
    vocabulary = Backend(model).get_vocab(with_added_tokens=False)
    return models.WordPiece(vocabulary, unk_token=unknown)


def _repeated(counted: Iterable[tuple[str, int]]) -> Iterator[str]:
    """Texts that hold each word as often as was counted."""
    for word, count in counted:
        for start in range(0, count, REPEATED):
            yield f"{word} " * min(REPEATED, count - start)


def _unigram(backend: Any, texts: Iterator[str], first: list[str], vocab_size: int, unknown: str) -> Any:
    """The library sums in the order of a hash table, which differs from run to run, and so do the last bits of scores
    and the order of the letters that it adds at the end. So scores are rounded, and these letters sorted. The last bits
    also choose among pieces of equal worth, and that stays."""
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


def _model_of(backend: Any, texts: Iterator[str], trainer: Any) -> Any:
    backend.train_from_iterator(texts, trainer)
    return backend.model


def _set_steps(backend: Any, family: TokenizerFamily, settings: TokenizerSettings) -> None:
    from . import byte_bpe, unigram, word_piece
    from .sentencepiece_file import SentencePieceModel

    if family.model == "word_piece":
        word_piece.set_steps(backend, settings)
    elif family.model == "byte_bpe":
        byte_bpe.set_steps(backend, family, settings)
    else:
        unigram.set_steps(backend, family, settings, SentencePieceModel((), (), ""))


def _checked(texts: Iterable[str]) -> Iterator[str]:
    if isinstance(texts, str):
        raise TypeError("texts is a string, expected an iterable of strings")
    has_any = False
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"texts[{number}] is {type(text).__name__}, expected a string")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"texts[{number}] is not valid Unicode: a lone surrogate at {error.start}") from error
        has_any = has_any or bool(text.strip())
        yield text
    if not has_any:
        raise ValueError("texts holds nothing to learn from")
