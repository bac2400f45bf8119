"""MultiVectorEncoder beside sentence-transformers' own, on random models of each format."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from bertcore import MultiVectorEncoder, use_backend
from tests.lazy import lazy
from tests.tasks.multi_vector.tiny import DEEP, EXPANSION, save_tiny_late, save_tiny_pylate, save_tiny_stanford
from tests.tiny_bert import WIDTH, random_texts

sentence_transformers = lazy("sentence_transformers")

pytestmark = pytest.mark.parity

TEXTS = ["the cat sat on a mat.", "paris, is . . !", "", *random_texts(15, longest=36, seed=2)]

GELU = ((WIDTH, 24, {"activation_function": "torch.nn.modules.activation.GELU", "bias": True}),)

CASES = {
    "expanded": (save_tiny_late, {}),
    "attended": (save_tiny_late, {"transformer": {"query_expansion": EXPANSION | {"attend": True}}}),
    "at least": (save_tiny_late, {"transformer": {"query_expansion": EXPANSION | {"strategy": "min", "token": "cat"}}}),
    "not expanded": (save_tiny_late, {"transformer": {"query_expansion": None, "query_length": 9}}),
    "both skip": (save_tiny_late, {"mask": {"skiplist_tasks": ["query", "document"], "skiplist_words": ["the"]}}),
    "some only": (save_tiny_late, {"mask": {"keep_only_token_ids": [2, 5, 6, 7]}}),
    "several maps": (save_tiny_late, {"dense": DEEP}),
    "activation": (save_tiny_late, {"dense": GELU, "similarity_fn_name": "meanmaxsim"}),
    "pooled": (save_tiny_late, {"pooling": {"pool_factor": 1.5, "normalize_embeddings": True}}),
    "pylate": (save_tiny_pylate, {}),
    "pylate, attended": (save_tiny_pylate, {"attend_to_expansion_tokens": True}),
    "pylate, not expanded": (save_tiny_pylate, {"do_query_expansion": False, "skiplist_words": None}),
    "stanford": (save_tiny_stanford, {}),
    "stanford, attended": (save_tiny_stanford, {"attend_to_mask_tokens": True, "mask_punctuation": False}),
}


@pytest.mark.parametrize("case", CASES)
def test_vectors_and_scores(tmp_path, case):
    save, options = CASES[case]
    folder = save(tmp_path / "model", **options)
    peer = sentence_transformers.MultiVectorEncoder(str(folder), device="cpu")
    with use_backend("numba"):
        ours = MultiVectorEncoder(folder)
        ours.save_pretrained(tmp_path / "saved")
        found = {name: getattr(ours, name)(TEXTS) for name in ("encode_query", "encode_document", "encode")}
        scores = ours.similarity(found["encode_query"], found["encode_document"])
        pairs = ours.similarity_pairwise(found["encode_query"], found["encode_document"])
    again = sentence_transformers.MultiVectorEncoder(str(tmp_path / "saved"), device="cpu")
    for other in (peer, again):
        for name, vectors in found.items():
            expected = getattr(other, name)(TEXTS, convert_to_numpy=True, show_progress_bar=False)
            assert [len(each) for each in vectors] == [len(each) for each in expected]
            for mine, theirs in zip(vectors, expected, strict=True):
                np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)
        expected = other.similarity(found["encode_query"], found["encode_document"])
        np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(pairs, np.diag(expected), rtol=1e-5, atol=1e-5)
        assert other.similarity_fn_name == ours.similarity_fn_name
    assert len(ours) >= 1 and ours.embedding_dimension == found["encode"][0].shape[1]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", [name for name in CASES if name.startswith("pylate")])
def test_vectors_equal_those_of_pylate(tmp_path, monkeypatch, case):
    """Its parts are put together here, as it reads folders with sentence-transformers 5 only."""
    import torch

    models = pytest.importorskip("pylate.models", exc_type=ImportError)
    monkeypatch.setattr(models.ColBERT, "_text_length", staticmethod(len), raising=False)  # a method of version 5
    save, options = CASES[case]
    folder = save(tmp_path, **options)
    weights = {name: torch.from_numpy(array) for name, array in load_file(folder / "1_Dense/model.safetensors").items()}
    width = weights["linear.weight"].shape[::-1]
    dense = models.Dense(*width, bias="linear.bias" in weights, activation_function=torch.nn.Identity())
    dense.load_state_dict(weights)
    config = json.loads((folder / "config_sentence_transformers.json").read_text(encoding="utf-8"))
    given = {
        name: config[name] for name in config if name.split("_")[0] in ("query", "document", "attend", "skiplist", "do")
    }
    body = sentence_transformers.sentence_transformer.modules.Transformer(str(folder))
    peer, ours = models.ColBERT(modules=[body, dense], device="cpu", **given), MultiVectorEncoder(folder)
    texts = ["the cat sat", "the", "paris . the cat . sat", "the cat sat on a mat . " * 8]  # words that are known
    for is_query, encode in ((True, ours.encode_query), (False, ours.encode_document)):
        for found, expected in zip(encode(texts), peer.encode(texts, is_query=is_query), strict=True):
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
