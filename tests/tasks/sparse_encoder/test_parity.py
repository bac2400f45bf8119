"""SparseEncoder beside sentence-transformers' own, routers included."""

import warnings

import numpy as np
import pytest

from bertcore import SentenceEncoder, SparseEncoder, use_backend
from tests.lazy import lazy
from tests.tasks.sparse_encoder.tiny import (
    IDF,
    KINDS,
    save_plain_idf,
    save_tiny_csr,
    save_tiny_router,
    save_tiny_splade,
    write_router,
)
from tests.tiny_bert import random_texts, save_tiny_bert, save_tiny_encoder, write_json

sentence_transformers = lazy("sentence_transformers")
torch = pytest.importorskip("torch")

pytestmark = pytest.mark.parity

TEXTS = ["the cat sat on a mat.", "paris", *random_texts(15, longest=30, seed=2)]


@pytest.mark.parametrize(
    ("strategy", "activation", "most"), [("max", "relu", None), ("max", "log1p_relu", 9), ("sum", "relu", 20)]
)
def test_embeddings(tmp_path, strategy, activation, most):
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


ROUTER_TEXTS = ["the cat sat on a mat. the cat", "paris", "zebra ☃", *random_texts(15, longest=30, seed=2)]
CALLS = ("encode", "encode_query", "encode_document")


def peer_of(folder, kind="SparseEncoder"):
    return getattr(sentence_transformers, kind)(str(folder), device="cpu").double()


def dense(found):
    found = found.to_dense().numpy() if hasattr(found, "to_dense") else found
    return found.toarray() if hasattr(found, "toarray") else found


def equal(folder, peer, encoder=SparseEncoder, calls=CALLS, texts=ROUTER_TEXTS, **options):
    with use_backend("numba"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = encoder(folder, dtype="float64")
        for call in calls:
            found, wanted = (dense(getattr(each, call)(texts, **options)) for each in (ours, peer))
            np.testing.assert_allclose(found, wanted, atol=1e-6, rtol=1e-6, err_msg=call)
            assert np.abs(wanted).max() > 0.01
        asked, known = ours.encode_query(texts[:4]), ours.encode_document(texts)
        scores = peer.similarity(peer.encode_query(texts[:4]), peer.encode_document(texts)).numpy()
        np.testing.assert_allclose(ours.similarity(asked, known), scores, rtol=1e-5, atol=1e-5)
    return ours


@pytest.mark.parametrize("options", [{}, {"max_active_dims": 3}, {"task": "query"}])
def test_a_router_of_token_weights_and_splade(tmp_path, options):
    folder = save_tiny_router(tmp_path / "given", settings={"prompts": {"query": "paris is ", "document": "a "}})
    ours = equal(folder, peer_of(folder), calls=CALLS[:1] if "task" in options else CALLS, **options)
    ours.save_pretrained(tmp_path / "saved")
    equal(tmp_path / "saved", peer_of(tmp_path / "saved"))


@pytest.mark.parametrize("parameters", [
    {"default_route": None},
    {"default_route": "query"},
    {"route_mappings": {"('query', 'text')": "document", "('document', None)": "query"}},
    {"route_mappings": {"(None, 'text')": "query"}},
    {"route_mappings": {"(None, ('text', 'image'))": "document"}},
])  # fmt: skip
def test_routes(tmp_path, parameters):
    folder = save_tiny_router(tmp_path, **parameters)
    equal(folder, peer_of(folder))


def test_no_default_route(tmp_path):
    folder = save_tiny_router(tmp_path, default_route=None, allow_empty_key=False)
    peer = peer_of(folder)
    equal(folder, peer, calls=CALLS[1:])
    for encoder in (peer, SparseEncoder(folder)):
        with pytest.raises(ValueError, match=r"route"):
            encoder.encode(ROUTER_TEXTS)


def test_idf_json(tmp_path):
    from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding
    from transformers import AutoTokenizer

    folder = save_plain_idf(tmp_path / "given")
    words = SparseStaticEmbedding.from_json(str(folder / "idf.json"), AutoTokenizer.from_pretrained(folder))
    with use_backend("numba"):
        ours = SparseEncoder(folder)
        features = words.preprocess(ROUTER_TEXTS)
        wanted = words(features)["sentence_embedding"].detach().numpy()
        assert np.isin([*IDF.values()], wanted).sum() > 2
        np.testing.assert_allclose(ours.encode_query(ROUTER_TEXTS).toarray(), wanted, atol=1e-6)
        ours.save_pretrained(tmp_path / "saved")
    saved = equal(tmp_path / "saved", peer_of(tmp_path / "saved"))
    np.testing.assert_allclose(
        dense(saved.encode_document(ROUTER_TEXTS)), dense(ours.encode_document(ROUTER_TEXTS)), atol=1e-4
    )
    assert dict(saved.decode(saved.encode_query("cat mat the"))) == {token: IDF[token] for token in ("cat", "mat")}


@pytest.mark.parametrize(
    "options", [{}, {"unit": True}, {"unit": True, "normalize": True}, {"settings": {"max_active_dims": 3}}]
)
def test_an_autoencoder(tmp_path, options):
    folder = save_tiny_csr(tmp_path / "given", **options)
    ours = equal(folder, peer_of(folder))
    equal(folder, peer_of(folder), max_active_dims=9)
    assert ours.max_active_dims == peer_of(folder).max_active_dims
    ours.save_pretrained(tmp_path / "saved")
    equal(tmp_path / "saved", peer_of(tmp_path / "saved"))


def test_what_the_peer_saves(tmp_path):
    peer_of(save_tiny_csr(tmp_path / "csr", unit=True)).save_pretrained(str(tmp_path / "peer"))
    equal(tmp_path / "peer", peer_of(tmp_path / "peer"))
    peer_of(save_tiny_router(tmp_path / "router")).save_pretrained(str(tmp_path / "routed"))
    equal(tmp_path / "routed", peer_of(tmp_path / "routed"))


def test_a_new_autoencoder_is_saved(tmp_path):
    with pytest.warns(UserWarning, match="autoencoder is newly initialised"):
        ours = SparseEncoder(save_tiny_encoder(tmp_path / "given"))
    ours.save_pretrained(tmp_path / "saved")
    equal(tmp_path / "saved", peer_of(tmp_path / "saved"))


def test_a_dense_router(tmp_path):
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    folder = save_tiny_encoder(tmp_path / "document_0_Transformer")
    (tmp_path / "query_0_StaticEmbedding").mkdir()
    (folder / "1_Pooling").rename(tmp_path / "document_1_Pooling")
    torch.manual_seed(0)
    from transformers import AutoTokenizer

    save_tiny_bert(tmp_path / "plain")
    words = AutoTokenizer.from_pretrained(tmp_path / "plain")
    StaticEmbedding(words.backend_tokenizer, embedding_dim=39).save(str(tmp_path / "query_0_StaticEmbedding"))
    kinds = {"query_0_StaticEmbedding": "StaticEmbedding", "document_0_Transformer": "Transformer"}
    kinds |= {"document_1_Pooling": "Pooling"}
    types = {name: f"sentence_transformers.models.{kind}" for name, kind in kinds.items()}
    structure = {"query": [*kinds][:1], "document": [*kinds][1:]}
    write_router(tmp_path, structure, types, {"1_Normalize": "sentence_transformers.models.Normalize"})
    write_json(tmp_path / "config_sentence_transformers.json", {"prompts": {"query": "the "}})
    (tmp_path / "1_Normalize").mkdir()
    ours = equal(tmp_path, peer_of(tmp_path, "SentenceTransformer"), SentenceEncoder)
    saved = tmp_path / "saved"
    ours.save_pretrained(saved)
    equal(saved, peer_of(saved, "SentenceTransformer"), SentenceEncoder)


def test_a_shared_module_is_loaded_once(tmp_path):
    folder = save_tiny_router(tmp_path)
    both = [*KINDS][1:]
    write_router(folder, {"query": both, "document": both}, {name: KINDS[name] for name in both})
    ours = equal(folder, peer_of(folder))
    assert ours.readers["query"].model is ours.readers["document"].model
