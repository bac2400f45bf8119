"""spaCy's pipeline component `bertcore`: embeddings of documents (needs spacy).

    import bertcore.plugins.spacy  # registers the component

    nlp = spacy.blank("en")
    nlp.add_pipe("bertcore", config={"model": "all-MiniLM-L6-v2/"})
    first, second = nlp.pipe(["Cats sleep sixteen hours a day.", "how do cats rest"])
    first.similarity(second)

`doc._.embedding` is the embedding, float32 (dim,); `DocBin` and `to_bytes` store it. `doc.vector`, `doc.similarity` and
the vectors of spans and tokens (each the embedding of its own text) also come from the model.
"""

from collections.abc import Iterable, Iterator

import numpy as np
from spacy.language import Language
from spacy.tokens import Doc, Span, Token
from spacy.util import minibatch

from bertcore.plugins import opened
from bertcore.tasks.sentence_encoder import SentenceEncoder

Doc.set_extension("embedding", default=None, force=True)


@Language.factory(
    "bertcore", assigns=["doc._.embedding"], default_config={"truncation": "warn"}, requires=[], retokenizes=False
)
def make_component(nlp: Language, name: str, model: str, truncation: str | bool) -> "Component":
    """Return the component for a folder or hub id; `truncation` is as for `SentenceEncoder.encode`."""
    return Component(opened(model), truncation)


class Component:
    """Set the embedding of each document."""

    def __init__(self, encoder: SentenceEncoder, truncation: str | bool):
        self._encoder, self._truncation = encoder, truncation

    def __call__(self, doc: Doc) -> Doc:
        (doc,) = self.pipe([doc])
        return doc

    def pipe(self, stream: Iterable[Doc], *, batch_size: int = 128) -> Iterator[Doc]:
        """Yield the documents as they arrive; `batch_size` of them are embedded together."""
        for docs in minibatch(stream, batch_size):
            docs = list(docs)
            for doc, row in zip(docs, self._embedded([doc.text for doc in docs]), strict=True):
                doc._.embedding = row
                doc.user_hooks["vector"] = lambda doc: doc._.embedding
                doc.user_span_hooks["vector"] = doc.user_token_hooks["vector"] = self._of_part
                doc.user_token_hooks["has_vector"] = lambda token: True
                yield doc

    def _of_part(self, part: Span | Token) -> np.ndarray:
        return self._embedded([part.text])[0]

    def _embedded(self, texts: list[str]) -> np.ndarray:
        return self._encoder.encode(texts, truncation=self._truncation)
