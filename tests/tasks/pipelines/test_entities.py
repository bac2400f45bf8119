"""Relations, types of entities and spans: answers from the model's scores, and those of transformers' LUKE."""

import json
from itertools import pairwise

import numpy as np
import pytest

import bertcore
from bertcore import AutoTokenizer, pipeline
from bertcore.checkpoint import CheckpointError
from bertcore.models.model import NewlyInitialisedWarning
from bertcore.tasks.texts import TextsCutWarning
from tests.models.family_checks import drawn_anew
from tests.refusals import refuses
from tests.tiny_entities import FAMILIES, save_family

KINDS = {
    "entity-classification": ("EntityClassification", "entity_classification"),
    "relation-extraction": ("EntityPairClassification", "entity_pair_classification"),
    "span-ner": ("EntitySpanClassification", "entity_span_classification"),
}
LABELS = ("NIL", "place", "animal", "thing")
TEXT = "paris is the capital of france , the cat sat ."
TYPES = [{"text": TEXT, "spans": [[0, 5]]}, {"text": TEXT, "spans": [[37, 40]]}, {"text": "cat", "spans": [[0, 3]]}]
PAIRS = [{"text": TEXT, "spans": [[0, 5], [24, 30]]}, {"text": TEXT, "spans": [[24, 30], [0, 5]]}]
INPUTS = {"entity-classification": TYPES, "relation-extraction": PAIRS, "span-ner": [TEXT, "the cat", "", "paris"]}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """(family, task) -> a folder of a model, all of whose numbers are drawn."""
    found = {}
    for family in FAMILIES:
        base = save_family(tmp_path_factory.mktemp(family), family)
        for task, (kind, luke_task) in KINDS.items():
            folder = tmp_path_factory.mktemp(f"{family}-{task}")
            with pytest.warns(NewlyInitialisedWarning):
                model = getattr(bertcore, f"AutoModelFor{kind}").from_pretrained(base, num_labels=len(LABELS))
            drawn_anew(model)
            model.config["id2label"] = dict(enumerate(LABELS))
            model.config["label2id"] = {name: number for number, name in enumerate(LABELS)}
            model.save_pretrained(folder)
            AutoTokenizer.from_pretrained(base, **({"task": luke_task} if family == "luke" else {})).save_pretrained(
                folder
            )
            found[family, task] = folder
    return found


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("task", KINDS)
def test_answers_do_not_change_with_the_batch(folders, family, task):
    answer, items = pipeline(task, folders[family, task]), INPUTS[task]
    alone = [answer(item) for item in items]
    assert answer(items) == list(answer(iter(items))) == alone
    assert answer(items, batch_size=1) == answer(items, batch_tokens=1, padding="max_length", max_length=32) == alone
    assert type(alone[0]) is (list if task == "span-ner" else dict)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_answer_depends_on_the_spans(folders, family):
    types = pipeline("entity-classification", folders[family, "entity-classification"], top_k=None)
    relations = pipeline("relation-extraction", folders[family, "relation-extraction"], top_k=None)
    for answers in (types(TYPES[:2]), relations(PAIRS)):
        one, other = ({each["label"]: each["score"] for each in answer} for answer in answers)
        assert max(abs(one[name] - other[name]) for name in LABELS) > 1e-3
        assert sum(one.values()) == pytest.approx(1) and set(one) == set(LABELS)


def test_scores_are_those_of_the_marked_text(folders):
    folder = folders["bert", "relation-extraction"]
    relations, tokenizer = pipeline("relation-extraction", folder), AutoTokenizer.from_pretrained(folder)
    rows = tokenizer("@ paris @ is the capital of # france # , the cat sat .", return_tensors="np")
    logits = relations.model(**rows, entity_start_positions=[[1, 8]]).logits[0].astype(np.float64)
    chances = np.exp(logits) / np.exp(logits).sum()
    (found,) = relations(PAIRS[:1], top_k=1)
    assert found == [{"label": LABELS[chances.argmax()], "score": pytest.approx(chances.max(), rel=1e-5)}]
    assert relations(PAIRS[0], function_to_apply="none", top_k=1)[0]["score"] == pytest.approx(logits.max(), rel=1e-5)


def test_several_types_at_once(folders):
    types = pipeline("entity-classification", folders["bert", "entity-classification"])
    types.model.config["problem_type"] = "multi_label_classification"
    every = types(TYPES[0], top_k=None)
    assert [each["score"] for each in every] == sorted((each["score"] for each in every), reverse=True)
    assert types(TYPES[0]) == [each for each in every if each["score"] >= 0.5]
    assert types(TYPES[0], threshold=0.0) == every and types(TYPES[0], threshold=1.0) == []
    assert types(TYPES[0], top_k=2) == every[:2] and types(TYPES[0], top_k=2, threshold=0.5) == types(TYPES[0])[:2]


def scored_spans(model, tokenizer, text, width):
    """{(start, end): logits} of all spans of words that white space separates."""
    words = [(len(" ".join(text.split(" ")[:place])) + (place > 0), word) for place, word in enumerate(text.split(" "))]
    words = [(start, start + len(word)) for start, word in words]
    spans = [(words[i][0], words[j][1]) for i in range(len(words)) for j in range(i, min(i + width, len(words)))]
    rows = tokenizer(text, return_offsets_mapping=True)
    starts = {start: column for column, (start, end) in reversed(list(enumerate(rows.offset_mapping))) if end > start}
    ends = {end: column for column, (start, end) in enumerate(rows.offset_mapping) if end > start}
    columns = [[starts[start] for start, _ in spans]], [[ends[end] for _, end in spans]]
    logits = model([rows.input_ids], entity_start_positions=columns[0], entity_end_positions=columns[1]).logits[0]
    return dict(zip(spans, logits.astype(np.float64), strict=True))


def resolved(scored):
    """The entities of scored spans: the highest logit first, no two that overlap."""
    kept = []
    found = [(-row.max(), span, row) for span, row in scored.items() if row.argmax()]
    for _, (start, end), row in sorted(found, key=lambda each: each[:2]):
        if all(end <= other["start"] or other["end"] <= start for other in kept):
            score = float(np.exp(row - row.max()).max() / np.exp(row - row.max()).sum())
            kept.append({"entity_group": LABELS[row.argmax()], "score": score, "start": start, "end": end})
    return sorted(kept, key=lambda each: each["start"])


def assert_same_entities(found, expected, text):
    assert [{**each, "word": text[each["start"] : each["end"]]} for each in expected] == [
        {**each, "score": pytest.approx(each["score"], abs=1e-5)} for each in found
    ]


@pytest.mark.parametrize("width", [1, 3, 8])
def test_entities_are_the_best_spans_apart(folders, width):
    folder = folders["bert", "span-ner"]
    entities = pipeline("span-ner", folder)
    expected = resolved(scored_spans(entities.model, entities.tokenizer, TEXT, width))
    assert len(expected) > 1
    found = entities(TEXT, max_span_width=width)
    assert_same_entities(found, expected, TEXT)
    assert entities({"text": TEXT, "spans": []}, max_span_width=width) == found
    least = sorted(each["score"] for each in found)[1]
    assert all(each["score"] >= least for each in entities(TEXT, max_span_width=width, threshold=least))


@pytest.mark.parametrize("family", FAMILIES)
def test_long_texts_are_read_in_windows(folders, family):
    entities, text = pipeline("span-ner", folders[family, "span-ner"]), " ".join([TEXT] * 8)
    found = entities(text, truncation="chunk", max_length=24, stride=8)
    assert found[-1]["start"] > len(TEXT) * 6
    assert all(text[each["start"] : each["end"]] == each["word"] for each in found)
    assert all(one["end"] <= other["start"] for one, other in pairwise(found))
    with pytest.warns(TextsCutWarning):
        cut = entities(text, max_length=24)
    assert cut[-1]["end"] <= len(TEXT) * 3 < found[-1]["start"]
    refuses(ValueError, "inputs has more than the 24 tokens", entities, text, truncation="error", max_length=24)


def test_widths_and_markers_of_the_config_are_followed(folders, tmp_path):
    for family, task, key, value in (
        ("bert", "span-ner", "max_span_width", 1),
        ("bert", "relation-extraction", "entity_markers", ["#", "@"]),
    ):
        model = pipeline(task, folders[family, task]).model
        model.config[key] = value
        model.save_pretrained(tmp_path / task)
        AutoTokenizer.from_pretrained(folders[family, task]).save_pretrained(tmp_path / task)
    assert all(" " not in each["word"] for each in pipeline("span-ner", tmp_path / "span-ner")(TEXT))
    turned = pipeline("relation-extraction", tmp_path / "relation-extraction")(PAIRS[0], top_k=None)
    straight = pipeline("relation-extraction", folders["bert", "relation-extraction"])(PAIRS[0], top_k=None)
    assert turned != straight
    config = json.loads((tmp_path / "relation-extraction" / "config.json").read_text())
    for wrong in (["@"], "@#", ["@", 3], ["@", " "]):
        (tmp_path / "relation-extraction" / "config.json").write_text(json.dumps(config | {"entity_markers": wrong}))
        refuses(CheckpointError, "config: entity_markers is .* expected 2 strings", pipeline, "relation-extraction",
                tmp_path / "relation-extraction")  # fmt: skip
    config = json.loads((tmp_path / "span-ner" / "config.json").read_text())
    (tmp_path / "span-ner" / "config.json").write_text(json.dumps(config | {"max_span_width": 0}))
    refuses(CheckpointError, "config: max_span_width is 0", pipeline, "span-ner", tmp_path / "span-ner")


WRONG = {
    "a string": ("paris", TypeError, "inputs is str, expected {"),
    "no spans": ({"text": TEXT}, ValueError, "inputs has no 'spans', it has 'text'"),
    "no text": ([PAIRS[0], {"spans": []}], ValueError, r"inputs\[1\] has no 'text'"),
    "bytes": ({"text": b"a", "spans": []}, TypeError, r"inputs\['text'\] is bytes"),
    "one span": ({"text": TEXT, "spans": [[0, 5]]}, ValueError, "inputs: spans has 1 spans, expected 2: head and tail"),
    "beyond": ([{"text": "cat", "spans": [[0, 3], [4, 9]]}], ValueError, r"inputs\[0\]: spans\[1\] is \[4, 9\]"),
    "overlap": ({"text": TEXT, "spans": [[0, 5], [4, 8]]}, ValueError, "which overlap"),
    "nothing": ({}, ValueError, "inputs has no 'text', it has none"),
    "a number": ([3], TypeError, r"inputs\[0\] is int, expected"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_inputs_are_named(folders, name):
    item, error, message = WRONG[name]
    relations = pipeline("relation-extraction", folders["bert", "relation-extraction"])
    refuses(error, message, lambda: list(relations(item)))


def test_wrong_options_and_models_are_named(folders):
    relations = pipeline("relation-extraction", folders["bert", "relation-extraction"])
    entities = pipeline("span-ner", folders["bert", "span-ner"])
    refuses(ValueError, "truncation='chunk', merge or calibration", relations, PAIRS, truncation="chunk")
    refuses(ValueError, "threshold is 2, expected a number from 0 to 1", relations, PAIRS, threshold=2)
    refuses(ValueError, "max_span_width is 0", entities, TEXT, max_span_width=0)
    refuses(ValueError, "inputs has no 'text', it has 'texts'", entities, {"texts": TEXT})
    with pytest.warns(TextsCutWarning):
        relations({"text": TEXT, "spans": [[0, 5], [6, 8]]}, max_length=10)
    with pytest.raises(
        ValueError, match=r"inputs has spans in the part of the text that is cut off, .* first 10 tokens"
    ):
        relations(PAIRS[0], max_length=10)
    refuses(ValueError, "inputs has more than the 12 tokens", relations, PAIRS[0], max_length=12, truncation="error")
    refuses(
        ValueError,
        "has no classifier of spans|does not fit",
        pipeline,
        "span-ner",
        folders["bert", "relation-extraction"],
    )
    luke = bertcore.load_model(folders["luke", "relation-extraction"])
    plain = AutoTokenizer.from_pretrained(folders["bert", "span-ner"])
    other = AutoTokenizer.from_pretrained(folders["luke", "span-ner"])
    refuses(ValueError, "tokenizer has no entity_vocab", pipeline, "relation-extraction", luke, plain)
    refuses(ValueError, "tokenizer has the task 'entity_span_classification', expected 'entity_pair", pipeline,
            "relation-extraction", luke, other)  # fmt: skip
    entities.model.config["id2label"] = {"0": "a", "1": "b", "2": "c", "3": "d"}
    refuses(ValueError, "id2label has a, b, c, d, expected one class NIL", pipeline, "span-ner", entities.model, plain)


def of_transformers(folder, kind, **inputs):
    import torch
    import transformers

    tokenizer = transformers.LukeTokenizer.from_pretrained(folder)
    model = getattr(transformers, f"LukeFor{kind}").from_pretrained(folder).eval()
    with torch.no_grad():
        return model(**tokenizer(**inputs, return_tensors="pt")).logits[0].double().numpy()


@pytest.mark.parity
@pytest.mark.parametrize("task", ["entity-classification", "relation-extraction"])
def test_luke_s_classes_are_those_of_transformers(folders, task):
    folder = folders["luke", task]
    for item in INPUTS[task]:
        spans = [tuple(span) for span in item["spans"]]
        logits = of_transformers(folder, KINDS[task][0], text=item["text"], entity_spans=spans)
        found = {each["label"]: each["score"] for each in pipeline(task, folder)(item, top_k=None)}
        chances = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
        assert [found[name] for name in LABELS] == pytest.approx(chances.tolist(), abs=1e-5)


@pytest.mark.parity
@pytest.mark.parametrize("width", [2, 16])
def test_luke_s_spans_are_those_of_transformers(folders, width):
    folder = folders["luke", "span-ner"]
    words = [(0, 5), (6, 8), (9, 12), (13, 20), (21, 23), (24, 30), (31, 32), (33, 36), (37, 40), (41, 44), (45, 46)]
    spans = [(words[i][0], words[j][1]) for i in range(11) for j in range(i, min(i + width, 11))]
    logits = of_transformers(folder, "EntitySpanClassification", text=TEXT, entity_spans=spans)
    expected = resolved(dict(zip(spans, logits, strict=True)))
    assert len(expected) > 1
    assert_same_entities(pipeline("span-ner", folder)(TEXT, max_span_width=width), expected, TEXT)
