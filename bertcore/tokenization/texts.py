"""Checking the texts given to a tokenizer."""

from dataclasses import dataclass

WORDS = (list, tuple)


@dataclass(frozen=True)
class Texts:
    """The texts of a call.

    first, second: lists of strings, or of lists of words when `split`; second is None without text_pair.
    batched: whether the call gave a list of texts rather than one.
    """

    first: list
    second: list | None
    batched: bool
    split: bool = False

    def inputs(self) -> list[tuple]:
        """One text or pair for each row."""
        columns = [self.first] if self.second is None else [self.first, self.second]
        return list(zip(*columns, strict=True))

    def name(self, argument: str, row: int) -> str:
        """What an error calls one text."""
        return f"{argument}[{row}]" if self.batched else argument

    def check_unicode(self) -> None:
        """Raises ValueError, naming the text, for the first one that cannot be written as UTF-8."""
        for argument, column in (("text", self.first), ("text_pair", self.second or [])):
            for row, text in enumerate(column):
                name = self.name(argument, row)
                strings = [(f"{name}[{word}]", string) for word, string in enumerate(text)]
                for where, string in strings if self.split else [(name, text)]:
                    _check_unicode(string, where)


def read_texts(text, text_pair, split: bool) -> Texts:
    """Both arguments of a call checked, or an error that names what is wrong and where.

    split: texts come as lists of words.
    """
    single = not (text and isinstance(text[0], WORDS)) if split and isinstance(text, WORDS) else isinstance(text, str)
    if not single:
        return _read_batch(text, text_pair, split)
    _check_text("text", text, split)
    if text_pair is not None:
        _check_text("text_pair", text_pair, split, ", as text is one")
    first, second = (list(one) if isinstance(one, tuple) else one for one in (text, text_pair))
    return Texts([first], None if second is None else [second], batched=False, split=split)


def _read_batch(text, text_pair, split: bool) -> Texts:
    first = _check_batch("text", text, split)
    second = None if text_pair is None else _check_batch("text_pair", text_pair, split)
    if second is not None and len(second) != len(first):
        raise ValueError(f"text_pair has {len(second)} texts, expected {len(first)}, one for each of text")
    return Texts(first, second, batched=True, split=split)


def _check_batch(argument: str, texts, split: bool) -> list:
    if not isinstance(texts, WORDS):
        expected = "a list of words, or a list of such lists" if split else "a string or a list of strings"
        raise TypeError(f"{argument} is {type(texts).__name__}, expected {expected}")
    for row, text in enumerate(texts):
        _check_text(f"{argument}[{row}]", text, split)
    return [list(text) for text in texts] if split else list(texts)


def _check_text(name: str, text, split: bool, why: str = "") -> None:
    if not isinstance(text, WORDS if split else str):
        expected = "a list of words (is_split_into_words)" if split else "a string"
        raise TypeError(f"{name} is {type(text).__name__}, expected {expected}{why}")
    for number, word in enumerate(text) if split else ():
        if not isinstance(word, str):
            raise TypeError(f"{name}[{number}] is {type(word).__name__}, expected a string")


def _check_unicode(text: str, name: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} is not valid Unicode: a lone surrogate at character {error.start}") from error
