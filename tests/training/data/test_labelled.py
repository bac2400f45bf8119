"""Labelled texts: what their labels are, where they stand among tokens, and which record is wrong."""

import numpy as np
import pytest

from bertcore import AutoTokenizer
from bertcore.training import DataCollatorWithPadding
from bertcore.training.data import (
    LabelledTexts,
    LabelledWords,
    MalformedRecord,
    Questions,
    Records,
    TextColumns,
    answer_metrics,
    best_answers,
)
from tests.refusals import refuses


def rows(*labels):
    return [{"text": f"the cat {index}", "label": label} for index, label in enumerate(labels)]


@pytest.mark.parametrize("labels, names, problem, made", [
    (["b", "a", "b"], ("a", "b"), "single_label_classification", [1, 0, 1]),
    ([10, 9, 2], ("2", "9", "10"), "single_label_classification", [2, 1, 0]),
    (["1", "0", "1"], ("0", "1"), "single_label_classification", [1, 0, 1]),
    ([True, False], ("false", "true"), "single_label_classification", [1, 0]),
    (list(np.array([3, 1])), ("1", "3"), "single_label_classification", [1, 0]),
    ([np.array([1, 0]), np.array([1])], ("0", "1"), "multi_label_classification", [[1.0, 1.0], [0.0, 1.0]]),
    ([10**400, 3], ("3", f"1{'0' * 400}"), "single_label_classification", [1, 0]),
    ([0.0, 2.0], ("0", "2"), "single_label_classification", [0, 1]),
    ([0.5, 1, "2"], (), "regression", [0.5, 1.0, 2.0]),
    (["-0.5", "1e2"], (), "regression", [-0.5, 100.0]),
    ([["x", "y"], [], ["y"]], ("x", "y"), "multi_label_classification", [[1.0, 1.0], [0.0, 0.0], [0.0, 1.0]]),
])  # fmt: skip
def test_what_labels_are(tokenizer, labels, names, problem, made):
    columns = LabelledTexts.found_in(rows(*labels))
    assert (columns.labels, columns.problem_type) == (names, problem)
    examples = list(columns.examples(rows(*labels), tokenizer))
    assert [example["label"] for example in examples] == made
    assert examples[0]["input_ids"] == tokenizer("the cat 0")["input_ids"]
    DataCollatorWithPadding(tokenizer)(examples)


def test_columns_of_texts():
    records = [{"a": "x", "b": "y", "score": "0.5"}, {"a": "z", "b": "", "score": 1}]
    made = list(TextColumns(("a", "b"), "score").examples(records))
    assert made == [{"a": "x", "b": "y", "label": 0.5}, {"a": "z", "b": "", "label": 1.0}]
    assert list(TextColumns(("b",)).examples(records)) == [{"b": "y"}, {"b": ""}]
    for columns, error in (("a", "c"), "has no 'c'"), (("a", "score"), "'score' is 1, expected a text"):
        refuses(MalformedRecord, error, list, TextColumns(columns).examples(records[1:]))
    with pytest.raises(MalformedRecord, match=r"records\[1\] 'a' is 'z', expected a number"):
        list(TextColumns(("b",), "a").examples([{"b": "x", "a": 1}, records[1]]))


def test_pairs_and_commas(tokenizer):
    records = [{"a": "the cat", "b": "sat", "tags": "x, y"}, {"a": "paris", "b": "france", "tags": ""}]
    columns = LabelledTexts("a", "b", "tags", ("x", "y", "z"), is_multiple=True)
    first, second = columns.examples(records, tokenizer, max_length=4)
    assert first["input_ids"] == tokenizer("the cat", "sat", truncation=True, max_length=4)["input_ids"]
    assert (first["label"], second["label"]) == ([1.0, 1.0, 0.0], [0.0, 0.0, 0.0])


def test_words_have_the_tag_of_their_first_token(tokenizer):
    records = [{"tokens": ["cats", "sat"], "tags": ["B-X", "O"]}, {"tokens": "the  cats", "tags": "O B-X"}]
    columns = LabelledWords.found_in(records)
    assert columns.labels == ("B-X", "O")
    first, second = columns.examples(records, tokenizer)
    assert tokenizer.convert_ids_to_tokens(first["input_ids"]) == ["[CLS]", "cat", "##s", "sat", "[SEP]"]
    assert first["labels"] == [-100, 0, -100, 1, -100]
    assert second["labels"] == [-100, 1, 0, -100, -100]
    (cut,) = columns.examples(records[:1], tokenizer, max_length=3)
    assert cut["labels"] == [-100, 0, -100]


def test_words_in_lines(tokenizer, tmp_path):
    (tmp_path / "a.txt").write_text("-DOCSTART- O\n\ncats NN B-X\nsat VB O\n\n\nparis NN B-X")
    columns = LabelledWords.found_in(Records(tmp_path / "a.txt"))
    made = list(columns.examples(Records(tmp_path / "a.txt"), tokenizer))
    assert [example["labels"] for example in made] == [[-100, 0, -100, 1, -100], [-100, 0, -100]]
    (tmp_path / "b.txt").write_text("cats B-X\nsat\n")
    refuses(MalformedRecord, r"b\.txt:2: 'sat' has no tag", LabelledWords.found_in, Records(tmp_path / "b.txt"))


@pytest.mark.parametrize("columns, record, error", [
    (LabelledTexts(labels=("a",)), {"text": "x"}, "has no 'label'; it has 'text'"),
    (LabelledTexts(labels=("a",)), {"text": "x", "label": None}, "'label' is null; it has 'text', 'label'"),
    (LabelledTexts(labels=("a",)), {"text": 3, "label": "a"}, "'text' is 3, expected a text"),
    (LabelledTexts(labels=("a",)), {"text": "x", "label": "b"}, "has the label 'b', expected one of a"),
    (LabelledTexts(labels=("a",)), {"text": "x", "label": "b" * 500}, "has the label 'b{380,390}; it has 'text'"),
    (LabelledTexts(labels=("a",)), {"text": "x", "label": float("nan")}, "'label' is nan"),
    (LabelledTexts(labels=("a",)), {"text": "x", "label": {}}, "'label' is {}"),
    (LabelledTexts(), {"text": "x", "label": "a"}, "'label' is 'a', expected a number"),
    (LabelledTexts(), {"text": "x", "label": float("inf")}, "'label' is inf, expected a number"),
    (LabelledTexts(), {"text": "x", "label": "-1e39"}, "'label' is '-1e39', expected a number within float32"),
    (LabelledTexts(), {"text": "x", "label": 10**400}, "'label' is 10+, expected a number within float32"),
    (LabelledTexts(labels=("a",), is_multiple=True), {"text": "x", "label": 3}, "'label' is 3, expected a list"),
    (LabelledTexts(labels=("a",), is_multiple=True), {"text": "x", "label": ["b"]}, "has the label 'b'"),
    (LabelledTexts(text_pair="b", labels=("a",)), {"text": "x", "label": "a"}, "has no 'b'"),
    (LabelledTexts(labels=("a",)), "text", "has no 'text'; it is 'text'"),
    (LabelledWords(labels=("O",)), {"tokens": ["x"], "tags": ["O", "O"]}, "has 1 words and 2 tags"),
    (LabelledWords(labels=("O",)), {"tokens": ["x"], "tags": ["P"]}, "has the label 'P'"),
    (LabelledWords(labels=("O",)), {"tokens": 3, "tags": ["P"]}, "'tokens' is 3, expected a list of strings"),
    (LabelledWords(labels=("O",)), {"tokens": [None], "tags": ["P"]}, "'tokens' is .None., expected a list"),
])  # fmt: skip
def test_a_wrong_record_is_named(tokenizer, columns, record, error):
    refuses(MalformedRecord, rf"records\[0\] {error}", list, columns.examples([record], tokenizer))


def test_a_wrong_line_is_named(tokenizer, tmp_path):
    (tmp_path / "a.csv").write_text('text,label\nthe cat,1\n"sat\non",2\n')
    with pytest.raises(MalformedRecord, match=r"a\.csv:3: has the label '2', expected one of 0, 1; it has 'text'"):
        list(LabelledTexts(labels=("0", "1")).examples(Records(tmp_path / "a.csv"), tokenizer))


@pytest.mark.parametrize("labels, error", [((), "there are no records"), ((["a"], "b"), "1 of 2 records have lists")])
def test_labels_of_no_kind(labels, error):
    refuses(ValueError, error, LabelledTexts.found_in, rows(*labels))


@pytest.mark.parametrize("labels", [("0.5", "nan", "0.25"), ("0.5", "n/a", "0.25"), ("1", "NaN", "2", "x")])
def test_a_word_among_numbers_is_no_class(labels):
    """One score that lacks does not make all the others classes."""
    refuses(MalformedRecord, rf"records\[1\] 'label' is '{labels[1]}', but a", LabelledTexts.found_in, rows(*labels))
    refuses(MalformedRecord, "'label' is 'x', but a", LabelledTexts.found_in, rows("1", "x"), kind="numbers")
    assert LabelledTexts.found_in(rows("1", "n/a", "2")).labels == ("1", "2", "n/a")
    assert LabelledTexts.found_in(rows("nan", "fra")).labels == ("fra", "nan")


def test_many_integers_need_a_kind():
    many = rows(*range(21))
    refuses(ValueError, "'label' has 21 different integers in 21 records, which may be", LabelledTexts.found_in, many)
    assert len(LabelledTexts.found_in(many, kind="classes").labels) == 21
    assert LabelledTexts.found_in(many, kind="numbers").problem_type == "regression"
    assert LabelledTexts.found_in(rows(1, 2), kind="numbers").problem_type == "regression"
    assert len(LabelledTexts.found_in(rows(*range(21), *list(range(21)) * 19)).labels) == 21  # 20 records each
    assert len(LabelledTexts.found_in(rows(*range(20))).labels) == 20
    refuses(ValueError, "kind is 'floats', expected one of None", LabelledTexts.found_in, many, kind="floats")
    for labels, kind in ((("b", "a"), "numbers"), (([1], [2]), "numbers"), ((1, 0.5), "classes")):
        message = rf"kind \(--label-kind\) is '{kind}', but the labels in 'label' are not"
        refuses(ValueError, message, LabelledTexts.found_in, rows(*labels), kind=kind)
    assert LabelledTexts.found_in(rows(1, 0.5), kind="numbers").problem_type == "regression"


CONTEXT = "the cat sat on an mat. paris is the capital of france. the mat is upper on the cat"
ANSWERS = ["paris", "the cat", "capital of france", "cat"]


def question(answer, start=None):
    start = CONTEXT.index(answer) if start is None else start
    return {"question": "the mat", "context": CONTEXT, "answers": {"text": [answer], "answer_start": [start]}}


RECORDS = [*map(question, ANSWERS), question("cat", CONTEXT.rindex("cat"))]
NOTHING = {"question": "the mat", "context": CONTEXT, "answers": {"text": [], "answer_start": []}}


@pytest.mark.parametrize("max_length", [12, 15, 40])
def test_answers_stand_where_their_tokens_do(tokenizer, max_length):
    """Every window that holds an answer's tokens tells them, and at least one window does."""
    windows = list(Questions(stride=4).examples([*RECORDS, NOTHING], tokenizer, max_length=max_length))
    found = set()
    for window in windows:
        assert len(window["input_ids"]) <= max_length
        number, start, end = map(window.get, ("overflow_to_sample_mapping", "start_positions", "end_positions"))
        record = [*RECORDS, NOTHING][number]
        if (start, end) == (0, 0):
            continue
        text = CONTEXT[window["offset_mapping"][start][0] : window["offset_mapping"][end][1]]
        assert text == record["answers"]["text"][0]
        assert window["offset_mapping"][start][0] == record["answers"]["answer_start"][0]
        found.add(number)
    assert found == set(range(len(RECORDS)))


@pytest.mark.parametrize("max_length", [15, 40])
def test_right_scores_give_the_right_answers(tokenizer, max_length):
    records = [*RECORDS, NOTHING]
    windows = list(Questions(stride=4).examples(records, tokenizer, max_length=max_length))
    width = max(len(window["input_ids"]) for window in windows)
    scores = np.random.default_rng(1).normal(size=(2, len(windows), width))
    for row, window in enumerate(windows):
        scores[0, row, window["start_positions"]] += 20
        scores[1, row, window["end_positions"]] += 20
    assert best_answers(records, windows, scores) == [*ANSWERS, "cat", ""]
    assert answer_metrics(records, windows)((scores, None)) == {"exact_match": 100.0, "f1": 100.0}
    assert answer_metrics(records, windows)((-scores, None))["exact_match"] < 50
    short = best_answers(records, windows, scores, longest=1)
    assert short[2] != "capital of france" and short[0] == "paris"


@pytest.mark.parametrize("changes, error", [
    ({"question": ""}, "has no text named 'question'"),
    ({"context": None}, "has no text named 'context'"),
    ({"answers": None}, "'answers' is None, expected"),
    ({"answers": {"text": ["cat"]}}, "'answers' is .*, expected"),
    ({"answers": {"text": ["cat"], "answer_start": []}}, "'answers' is .*, expected"),
    ({"answers": {"text": ["cat"], "answer_start": [0]}}, "the answer 'cat' is not at 0, the text is 'the'"),
    ({"answers": {"text": ["cat"], "answer_start": [-3]}}, "the answer 'cat' is not at -3"),
    ({"answers": {"text": ["cat"], "answer_start": ["x"]}}, "'answers' is .*, expected"),
])  # fmt: skip
def test_a_wrong_question_is_named(tokenizer, changes, error):
    with pytest.raises(MalformedRecord, match=rf"records\[1\] {error}"):
        list(Questions(stride=4).examples([RECORDS[0], RECORDS[0] | changes], tokenizer, max_length=20))


def test_columns_are_not_counted_from_the_right(bert_folder):
    left = AutoTokenizer.from_pretrained(bert_folder, padding_side="left")
    refuses(ValueError, "padding_side='right'", next, Questions().examples(RECORDS, left))
