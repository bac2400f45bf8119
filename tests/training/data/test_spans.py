"""Examples of marked entities and of all spans, what is refused of records, and the measure of entities."""

from contextlib import nullcontext

import numpy as np
import pytest

from bertcore import AutoTokenizer
from bertcore.training.data import LabelledEntities, LabelledMentions, LabelledTexts, MalformedRecord, SpanCollator
from tests.refusals import refuses
from tests.tiny_entities import FAMILIES, save_family

TEXT = "paris is the capital of france"
PAIR = {"text": TEXT, "spans": [[24, 30], [0, 5]], "label": "capital_of"}
NONE = {"text": "the cat sat", "spans": [[4, 7], [8, 11]], "label": "no_relation"}
TYPED = {"text": TEXT, "spans": [[0, 5]], "label": ["city", "place"]}
NAMED = {"text": TEXT, "spans": [[0, 5, "LOC"], [9, 20, "THING"]]}


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    """family -> a function from the task of LUKE's tokenizer to the tokenizer."""
    folders = {name: save_family(tmp_path_factory.mktemp(name), name) for name in FAMILIES}
    bert = AutoTokenizer.from_pretrained(folders["bert"])
    return {"bert": lambda task: bert, "luke": lambda task: AutoTokenizer.from_pretrained(folders["luke"], task=task)}


def test_columns_of_relations():
    columns = LabelledMentions.found_in([PAIR, NONE], "relation-extraction")
    assert columns.labels == ("capital_of", "no_relation") and columns.negative == "no_relation"
    other = LabelledMentions.found_in([PAIR, NONE], "relation-extraction", negative="capital_of")
    assert other.negative == "capital_of"
    assert LabelledMentions.found_in([PAIR | {"label": 3}], "relation-extraction").labels == ("3",)
    typed = LabelledMentions.found_in([TYPED, TYPED | {"label": []}], "entity-classification")
    assert typed.is_multiple and typed.labels == ("city", "place") and typed.negative is None
    refuses(ValueError, r"negative \(--negative-label\) is 'x', expected one of the labels capital_of", lambda:
            LabelledMentions.found_in([PAIR], "relation-extraction", negative="x"))  # fmt: skip
    refuses(ValueError, "task is 'span-ner'", LabelledMentions.found_in, [PAIR], "span-ner")


def test_examples_of_relations(tokenizers):
    columns = LabelledMentions.found_in([PAIR, NONE], "relation-extraction")
    bert, luke = (list(columns.examples([PAIR, NONE], tokenizers[family]("entity_pair_classification")))
                  for family in FAMILIES)  # fmt: skip
    assert [row["label"] for row in bert] == [row["label"] for row in luke] == [0, 1]
    assert [row["entity_start_positions"] for row in bert] == [[8, 1], [2, 5]]
    assert columns.config(tokenizers["bert"](None))["entity_markers"] == ["@", "#"]
    assert [row["entity_ids"] for row in luke] == [[2, 3], [2, 3]] and "entity_start_positions" not in luke[0]
    assert "entity_markers" not in columns.config(tokenizers["luke"]("entity_pair_classification"))
    typed = LabelledMentions.found_in([TYPED, TYPED | {"label": []}], "entity-classification")
    (row,) = typed.examples([TYPED | {"label": ["place"]}], tokenizers["bert"](None))
    assert row["label"] == [0.0, 1.0] and row["entity_start_positions"] == [1]
    assert typed.config(tokenizers["bert"](None)) == {
        "problem_type": "multi_label_classification", "entity_markers": ["@"],
    }  # fmt: skip


WRONG = {
    "no spans": ({"text": TEXT}, r"records\[1\] has no 'spans'"),
    "null": (PAIR | {"spans": None}, r"records\[1\] spans is None, expected a list of \[first, last"),
    "one": (PAIR | {"spans": [[0, 5]]}, "spans has 1 spans, expected 2: head and tail"),
    "empty": (PAIR | {"spans": [[0, 5], [7, 7]]}, r"spans\[1\] is \[7, 7\], expected .* and not empty"),
    "beyond": (PAIR | {"spans": [[0, 5], [24, 31]]}, r"spans\[1\] is \[24, 31\], expected .* from 0 to 30"),
    "overlap": (PAIR | {"spans": [[0, 8], [6, 12]]}, r"spans has \[0, 8\] and \[6, 12\], which overlap"),
    "label": (PAIR | {"label": "x"}, "has the label 'x', expected one of capital_of, no_relation"),
    "no label": ({"text": TEXT, "spans": [[0, 5], [6, 8]]}, "has no 'label'"),
    "text": (PAIR | {"text": 3}, "'text' is 3, expected a text"),
    "cut off": (PAIR | {"text": "the " * 20, "spans": [[0, 3], [60, 63]]}, "has spans beyond the first 12 tokens"),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", WRONG)
def test_wrong_records_of_relations_are_named(tokenizers, name, family):
    row, message = WRONG[name]
    columns = LabelledMentions.found_in([PAIR, NONE], "relation-extraction")
    given = [NONE, row if "label" in row or name == "no label" else row | {"label": "no_relation"}]
    tokenizer = tokenizers[family]("entity_pair_classification")
    warns = pytest.warns(UserWarning) if (name, family) == ("cut off", "luke") else nullcontext()
    with pytest.raises(MalformedRecord, match=message), warns:
        list(columns.examples(given, tokenizer, max_length=12 if name == "cut off" else None))


def test_padding_on_the_left_is_refused(tokenizers):
    tokenizer = tokenizers["luke"]("entity_span_classification")
    tokenizer.padding_side = "left"
    for columns, row in (
        (LabelledMentions.found_in([PAIR], "relation-extraction"), PAIR),
        (LabelledEntities.found_in([NAMED]), NAMED),
    ):
        refuses(ValueError, "tokenizer pads on the left", lambda: list(columns.examples([row], tokenizer)))  # noqa: B023


def test_examples_of_all_spans(tokenizers):
    columns = LabelledEntities.found_in([NAMED, {"text": "cat", "spans": []}], width=3)
    assert columns.labels == ("NIL", "LOC", "THING") and columns.config(None) == {"max_span_width": 3}
    tokenizer = tokenizers["bert"](None)
    rows = list(columns.examples([NAMED, {"text": " ", "spans": []}, {"text": "cat", "spans": []}], tokenizer))
    assert [row["overflow_to_sample_mapping"] for row in rows] == [0, 2]  # a text without words has no spans
    assert len(rows[0]["labels"]) == 6 + 5 + 4
    spans = zip(*(rows[0][name].tolist() for name in SPANS), strict=True)
    assert [span for span in spans if span[2]] == [(1, 1, 1), (3, 4, 2)]


SPANS = ("entity_start_positions", "entity_end_positions", "labels")


def test_examples_of_luke_have_few_spans_each(tokenizers):
    tokenizer, columns = tokenizers["luke"]("entity_span_classification"), LabelledEntities(labels=("NIL", "LOC"))
    rows = list(columns.examples([{"text": "the cat sat " * 10, "spans": [[0, 3, "LOC"]]}], tokenizer, max_length=64))
    assert [len(row["labels"]) for row in rows] == [128, 240 - 28 - 128]
    assert {row["overflow_to_sample_mapping"] for row in rows} == {0} and sum(row["labels"].sum() for row in rows) == 1
    batch = SpanCollator(tokenizer)(rows)
    assert batch["entity_ids"].shape == batch["labels"].shape == (2, 128)
    assert batch["entity_position_ids"].shape == (2, 128, 30)
    assert (batch["labels"][1, 84:] == -100).all() and (batch["entity_attention_mask"][1] == [1] * 84 + [0] * 44).all()


def test_batches_of_spans(tokenizers):
    tokenizer, columns = tokenizers["bert"](None), LabelledEntities(labels=("NIL", "LOC"), width=2)
    records = [{"text": "paris is", "spans": [[0, 5, "LOC"]]}, {"text": "cat", "spans": []}]
    rows = list(columns.examples(records, tokenizer))
    batch = SpanCollator(tokenizer)(rows)
    assert batch["entity_start_positions"].tolist() == [[1, 1, 2], [1, -1, -1]]
    assert batch["entity_end_positions"].tolist() == [[1, 2, 2], [1, -1, -1]]
    assert batch["labels"].tolist() == [[1, 0, 0], [0, -100, -100]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]] and "entity_ids" not in batch


WRONG_ENTITIES = {
    "none": ({"text": TEXT}, r"'spans' is None, expected \[\[first, last \+ 1, label\], ...\]"),
    "pair": ({"text": TEXT, "spans": [[0, 5]]}, r"spans\[0\] is \[0, 5\], expected"),
    "number": ({"text": TEXT, "spans": [[0, 5, 1]]}, r"spans\[0\] is \[0, 5, 1\], expected"),
    "blank": ({"text": TEXT, "spans": [[0, 5, " "]]}, r"spans\[0\] has the label ' ', expected another"),
    "nil": ({"text": TEXT, "spans": [[0, 5, "NIL"]]}, r"spans\[0\] has the label 'NIL', expected another"),
    "beyond": ({"text": TEXT, "spans": [[0, 50, "LOC"]]}, r"spans\[0\] is \[0, 50\], expected .* from 0 to 30"),
    "fraction": ({"text": TEXT, "spans": [[0, 5.5, "LOC"]]}, r"spans\[0\] is \[0, 5.5\], expected"),
    "nested": ({"text": TEXT, "spans": [[0, 8, "A"], [0, 5, "B"]]}, r"spans has \[0, 5\] and \[0, 8\], which overlap"),
    "unknown": ({"text": TEXT, "spans": [[0, 5, "X"]]}, "has the label 'X', expected one of NIL, LOC"),
    "no text": ({"spans": []}, "has no text named 'text'"),
    "object": ({"text": TEXT, "spans": {"0": 1}}, "'spans' is {'0': 1}, expected"),
}


@pytest.mark.parametrize("name", WRONG_ENTITIES)
def test_wrong_records_of_entities_are_named(tokenizers, name):
    row, message = WRONG_ENTITIES[name]
    columns = LabelledEntities(labels=("NIL", "LOC"))
    refuses(MalformedRecord, message, list, columns.examples([row], tokenizers["bert"](None)))


def test_entities_are_required():
    refuses(ValueError, "there are no records with entities", LabelledEntities.found_in, [{"text": "a", "spans": []}])


def test_the_measure_of_entities(tokenizers):
    """Right are 1 of 2 predicted; 3 are in the data, one of them wider than the candidates."""
    records = [{"text": "paris is the cat", "spans": [[0, 5, "LOC"], [6, 16, "THING"]]},
               {"text": "the cat", "spans": [[4, 7, "THING"]]}]  # fmt: skip
    columns = LabelledEntities.found_in(records, width=2)
    examples = list(columns.examples(records, tokenizers["bert"](None)))
    places = [dict(zip(zip(*(row[name].tolist() for name in SPANS[:2]), strict=True), range(99), strict=False))
              for row in examples]  # fmt: skip
    logits = np.full((2, len(examples[0]["labels"]), 3), [1.0, 0.0, 0.0])
    logits[0, places[0][1, 1]] = 0, 3, 0  # paris, LOC
    logits[0, places[0][1, 2]] = 0, 0, 2  # which overlaps it, with a lower score
    logits[1, places[1][1, 2]] = 0, 0, 5  # a span around the right one
    logits[1, places[1][2, 2]] = 0, 0, 4
    logits[1, len(examples[1]["labels"]) :] = -100
    labels = np.full(logits.shape[:2], -100)
    for row, example in zip(labels, examples, strict=True):
        row[: len(example["labels"])] = example["labels"]
    found = columns.metric(records, examples)((logits, labels))
    assert found == {"precision": 1 / 2, "recall": 1 / 3, "f1": pytest.approx(2 / 5)}
    logits[:, :, 0] = 9
    assert columns.metric(records, examples)((logits, labels)) == {"precision": 0, "recall": 0, "f1": 0}


def test_the_measure_of_relations():
    columns = LabelledMentions(LabelledTexts(labels=("a", "no_relation", "b")), "relation-extraction", "no_relation")
    logits = np.eye(3)[[0, 1, 2, 0, 1, 1]]
    found = columns.metric([], [])((logits, np.array([0, 1, 0, 1, 2, 1])))
    assert found == {"precision": 1 / 3, "recall": 1 / 3, "f1": pytest.approx(1 / 3), "accuracy": 0.5}
