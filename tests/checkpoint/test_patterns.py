"""Regular expressions of files: the same answers as Python's `re`, in bounded time."""

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bertcore.checkpoint.patterns import BoundedPattern

ATOMS = [
    "a", "b", ".", "[ab]", "[^a]", r"\w", "(?:a|b)", "(a|ab)", "(?i:A)", r"\b", "^", "$", "(?=a)", "(?!b)",
    "(?<=ab|ba)",
]  # fmt: skip
REPEATS = ["", "", "*", "+", "?", "{0,2}", "{2,}", "*?"]
PARTS = st.lists(st.tuples(st.sampled_from(ATOMS), st.sampled_from(REPEATS)), max_size=4)


@given(st.lists(PARTS, min_size=1, max_size=3), st.sampled_from(["", "*", "?"]), st.text("abA.", max_size=6))
def test_any_pattern_matches_as_in_re(branches, repeat, text):
    pattern = "(" + "|".join("".join(a + b for a, b in parts) for parts in branches) + ")" + repeat
    try:
        expected = re.fullmatch(pattern, text) is not None
    except re.error:  # a repeat of an assertion
        assume(False)
    assert BoundedPattern(pattern).fullmatch(text) == expected


HANGING = ["(a|a)*b", "(x+x+)+y|(a+a+)+b", "((((a*)*)*)*)*b", "(a{0,4294967290}){4294967290}b", "(a?){100000}b"]


@pytest.mark.parametrize("pattern", HANGING)
def test_patterns_that_hang_re_are_matched(pattern):
    assert not BoundedPattern(pattern).fullmatch("a" * 40)
    assert BoundedPattern(pattern).fullmatch("a" * 40 + "b")
