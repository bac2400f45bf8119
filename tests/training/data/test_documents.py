"""Documents: where they end, in what pieces they come, and what sentences are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertcore.training.data import Documents, MalformedRecord, Records, split_sentences
from bertcore.training.data import files as module
from tests.refusals import refuses

ENGLISH = "Dr. Smith went home. He slept!\nThen he woke."


def test_an_empty_line_and_the_end_of_a_file_end_a_document(tmp_path):
    (tmp_path / "a.txt").write_text("\n\none\n two \n \nthree")
    (tmp_path / "b.txt").write_text("four\n\n\nfive\n\n")
    (tmp_path / "c.jsonl").write_text('{"text": "six\\n\\nseven"}\n{"text": " "}\n{"text": "eight", "label": 1}')
    documents = Documents(Records(tmp_path))
    expected = [["one", "two"], ["three"], ["four"], ["five"], ["six", "seven"], ["eight"]]
    assert list(documents) == expected
    assert list(documents) == expected  # every loop reads again


def test_mappings_are_whole_documents():
    rows = [{"body": "one\ntwo"}, {"body": "three"}]
    assert list(Documents(rows, column="body")) == [["one", "two"], ["three"]]
    assert list(Documents(iter(rows), column="body")) == [["one", "two"], ["three"]]


def test_a_long_document_comes_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LONGEST_DOCUMENT", 30)
    (tmp_path / "a.txt").write_text("0123456789\n" * 10)
    parts = list(Documents(Records(tmp_path)))
    assert [len(part) for part in parts] == [3, 3, 3, 1]


def test_sentences():
    pytest.importorskip("sentencex")
    (found,) = Documents([{"text": ENGLISH}], language="en")
    assert found == ["Dr. Smith went home.", "He slept!", "Then he woke."]
    assert len(split_sentences("Er kam am 3. Mai an. Er blieb.", "de")) == 2


@given(st.text())
def test_sentences_leave_nothing_out(text):
    pytest.importorskip("sentencex")
    assert "".join(split_sentences(text)) == text


def test_sentences_without_the_library(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(module.importlib, "import_module", missing)
    refuses(ImportError, r"bertcore\[training\]", Documents, [], language="en")
    assert list(Documents([{"text": "lines need no library"}])) == [["lines need no library"]]


@pytest.mark.parametrize("records, error, message", [
    ("text", TypeError, "records is str"),
    (3, TypeError, "records is int"),
    ([{"body": "x"}], MalformedRecord, r"records\[0\] has no text named 'text'; it has 'body'"),
    ([{"text": None}], MalformedRecord, r"records\[0\] has no text named 'text'"),
    (["x"], MalformedRecord, r"records\[0\] has no text named 'text'; it is 'x'"),
])  # fmt: skip
def test_invalid_documents(records, error, message):
    refuses(error, message, lambda: list(Documents(records)))


def test_a_record_without_a_text_is_named_by_its_line(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n\n{"body": "two"}\n')
    refuses(MalformedRecord, r"a\.jsonl:3: has no text named 'text'; it has 'body'", list, Documents(Records(tmp_path)))
