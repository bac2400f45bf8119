"""spaCy's pipelines with our component."""

import importlib

import numpy as np
import pytest

from bertcore.tasks.texts import TextsCutWarning
from tests.lazy import lazy
from tests.plugins.texts import LONG, TEXTS, close

spacy = lazy("spacy")


@pytest.fixture(scope="module")
def nlp(folder):
    importlib.import_module("bertcore.plugins.spacy")  # it registers the component
    nlp = spacy.blank("en")
    nlp.add_pipe("bertcore", config={"model": str(folder)})
    return nlp


def test_embeddings(nlp, encoder):
    expected = encoder.encode(TEXTS)
    docs = list(nlp.pipe(TEXTS, batch_size=2))
    close([doc._.embedding for doc in docs], expected)
    close([doc.vector for doc in docs], expected)
    close(nlp(TEXTS[0])._.embedding, expected[0])
    close(docs[0].similarity(docs[2]), encoder.similarity(expected[:1], expected[2:3])[0, 0])
    close(docs[0][1:3].vector, encoder.encode("cat sat"))
    close(docs[0][1].vector, encoder.encode("cat"))
    assert docs[0][1].has_vector and docs[0][1].similarity(docs[3][1]) == pytest.approx(1)


def test_what_is_kept(nlp, encoder, tmp_path):
    doc = nlp(TEXTS[0])
    read = spacy.tokens.Doc(nlp.vocab).from_bytes(doc.to_bytes())
    np.testing.assert_array_equal(read._.embedding, doc._.embedding)
    nlp.to_disk(tmp_path / "pipeline")
    loaded = spacy.load(tmp_path / "pipeline")
    close(loaded(TEXTS[0])._.embedding, doc._.embedding)


def test_truncation(folder, nlp, encoder):
    with pytest.warns(TextsCutWarning):
        nlp(LONG)
    chunked = spacy.blank("en")
    chunked.add_pipe("bertcore", config={"model": str(folder), "truncation": "chunk"})
    close(chunked(LONG)._.embedding, encoder.encode(LONG, truncation="chunk"))
