"""Chroma's embedding function: `BertcoreEmbeddingFunction` (needs chromadb).

    from bertcore.plugins.chroma import BertcoreEmbeddingFunction

    function = BertcoreEmbeddingFunction("all-MiniLM-L6-v2/")
    collection = chromadb.Client().create_collection("notes", embedding_function=function)
    collection.add(ids=["1", "2"], documents=["Cats sleep sixteen hours a day.", "Berlin has 3.7 million people."])
    collection.query(query_texts=["how do cats rest"], n_results=1)

Chroma writes which function a collection has; where one is opened again, this module must have been imported.
"""

import os
from typing import Any

from chromadb import Documents, EmbeddingFunction, Embeddings
from chromadb.utils.embedding_functions import register_embedding_function

from bertcore.plugins import opened


@register_embedding_function
class BertcoreEmbeddingFunction(EmbeddingFunction[Documents]):
    """Embeddings of a sentence encoder, for Chroma's collections.

    Documents and queries get the model's own prompts for them.

    Args:
        model: a folder, or an id on the Hugging Face hub.
        truncation: what happens to texts that are too long, see `SentenceEncoder.encode`.
    """

    def __init__(self, model: str | os.PathLike, truncation: str | bool = "warn"):
        self._config = {"model": os.fspath(model), "truncation": truncation}
        self._encoder = opened(model)

    def __call__(self, input: Documents) -> Embeddings:
        """The embeddings of documents."""
        return list(self._encoder.encode_document(input, truncation=self._config["truncation"]))

    def embed_query(self, input: Documents) -> Embeddings:
        """The embeddings of queries."""
        return list(self._encoder.encode_query(input, truncation=self._config["truncation"]))

    @staticmethod
    def name() -> str:
        """What Chroma calls it in files."""
        return "bertcore"

    def default_space(self) -> str:
        """How Chroma compares the embeddings: as the model was published, or by their cosine."""
        return {"dot": "ip", "euclidean": "l2"}.get(self._encoder.similarity_fn_name, "cosine")

    def get_config(self) -> dict[str, Any]:
        """What `build_from_config` takes."""
        return dict(self._config)

    @staticmethod
    def build_from_config(config: dict[str, Any]) -> "BertcoreEmbeddingFunction":
        """The function of `get_config`."""
        return BertcoreEmbeddingFunction(**config)
