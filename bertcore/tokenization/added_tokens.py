"""Tokens that are matched in the text before it is split."""

from dataclasses import dataclass

from .errors import WrongSetting


@dataclass(frozen=True)
class AddedTokenSettings:
    """A token matched in the text before it is split; field names are those of `tokenizers.AddedToken`."""

    content: str
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False
    special: bool = True

    def __post_init__(self) -> None:
        try:
            self.content.encode()
        except UnicodeEncodeError as error:
            raise WrongSetting("", f"the token {self.content!r} is not valid Unicode") from error
