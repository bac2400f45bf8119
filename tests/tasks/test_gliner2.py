"""GLiNER2 beside the package gliner2, and what it refuses."""

import json
import re
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from bertcore import GLiNER2, pipeline, use_backend
from bertcore.checkpoint import CheckpointError
from bertcore.cli import main
from bertcore.models.gliner2 import GLiNER2Model
from bertcore.tasks.gliner2_schema import Schema
from bertcore.tasks.texts import TextsCutWarning
from tests.refusals import refuses
from tests.tiny_gliner2 import tiny_gliner2

TEXTS = [
    "the person of New-York", "the big city, the big person in a city.", "x", "",
    "visit https://a.b/c or a@b.cd of @me", "the person a_b of the - city " * 3,
]  # fmt: skip
SHOWN = {"include_confidence": True, "include_spans": True}


@pytest.fixture(scope="module", params=["count_lstm", "count_lstm_v2"])
def folder(request, tmp_path_factory):
    return tiny_gliner2(tmp_path_factory.mktemp("gliner2"), request.param)


@pytest.fixture(scope="module")
def model(folder):
    return GLiNER2.from_pretrained(folder)


def filled(schema):
    """The schema with parts of every kind; the methods are those of both packages."""
    schema = schema.entities({"person": "a big person", "city": {"dtype": "str"}}).relations(["in the city"])
    schema = schema.classification("of", ["big", "city"], prompt="a", examples=[("x", "big")])
    schema = schema.classification("in", {"a": "one", "b": "two"}, multi_label=True, cls_threshold=0.4, top_k=1)
    record = schema.structure("person").field("name", dtype="str").field("city", description="the big city")
    return record.field("kind", choices=["big", "small one", "the"]).field("only", dtype="str", choices=["a", "b"])


def same(found, expected):
    assert type(found) is type(expected) or None not in (found, expected)
    if isinstance(found, dict):
        assert dict(found).keys() == dict(expected).keys()
        for name in found:
            same(found[name], expected[name])
    elif isinstance(found, list | tuple):
        for pair in zip(found, expected, strict=True):
            same(*pair)
    else:
        assert found == (pytest.approx(expected, abs=1e-4) if isinstance(found, float) else expected)


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", [{}, SHOWN], ids=str)
def test_results_equal_those_of_gliner2(model, folder, options):
    peer = pytest.importorskip("gliner2").GLiNER2.from_pretrained(str(folder))
    schemas = filled(Schema()), filled(peer.create_schema())
    found = model.batch_extract(TEXTS, schemas[0], threshold=0.4, **options)
    same(found, peer.batch_extract(TEXTS, schemas[1], threshold=0.4, **options))
    assert any(each["entities"]["person"] for each in found) and any(each["person"] for each in found)
    for name, wanted in (
        ("extract_entities", ["person", "city"]), ("extract_relations", {"in": "the city"}),
        ("classify_text", {"of": ["big", "city"], "in": {"labels": ["a", "b"], "multi_label": True}}),
        ("extract_json", {"city": ["person::str", "of::[big|in]", "in::the big city"]}),
    ):  # fmt: skip
        if name != "extract_relations":  # whose peer names the result after the description, too
            same(getattr(model, name)(TEXTS[1], wanted, **options), getattr(peer, name)(TEXTS[1], wanted, **options))
        many = getattr(model, name.replace("extract", "batch_extract").replace("classify", "batch_classify"))
        same(many(TEXTS[:2], wanted, **options)[1], getattr(model, name)(TEXTS[1], wanted, **options))


def test_batches_precisions_and_files_agree(model, folder, tmp_path):
    schema = filled(Schema())
    found = model.batch_extract(TEXTS, schema, **SHOWN)
    same(model.batch_extract(TEXTS, [schema] * len(TEXTS), batch_size=1, **SHOWN), found)
    model.save_pretrained(tmp_path)
    assert GLiNER2.from_pretrained(tmp_path).batch_extract(TEXTS, schema, **SHOWN) == found
    row = [model.token_row(TEXTS[1], schema, None)[0].arrays]
    arrays = {name: np.array([each[name] for each in row]) for name in row[0]}
    expected = model.model(**arrays).logits[0]
    for dtype in ("bfloat16", "int8"):
        with use_backend("numpy"):  # tables of positions in low precision compile for half a minute
            lower = GLiNER2.from_pretrained(folder, dtype=dtype)
            assert lower.batch_extract(TEXTS, schema)[3].keys() == found[3].keys()
            classes = lower.model(**arrays).logits[0][-1], expected[-1]  # numbers of instances may differ
        assert np.abs(classes[0] - classes[1]).max() < 0.1 * np.abs(expected[-1]).max() + 0.3


def test_choices_are_read_at_their_own_places(model, monkeypatch):
    """Not where an earlier field, or one of its choices, has the same word."""

    def numbered(self, words_mask, **arrays):
        places = np.arange(words_mask.max()) / 100
        return SimpleNamespace(logits=[[np.broadcast_to(places[:, None], (1, 2, len(places), 1))]])

    monkeypatch.setattr(GLiNER2Model, "__call__", numbered)
    schema = Schema().structure("person").field("big", choices=["a", "in"]).field("city", choices=["big", "a"])
    found = model.extract("the city", schema, 0, include_confidence=True)["person"][0]  # ( person: big ( a | in ) , ...
    levels = {name: np.array([choice["confidence"] for choice in choices]) for name, choices in found.items()}
    places = {name: (100 * np.log(each / (1 - each))).round().tolist() for name, each in levels.items()}
    assert places == {"big": [4, 6], "city": [11, 13]}


def test_long_texts_are_cut_once(model):
    with pytest.warns(TextsCutWarning, match="1 of 2 texts were cut to 5 words"):
        found = model.batch_extract(["a b", "city " * 50], Schema().entities(["city"]), max_len=5, **SHOWN)
    assert all(each["end"] <= 25 for some in found for each in some["entities"].get("city", []))
    given = ["a", "city " * 50], Schema().entities(["city"])
    with pytest.raises(ValueError, match=r"texts\[1\] has more than the 5 words"):
        model.batch_extract(*given, max_len=5, truncation="error")
    assert model.batch_extract(["city " * 50], given[1], max_len=5, truncation=True, **SHOWN) == found[1:]
    assert model.batch_extract([], Schema()) == [] and model.extract("a", Schema()) == {}
    empty = Schema().structure("x").entities([])  # gliner2 leaves out parts without fields
    assert model.extract("the city", empty) == {} and model.extract_entities("the city", []) == {}
    city = model.extract("the city of", Schema().entities(["city"]), **SHOWN)
    assert model.extract("the city of", Schema().structure("x").entities(["city"]), **SHOWN) == city


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda model: model.extract(3, Schema()), TypeError, "text is int, expected str"),
        (lambda model: model.extract("a", {"entities": {}}), TypeError, "schemas is dict, expected a Schema"),
        (lambda model: model.batch_extract(["a"], [Schema()] * 2), ValueError, "schemas is a list of 2"),
        (lambda model: model.extract("a", Schema(), 2), ValueError, "threshold is 2, expected a number"),
        (lambda model: model.inference_stream(["a"], ["b"], include_spans=False), TypeError,
         "inference_stream has no argument include_spans, it takes texts, labels"),
        (lambda model: model.extract("a", Schema(), max_len=0), ValueError, "max_len is 0"),
        (lambda model: model.extract_entities("a", 3), TypeError, "entity_types is 3, expected a list of strings"),
        (lambda model: model.extract_entities("a", [" "]), ValueError, "entity_types has an empty name"),
        (lambda model: model.extract_entities("a", ["a", 1]), TypeError, "entity_types[1] is int"),
        (lambda model: model.extract_entities("a", {"a": 1}), TypeError, "entity_types['a'] is 1"),
        (lambda model: model.extract_entities("a", {"a": {"x": 1}}), ValueError, "a key of entity_types['a'] is 'x'"),
        (lambda model: model.extract_entities("a", ["[P]"]), ValueError, "'[P]' has [P], one of the model's marker"),
        (lambda model: model.extract_relations("a", ["entities"]), ValueError, "a part is called 'entities'"),
        (lambda model: model.classify_text("a", ["b"]), TypeError, "tasks is ['b'], expected {name: labels}"),
        (lambda model: model.classify_text("a", {"b": []}), ValueError, "labels is empty"),
        (lambda model: model.extract_json("a", {"b": "c"}), TypeError, "structures['b'] is 'c', expected a list"),
        (lambda model: model.extract_json("a", {"b": []}), ValueError, "structures['b'] is empty, expected"),
        (lambda model: model.extract_json("a", {"b": ["c", "c"]}), ValueError, "field 'c' exists already"),
        (lambda model: Schema().field("a"), ValueError, "field is called before any structure"),
        (lambda model: Schema().entities("a").entities("[E] b"), ValueError, "'[E] b' has [E], one of the"),
        (lambda model: Schema().entities({"a": "[L]"}), ValueError, "'[L]' has [L], one of the model's marker"),
        (lambda model: Schema().structure("a").field("[C]"), ValueError, "'[C]' has [C], one of the model's marker"),
        (lambda model: Schema().structure("a").field("b", choices=["[P]"]), ValueError, "'[P]' has [P]"),
        (lambda model: model.extract("a", Schema().structure("a").field("b", choices=["\u200b"])), ValueError,
         "choices of a.b has '\\u200b', which the tokenizer does not read"),
        (lambda model: Schema().entities("a", dtype="set"), ValueError, "dtype is 'set'"),
        (lambda model: Schema().entities("a", threshold=-1), ValueError, "threshold is -1"),
        (lambda model: Schema().classification("a", ["b"], class_act="x"), ValueError, "class_act is 'x'"),
        (lambda model: Schema().classification("a", ["b"]).relations("a"), ValueError, "a part is called 'a'"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused(model, call, error, message):
    refuses(error, re.escape(message), call, model)


@pytest.mark.parametrize(("changed", "message"), [
    ({"architecture": "boundary"}, "architecture"),
    ({"token_pooling": "mean"}, "token_pooling"),
    ({"counting_layer": "count_lstm_moe"}, "counting_layer is 'count_lstm_moe'"),
    ({"max_width": 10**9}, "max_width"),
    ({"max_len": -1}, "max_len"),
    ({"max_width": "8"}, "max_width"),
])  # fmt: skip
def test_wrong_configs_are_refused(folder, tmp_path, changed, message):
    model = tiny_gliner2(tmp_path)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | changed))
    refuses(CheckpointError, message, GLiNER2.from_pretrained, model)


def test_an_encoder_is_needed(tmp_path):
    model = tiny_gliner2(tmp_path)
    config = json.loads((model / "config.json").read_text())
    config.pop("encoder_config")
    (model / "config.json").write_text(json.dumps(config))
    (model / "encoder_config" / "config.json").unlink()
    (model / "encoder_config").rmdir()
    refuses(CheckpointError, "encoder_config is None", GLiNER2.from_pretrained, model)


@pytest.mark.parametrize("options", [{}, {"flat_ner": False}, {"flat_ner": False, "multi_label": True}], ids=str)
def test_entities_have_gliners_form(model, folder, options):
    """The same spans as `extract_entities`, those that fit, without the full stop that is appended."""
    find = pipeline("zero-shot-ner", folder, threshold=0.4)
    found = list(find(iter(TEXTS), labels="person, city", **options))
    expected = model.batch_extract_entities(TEXTS, ["person", "city"], threshold=0.4, **SHOWN)
    for text, entities, every in zip(TEXTS, found, expected, strict=True):
        spans = [(each["start"], each["end"], each["label"]) for each in entities]
        whole = {(each["start"], min(each["end"], len(text)), label)
                 for label, some in every["entities"].items() for each in some}  # fmt: skip
        assert set(spans) <= whole and spans == sorted(spans, key=lambda span: span[0])
        assert all(text[each["start"] : each["end"]] == each["text"] for each in entities)
        if options == {"flat_ner": False, "multi_label": True}:
            assert {span[:2] for span in spans} == {span[:2] for span in whole if span[0] < span[1]}
        elif not options:
            assert all(before[1] <= after[0] for before, after in pairwise(spans))
    assert sum(map(len, found)) > 2
    per_text = [["person"], {"city": "the big city"}]
    answers = list(model.inference_stream(TEXTS[:2], per_text, threshold=0.4, **options))
    same(answers[:1], list(model.inference_stream(TEXTS[:1], ["person"], threshold=0.4, **options)))
    assert {each["label"] for each in answers[1]} == {"city"}
    loaded = pipeline("zero-shot-ner", model.model, model.tokenizer, threshold=0.4)
    same(loaded(TEXTS[0], labels=["person"], **options), answers[0])


@pytest.mark.parity
def test_a_schema_of_a_mapping_is_gliner2s():
    peer = pytest.importorskip("gliner2").GLiNER2.create_schema
    data = filled(peer(SimpleNamespace())).to_dict()
    assert Schema.from_dict(json.loads(json.dumps(data))).ordered() == filled(Schema()).ordered()


@pytest.mark.parametrize(("data", "error", "message"), [
    ([], TypeError, "schema is [], expected a mapping with entities, relations"),
    ({"entity": []}, ValueError, "a key of schema is 'entity', expected one of 'entities'"),
    ({"entities": 3}, TypeError, "entity_types is 3, expected a list"),
    ({"structures": {"a": []}}, TypeError, "structures['a'] is [], expected a mapping with fields"),
    ({"structures": {"a": {"fields": {}}}}, TypeError, "structures['a'].fields is {}, expected a list"),
    ({"structures": {"a": {}}}, ValueError, "structures['a'] has no 'fields', expected fields"),
    ({"structures": {"a": {"fields": []}}}, ValueError, "structures['a'].fields is empty, expected at least one"),
    ({"structures": {"a": {"fields": [{}]}}}, ValueError, "a field has no 'name', expected name"),
    ({"entities": ""}, ValueError, "entity_types has an empty name"),
    ({"relations": 0}, TypeError, "relation_types is 0, expected a list of strings"),
    ({"entities": {"a": False}}, TypeError, "entity_types['a'] is False, expected a description"),
    ({"classifications": [{"task": "a", "labels": ["b"], "examples": [["[L]", "b"]]}]}, ValueError, "'[L]' has [L]"),
    ({"classifications": {"a": 1}}, TypeError, "classifications is {'a': 1}, expected a list"),
    ({"classifications": [{"task": "a"}]}, ValueError, "a classification has no 'labels'"),
    ({"classifications": [{"task": "a", "labels": ["b"], "prompt": 3}]}, TypeError, "prompt is int"),
    ({"classifications": [{"task": "a", "labels": ["b"], "examples": [["b"]]}]}, TypeError, "examples has ('b',)"),
], ids=str)  # fmt: skip
def test_wrong_mappings_are_refused(data, error, message):
    refuses(error, re.escape(message), Schema.from_dict, data)


def test_the_command_extracts_a_schema(model, folder, tmp_path, capsys):
    data = {"entities": ["person"], "classifications": [{"task": "of", "labels": ["big", "city"]}]}
    (tmp_path / "schema.json").write_text(json.dumps(data))
    (tmp_path / "texts").write_text("\n".join(TEXTS[:2]) + "\n")
    given = ["tag", str(folder), str(tmp_path / "texts"), "--threshold", "0.4"]
    assert main([*given, "--schema", str(tmp_path / "schema.json")]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert found == model.batch_extract(TEXTS[:2], Schema.from_dict(data), threshold=0.4)
    assert main([*given, "--schema", str(tmp_path / "schema.json"), "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    same(found, model.batch_extract(TEXTS[:2], Schema.from_dict(data), threshold=0.4, **SHOWN))
    assert main([*given, "--labels", "person", "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    same(found, list(model.inference_stream(TEXTS[:2], ["person"], threshold=0.4)))
    (tmp_path / "schema.json").write_text('{"a": 1}')
    for options, message in (
        (["--schema", str(tmp_path / "schema.json")], "schema.json: a key of schema is 'a', expected one of"),
        (["--schema", "absent.json"], "absent.json cannot be read"),
        (["--schema", "a", "--labels", "b"], "--schema and --labels are both given"),
        (["--schema", "a", "--truncation", "chunk"], "--schema and --truncation chunk are both given"),
    ):
        assert main([*given, *options]) in (1, 2)
        assert message in capsys.readouterr().err
