"""LangChain's store and retriever over our embeddings."""

import asyncio

from tests.lazy import lazy
from tests.plugins.texts import TEXTS, close
from tests.refusals import refuses

vectorstores, plugin = lazy("langchain_core.vectorstores"), lazy("bertcore.plugins.langchain")


def test_embeddings(folder, encoder):
    embeddings = plugin.BertcoreEmbeddings(folder)
    close(embeddings.embed_documents(TEXTS), encoder.encode(TEXTS))
    close(embeddings.embed_query(TEXTS[0]), encoder.encode_query(TEXTS[0]))
    close(asyncio.run(embeddings.aembed_documents(TEXTS[:2])), encoder.encode(TEXTS[:2]))
    assert isinstance(embeddings.embed_query("a")[0], float) and embeddings.embed_documents([]) == []
    short = plugin.BertcoreEmbeddings(encoder, truncate_dim=7, normalize_embeddings=True)
    close(short.embed_documents(TEXTS), encoder.encode(TEXTS, truncate_dim=7, normalize_embeddings=True))


def test_one_text_in_the_place_of_several(folder):
    refuses(
        TypeError, "texts is str, expected a list of strings", plugin.BertcoreEmbeddings(folder).embed_documents, "abc"
    )
    refuses(TypeError, "text is list, expected a string", plugin.BertcoreEmbeddings(folder).embed_query, ["abc"])


def test_a_store(folder, encoder):
    store = vectorstores.InMemoryVectorStore(plugin.BertcoreEmbeddings(folder))
    store.add_texts(TEXTS)
    query = "the cat on a mat"
    scores = encoder.similarity(encoder.encode_query([query]), encoder.encode(TEXTS))[0]
    found = store.similarity_search(query, k=2)
    assert [document.page_content for document in found] == [TEXTS[index] for index in (-scores).argsort()[:2]]
    assert store.as_retriever(search_kwargs={"k": 1}).invoke(query)[0].page_content == TEXTS[scores.argmax()]
