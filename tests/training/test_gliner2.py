"""GLiNER2's objective: the loss and its gradients beside the package gliner2, targets, and refusals."""

import copy
import re

import numpy as np
import pytest

from bertcore import GLiNER2, value_and_grad
from bertcore.training import objectives
from bertcore.training.data.files import MalformedRecord
from tests.refusals import refuses
from tests.tiny_gliner2 import tiny_gliner2
from tests.tolerances import assert_same_arrays

CLASSES = {
    "task": "of",
    "labels": ["big", "city", "in"],
    "true_label": ["city"],
    "prompt": "a",
    "examples": [["x", "in"]],
}
RECORDS = [
    {"input": "the person of New-York in the big city", "output": {
        "entities": {"person": ["the person"], "city": ["New-York", "big city"], "of": []},
        "entity_descriptions": {"city": "the big city"},
        "relations": [{"in": {"head": "person", "tail": "big city"}}, {"in": {"head": "city", "tail": "the"}}],
        "classifications": [CLASSES],
    }},
    {"input": "a person, a big person.", "output": {
        "json_structures": [{"the person": {"name": "person", "size": {"value": "big", "choices": ["big", "small"]}}}],
        "json_descriptions": {"the person": {"name": "a name"}},
        "classifications": [CLASSES | {"task": "in", "true_label": ["big", "in"], "multi_label": True}],
    }},
    {"input": "the city", "output": {
        "json_structures": [{"x": {"a": "the", "b": None}}, {"x": {"a": ["city", "the"], "b": ""}}, {"y": {"c": ""}}],
        "entities": {"a": [{"text": "city", "start": 4, "end": 8}]},
    }},
]  # fmt: skip


@pytest.fixture(scope="module", params=["count_lstm", "count_lstm_v2"])
def folder(request, tmp_path_factory):
    return tiny_gliner2(tmp_path_factory.mktemp("gliner2"), request.param)


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore")
def test_loss_and_gradients_equal_those_of_gliner2(folder):
    theirs = pytest.importorskip("gliner2").GLiNER2.from_pretrained(str(folder))
    given = [(each["input"], copy.deepcopy(each["output"])) for each in RECORDS]
    batch = theirs.processor._collate_batch(given, build_targets=True)  # in training they leave out labels at random
    theirs.eval()
    loss = theirs(batch)["total_loss"]
    loss.backward()
    ours = GLiNER2.from_pretrained(folder)
    objective = objectives.GLiNER2Schemas(ours, negatives=1.0, shuffle=False)
    made = objective.collator(ours.tokenizer)(RECORDS)
    np.testing.assert_array_equal(made["input_ids"], batch.input_ids.numpy())
    out, grads = objective.value_and_grad(ours.model, made)
    assert float(out.loss) == pytest.approx(float(loss), rel=1e-5)
    for name, parameter in theirs.named_parameters():
        expected = np.zeros(parameter.shape) if parameter.grad is None else parameter.grad.numpy()
        np.testing.assert_allclose(grads[name], expected, atol=1e-5 * max(1, np.abs(expected).max()), err_msg=name)


def test_targets_follow_the_order_of_labels(folder):
    model = GLiNER2.from_pretrained(folder)

    def made(**options):
        return objectives.GLiNER2Schemas(model, **options).collator(model.tokenizer, seed=1)(RECORDS)

    plain, mixed, whole = made(shuffle=False), made(shuffle=True), made(shuffle=False, negatives=1.0)
    assert not np.array_equal(plain["input_ids"], mixed["input_ids"])
    for name in ("span_targets", "class_targets"):
        assert plain[name].sum() == mixed[name].sum() and not np.array_equal(plain[name], mixed[name])
    words = [list(np.argwhere(batch["span_targets"][0])[:, :2].tolist()) for batch in (plain, mixed)]
    assert sorted(words[0]) == sorted(words[1])
    assert_same_arrays(made(), mixed)
    kept, every = (batch["span_weights"][plain["span_targets"] == 0].mean() for batch in (plain, whole))
    assert 0.4 < kept / every < 0.6 and (plain["span_weights"][plain["span_targets"] > 0] == 1).all()


@pytest.mark.parametrize(("output", "message"), [
    ([], "output is [], expected a mapping with entities, json_structures"),
    ({}, "output has nothing to learn"),
    ({"json_structures": [{"a": {"b": None}}]}, "output has nothing to learn"),
    ({"entity": {}}, "a key of output is 'entity'"),
    ({"entities": ["a"]}, "entities is ['a'], expected a mapping"),
    ({"entities": {"a": 3}}, "a is 3, expected a list"),
    ({"entities": {"a": [{"text": "the", "start": 1, "end": 4}]}}, "expected the text between its start and its end"),
    ({"entities": {"a": [{"text": " ", "start": 3, "end": 4}]}}, "expected the text between its start and its end"),
    ({"entities": {"a": ["The  City.", "cit"]}}, "a is 'cit', expected words of the text"),
    ({"relations": [{"a": {"head": "city", "tail": "towns"}}]}, "tail is 'towns', expected words of the text"),
    ({"json_structures": [{"a": {"b": " ", "c": ""}}]}, "b is ' ', expected words of the text"),
    ({"relations": [{"a": {"head": "x"}}]}, "relations['a'] has no 'tail', expected head and tail"),
    ({"json_structures": [{"a": {"b": {"value": "x", "choices": ["y"]}}}]}, "b is 'x', expected one of its choices"),
    ({"classifications": [CLASSES | {"true_label": "x"}]}, "true_label has 'x', expected one of the labels of 'of'"),
    ({"classifications": [{"task": "a", "labels": ["b"]}]}, "a classification has no 'true_label'"),
], ids=str)  # fmt: skip
def test_wrong_records_are_refused(folder, output, message):
    model = GLiNER2.from_pretrained(folder)
    collate = objectives.GLiNER2Schemas(model).collator(model.tokenizer)
    refuses(MalformedRecord, re.escape(message), collate, [RECORDS[0], {"input": "the city", "output": output}])


def test_gradients_need_instances(folder):
    model = GLiNER2.from_pretrained(folder)
    refuses(TypeError, "reader is int, expected a GLiNER2", objectives.GLiNER2Schemas, 3)
    batch = objectives.GLiNER2Schemas(model).collator(model.tokenizer)(RECORDS)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "words_mask", "groups_mask")}
    refuses(ValueError, "instances is None, expected", value_and_grad(model.model, lambda out: 0), **inputs)
    many = {"instances": 20 * (batch["instances"] > 0)}
    refuses(ValueError, "instances has 20, expected 0 to 19", model.model, **inputs, **many)
