"""Types of the benchmarks' options: a wrong number is an error of the command line that names the option."""

import argparse
import math
from collections.abc import Callable
from typing import Any

from bertcore.cli.options import ABOVE_0, Kind, between


def _type_of(kind: Kind) -> Callable[[str], Any]:
    """Return argparse's type for a kind of option of bertcore's own commands."""

    def number(text: str) -> Any:
        try:
            return kind.read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"is {text!r}, expected {kind.expected}") from error

    return number


def at_least(least: int) -> Callable[[str], int]:
    """Return the type of an option that is an integer from `least` up."""
    return _type_of(Kind(between(int, least, math.inf), f"an integer from {least} up"))


positive = at_least(1)
above_zero = _type_of(ABOVE_0)
