"""Comparing answers with those of transformers."""

import pytest


def assert_same_form(ours, theirs):
    """The same lists, keys and names, and the same numbers but for rounding."""
    assert type(ours) is type(theirs), (ours, theirs)
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for key in ours:
            assert_same_form(ours[key], theirs[key])
    elif isinstance(ours, list):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_same_form(one, other)
    else:
        assert ours == (pytest.approx(theirs, abs=2e-5) if isinstance(ours, float) else theirs)
