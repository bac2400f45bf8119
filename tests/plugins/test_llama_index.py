"""LlamaIndex's index and retriever over our embeddings."""

import asyncio

import pytest

from bertcore.tasks.texts import TextsCutWarning
from tests.lazy import lazy
from tests.plugins.texts import LONG, TEXTS, close

core, plugin = lazy("llama_index.core"), lazy("bertcore.plugins.llama_index")


def test_embeddings(folder, encoder):
    embedding = plugin.BertcoreEmbedding(folder, embed_batch_size=2)
    close(embedding.get_text_embedding_batch(TEXTS), encoder.encode(TEXTS))
    close(embedding.get_text_embedding(TEXTS[0]), encoder.encode(TEXTS[0]))
    close(embedding.get_query_embedding(TEXTS[0]), encoder.encode_query(TEXTS[0]))
    close(asyncio.run(embedding.aget_query_embedding(TEXTS[0])), encoder.encode_query(TEXTS[0]))
    close(asyncio.run(embedding.aget_text_embedding(TEXTS[0])), encoder.encode(TEXTS[0]))
    close(asyncio.run(embedding.aget_text_embedding_batch(TEXTS)), encoder.encode(TEXTS))


def test_settings(folder):
    embedding = plugin.BertcoreEmbedding(folder, truncation="chunk")
    assert embedding.to_dict()["model_name"] == str(folder) and embedding.to_dict()["class_name"] == "BertcoreEmbedding"
    whole = embedding.get_text_embedding(LONG)
    with pytest.warns(TextsCutWarning):
        assert plugin.BertcoreEmbedding(folder).get_text_embedding(LONG) != whole


def test_an_index(folder, encoder):
    documents = [core.Document(text=text) for text in TEXTS if text]
    index = core.VectorStoreIndex.from_documents(documents, embed_model=plugin.BertcoreEmbedding(folder))
    query = "the cat on a mat"
    texts = [text for text in TEXTS if text]
    scores = encoder.similarity(encoder.encode_query([query]), encoder.encode(texts))[0]
    (best,) = index.as_retriever(similarity_top_k=1).retrieve(query)
    assert best.text == texts[scores.argmax()] and abs(best.score - scores.max()) < 1e-5
