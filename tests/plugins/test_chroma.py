"""Chroma's collections over our embeddings, in memory and from a folder."""

import pytest

from tests.plugins.texts import TEXTS, close

chromadb = pytest.importorskip("chromadb")

from bertcore.plugins.chroma import BertcoreEmbeddingFunction  # noqa: E402

QUERY = "the cat on a mat"
SETTINGS = chromadb.Settings(anonymized_telemetry=False)


def test_embeddings(folder, encoder):
    function = BertcoreEmbeddingFunction(folder)
    close(function(TEXTS), encoder.encode(TEXTS))
    close(function.embed_query([QUERY]), encoder.encode_query([QUERY]))
    again = BertcoreEmbeddingFunction.build_from_config(function.get_config())
    close(again(TEXTS), encoder.encode(TEXTS))
    assert function.get_config() == {"model": str(folder), "truncation": "warn"}
    assert function.default_space() == "cosine"
    assert function.validate_config(function.get_config()) is None
    with pytest.raises(TypeError, match="input is 'the', expected a list of strings"):
        function("the")


@pytest.mark.parametrize(("config", "error", "message"), [
    ([], TypeError, r"config is \[\], expected a dict"),
    ({}, ValueError, "config has nothing, expected 'model'"),
    ({"model": 3}, ValueError, "config has 'model', expected 'model', a model's name"),
    ({"model": "demo", "dtype": "int8"}, ValueError, "config has 'dtype', 'model', expected"),
    ({"model": "demo", "truncation": "no"}, ValueError, "truncation is 'no', expected one of"),
])  # fmt: skip
def test_configs_are_validated(config, error, message):
    for call in (BertcoreEmbeddingFunction.validate_config, BertcoreEmbeddingFunction.build_from_config):
        with pytest.raises(error, match=message):
            call(config)


def test_a_collection_that_is_opened_again(folder, encoder, tmp_path):
    ids = [str(number) for number in range(len(TEXTS))]
    client = chromadb.PersistentClient(str(tmp_path), settings=SETTINGS)
    collection = client.create_collection("notes", embedding_function=BertcoreEmbeddingFunction(folder))
    collection.add(ids=ids, documents=TEXTS)
    close(collection.get(include=["embeddings"])["embeddings"], encoder.encode(TEXTS))
    scores = encoder.similarity(encoder.encode_query([QUERY]), encoder.encode(TEXTS))[0]
    expected = [str(index) for index in (-scores).argsort()[:3]]
    assert collection.query(query_texts=[QUERY], n_results=3)["ids"] == [expected]
    opened = chromadb.PersistentClient(str(tmp_path), settings=SETTINGS).get_collection("notes")
    assert opened.query(query_texts=[QUERY], n_results=3)["ids"] == [expected]
