"""Tokens that are matched in the text before it is split."""

from dataclasses import dataclass


@dataclass(frozen=True)
class AddedTokenSettings:
    """A token matched in the text before it is split; field names are those of `tokenizers.AddedToken`."""

    content: str
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False
    special: bool = True
