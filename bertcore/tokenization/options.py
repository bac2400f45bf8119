"""The options of a tokenizer's call: what transformers' arguments mean, checked before anything is done."""

import sys
from dataclasses import dataclass

from bertcore.arguments import check_count, warn_caller
from bertcore.kernels import checks

from .settings import UNKNOWN_LENGTH

PADDINGS = {False: None, "do_not_pad": None, True: "longest", "longest": "longest", "max_length": "max_length"}
TRUNCATIONS = {
    False: None, "do_not_truncate": None, True: "longest_first", "longest_first": "longest_first",
    "only_first": "only_first", "only_second": "only_second",
}  # fmt: skip

# Far beyond any model's; rows of padding take their memory, whatever the text.
LONGEST_PADDING = 2**31 - 1


@dataclass(frozen=True)
class Truncation:
    """Cutting to max_length tokens, special ones included.

    strategy: "longest_first" | "only_first" | "only_second"; stride: tokens that a cut-off piece repeats.
    side: from which side tokens are taken away.
    """

    strategy: str
    max_length: int
    stride: int
    side: str


@dataclass(frozen=True)
class Padding:
    """Filling up: strategy "longest", "max_length" (to `length`) or None; rounded up to `multiple`."""

    strategy: str | None
    length: int
    multiple: int
    side: str

    def target(self, lengths: list[int]) -> int:
        """The length every row is padded to (longer ones stay as they are)."""
        length = self.length if self.strategy == "max_length" else max(lengths, default=0)
        return -(-length // self.multiple) * self.multiple


def _choice(name: str, value, choices):
    """`value` looked up in `choices`; ValueError naming them when it is not there."""
    if isinstance(value, (bool, str)) and value in choices:
        return choices[value]
    raise ValueError(f"{name} is {value!r}, expected one of {', '.join(map(repr, choices))}")


def check_tensors(return_tensors) -> None:
    """ValueError for what is neither None (lists) nor "np"."""
    checks.choice("return_tensors", return_tensors, (None, "np"))


def read_truncation(
    truncation, max_length, padding, *, pair, stride, side, special, model_max_length
) -> Truncation | None:
    """The truncation that the arguments of a call ask for.

    As in transformers, truncation=None with a max_length and without padding means truncation. `special` is the number
    of special tokens that will be added, `pair` whether there are two texts.
    """
    stride = check_count("stride", stride, 0)
    if truncation is None:
        truncation = max_length is not None and padding is False
        if max_length is not None and padding in (True, "longest"):
            warn_caller("max_length does nothing beside padding=True; pass truncation=True to cut")
    strategy = _choice("truncation", truncation, TRUNCATIONS)
    if strategy is None:
        return None
    if strategy == "only_second" and not pair:
        raise ValueError("truncation='only_second' needs text_pair")
    length = _length("truncation", max_length, model_max_length)
    if length < special:
        raise ValueError(f"max_length is {length}, expected at least {special}: so many special tokens are added")
    # Two texts that are both too long share the room.
    piece = (length - special) // 2 if pair and strategy == "longest_first" else length - special
    if stride and stride >= piece:
        raise ValueError(f"stride is {stride}, expected less than the {piece} tokens that a piece may have")
    return Truncation(
        strategy, min(length, sys.maxsize), stride, side
    )  # the library takes no longer one; no text has it


def read_padding(padding, max_length, multiple, *, side, truncation: Truncation | None, model_max_length) -> Padding:
    """The padding that the arguments of a call ask for."""
    strategy = _choice("padding", padding, PADDINGS)
    if side not in ("left", "right"):
        raise ValueError(f"padding_side is {side!r}, expected 'left' or 'right'")
    multiple = 1 if multiple is None else check_count("pad_to_multiple_of", multiple, 1, LONGEST_PADDING)
    if strategy and truncation and truncation.max_length % multiple:
        raise ValueError(f"max_length is {truncation.max_length}, expected a multiple of pad_to_multiple_of={multiple}")
    length = _length("padding='max_length'", max_length, model_max_length) if strategy == "max_length" else 0
    if length > LONGEST_PADDING:
        raise ValueError(f"max_length is {length}, expected at most {LONGEST_PADDING} with padding='max_length'")
    return Padding(strategy, length, multiple, side)


def _length(what: str, max_length, model_max_length: int) -> int:
    if max_length is not None:
        return check_count("max_length", max_length, 0)
    if model_max_length >= UNKNOWN_LENGTH:
        raise ValueError(f"{what} needs max_length: the tokenizer's files state no model_max_length")
    return model_max_length
