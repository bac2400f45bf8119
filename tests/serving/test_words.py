"""The endpoints of words in their text, beside what pipelines and models themselves return."""

import json
import shutil

import huggingface_hub
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from starlette.testclient import TestClient

from bertcore import AutoModel, AutoTokenizer, GLiNER, GLiNER2, SentenceEncoder, pipeline, use_backend
from bertcore.serving import ServerSettings, create_app
from bertcore.serving.information import MOST_TOKENS
from bertcore.tasks.gliner2_schema import Schema
from bertcore.tasks.pipelines import pipeline_class
from bertcore.tasks.static import StaticModelPipeline, distill_static
from tests.serving.process import served
from tests.serving.test_endpoints import LONG, TEXTS, close, post
from tests.tiny_entities import save_family
from tests.tiny_gliner2 import tiny_gliner2

ENTITIES = ["the person of New-York", "the big city, the big person in a city", " "]
MASKED = ["the [MASK] sat on [MASK] mat", "paris is [MASK] ."]


@pytest.fixture(scope="module")
def client(folders):
    """A client of a server of pipelines, and of an encoder after them."""
    with use_backend("numpy"):
        app = create_app([folders[name] for name in ("tagger", "masked", "encoder", "gliner")])
    with TestClient(app) as client:
        yield client


def same(found, expected):
    """Compare nested answers; scores have other bits in other batches."""
    assert type(found) is type(expected)
    if isinstance(found, dict):
        assert found.keys() == expected.keys()
        for name, value in found.items():
            same(value, expected[name])
    elif isinstance(found, list):
        assert len(found) == len(expected)
        for pair in zip(found, expected, strict=True):
            same(*pair)
    else:
        assert found == (pytest.approx(expected, abs=1e-5) if isinstance(found, float) else expected)


@pytest.mark.parametrize("options", [{}, {"aggregation_strategy": "none"}, {"ignore_labels": ["O", "LOC"]}])
def test_token_classification(client, folders, options):
    tagger = pipeline("token-classification", folders["tagger"])
    expected = tagger(TEXTS, **({"aggregation_strategy": "simple"} | options))
    assert sum(map(len, expected)) > 0
    same(post(client, "/token_classification", inputs=TEXTS, parameters=options), expected)
    same(post(client, "/", inputs=TEXTS[0], parameters=options), expected[0])
    same(post(client, "/token_classification", inputs=TEXTS[:1], parameters=options), expected[:1])


@pytest.mark.parametrize("options", [{}, {"flat_ner": False, "multi_label": True}, {"threshold": 0.9}])
def test_entities_of_labels(client, folders, options):
    given = {"labels": ["person", "big city"], "threshold": 0.3} | options
    expected = GLiNER.from_pretrained(folders["gliner"]).inference(ENTITIES, **given)
    assert sum(map(len, expected)) > 0 or given["threshold"] == 0.9
    same(post(client, "/predict_entities", inputs=ENTITIES, **given), expected)
    same(post(client, "/predict_entities", inputs=ENTITIES[0], **given), expected[0])


@pytest.mark.parametrize(("body", "status", "message"), [
    ({"labels": []}, 400, "labels is empty, expected at least one entry"),
    ({"labels": ["a", ""]}, 400, "labels[1] is empty, expected a text"),
    ({"labels": [" "]}, 422, "labels has an empty label"),
    ({"labels": "a"}, 422, "labels is 'a', expected a list of at most 100 labels"),
    ({"labels": ["a", 3]}, 422, "labels[1] is 3, expected a string of at most 200 characters"),
    ({"labels": ["a<<SEP>>"]}, 422, "its marker tokens"),
    ({"labels": ["a" * 201]}, 422, "labels[0] is 'aaa"),
    ({"labels": ["a"] * 10_000}, 422, "labels is a list of 10000, expected a list of at most 100"),
    ({"labels": [f"a {number}" for number in range(100)]}, 422, "labels have more than the 64 tokens"),
    ({"labels": ["a"], "threshold": 1.5}, 422, "threshold is 1.5, expected a number from 0 to 1"),
    ({"labels": ["a"], "threshold": "0"}, 422, "threshold is '0', expected a number from 0 to 1"),
    ({"labels": ["a"], "inputs": "a " * 21}, 413, "inputs has more than 20 words, or 64 tokens with the labels"),
    ({}, 422, "labels is missing"),
], ids=str)  # fmt: skip
def test_wrong_labels_are_refused(client, body, status, message):
    assert message in post(client, "/predict_entities", status, **{"inputs": "the city"} | body)["error"]


def test_gliner2_finds_entities_of_labels(tmp_path):
    folder = tiny_gliner2(tmp_path, max_len=20)
    given, path = {"labels": ["person", "city"], "threshold": 0.4}, "/predict_entities"
    expected = list(GLiNER2.from_pretrained(folder).inference_stream(ENTITIES, **given))
    assert sum(map(len, expected)) > 2
    with TestClient(create_app([folder])) as client:
        same(post(client, path, inputs=ENTITIES, **given), expected)
        same(post(client, "/", inputs=ENTITIES[0], **given), expected[0])
        assert client.get("/info").json()["model_type"] == {"zero-shot-ner": {"max_words": 20}}
        said = post(client, path, 413, inputs="a " * 21, **given)["error"]
        assert "inputs has more than 20 words, or 4096 tokens with the labels" in said
        assert post(client, path, inputs="a " * 5000, **given, truncate=True)
        assert "model's marker tokens" in post(client, path, 422, inputs="a", labels=["a[E]"])["error"]
        too_long = ["a " * 95 + str(number) for number in range(99)]
        assert "the schema has more than" in post(client, path, 422, inputs="a", labels=too_long)["error"]


SCHEMA = {
    "entities": ["person", "city"], "relations": ["in"], "classifications": [{"task": "of", "labels": ["big", "city"]}],
    "structures": {"the": {"fields": [{"name": "a", "choices": ["x", "y"]}, {"name": "city"}]}},
}  # fmt: skip


def test_a_schema_is_extracted(tmp_path, folders):
    folder, path, schema = tiny_gliner2(tmp_path, max_len=20), "/extract", Schema.from_dict(SCHEMA)
    model, given = GLiNER2.from_pretrained(folder), {"threshold": 0.4}
    with TestClient(create_app([folders["gliner"], folder], ServerSettings(max_response_bytes=2**21))) as client:
        for options in ({}, {"include_confidence": True}, {"include_confidence": True, "include_spans": True}):
            expected = model.batch_extract(ENTITIES, schema, **given, **options)
            expected = json.loads(json.dumps(expected))
            same(post(client, path, inputs=ENTITIES, schema=SCHEMA, **given, **options), expected)
            same(post(client, path, inputs=ENTITIES[1], schema=SCHEMA, **given, **options), expected[1])
        assert "than 20 words, or" in post(client, path, 413, inputs="a " * 21, schema=SCHEMA)["error"]
        assert post(client, path, inputs="a " * 21, schema={"entities": ["city"]}, truncate=True)
        shown = {"include_spans": True, "inputs": ["a " * 19] * 30}
        assert "the answer takes up to" in post(client, path, 413, schema=SCHEMA, **shown)["error"]
        for wrong, status, message in (
            ([], 422, "schema is a list of 0, expected an object"),
            ({}, 422, "schema is empty, expected entities, relations"),
            ({"entity": []}, 422, "a key of schema is 'entity'"),
            ({"entities": ["[P]"]}, 422, "one of the model's marker tokens"),
            ({"entities": ["a b"] * 1001}, 413, "schema has more than 1000 names and values"),
            ({"entities": ["a" * 20001]}, 413, "or 20000 characters, the limit"),
            ({"relations": [f"a{number}" for number in range(21)]}, 413, "schema has 42 fields of records and ends"),
            (
                {"entities": [f"a {'b ' * 95}{number}" for number in range(99)]},
                422,
                "the schema has more than the 4096",
            ),
        ):
            assert message in post(client, path, status, inputs="the city", schema=wrong)["error"]
        assert "no model here that extracts" in post(client, path, 404, inputs="a", schema={}, model="gliner")["error"]


def test_a_long_text_is_cut_for_labels(client):
    body = {"labels": ["city"], "threshold": 0, "truncate": True}
    assert all(each["end"] <= 40 for each in post(client, "/predict_entities", inputs="a " * 5000, **body))
    many = {"flat_ner": False, "multi_label": True, "labels": ["city", "person"], "threshold": 0}
    assert len(post(client, "/predict_entities", inputs="a b c", **many)) > 3
    assert client.get("/info", params={"model": "gliner"}).json()["model_type"] == {"zero-shot-ner": {"max_words": 20}}
    assert "gliner has no attention" in post(client, "/attention", 424, inputs="a", model="gliner")["error"]


@pytest.mark.parametrize("options", [{}, {"top_k": 3}, {"top_k": 2, "targets": ["cat", "mat", "on"]}])
def test_fill_mask(client, folders, options):
    expected = pipeline("fill-mask", folders["masked"])(MASKED, **options)
    same(post(client, "/fill_mask", inputs=MASKED, parameters=options), expected)
    same(post(client, "/fill_mask", inputs=MASKED[1], parameters=options), expected[1])
    same(post(client, "/fill_mask", inputs=MASKED[:1], parameters=options), expected[:1])


@pytest.mark.parametrize("head", [None, 3])
@pytest.mark.parametrize("layer", [None, 1])
def test_attention(client, folders, layer, head):
    text = "the cat sät on"
    tokenizer = AutoTokenizer.from_pretrained(folders["encoder"])
    encoded = tokenizer([text])
    arrays = {name: np.array(encoded[name]) for name in tokenizer.model_input_names}
    layers = AutoModel.from_pretrained(folders["encoder"])(**arrays, output_attentions=True).attentions
    heads = layers[-1 if layer is None else layer - 1][0]
    found = post(client, "/attention", inputs=text, layer=layer, head=head, model="encoder")
    close(found["weights"], heads.mean(axis=0) if head is None else heads[head - 1])
    assert [token["id"] for token in found["tokens"]] == encoded["input_ids"][0]
    assert [token["text"] for token in found["tokens"]][:3] == ["[CLS]", "the", "cat"]
    assert (found["layer"], found["head"]) == (layer or 2, head)


def test_attention_reads_what_the_model_reads(client, folders):
    found = post(client, "/attention", inputs="the cat", prompt_name="query", model="encoder")
    prompted = SentenceEncoder(folders["encoder"]).tokenizer("paris is the cat")["input_ids"]
    assert [token["id"] for token in found["tokens"]] == prompted and len(found["weights"]) == len(prompted)


def test_truncation(client, folders):
    error = post(client, "/token_classification", 413, inputs=["a", LONG])["error"]
    assert error == "inputs[1] has more than 40 tokens, the limit"
    expected = pipeline("token-classification", folders["tagger"], aggregation_strategy="simple", truncation=True)(LONG)
    same(post(client, "/token_classification", inputs=LONG, parameters={"truncate": True}), expected)
    late = LONG + "[MASK]"
    assert "has no [MASK]" in post(client, "/fill_mask", 422, inputs=late, parameters={"truncate": True})["error"]


@pytest.mark.parametrize(("path", "body", "status", "message"), [
    ("/token_classification", {"inputs": ""}, 400, "inputs is empty, expected a text"),
    ("/token_classification", {"inputs": ["a", 3]}, 422, "inputs[1] is 3, expected a string"),
    (
        "/token_classification",
        {"inputs": "a", "parameters": {"aggregation_strategy": "best"}},
        422,
        "parameters.aggregation_strategy is 'best', expected one of none, simple",
    ),
    ("/token_classification", {"inputs": "a", "parameters": {"ignore_labels": "O"}}, 422, "ignore_labels is 'O'"),
    ("/fill_mask", {"inputs": ["a [MASK]", "a"]}, 422, "inputs[1] has no [MASK], expected one for each missing"),
    ("/fill_mask", {"inputs": "[MASK]", "parameters": {"top_k": 0}}, 422, "top_k is 0, expected a positive"),
    ("/fill_mask", {"inputs": "[MASK]", "parameters": {"targets": ["catmat"]}}, 422, "targets has 'catmat'"),
    ("/fill_mask", {"inputs": "[MASK]", "parameters": {"targets": []}}, 400, "parameters.targets is empty"),
    ("/fill_mask", {"inputs": "[MASK]", "parameters": {"targets": ["a"] * 2000}}, 422, "expected a list of at most"),
    ("/fill_mask", {"inputs": "[MASK]", "parameters": {"targets": ["a" * 1000] * 999}}, 413, "characters to read"),
    ("/fill_mask", {"inputs": "[MASK]", "model": "tagger"}, 404, "predicts masked words is called 'tagger'"),
    ("/embed_sparse", {"inputs": "a"}, 424, "no model here embeds texts into sparse vectors"),
    ("/attention", {"inputs": ["a"]}, 422, "inputs is a list of 1, expected a string"),
    ("/attention", {"inputs": "a", "layer": 3}, 422, "layer is 3, expected 1 to 2"),
    ("/attention", {"inputs": "a", "head": 4}, 422, "head is 4, expected 1 to 3"),
    ("/attention", {"inputs": "a", "layer": 0}, 422, "layer is 0, expected a positive integer"),
    ("/attention", {"inputs": "a " * MOST_TOKENS}, 413, "inputs has more than 40 tokens, the limit"),
    ("/attention", {"inputs": "a", "prompt_name": "query"}, 422, "tagger takes no prompts"),
])  # fmt: skip
def test_wrong_requests(client, path, body, status, message):
    assert message in post(client, path, status, **body)["error"]


def test_long_answers_are_refused(folders):
    settings = ServerSettings(max_response_bytes=5000)
    with TestClient(create_app([folders["masked"], folders["tagger"]], settings)) as client:
        many = {"inputs": "[MASK] " * 30, "parameters": {"top_k": 70}}
        assert "the answer takes up to" in post(client, "/fill_mask", 413, **many)["error"]
        assert "the answer takes up to" in post(client, "/token_classification", 413, inputs="a b " * 9)["error"]
        assert "the answer takes up to" in post(client, "/attention", 413, inputs="a b " * 9)["error"]
        assert post(client, "/fill_mask", inputs="the [MASK]", parameters={"top_k": 2})


def test_models_say_what_they_do(client, folders):
    models = {model["id"]: model for model in client.get("/v1/models").json()["data"]}
    assert {name: model["task"] for name, model in models.items()} == {
        "tagger": "token-classification", "masked": "fill-mask", "encoder": "embedding", "gliner": "zero-shot-ner",
    }  # fmt: skip
    assert (models.pop("gliner")["layers"], models["encoder"]["layers"]) == (0, 2)
    assert all((model["layers"], model["heads"]) == (2, 3) for model in models.values())
    assert models["masked"]["mask_token"] == "[MASK]"
    about = client.get("/info").json()["model_type"]["token-classification"]
    assert about["id2label"]["1"] == "B-PER" and about["label2id"]["B-PER"] == 1


@pytest.mark.parametrize("name", ["masked", "headless"])
def test_masked_language_models_embed(folders, name, tmp_path):
    folder = folders["masked"]
    if name == "headless":  # BertForMaskedLM in the config, but saved without the head
        folder = shutil.copytree(folder, tmp_path / name)
        weights = load_file(folder / "model.safetensors")
        save_file({key: value for key, value in weights.items() if "cls." not in key}, folder / "model.safetensors")
    encoder = SentenceEncoder(folders["masked"])
    with TestClient(create_app([folder])) as client:
        close(post(client, "/embed", inputs=TEXTS), encoder.encode(TEXTS, normalize_embeddings=True))
        tokens = encoder.encode(TEXTS[0], output_value="token_embeddings")
        close(post(client, "/embed_all", inputs=TEXTS[0])[0], tokens)
        (expected,) = encoder.encode(["the cat"], normalize_embeddings=True)
        close(post(client, "/v1/embeddings", input="the cat")["data"][0]["embedding"], expected)
        assert post(client, "/similarity", inputs={"source_sentence": "the cat", "sentences": ["the cat"]}) == [
            pytest.approx(1)
        ]
        assert len(post(client, "/attention", inputs="the cat")["weights"]) == 4
        status = 200 if name == "masked" else 424
        assert post(client, "/fill_mask", status, inputs="the [MASK]")


@pytest.mark.parametrize("family", ["bert", "luke"])
@pytest.mark.parametrize("task", ["entity-classification", "relation-extraction"])
def test_marked_entities(task, family, tmp_path):
    folder = save_family(tmp_path / "marked", family)
    kind = pipeline_class(task).model_classes[0]
    kind.from_pretrained(folder, num_labels=3).save_pretrained(folder)
    spans = [[0, 3], [4, 7]][: 1 if task == "entity-classification" else 2]
    others = [[6, 9], [0, 5]][: len(spans)]
    records = [{"text": "cat mat paris", "spans": spans}, {"text": "paris mat", "spans": others}]
    expected = pipeline(task, folder)(records, top_k=3)
    with TestClient(create_app([folder])) as client:
        same(post(client, "/entity_classification", inputs=records), expected)
        same(post(client, "/", inputs=records[0]), expected[0])
        same(post(client, "/", inputs=records[1], parameters={"top_k": 1}), expected[1][:1])
        assert client.get("/v1/models").json()["data"][0]["task"] == task
        assert set(client.get("/info").json()["model_type"][task]["label2id"]) == {"LABEL_0", "LABEL_1", "LABEL_2"}
        assert post(client, "/attention", 424, inputs="cat mat")["error"] == "marked has no attention"
        for inputs, status, message in (
            ({"text": "cat", "spans": [[0, 9]] * len(spans)}, 422, "inputs: spans[0] is [0, 9], expected"),
            ([{"text": "cat", "spans": []}], 400, "inputs[0].spans is empty"),
            ([{"text": "cat", "spans": [[0, 1]] * 3}], 422, "inputs[0]: spans has 3 spans"),
            ([{"text": "cat", "spans": [[0, 1, 2]]}], 422, "inputs[0]: spans[0] is [0, 1, 2]"),
            ({"text": "cat", "spans": [["a", 2]]}, 422, "inputs.spans[0][0] is 'a', expected the index"),
            ({"text": "cat"}, 422, "inputs.spans is missing, expected a list of [first, last + 1]"),
            ({"text": "cat " * 200, "spans": spans}, 413, "inputs has more than"),
            ("cat", 422, "inputs is 'cat', expected an object with text and spans"),
        ):
            assert message in post(client, "/entity_classification", status, inputs=inputs)["error"]


def test_info_of_a_masked_language_model(server):
    client = server("masked")
    assert client.get("/info").json()["model_type"] == {"fill-mask": {"mask_token": "[MASK]"}}
    assert len(post(client, "/", inputs="the [MASK]")) == 5


@pytest.mark.parametrize("activation", ["softmax", "sigmoid", "identity"])
def test_a_static_classifier_predicts(folders, tmp_path, activation):
    encoder, rng = distill_static(folders["encoder"], tmp_path / "static", pca_dims=None), np.random.default_rng(0)
    encoder = SentenceEncoder(encoder.folder, unknown="drop")
    layers = [(rng.normal(size=(3, encoder.embedding_dimension)), rng.normal(size=3))]
    model = StaticModelPipeline(encoder, layers, activation, None if activation == "identity" else ["a", "b", "c"])
    model.save_pretrained(tmp_path / "head")
    with TestClient(create_app([folders["encoder"], tmp_path / "head"])) as client:
        expected = list(model.answers(TEXTS, top_k=None))
        same(post(client, "/predict", inputs=[[text] for text in TEXTS]), expected)
        same(post(client, "/predict", inputs=TEXTS[0]), expected[0])
        raw = {each["label"]: each["score"] for each in post(client, "/predict", inputs=TEXTS[0], raw_scores=True)}
        np.testing.assert_allclose(
            [raw[name] for name in model.labels], model.logits(encoder.encode(TEXTS[:1]))[0], atol=1e-5
        )
        vectors = post(client, "/embed", inputs=TEXTS, model="head")
        np.testing.assert_allclose(vectors, encoder.encode(TEXTS), atol=1e-5)
        assert "inputs[0] is a pair, expected one text" in post(client, "/predict", 422, inputs=["a", "b"])["error"]
        assert "head" in client.get("/info", params={"model": "head"}).json()["model_id"]
    with TestClient(create_app([tmp_path / "head"])) as client:
        same(post(client, "/", inputs=TEXTS[0]), expected[0])


def test_static_embeddings_have_no_attention(folders, tmp_path):
    distill_static(folders["encoder"], tmp_path / "static", pca_dims=None)
    with TestClient(create_app([tmp_path / "static"])) as client:
        assert len(post(client, "/embed", inputs="the cat")) == 1
        assert post(client, "/attention", 424, inputs="the cat")["error"] == "static has no attention"
        (model,) = client.get("/v1/models").json()["data"]
        assert (model["layers"], model["heads"]) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tagger", "masked"])
def test_huggingface_hub_reads_answers(folders, name):
    with served(folders[name], options=("--log-level", "warning")) as (_, port):
        peer = huggingface_hub.InferenceClient(f"http://127.0.0.1:{port}")
        if name == "tagger":
            found = peer.token_classification(TEXTS[0], aggregation_strategy="none", ignore_labels=["O", "MISC"])
            expected = pipeline("token-classification", folders[name])(TEXTS[0], ignore_labels=["O", "MISC"])
        else:
            found = peer.fill_mask(MASKED[1], top_k=2, targets=["cat", "mat"])
            expected = pipeline("fill-mask", folders[name])(MASKED[1], top_k=2, targets=["cat", "mat"])
    assert len(found) == len(expected) > 0
    for entry, known in zip(found, expected, strict=True):
        for key, value in known.items():
            assert entry[key] == (pytest.approx(value, abs=1e-5) if key == "score" else value)
