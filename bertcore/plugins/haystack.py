"""Haystack's embedders: `BertcoreTextEmbedder`, `BertcoreDocumentEmbedder` (needs haystack-ai).

    from bertcore.plugins.haystack import BertcoreDocumentEmbedder, BertcoreTextEmbedder

    documents = BertcoreDocumentEmbedder("all-MiniLM-L6-v2/").run(documents=[Document(content="Cats sleep.")])
    embedding = BertcoreTextEmbedder("all-MiniLM-L6-v2/").run(text="how do cats rest")["embedding"]

Load a saved pipeline with `Pipeline.loads(text, allowed_modules=["bertcore.plugins.haystack"])`.
"""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

from haystack import Document, component, default_from_dict, default_to_dict

from bertcore.arguments import check_strings
from bertcore.plugins import opened
from bertcore.tasks.sentence_encoder import SentenceEncoder
from bertcore.tasks.texts import checked_text


class _Embedder:
    """Serialisable settings, and an encoder loaded at first use."""

    def _keep(self, model: str | os.PathLike[str], prefix: str, suffix: str, **settings: Any) -> None:
        self._settings: dict[str, Any] = {"model": os.fspath(model), "prefix": prefix, "suffix": suffix, **settings}
        self._encoder: SentenceEncoder | None = None

    def _embedded(self, encode: str, texts: list[str]) -> list[list[float]]:
        """Return the embeddings of texts by the encoder's method `encode`."""
        self.warm_up()
        settings, prompt = self._settings, self._settings["prefix"] or None
        whole = [text + settings["suffix"] for text in texts]
        return getattr(self._encoder, encode)(whole, prompt=prompt, truncation=settings["truncation"]).tolist()

    def warm_up(self) -> None:
        """Load the model if it is not loaded yet; `run` also does this."""
        if self._encoder is None:
            self._encoder = opened(self._settings["model"])

    def to_dict(self) -> dict[str, Any]:
        return default_to_dict(self, **self._settings)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        return default_from_dict(cls, data)


@component
class BertcoreTextEmbedder(_Embedder):
    """Embed a query, with the model's own prompt for queries.

    `model` is a folder, or an id on the Hugging Face hub; `truncation` is as for `SentenceEncoder.encode`. `prefix`
    comes before the query, in place of the model's prompt, and `suffix` after it.
    """

    def __init__(
        self, model: str | os.PathLike[str], truncation: str | bool = "warn", prefix: str = "", suffix: str = ""
    ):
        self._keep(model, prefix, suffix, truncation=truncation)

    @component.output_types(embedding=list[float])
    def run(self, text: str) -> dict[str, Any]:
        """Return {"embedding": list of numbers}. Raises TypeError for a non-string."""
        return {"embedding": self._embedded("encode_query", [checked_text("text", text, "a string")])[0]}

    @component.output_types(embedding=list[float])
    async def run_async(self, text: str) -> dict[str, Any]:
        return await asyncio.to_thread(self.run, text)


@component
class BertcoreDocumentEmbedder(_Embedder):
    """Embed documents, with the model's own prompt for them.

    `meta_fields_to_embed` are fields of the documents' meta to put before their content, with `embedding_separator`
    between the parts. The other arguments are as for `BertcoreTextEmbedder`.
    """

    def __init__(
        self, model: str | os.PathLike[str], truncation: str | bool = "warn", meta_fields_to_embed: Sequence[str] = (),
        embedding_separator: str = "\n", prefix: str = "", suffix: str = "",
    ):  # fmt: skip
        parts = {"meta_fields_to_embed": check_strings("meta_fields_to_embed", meta_fields_to_embed)}
        self._keep(model, prefix, suffix, truncation=truncation, embedding_separator=embedding_separator, **parts)

    @component.output_types(documents=list[Document])
    def run(self, documents: list[Document]) -> dict[str, Any]:
        """Return {"documents": copies with embeddings}. Raises TypeError for anything but Documents."""
        if not isinstance(documents, Sequence) or isinstance(documents, str):
            raise TypeError(f"documents is {type(documents).__name__}, expected a list of Documents")
        for number, document in enumerate(documents):
            if not isinstance(document, Document):
                raise TypeError(f"documents[{number}] is {type(document).__name__}, expected a list of Documents")
        rows = self._embedded("encode_document", [self._text(document) for document in documents])
        pairs = zip(documents, rows, strict=True)
        return {"documents": [replace(document, embedding=row) for document, row in pairs]}

    @component.output_types(documents=list[Document])
    async def run_async(self, documents: list[Document]) -> dict[str, Any]:
        return await asyncio.to_thread(self.run, documents)

    def _text(self, document: Document) -> str:
        fields = (document.meta.get(name) for name in self._settings["meta_fields_to_embed"])
        parts = [str(value) for value in fields if value is not None]
        return self._settings["embedding_separator"].join([*parts, document.content or ""])
