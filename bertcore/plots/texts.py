"""The tokens of a text that a picture is of."""

from typing import Any

MOST_TOKENS = 128  # a picture of more cannot be read, and takes gigabytes


def tokens_of(tokenizer: Any, text: str, longest: int | None = None) -> dict[str, list[int]]:
    """What the tokenizer makes of a text; nothing is cut.

    Raises ValueError for more than MOST_TOKENS tokens, and for more than `longest`, which the model reads.
    """
    encoded = dict(tokenizer(text))
    count, most = len(encoded["input_ids"]), min(MOST_TOKENS, longest or MOST_TOKENS)
    if count > most:
        raise ValueError(f"text has {count} tokens, expected at most {most}")
    return encoded
