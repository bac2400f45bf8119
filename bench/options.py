"""Types of the benchmarks' options: a wrong number is an error of the command line that names the option."""

import argparse
import math
from collections.abc import Callable


def at_least(least: int) -> Callable[[str], int]:
    """Return the type of an option that is an integer from `least` on."""

    def number(text: str) -> int:
        try:
            found = int(text)
        except ValueError:
            found = least - 1
        if found < least:
            raise argparse.ArgumentTypeError(f"{text} is not an integer of at least {least}")
        return found

    return number


positive = at_least(1)


def above_zero(text: str) -> float:
    """Return the value of an option that is a finite number above 0."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 < found < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return found
