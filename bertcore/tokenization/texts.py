"""Checking the texts given to a tokenizer."""


def as_lists(text, text_pair) -> tuple[list[str], list[str] | None]:
    """Both arguments as lists of strings, or an error that names what is wrong and where."""
    if isinstance(text, str):
        if not (text_pair is None or isinstance(text_pair, str)):
            raise TypeError(f"text_pair is {type(text_pair).__name__}; expected a string, as text is one")
        return [text], None if text_pair is None else [text_pair]
    texts = _check_texts("text", text)
    if text_pair is None:
        return texts, None
    pairs = _check_texts("text_pair", text_pair)
    if len(pairs) != len(texts):
        raise ValueError(f"text_pair has {len(pairs)} texts; expected {len(texts)}, one for each of text")
    return texts, pairs


def _check_texts(argument: str, texts) -> list[str]:
    if not isinstance(texts, (list, tuple)):
        raise TypeError(f"{argument} is {type(texts).__name__}; expected a string or a list of strings")
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"{argument}[{index}] is {type(text).__name__}; expected a string")
    return list(texts)


def check_unicode(text: str, name: str) -> None:
    """Raises ValueError, with `name`, when the text cannot be written as UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} is not valid Unicode: a lone surrogate at character {error.start}") from error


def text_name(argument: str, index: int, batched: bool) -> str:
    """What an error calls the text number `index` of an argument."""
    return f"{argument}[{index}]" if batched else argument
