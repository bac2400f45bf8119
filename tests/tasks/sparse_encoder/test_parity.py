"""SparseEncoder beside sentence-transformers' own, on random models."""

import numpy as np
import pytest

from bertcore import SparseEncoder, use_backend
from tests.tasks.sparse_encoder.tiny import save_tiny_splade
from tests.tiny_bert import random_texts

pytestmark = pytest.mark.parity

TEXTS = ["the cat sat on a mat.", "paris", *random_texts(15, longest=30, seed=2)]


@pytest.mark.parametrize(
    ("strategy", "activation", "most"), [("max", "relu", None), ("max", "log1p_relu", 9), ("sum", "relu", 20)]
)
def test_embeddings(tmp_path, strategy, activation, most):
    import sentence_transformers

    pooling = {"pooling_strategy": strategy, "activation_function": activation}
    folder = save_tiny_splade(tmp_path, {**pooling, "word_embedding_dimension": None})
    peer = sentence_transformers.SparseEncoder(str(folder), device="cpu")
    peer.max_seq_length = 40
    expected = peer.encode(TEXTS, max_active_dims=most, show_progress_bar=False).to_dense().numpy()
    with use_backend("numba"):
        ours = SparseEncoder(folder)
        found = ours.encode(TEXTS, max_active_dims=most)
    np.testing.assert_allclose(found.toarray(), expected, rtol=1e-4, atol=1e-4)
    assert (expected > 0).any()
    for mine, theirs in zip(ours.decode(found), peer.decode(peer.encode(TEXTS, max_active_dims=most)), strict=True):
        weights = {word: weight for word, weight in theirs if word is not None}  # beyond the tokenizer's words
        assert dict(mine) == pytest.approx(weights, abs=1e-4)
