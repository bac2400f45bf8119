"""LlamaIndex's embeddings: `BertcoreEmbedding` (needs llama-index-core).

    from bertcore.plugins.llama_index import BertcoreEmbedding

    index = VectorStoreIndex.from_documents(documents, embed_model=BertcoreEmbedding("all-MiniLM-L6-v2/"))

It works as the embed_model of indices, retrievers and ingestion pipelines.
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

    Texts and queries get the model's own prompts for them; asynchronous methods compute in a thread. `model_name` is a
    folder, or an id on the Hugging Face hub; `truncation` is as for `SentenceEncoder.encode`; `settings` are
    LlamaIndex's: embed_batch_size, embeddings_cache, ...
    """

    truncation: str | bool = "warn"
    _encoder: SentenceEncoder = PrivateAttr()

    def __init__(self, model_name: str | os.PathLike[str], truncation: str | bool = "warn", **settings: Any):
        super().__init__(model_name=os.fspath(model_name), truncation=truncation, **settings)
        self._encoder = opened(self.model_name)

    @classmethod
    def class_name(cls) -> str:
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
