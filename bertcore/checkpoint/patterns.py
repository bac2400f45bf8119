"""Regular expressions from files, matched in bounded time.

Python's `re` tries the ways to match one after the other, which may take exponential time: a pattern like
(.*.*.*.*)*x in a file would hang the process. Here, all positions where a part of the pattern can end are found at
once, and only once for each position where the part begins.
"""

import importlib
import re
from collections.abc import Iterable
from typing import Any

_constants: Any = importlib.import_module("re._constants")
_parser: Any = importlib.import_module("re._parser")
_compiler: Any = importlib.import_module("re._compiler")

MOST_CHARACTERS = 2000  # of a pattern
MOST_STEPS = 100_000  # of a match, about 0.1 s; patterns of adapters take some hundreds
_REPEATS = (_constants.MAX_REPEAT, _constants.MIN_REPEAT)
_LOOKS = (_constants.ASSERT, _constants.ASSERT_NOT)
# A character, or an assertion about a place, which `re` itself matches in one step.
_SINGLE = {getattr(_constants, name) for name in ("LITERAL", "NOT_LITERAL", "IN", "ANY", "AT", "FAILURE")}


class BoundedPattern:
    """A regular expression of `re`, without references to groups, possessive repeats and atomic groups.

    Raises ValueError for an expression that is invalid, has these, or has more than MOST_CHARACTERS.
    """

    def __init__(self, pattern: str):
        if len(pattern) > MOST_CHARACTERS:
            raise ValueError(f"it has {len(pattern)} characters, expected at most {MOST_CHARACTERS}")
        try:
            self._tree = _parser.parse(pattern)
            self._singles: dict[int, re.Pattern[str]] = {}
            self._prepare(self._tree, self._tree.state.flags)
        except (re.error, OverflowError) as error:
            raise ValueError(str(error)) from error
        except RecursionError as error:
            raise ValueError("it is nested too deeply") from error

    def _prepare(self, tree: Any, flags: int) -> None:
        """Compile the single characters of a part of the pattern. Raises ValueError for unsupported operations."""
        for item in tree:
            operation, value = item
            if operation in _SINGLE:
                self._singles[id(item)] = _compiler.compile(_parser.SubPattern(tree.state, [item]), flags)
            elif operation is _constants.BRANCH:
                for branch in value[1]:
                    self._prepare(branch, flags)
            elif operation is _constants.SUBPATTERN:
                self._prepare(value[3], (flags | value[1]) & ~value[2])
            elif operation in _REPEATS or operation in _LOOKS:
                self._prepare(value[-1], flags)
            else:
                raise ValueError(f"it has a {str(operation).lower()}, which is not supported")

    def fullmatch(self, text: str) -> bool:
        """Return whether the pattern matches the whole text. Raises ValueError if that takes MOST_STEPS."""
        try:
            return len(text) in _Match(self._singles, text).ends(self._tree, {0})
        except RecursionError as error:
            raise ValueError("is nested too deeply") from error


class _Match:
    def __init__(self, singles: dict[int, re.Pattern[str]], text: str):
        self._singles, self._text = singles, text
        self._found: dict[tuple[int, int], set[int]] = {}
        self._steps = 0

    def ends(self, tree: Any, starts: Iterable[int]) -> set[int]:
        """Return where a part of the pattern that begins at one of `starts` can end."""
        return set().union(*(self._ends_from(tree, start) for start in starts))

    def _ends_from(self, tree: Any, start: int) -> set[int]:
        key = id(tree), start
        if key not in self._found:
            places = {start}
            for item in tree:
                places = set().union(*(self._step(item, place) for place in places))
            self._found[key] = places
        return self._found[key]

    def _step(self, item: tuple[Any, Any], place: int) -> set[int]:
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise ValueError(f"takes more than {MOST_STEPS:,} steps to match, expected a simpler expression")
        operation, value = item
        if operation in _SINGLE:
            found = self._singles[id(item)].match(self._text, place)
            return set() if found is None else {found.end()}
        if operation is _constants.BRANCH:
            return set().union(*(self._ends_from(branch, place) for branch in value[1]))
        if operation is _constants.SUBPATTERN:
            return self._ends_from(value[3], place)
        if operation in _LOOKS:
            direction, tree = value
            start = place if direction > 0 else place - tree.getwidth()[0]  # looking back, all ways have one width
            ends = self._ends_from(tree, start) if start >= 0 else set()
            is_met = bool(ends) if direction > 0 else place in ends
            return {place} if is_met == (operation is _constants.ASSERT) else set()
        least, most, tree = value
        return self._repeated(least, most, tree, place)

    def _repeated(self, least: int, most: int, tree: Any, place: int) -> set[int]:
        places = {place}
        for _ in range(min(least, len(self._text) + 1)):  # beyond, an empty match was repeated: nothing changes
            self._steps += len(places)
            places = self.ends(tree, places)
        reached, left = set(places), most - least
        while places and left > 0:
            self._steps += len(places)
            places = self.ends(tree, places) - reached
            reached |= places
            left -= 1
        return reached


def least_length(pattern: str) -> int:
    """Return the length of the shortest text that a pattern matches; 0 also for a pattern that `re` rejects."""
    try:
        return _parser.parse(pattern[:MOST_CHARACTERS]).getwidth()[0]
    except (re.error, OverflowError, RecursionError):
        return 0
