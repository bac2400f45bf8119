"""Spans of characters: what is refused, markers around them, the spans of words, and those that do not overlap."""

import itertools
import re
from contextlib import nullcontext

import numpy as np
import pytest

from bertcore import AutoTokenizer
from bertcore.tokenization.mentions import (
    OUTSIDE,
    apart,
    candidates,
    checked_spans,
    find_markers,
    marked,
    mention_rows,
    offsets_of,
    span_arrays,
    token_ends,
    without_task,
)
from tests.refusals import refuses
from tests.tiny_bert import save_tiny_bert
from tests.tiny_entities import save_family
from tests.tokenization.family_folders import BYTE_BPE, SENTENCEPIECE, WORD_PIECE, write_family

TEXT = "Ada was born"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return AutoTokenizer.from_pretrained(save_family(tmp_path_factory.mktemp("bert"), "bert"))


@pytest.fixture(scope="module")
def luke_folder(tmp_path_factory):
    return save_family(tmp_path_factory.mktemp("luke"), "luke")


WRONG = {
    "none": (None, 1, TypeError, "spans is None, expected a list of"),
    "text": ("0, 3", 1, TypeError, "spans is '0, 3', expected a list of"),
    "flat": ([0, 3], 1, TypeError, r"spans\[0\] is 0, expected \[first, last \+ 1\]"),
    "three": ([[0, 3, 4]], 1, TypeError, r"spans\[0\] is \[0, 3, 4\], expected"),
    "fraction": ([[0, 3.0]], 1, TypeError, r"spans\[0\] is \[0, 3.0\], expected"),
    "truth": ([[False, True]], 1, TypeError, r"spans\[0\] is \[False, True\], expected"),
    "letters": (["ab"], 1, TypeError, r"spans\[0\] is 'ab', expected"),
    "count": ([[0, 3]], 2, ValueError, "spans has 1 spans, expected 2: head and tail"),
    "no spans": ([], 1, ValueError, "spans has 0 spans, expected 1"),
    "empty": ([[3, 3]], 1, ValueError, r"spans\[0\] is \[3, 3\], expected .* from 0 to 12, and not empty"),
    "turned": ([[3, 0]], 1, ValueError, r"spans\[0\] is \[3, 0\]"),
    "negative": ([[-3, 3]], 1, ValueError, r"spans\[0\] is \[-3, 3\]"),
    "beyond": ([[0, 3], [4, 13]], 2, ValueError, r"spans\[1\] is \[4, 13\], expected .* from 0 to 12"),
    "huge": ([[0, 10**30]], 1, ValueError, r"spans\[0\] is \[0, 1000"),
    "blank": ([[3, 4]], 1, ValueError, r"spans\[0\] is \[3, 4\], which holds ' ', expected a word"),
    "overlap": ([[4, 12], [0, 5]], 2, ValueError, r"spans has \[0, 5\] and \[4, 12\], which overlap"),
    "same": ([[0, 3], [0, 3]], 2, ValueError, "which overlap"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_spans_are_named(name):
    spans, count, error, message = WRONG[name]
    refuses(error, message, checked_spans, spans, TEXT, count)


def test_white_space_around_spans_is_left_out():
    assert checked_spans([(3, 8), np.array([0, 4])], TEXT) == [(4, 7), (0, 3)]
    assert checked_spans([], TEXT) == []


@pytest.mark.parametrize(("text", "spans", "expected"), [
    ("Ada was born in London", [(0, 3), (16, 22)], "@ Ada @ was born in # London #"),
    ("Ada was born in London", [(16, 22), (0, 3)], "# Ada # was born in @ London @"),
    ("(Ada)", [(1, 4)], "( @ Ada @ )"),
    ("AdaLondon", [(0, 3), (3, 9)], "@ Ada @  # London #"),
    ("Ada\tLondon", [(0, 3), (4, 10)], "@ Ada @\t# London #"),
    ("x", [(0, 1)], "@ x @"),
])  # fmt: skip
def test_markers(text, spans, expected):
    found, places = marked(text, spans, ("@", "#"))
    assert found == expected
    for marker, (start, end), (before, after) in zip("@#", spans, places, strict=False):
        assert found[before : after + 1] == f"{marker} {text[start:end]} {marker}"


def test_markers_are_marks_of_the_vocabulary(tokenizer, luke_folder, tmp_path):
    assert find_markers(tokenizer, 2) == ("@", "#")
    assert find_markers(AutoTokenizer.from_pretrained(luke_folder, task="entity_classification"), 1) == ("@",)
    few = AutoTokenizer.from_pretrained(save_tiny_bert(tmp_path))
    assert find_markers(few, 1) == (".",)
    refuses(ValueError, "tokenizer has 1 of the marks .*, expected 2 to mark entities with", find_markers, few, 2)


def test_columns_of_the_markers(tokenizer):
    texts = ["paris is the capital of france", "cat @ mat"]
    spans = [[(24, 30), (0, 5)], [(6, 9), (0, 3)]]
    rows = mention_rows(tokenizer, texts, spans, ("@", "#"), None)
    for row in rows:
        tokens = tokenizer.convert_ids_to_tokens(row.values["input_ids"])
        assert [tokens[column] for column in row.values["entity_start_positions"]] == ["@", "#"] and not row.was_cut
    first = [row.values["entity_start_positions"] for row in rows]
    assert first == [[8, 1], [5, 1]]  # the text's own @ is not taken for a marker


def test_spans_that_are_cut_off(tokenizer, luke_folder):
    luke = AutoTokenizer.from_pretrained(luke_folder, task="entity_classification")
    for each, markers in ((tokenizer, ("@",)), (luke, None)):
        given = each, ["paris is the capital of france"] * 2, [[(0, 5)], [(24, 30)]], markers, 7
        with pytest.warns(UserWarning) if markers is None else nullcontext():
            rows = mention_rows(*given)
        assert [row.was_cut for row in rows] == [True, True]
        assert len(rows[0].values["input_ids"]) == 7 and rows[1].values is None
    last = mention_rows(tokenizer, ["paris is the capital of france"] * 2, [[(24, 30)]] * 2, ("@",), 10)
    assert (
        last[0].values["entity_start_positions"] == [6]
        and mention_rows(tokenizer, ["paris is the capital of france"], [[(24, 30)]], ("@",), 9)[0].values is None
    )


def naive_candidates(text, offsets, words, width):
    """All spans of words whose ends are ends of tokens."""
    tokens = [(start, end) for start, end in offsets if end > start]
    for first, last in itertools.product(range(len(words)), repeat=2):
        span = words[first][0], words[last][1]
        starts, ends = any(start == span[0] for start, _ in tokens), any(end == span[1] for _, end in tokens)
        if 0 <= last - first < width and starts and ends:
            yield span


@pytest.mark.parametrize("width", [1, 2, 5, 99])
def test_candidates_are_all_spans_of_words(tokenizer, width):
    text = "the cat's mat, (paris) is it."
    words = [found.span() for found in re.finditer(r"\w+|[^\w\s]", text)]
    offsets = offsets_of(tokenizer(text).encodings[0])
    found = candidates(text, offsets, width)
    assert found.spans == list(naive_candidates(text, offsets, words, width))
    for (start, end), first, last in zip(found.spans, found.starts, found.ends, strict=True):
        assert offsets[first][0] == start and offsets[last][1] == end


@pytest.mark.parametrize("name", [*BYTE_BPE, *SENTENCEPIECE, *WORD_PIECE])
def test_candidates_of_every_kind_of_tokenizer(name, tmp_path):
    write_family(tmp_path, name)
    encoding = without_task(AutoTokenizer.from_pretrained(tmp_path))("the value the values. the").encodings[0]
    found = candidates("the value the values. the", offsets_of(encoding), 1)
    assert found.spans == [(0, 3), (4, 9), (10, 13), (14, 20), (20, 21), (22, 25)]
    tokens = [encoding.tokens[start].strip("\u0120\u2581") for start in found.starts]
    assert tokens == ["the", "value", "the", "value", ".", "the"]


def test_characters_of_chinese_are_words():
    text = "東京に住む x1"
    found = candidates(text, [(place, place + 1) for place in range(5)] + [(6, 8)], 2)
    assert [text[start:end] for start, end in found.spans] == [
        "東", "東京", "京", "京に", "に", "に住", "住", "住む", "む", "む x1", "x1",
    ]  # fmt: skip


def test_words_cut_by_a_window_are_no_candidates():
    text = "abcdef ghi jkl"
    offsets = [(3, 6), (7, 10), (11, 13)]  # of a window from the middle of a word into the middle of another
    assert candidates(text, offsets, 3).spans == [(7, 10)]
    assert candidates(text, [], 3).spans == candidates("", [OUTSIDE], 3).spans == []


def test_white_space_within_tokens_does_not_count():
    assert token_ends("a  bc", [OUTSIDE, (0, 1), (1, 4), (4, 5), (4, 5)]) == ({0: 1, 3: 2, 4: 3}, {1: 1, 4: 2, 5: 4})
    assert token_ends("a ,", [(0, 1), (1, 2), (2, 3)]) == ({0: 0, 2: 1}, {1: 0, 3: 2})  # as LUKE's tokenizer has it


def test_arrays():
    arrays = span_arrays([[1, 2], [], [3]], [[1, 6], [], [4]], {"mask": 2, "longest": 3})
    assert arrays["entity_start_positions"].tolist() == [[1, 2], [-1, -1], [3, -1]]
    assert arrays["entity_end_positions"].tolist() == [[1, 6], [-1, -1], [4, -1]]
    assert arrays["entity_ids"].tolist() == [[2, 2], [0, 0], [2, 0]]
    assert arrays["entity_attention_mask"].tolist() == [[1, 1], [0, 0], [1, 0]]
    assert arrays["entity_position_ids"][0].tolist() == [[1, -1, -1], [2, 3, 4]]
    assert (arrays["entity_position_ids"][1] == -1).all()
    assert arrays["entity_position_ids"][2, 0].tolist() == [3, 4, -1]
    assert list(span_arrays([[1]], [[1]], None)) == ["entity_start_positions", "entity_end_positions"]


@pytest.mark.parametrize("seed", range(5))
def test_spans_apart_are_chosen_by_score(seed):
    rng = np.random.default_rng(seed)
    spans = sorted({(start, start + size) for start, size in zip(*rng.integers(1, 6, (2, 30)).tolist(), strict=True)})
    scores = rng.integers(0, 4, len(spans)).tolist()
    kept = []
    for _score, span in sorted((-score, span) for score, span in zip(scores, spans, strict=True)):
        if all(span[1] <= start or end <= span[0] for start, end in kept):
            kept.append(span)
    assert [spans[number] for number in apart(spans, scores)] == sorted(kept)


@pytest.mark.parametrize(
    "nested, several, kept",
    [(False, False, [0, 4]), (False, True, [0, 3, 4]), (True, False, [0, 1, 4]), (True, True, [0, 3, 1, 4])],
)
def test_spans_that_fit_together(nested, several, kept):
    spans, scores = [(0, 4), (1, 3), (2, 6), (0, 4), (4, 7)], [0.9, 0.8, 0.7, 0.6, 0.5]
    assert apart(spans, scores, nested=nested, several=several) == kept


def test_luke_s_tokenizer_for_texts_alone(luke_folder, tmp_path):
    luke = AutoTokenizer.from_pretrained(luke_folder, task="entity_span_classification")
    assert without_task(luke)("paris").input_ids and luke.task == "entity_span_classification"
    refuses(ValueError, "entity_spans is None", luke, "paris")
    write_family(tmp_path, "BertTokenizer")
    other = AutoTokenizer.from_pretrained(tmp_path)
    assert without_task(other) is other
