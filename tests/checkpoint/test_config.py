"""config.json, and patterns of names that are matched in bounded time."""

import json
import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bertcore.checkpoint import CheckpointError, read_config
from bertcore.checkpoint.patterns import BoundedPattern
from tests.refusals import refuses


@pytest.mark.parametrize(
    "config",
    [{"model_type": "bert", "hidden_size": 39}, {"label": "père"}, json.loads('{"a":' + "[" * 62 + "]" * 62 + "}")],
    ids=["plain", "not ASCII", "deep"],
)
def test_round_trip(tmp_path, config):
    (tmp_path / "config.json").write_text(json.dumps(config, ensure_ascii=False), encoding="utf-8")
    assert read_config(tmp_path) == read_config(str(tmp_path)) == config
    for name in ("model.safetensors", "pytorch_model.bin", "model.safetensors.index.json"):
        (tmp_path / name).write_text("x")
        assert read_config(tmp_path / name) == config


DEEP = "cannot be read: its JSON is nested too deeply"


@pytest.mark.parametrize("content, problem", [
    *[(content, "not valid JSON") for content in (b"", b'{"model_type": "bert"', b"\xff\xfe{}")],
    *[
        (content, DEEP)
        for content in (
            b'{"a":' + b"[" * 100_000,
            b'{"a":' + b"[" * 64 + b"]" * 64 + b"}",
            b'{"a":' + b'{"b":' * 990 + b"1" + b"}" * 991,
        )
    ],
    (b"[1, 2]", "holds a JSON list, expected an object"),
    (b"null", "holds a JSON NoneType, expected an object"),
])  # fmt: skip
def test_broken_config(tmp_path, content, problem):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=problem) as caught:
        read_config(tmp_path)
    assert str(tmp_path / "config.json") in str(caught.value) and isinstance(caught.value, ValueError)


def test_missing_config(tmp_path):
    file = tmp_path / "config.json"

    def check(path, message):
        refuses(CheckpointError, message, read_config, path)

    (tmp_path / "vocab.txt").write_text("a")
    check(tmp_path / "nowhere", "nowhere does not exist, expected the folder")
    check(tmp_path / "vocab.txt", r"vocab\.txt is a file, expected the folder")
    check(tmp_path, r"has no config\.json; it holds vocab\.txt")
    file.symlink_to("../../blobs/0a1b")
    check(tmp_path, r"config\.json is a link to \.\./\.\./blobs/0a1b, which does not exist")
    file.unlink()
    file.mkdir()
    check(tmp_path, r"config\.json is a folder, expected a file")


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
