"""Chroma's collections over our embeddings, in memory and from a folder."""

import pytest

from tests.lazy import lazy
from tests.plugins.texts import TEXTS, close
from tests.refusals import refuses

chromadb, plugin = lazy("chromadb"), lazy("bertcore.plugins.chroma")
QUERY = "the cat on a mat"


def test_embeddings(folder, encoder):
    function = plugin.BertcoreEmbeddingFunction(folder)
    close(function(TEXTS), encoder.encode(TEXTS))
    close(function.embed_query([QUERY]), encoder.encode_query([QUERY]))
    again = plugin.BertcoreEmbeddingFunction.build_from_config(function.get_config())
    close(again(TEXTS), encoder.encode(TEXTS))
    assert function.get_config() == {"model": str(folder), "truncation": "warn"}
    assert function.default_space() == "cosine"
    assert function.validate_config(function.get_config()) is None
    refuses(TypeError, "input is 'the', expected a list of strings", function, "the")


@pytest.mark.parametrize(("config", "error", "message"), [
    ([], TypeError, r"config is \[\], expected a dict"),
    ({}, ValueError, "config has nothing, expected 'model'"),
    ({"model": 3}, ValueError, "config has 'model', expected 'model', a model's name"),
    ({"model": "demo", "dtype": "int8"}, ValueError, "config has 'dtype', 'model', expected"),
    ({"model": "demo", "truncation": "no"}, ValueError, "truncation is 'no', expected one of"),
])  # fmt: skip
def test_configs_are_validated(config, error, message):
    for call in (plugin.BertcoreEmbeddingFunction.validate_config, plugin.BertcoreEmbeddingFunction.build_from_config):
        refuses(error, message, call, config)


def test_a_collection_that_is_opened_again(folder, encoder, tmp_path):
    ids = [str(number) for number in range(len(TEXTS))]
    settings = chromadb.Settings(anonymized_telemetry=False)
    client = chromadb.PersistentClient(str(tmp_path), settings=settings)
    collection = client.create_collection("notes", embedding_function=plugin.BertcoreEmbeddingFunction(folder))
    collection.add(ids=ids, documents=TEXTS)
    close(collection.get(include=["embeddings"])["embeddings"], encoder.encode(TEXTS))
    scores = encoder.similarity(encoder.encode_query([QUERY]), encoder.encode(TEXTS))[0]
    expected = [str(index) for index in (-scores).argsort()[:3]]
    assert collection.query(query_texts=[QUERY], n_results=3)["ids"] == [expected]
    opened = chromadb.PersistentClient(str(tmp_path), settings=settings).get_collection("notes")
    assert opened.query(query_texts=[QUERY], n_results=3)["ids"] == [expected]
