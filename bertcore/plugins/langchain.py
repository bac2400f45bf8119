"""LangChain's embeddings: `BertcoreEmbeddings` (needs langchain-core).

    from bertcore.plugins.langchain import BertcoreEmbeddings

    store = InMemoryVectorStore(BertcoreEmbeddings("all-MiniLM-L6-v2/"))
    store.add_texts(["Cats sleep sixteen hours a day.", "Berlin has 3.7 million people."])
    store.similarity_search("how do cats rest", k=1)

Asynchronous methods compute in a thread, as LangChain implements them.
"""

import os
from typing import Any

from langchain_core.embeddings import Embeddings

from bertcore.plugins import opened
from bertcore.tasks.sentence_encoder import SentenceEncoder
from bertcore.tasks.texts import checked_text, checked_texts


class BertcoreEmbeddings(Embeddings):
    """Embeddings of a sentence encoder, for LangChain's stores and retrievers.

    Documents and queries get the model's own prompts for them. `model` is a folder, an id on the Hugging Face hub, or a
    SentenceEncoder; `options` are options of `SentenceEncoder.encode`: normalize_embeddings, truncation, ...
    """

    def __init__(self, model: str | os.PathLike[str] | SentenceEncoder, **options: Any):
        self.encoder, self._options = opened(model), options

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return self.encoder.encode_document(list(checked_texts(texts)), **self._options).tolist()

    def embed_query(self, text: str) -> list[float]:
        return self.encoder.encode_query(checked_text("text", text, "a string"), **self._options).tolist()
