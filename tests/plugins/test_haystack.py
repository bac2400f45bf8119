"""Haystack's pipelines over our embedders."""

import asyncio

import pytest

from bertcore.tasks.texts import TextsCutWarning
from tests.lazy import lazy
from tests.plugins.texts import LONG, TEXTS, close
from tests.refusals import refuses

haystack, plugin = lazy("haystack"), lazy("bertcore.plugins.haystack")


def test_embeddings(folder, encoder):
    close(plugin.BertcoreTextEmbedder(folder).run(text=TEXTS[0])["embedding"], encoder.encode_query(TEXTS[0]))
    given = [haystack.Document(content=text, meta={"from": "a", "none": None}) for text in TEXTS]
    found = plugin.BertcoreDocumentEmbedder(folder).run(documents=given)["documents"]
    close([document.embedding for document in found], encoder.encode(TEXTS))
    assert [document.id for document in found] == [document.id for document in given]
    assert all(document.embedding is None for document in given)
    embedder = plugin.BertcoreDocumentEmbedder(
        folder, meta_fields_to_embed=["from", "none", "absent"], embedding_separator=" "
    )
    close(embedder.run(documents=given)["documents"][0].embedding, encoder.encode(f"a {TEXTS[0]}"))
    assert plugin.BertcoreDocumentEmbedder(folder).run(documents=[]) == {"documents": []}
    with pytest.raises(TypeError, match="meta_fields_to_embed is 'from', expected a list of strings"):
        plugin.BertcoreDocumentEmbedder(folder, meta_fields_to_embed="from")


def test_what_is_no_text_or_document(folder):
    document, run = haystack.Document(), plugin.BertcoreDocumentEmbedder(folder).run
    for given, message in (
        ("a", "documents is str, expected a list of Documents"),
        ([document, "a"], r"documents\[1\] is str, expected a list of Documents"),
        (document, "documents is Document, expected a list of Documents"),
    ):
        refuses(TypeError, message, run, documents=given)
    refuses(TypeError, "text is list, expected a string", plugin.BertcoreTextEmbedder(folder).run, text=["a"])


def test_prefix_and_suffix(folder, encoder):
    around = {"prefix": "a cat ", "suffix": " a mat"}
    found = plugin.BertcoreTextEmbedder(folder, **around).run(text="the")["embedding"]
    close(found, encoder.encode("a cat the a mat"))
    given = [haystack.Document(content="the")]
    close(plugin.BertcoreDocumentEmbedder(folder, **around).run(documents=given)["documents"][0].embedding, found)


def test_asynchronous_runs(folder):
    text, documents = plugin.BertcoreTextEmbedder(folder), plugin.BertcoreDocumentEmbedder(folder)
    given = [haystack.Document(content=text) for text in TEXTS]
    assert asyncio.run(text.run_async(text=TEXTS[0])) == text.run(text=TEXTS[0])
    assert asyncio.run(documents.run_async(documents=given)) == documents.run(documents=given)


def test_truncation(folder, encoder):
    chunked = plugin.BertcoreTextEmbedder(folder, truncation="chunk").run(text=LONG)["embedding"]
    close(chunked, encoder.encode_query(LONG, truncation="chunk"))
    with pytest.warns(TextsCutWarning):
        plugin.BertcoreDocumentEmbedder(folder).run(documents=[haystack.Document(content=LONG)])


def test_a_pipeline_and_its_file(folder, encoder):
    from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever
    from haystack.document_stores.in_memory import InMemoryDocumentStore

    store = InMemoryDocumentStore(embedding_similarity_function="cosine")
    documents = [haystack.Document(content=text) for text in TEXTS]
    store.write_documents(plugin.BertcoreDocumentEmbedder(folder).run(documents=documents)["documents"])
    pipeline = haystack.Pipeline()
    pipeline.add_component("embedder", plugin.BertcoreTextEmbedder(folder, truncation="chunk"))
    pipeline.add_component("retriever", InMemoryEmbeddingRetriever(store, top_k=2))
    pipeline.connect("embedder.embedding", "retriever.query_embedding")
    query = "the cat on a mat"
    found = pipeline.run({"embedder": {"text": query}})["retriever"]["documents"]
    scores = encoder.similarity(encoder.encode_query([query]), encoder.encode(TEXTS))[0]
    assert [document.content for document in found] == [TEXTS[index] for index in (-scores).argsort()[:2]]
    written = pipeline.get_component("embedder").to_dict()
    around = {"prefix": "", "suffix": ""}
    assert written["init_parameters"] == {"model": str(folder), "truncation": "chunk", **around}
    alone = haystack.Pipeline()
    alone.add_component("embedder", plugin.BertcoreTextEmbedder(folder, truncation="chunk"))
    read = haystack.Pipeline.loads(alone.dumps(), allowed_modules=["bertcore.plugins.haystack"])
    close(read.run({"embedder": {"text": query}})["embedder"]["embedding"], encoder.encode_query(query))
