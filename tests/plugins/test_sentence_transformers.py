"""sentence-transformers with our module in the place of its own."""

import numpy as np
import pytest

from tests.plugins.texts import TEXTS, close

pytestmark = pytest.mark.parity
sentence_transformers = pytest.importorskip("sentence_transformers")

from bertcore.plugins.sentence_transformers import EncoderModule  # noqa: E402


@pytest.fixture(scope="module")
def model(folder):
    module = EncoderModule(folder)
    return sentence_transformers.SentenceTransformer(modules=[module], prompts={"query": "paris is "}, device="cpu")


def test_embeddings(model, encoder, folder):
    theirs = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    close(model.encode(TEXTS), encoder.encode(TEXTS))
    close(model.encode(TEXTS), theirs.encode(TEXTS))
    close(model.encode_query(TEXTS), theirs.encode_query(TEXTS))
    close(model.encode(TEXTS, normalize_embeddings=True, batch_size=2), encoder.encode(TEXTS, normalize=True))
    assert model.get_embedding_dimension() == encoder.embedding_dimension == 39
    assert model.max_seq_length == encoder.max_seq_length


def test_a_folder_that_is_loaded_again(model, tmp_path):
    model.save_pretrained(str(tmp_path / "saved"))
    loaded = sentence_transformers.SentenceTransformer(str(tmp_path / "saved"), device="cpu", trust_remote_code=True)
    np.testing.assert_array_equal(loaded.encode(TEXTS), model.encode(TEXTS))
    assert isinstance(loaded[0], EncoderModule)
