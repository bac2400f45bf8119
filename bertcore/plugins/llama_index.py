"""LlamaIndex's embeddings: `BertcoreEmbedding` (needs llama-index-core).

    from bertcore.plugins.llama_index import BertcoreEmbedding

    index = VectorStoreIndex.from_documents(documents, embed_model=BertcoreEmbedding("all-MiniLM-L6-v2/"))

It works as embed_model of indices, retrievers and ingestion pipelines.
"""

import asyncio
import os
from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import PrivateAttr

from bertcore.plugins import opened
from bertcore.tasks.sentence_encoder import SentenceEncoder


class BertcoreEmbedding(BaseEmbedding):
    """Embeddings of a sentence encoder, for LlamaIndex's indices and pipelines.

    Texts and queries get the model's own prompts for them. The asynchronous methods compute in a thread.

    Args:
        model_name: a folder, or an id on the Hugging Face hub.
        truncation: treatment of texts that are too long, see `SentenceEncoder.encode`.
        settings: LlamaIndex's settings: embed_batch_size, embeddings_cache, ...
    """

    truncation: str | bool = "warn"
    _encoder: SentenceEncoder = PrivateAttr()

    def __init__(self, model_name: str | os.PathLike, truncation: str | bool = "warn", **settings: Any):
        super().__init__(model_name=os.fspath(model_name), truncation=truncation, **settings)
        self._encoder = opened(self.model_name)

    @classmethod
    def class_name(cls) -> str:
        """Return the class's name in LlamaIndex's files."""
        return "BertcoreEmbedding"

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._encoder.encode_query(query, truncation=self.truncation).tolist()

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._encoder.encode_document(text, truncation=self.truncation).tolist()

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self._encoder.encode_document(texts, truncation=self.truncation).tolist()

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await asyncio.to_thread(self._get_query_embedding, query)

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return await asyncio.to_thread(self._get_text_embedding, text)

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return await asyncio.to_thread(self._get_text_embeddings, texts)
