"""Records of files and documents: formats, compression, what is malformed, where documents end."""

import gzip
import io
import json
import os
import pickle
import re
import sys
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertcore.training.data import Documents, MalformedRecord, Records, files, split_sentences
from bertcore.training.data import files as module
from bertcore.training.data.files import KEPT_PROBLEMS, LONGEST_LINE, text_of
from tests.refusals import refuses


def write(path, content):
    data = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


ROWS = [{"text": "héllo, world", "label": "1"}, {"text": "", "label": "0"}]
CONTENTS = {
    "a.jsonl": ("\n".join(map(json.dumps, ROWS)) + "\n\n", ROWS),
    "a.json": (json.dumps(ROWS[0]), ROWS[:1]),
    "a.csv": ('text,label\n"héllo, world",1\n,0\n\n', ROWS),
    "a.tsv": ("text\tlabel\nhéllo, world\t1\n\t0\n", ROWS),
    "a.txt": ("one\r\n\ntwo", [{"text": "one"}, {"text": ""}, {"text": "two"}]),
    "a": ("one\n", [{"text": "one"}]),
    "c.csv": ('a,b\r\n"x\r\ny\r",z\r\n', [{"a": "x\r\ny\r", "b": "z"}]),
    "b.csv": ('text,label\n"two\nlines",1', [{"text": "two\nlines", "label": "1"}]),
    "b.txt": ("\ufeffone", [{"text": "one"}]),
    "empty.csv": ("", []),
    "empty.txt": ("", []),
}


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("name", CONTENTS)
def test_formats(tmp_path, name, ending):
    content, expected = CONTENTS[name]
    records = Records(write(tmp_path / (name + ending), content))
    assert list(records) == expected
    assert list(records) == expected  # every loop reads again


def test_records_know_their_lines(tmp_path):
    contents = {"a.txt": "one\ntwo", "b.jsonl": '\n{"text": "one"}', "c.csv": 'text\n"one\ntwo"\n\xff\nthree'}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content.encode("latin-1"))
    found = list(Records(tmp_path, on_malformed="skip"))
    places = [(record.file.rpartition("/")[2], record.line, record.is_line) for record in found]
    assert places == [
        ("a.txt", 1, True), ("a.txt", 2, True), ("b.jsonl", 2, False), ("c.csv", 2, False), ("c.csv", 5, False)
    ]  # fmt: skip
    copy = pickle.loads(pickle.dumps(found[2]))
    assert copy == found[2] and copy.line == 2


def test_folders_in_the_order_of_names(tmp_path):
    for name in ("b.txt", "c/a.txt", "a.txt", "notes.pdf"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path / name, name)
    assert [record["text"] for record in Records(tmp_path)] == ["a.txt", "b.txt", "c/a.txt"]
    assert [record["text"] for record in Records([tmp_path / "b.txt", tmp_path / "a.txt"])] == ["b.txt", "a.txt"]


def test_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\ntwo\n")))
    assert [record["text"] for record in Records("-")] == ["one", "two"]


MALFORMED = {
    "bytes.txt": (b"good\n\xff\xfe\ngood\n", "bytes.txt:2: not UTF-8", 2),
    "long.txt": (b"good\n" + b"x" * (LONGEST_LINE + 9) + b"\ngood", "long.txt:2: a line of more than", 2),
    "a.jsonl": (b'{"text": "good"}\n{"text": \n{"text": "good"}', "a.jsonl:2: not JSON", 2),
    "half.jsonl": (b'{"text": "good"}\n{"text": "\\ud800"}', "half.jsonl:2: not JSON, .*surrogates", 1),
    "list.jsonl": (b'{"text": "good"}\n[1]\n', "list.jsonl:2: a JSON list", 1),
    "deep.jsonl": (b"[" * 100_000 + b"\n", "deep.jsonl:1: not JSON", 0),
    "a.csv": (b"text,label\ngood,1\nbad\ngood,0\n", "a.csv:3: 1 fields, expected 2: text, label", 2),
    "quote.csv": (b'text\n"never closed\n', "quote.csv:2: unexpected end", 0),
    "twice.csv": (b"text,text\n1,2\n", "twice.csv:1: two columns have the same name", 0),
    "bytes.csv": (b"text\ngood\n\xff\ngood\n", "bytes.csv:3: not UTF-8", 2),
    "field.csv": (b'text,label\n"bad\n\xff\nbad",1\ngood,2\n', "field.csv:2: line 3: not UTF-8", 1),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed(tmp_path, name):
    content, error, good = MALFORMED[name]
    path = write(tmp_path / name, content)
    refuses(MalformedRecord, error, list, Records(path))
    records = Records(path, on_malformed="skip")
    assert len(list(records)) == good
    assert records.malformed == len(records.problems) == 1
    assert re.search(error, records.problems[0])


def test_a_quote_that_is_not_closed_costs_its_row_alone(tmp_path):
    """Also beside rows of several lines and rows with quotes of their own; the line is that of the row's beginning."""
    rows = [
        f'"good, and ""{row}""\nof two lines",{row}' if row % 7 == 0 else f"good {row},{row}" for row in range(5000)
    ]
    lines = ["text,label", *rows[:1], '"bad,1', *rows[1:2500], 'worse," 2', *rows[2500:]]
    records = Records(write(tmp_path / "a.csv", "\n".join(lines)), on_malformed="skip")
    assert [record["label"] for record in records] == [str(row) for row in range(5000)]
    assert records.malformed == 2 and re.search(r"a.csv:4: ", records.problems[0])
    refuses(MalformedRecord, r"a\.csv:4: ", list, Records(tmp_path / "a.csv"))


def test_fields_up_to_the_longest_line(tmp_path, monkeypatch):
    path = write(tmp_path / "a.csv", f'text,label\n{"x " * 5_000_000},1\n"{"y" * 200_000}\n{"y" * 200_000}",2\n')
    assert [len(record["text"]) for record in Records(path)] == [10_000_000, 400_001]
    monkeypatch.setattr(files, "LONGEST_LINE", 100)
    path = write(tmp_path / "b.csv", 'text\n"never closed\n' + "a line of words\n" * 30)
    records = Records(path, on_malformed="skip")
    assert len(list(records)) == 30
    assert records.problems == [f"{path}:2: a row of more than 100 characters: is a quote not closed?"]


def test_a_table_with_another_separator(tmp_path):
    path = write(tmp_path / "a.csv", "text;label\ngood;1\n")
    expected = r"a\.csv:1: has no column 'text' \(see --text, .*\); it has 'text;label'; is its separator ';'\?"
    with pytest.raises(MalformedRecord, match=expected):
        [text_of(record, 0, "text") for record in Records(path)]
    path.write_text("text;label\ngood, or bad;1\n")
    refuses(MalformedRecord, r"a\.csv:2: 2 fields, expected 1: text;label; is its separator ';'\?", list, Records(path))


@pytest.mark.parametrize("name, indent", [("a.json", None), ("a.json.gz", 2), ("a.jsonl", None)])
def test_squads_own_file(tmp_path, name, indent):
    answers = [{"text": "the mat", "answer_start": 11}, {"text": "mat", "answer_start": 15}]
    asked = [{"id": "1", "question": "where", "answers": answers}]
    asked += [{"id": "2", "question": "why", "answers": [], "is_impossible": True, "plausible_answers": answers}]
    articles = [{"title": "Cats", "paragraphs": [{"context": "the cat is the mat", "qas": asked}] * 2}]
    for nested in ({"version": "v2.0", "data": articles}, {"data": articles, "version": "1.1"}):
        found = list(Records(write(tmp_path / name, json.dumps(nested, indent=indent))))
        assert [record["id"] for record in found] == ["1", "2", "1", "2"]
        expected = {"text": ["the mat", "mat"], "answer_start": [11, 15]}
        first = {"id": "1", "title": "Cats", "context": "the cat is the mat", "question": "where", "answers": expected}
        assert found[0] == first and found[1]["answers"] == {"text": [], "answer_start": []}
    del asked[1]["answers"]
    path = write(tmp_path / name, json.dumps(nested))
    message = r"data\[0\]\.paragraphs\[0\]\.qas\[1\] has no list named 'answers'"
    refuses(MalformedRecord, rf"a\.json.*:1: not in SQuAD's form: {message}", list, Records(path))
    refuses(MalformedRecord, r"a\.json.*:1: not JSON", list, Records(write(tmp_path / name, json.dumps(nested)[:-9])))


def asking(**question):
    return {"paragraphs": [{"context": "a", "qas": [question]}]}


@pytest.mark.parametrize("article, message", [
    ({"title": "Cats"}, r"data\[0\] has no list named 'paragraphs'"),
    ({"paragraphs": {"a": 1}, "title": 5}, r"data\[0\] has no list named 'paragraphs'"),
    ({"paragraphs": [5]}, r"data\[0\]\.paragraphs\[0\] has no list named 'qas'"),
    ({"paragraphs": [{"qas": []}]}, r"data\[0\]\.paragraphs\[0\] has no text named 'context'"),
    (asking(question="q", answers=[{"text": "a", "answer_start": "0"}]), r"qas\[0\]\.answers\[0\] has no integer"),
    (asking(question=None, answers=[]), r"data\[0\]\.paragraphs\[0\]\.qas\[0\] has no text named 'question'"),
])  # fmt: skip
def test_squads_own_file_with_a_wrong_part(tmp_path, article, message):
    """The error names the part, and costs that part alone."""
    data = [{"title": "a"} | article, {"title": "a"} | asking(question="q", answers=[])]
    path = write(tmp_path / "a.json", json.dumps({"version": "1", "data": data}))
    refuses(MalformedRecord, message, list, Records(path))
    records = Records(path, on_malformed="skip")
    assert len(list(records)) == 1 and records.malformed == 1


def test_squads_own_file_is_read_up_to_a_limit(tmp_path, monkeypatch):
    """A small compressed file may claim to be any size: no more than the limit is read of it."""
    monkeypatch.setattr(module, "MOST_BYTES", 1 << 20)
    path = write(tmp_path / "a.json.gz", b'{"data": [{"title": "' + b"a" * (32 << 20))
    tracemalloc.start()
    try:
        refuses(MalformedRecord, "a.json.gz:1: a file of more than 1048576 bytes", list, Records(path))
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("damage", ["cut", "flipped", "none"])
def test_damaged_compression(tmp_path, damage):
    data = gzip.compress(b"good\n" * 10_000)
    data = {"cut": data[:-20], "flipped": data[:30] + bytes(9) + data[39:], "none": b"no gzip"}[damage]
    path = tmp_path / "a.txt.gz"
    path.write_bytes(data)
    refuses(MalformedRecord, "damaged compression", list, Records(path))
    records = Records(path, on_malformed="skip")
    list(records)
    assert records.malformed == 1


def test_problems_are_counted_and_the_first_are_kept(tmp_path):
    records = Records(write(tmp_path / "a.jsonl", "no\n" * 100), on_malformed="skip")
    assert list(records) == list(records) == []  # the second loop counts anew
    assert records.malformed == 100 and len(records.problems) == KEPT_PROBLEMS


def test_memory_does_not_grow_with_the_file(tmp_path):
    path = write(tmp_path / "a.txt", f"{'a line of words' * 10}\n" * 30_000)
    next(iter(Records(path)))  # what is imported now is not counted
    tracemalloc.start()
    count = sum(1 for _ in Records(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 30_000 and peak < 1 << 20


@pytest.mark.parametrize("paths, error", [
    ([], "paths is empty"),
    ("", "a path is empty"),
    ("missing.txt", "missing.txt does not exist"),
    (os.devnull, "is a pipe or a device, expected a file"),
    ("a.pdf", "a.pdf ends with .pdf, expected .txt"),
    ("folder", "folder has no readable file"),
])  # fmt: skip
def test_paths_that_cannot_be_read(tmp_path, monkeypatch, paths, error):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    write(tmp_path / "a.pdf", "")
    refuses((FileNotFoundError, ValueError), error, Records, paths)
    refuses(ValueError, "on_malformed is 'ignore'", Records, "-", on_malformed="ignore")
    refuses(TypeError, "paths is int, expected a path", Records, 5)


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
