"""The real all-MiniLM-L6-v2: equal to transformers, and to itself in any company."""

import numpy as np
import pytest

from bertcore import SentenceEncoder, use_backend
from tests.demo import demo_folder  # noqa: F401 (a fixture)

SENTENCES = [
    "The cat sits outside.",
    "A man is playing guitar.",
    "",
    "I love pasta!",
    "The new movie is awesome; 東京 déjà vu — naïve café?",
    "a long text " * 100,  # cut at 256 tokens
    "How do I reset my password?",
    "x",
]


@pytest.fixture(scope="module")
def demo_encoder(demo_folder):  # noqa: F811
    return SentenceEncoder(demo_folder)


def test_demo_model_settings(demo_encoder):
    settings = demo_encoder.settings
    assert (settings.pooling, settings.normalize, demo_encoder.max_seq_length) == (("mean",), True, 256)


def test_demo_model_knows_what_is_alike(demo_encoder):
    rows = demo_encoder.encode(["A kitten rests on a rug.", "The cat sits on the mat.", "Shares fell on Monday."])
    found = demo_encoder.similarity(rows, rows)
    assert found[0, 1] > 0.4 > 0.1 > found[0, 2]


def test_same_text_alone_and_in_a_batch(demo_encoder, cpu_backend):
    texts = [*SENTENCES, *(f"{number} more" for number in range(48)), *SENTENCES[:5], *SENTENCES[6:8], "end"]
    assert len(texts) == 64
    together = demo_encoder.encode(texts)
    for index, text in enumerate(SENTENCES):
        np.testing.assert_allclose(demo_encoder.encode(text), together[index], atol=1e-6)
    np.testing.assert_allclose(together[56:61], together[:5], atol=1e-6)


@pytest.fixture(scope="module")
def their_embeddings(demo_folder):  # noqa: F811
    """transformers in float64, mean pooling and normalisation, each text on its own."""
    import torch
    from transformers import AutoModel as TheirModel
    from transformers import AutoTokenizer as TheirTokenizer

    tokenizer, model = TheirTokenizer.from_pretrained(demo_folder), TheirModel.from_pretrained(demo_folder).double()
    batches = [tokenizer([text], truncation=True, max_length=256, return_tensors="pt") for text in SENTENCES]
    with torch.no_grad():
        means = torch.cat([model(**batch).last_hidden_state.mean(1) for batch in batches])
    return torch.nn.functional.normalize(means).numpy()


@pytest.mark.parity
def test_embeddings_equal_transformers(demo_encoder, their_embeddings, cpu_backend):
    np.testing.assert_allclose(demo_encoder.encode(SENTENCES), their_embeddings, atol=1e-5, rtol=0)


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float16", 5e-3), ("bfloat16", 4e-2)])
def test_embeddings_on_a_gpu(demo_folder, demo_encoder, dtype, tolerance):  # noqa: F811
    expected = demo_encoder.encode(SENTENCES)
    with use_backend("cupy"):
        found = SentenceEncoder(demo_folder, dtype=dtype).encode(SENTENCES)
    assert isinstance(found, np.ndarray) and found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=tolerance, rtol=0)
