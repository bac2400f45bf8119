"""Chroma's embedding function: `BertcoreEmbeddingFunction` (needs chromadb).

    from bertcore.plugins.chroma import BertcoreEmbeddingFunction

    function = BertcoreEmbeddingFunction("all-MiniLM-L6-v2/")
    collection = chromadb.Client().create_collection("notes", embedding_function=function)
    collection.add(ids=["1", "2"], documents=["Cats sleep sixteen hours a day.", "Berlin has 3.7 million people."])
    collection.query(query_texts=["how do cats rest"], n_results=1)

Chroma stores the name of a collection's function: import this module before reopening the collection.
"""

import os
from typing import Any

from chromadb import Documents, EmbeddingFunction, Embeddings
from chromadb.utils.embedding_functions import register_embedding_function

from bertcore.arguments import check_strings
from bertcore.plugins import opened
from bertcore.tasks.long_texts import Cutting


@register_embedding_function
class BertcoreEmbeddingFunction(EmbeddingFunction[Documents]):
    """Embeddings of a sentence encoder, for Chroma's collections.

    Documents and queries get the model's own prompts for them. `model` is a folder, or an id on the Hugging Face hub;
    `truncation` is as for `SentenceEncoder.encode`.
    """

    def __init__(self, model: str | os.PathLike[str], truncation: str | bool = "warn"):
        self._config = {"model": os.fspath(model), "truncation": truncation}
        self._encoder = opened(model)

    def __call__(self, input: Documents) -> Embeddings:
        return list(self._encoder.encode_document(check_strings("input", input), truncation=self._config["truncation"]))

    def embed_query(self, input: Documents) -> Embeddings:
        return list(self._encoder.encode_query(check_strings("input", input), truncation=self._config["truncation"]))

    @staticmethod
    def name() -> str:
        return "bertcore"

    def default_space(self) -> str:
        """Return Chroma's name for the model's similarity; cosine by default."""
        return {"dot": "ip", "euclidean": "l2"}.get(self._encoder.similarity_fn_name, "cosine")

    def get_config(self) -> dict[str, Any]:
        return dict(self._config)

    @staticmethod
    def validate_config(config: dict[str, Any]) -> None:
        """Raise ValueError unless the config has a model and only the class's arguments, TypeError for a non-dict."""
        if not isinstance(config, dict):
            raise TypeError(f"config is {config!r:.80}, expected a dict as get_config returns it")
        wrong = set(config) - {"model", "truncation"}
        if wrong or not isinstance(config.get("model"), str):
            keys = ", ".join(sorted(map(repr, config))) or "nothing"
            raise ValueError(f"config has {keys}, expected 'model', a model's name, and optionally 'truncation'")
        Cutting(config.get("truncation", "warn"))

    @staticmethod
    def build_from_config(config: dict[str, Any]) -> "BertcoreEmbeddingFunction":
        """Return the function for a config from `get_config`; raises as `validate_config` does."""
        BertcoreEmbeddingFunction.validate_config(config)
        return BertcoreEmbeddingFunction(**config)
