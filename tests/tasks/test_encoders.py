"""sentence-transformers' interface of the three encoders: names, batches, devices, processes, saved folders."""

import importlib

import numpy as np
import pytest

from bertcore import CrossEncoder, SentenceEncoder, SparseEncoder, use_backend
from bertcore.tasks.encoders import backend_of
from tests.refusals import refuses
from tests.tasks.cross_encoder.tiny import save_tiny_classifier
from tests.tasks.sparse_encoder.tiny import save_tiny_splade
from tests.tiny_bert import random_texts, save_tiny_encoder

TEXTS = ["the cat sat", "a dog", "", "paris is a city", "the cat"]
PAIRS = [("the cat", text) for text in TEXTS]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(encoder, its method, inputs) by kind."""
    folders = {name: tmp_path_factory.mktemp(name) for name in ("dense", "sparse", "pairs")}
    dense = SentenceEncoder(save_tiny_encoder(folders["dense"], normalize=True), prompts={"query": "q: "})
    sparse, pairs = (
        SparseEncoder(save_tiny_splade(folders["sparse"])),
        CrossEncoder(save_tiny_classifier(folders["pairs"])),
    )
    return {
        "dense": (dense, dense.encode, TEXTS),
        "sparse": (sparse, sparse.encode, TEXTS),
        "pairs": (pairs, pairs.predict, PAIRS),
    }


def dense(found):
    return found.toarray() if hasattr(found, "toarray") else np.asarray(found)


@pytest.mark.parametrize("kind", ["dense", "sparse", "pairs"])
def test_batches_do_not_change_results(made, kind):
    encoder, call, inputs = made[kind]
    sizes, run = [], encoder.model.encode_packed if kind != "pairs" else encoder.scores.scored

    def noted(batch, *args, **options):
        sizes.append(len(batch))
        return run(batch, *args, **options)

    owner, name = (encoder.scores, "scored") if kind == "pairs" else (encoder.model, "encode_packed")
    expected = dense(call(inputs))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, noted)
        found = dense(call(inputs, batch_size=2, show_progress_bar=False, device="cpu"))
    np.testing.assert_array_equal(found, expected)
    assert sizes == [2, 2, 1]


@pytest.mark.parametrize("kind", ["dense", "sparse", "pairs"])
def test_saved_folders_load_again(made, kind, tmp_path):
    encoder, call, inputs = made[kind]
    encoder.save_pretrained(tmp_path / "new")
    again = type(encoder)(tmp_path / "new")
    np.testing.assert_array_equal(dense(getattr(again, call.__name__)(inputs)), dense(call(inputs)))
    assert (again.prompts, again.max_seq_length) == (encoder.prompts, encoder.max_seq_length)
    assert again.evaluate(lambda given, path: (given, path)) == (again, None)
    assert again[0].tokenizer is again.tokenizer and len(again) == len(list(again))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dense", "sparse", "pairs"])
def test_processes(made, kind):
    encoder, call, inputs = made[kind]
    pool = encoder.start_multi_process_pool(["cpu", "cpu"])
    try:
        found = call(inputs, pool=pool, chunk_size=2)
        assert dense(call([], pool=pool)).shape[0] == 0
    finally:
        encoder.stop_multi_process_pool(pool)
    np.testing.assert_allclose(dense(found), dense(call(inputs)), atol=1e-6)
    refuses(ValueError, "device is 'tpu', expected 'cpu', 'cuda' or None", call, inputs, device=["tpu"])


def test_a_pool_of_another_kind(made):
    for _, call, inputs in made.values():
        refuses(TypeError, "pool is int, expected what start_multi_process_pool returns", call, inputs, pool=5)


def test_values_of_tokens(made):
    _, encode, texts = made["dense"]
    states = encode(texts, output_value="token_embeddings")
    whole = encode(texts, output_value=None)
    embeddings = encode(texts)
    for given, found, embedding in zip(states, whole, embeddings, strict=True):
        np.testing.assert_array_equal(found["token_embeddings"], given)
        np.testing.assert_array_equal(found["sentence_embedding"], embedding)
        assert len(found["input_ids"]) == len(given)
    assert encode(texts[0], output_value="token_embeddings").shape == states[0].shape


def test_dimensions_and_devices(made):
    encoder, encode, texts = made["dense"]
    width = encoder.get_embedding_dimension()
    with encoder.truncate_embeddings(5):
        assert encode(texts).shape == (len(texts), 5) and encoder.get_sentence_embedding_dimension() == 5
    assert encoder.embedding_dimension == width
    with use_backend("numpy"):
        assert backend_of("cpu") == "numpy" and encoder.device == "cpu"
    assert backend_of("cuda") == "cupy"


def test_sparse_embeddings(made):
    encoder, encode, texts = made["sparse"]
    one, rows = encode(texts[0]), encode(texts)
    assert one.shape == (rows.shape[1],)
    pairs = encoder.similarity_pairwise(rows, rows[::-1])
    np.testing.assert_allclose(pairs, np.diag(encoder.similarity(rows, rows[::-1])), rtol=1e-6)
    np.testing.assert_allclose(encoder.intersection(rows, rows[::-1]).sum(axis=1), pairs, rtol=1e-6)
    said = encoder.sparsity(rows)
    assert said["active_dims"] == pytest.approx(rows.nnz / len(texts))
    assert said["sparsity_ratio"] == pytest.approx(1 - said["active_dims"] / rows.shape[1])


@pytest.mark.parametrize("kind", [SentenceEncoder, SparseEncoder, CrossEncoder])
def test_unknown_arguments_name_the_nearest(kind, tmp_path):
    refuses(TypeError, "has no argument cache_fold; did you mean cache_folder", kind, tmp_path, cache_fold="x")


PLACES = range(15)
SCORES = np.random.default_rng(3).random(15).tolist()
LABELS = [place % 3 == 0 for place in PLACES]
MANY = random_texts(30, longest=10, seed=1)
QUERIES = {str(place): MANY[place] for place in range(5)}, {str(place): MANY[place] for place in range(5, 30)}
RELEVANT = {str(place): {str(5 + place), str(6 + place)} for place in range(5)}
SAMPLES = [{"query": MANY[k], "positive": [MANY[k + 5]], "negative": [MANY[k + 10], MANY[k + 15]]} for k in range(5)]
OF_PAIRS = list(zip(MANY[:15], MANY[15:], strict=True))
EVALUATORS = [
    ("dense", "evaluation.EmbeddingSimilarityEvaluator", (MANY[:15], MANY[15:], SCORES)),
    ("dense", "evaluation.BinaryClassificationEvaluator", (MANY[:15], MANY[15:], LABELS)),
    ("dense", "evaluation.TripletEvaluator", (MANY[:10], MANY[10:20], MANY[20:])),
    ("dense", "evaluation.InformationRetrievalEvaluator", (*QUERIES, RELEVANT)),
    ("dense", "evaluation.RerankingEvaluator", (SAMPLES,)),
    ("dense", "evaluation.TranslationEvaluator", (MANY[:5], MANY[5:10])),
    ("pairs", "cross_encoder.evaluation.CrossEncoderRerankingEvaluator", (SAMPLES,)),
    ("pairs", "cross_encoder.evaluation.CrossEncoderCorrelationEvaluator", (OF_PAIRS, SCORES)),
    ("pairs", "cross_encoder.evaluation.CrossEncoderClassificationEvaluator", (OF_PAIRS, LABELS)),
    ("sparse", "sparse_encoder.evaluation.SparseInformationRetrievalEvaluator", (*QUERIES, RELEVANT)),
    ("sparse", "sparse_encoder.evaluation.SparseEmbeddingSimilarityEvaluator", (MANY[:15], MANY[15:], SCORES)),
]


@pytest.mark.parity
@pytest.mark.parametrize("kind", ["dense", "sparse", "pairs"])
def test_tensors(made, kind):
    import torch

    _, call, inputs = made[kind]
    expected = dense(call(inputs))
    found = call(inputs, convert_to_tensor=True)
    assert found.is_sparse == (kind == "sparse")
    np.testing.assert_array_equal(found.to_dense().numpy(), expected)
    if kind != "sparse":
        rows = call(inputs, convert_to_numpy=False)
        assert len(rows) == len(inputs) and all(isinstance(row, torch.Tensor) for row in rows)


@pytest.mark.parity
@pytest.mark.parametrize(("kind", "name", "given"), EVALUATORS, ids=[name for _, name, _ in EVALUATORS])
def test_evaluators_of_sentence_transformers(made, kind, name, given):
    peers = {"dense": "SentenceTransformer", "sparse": "SparseEncoder", "pairs": "CrossEncoder"}
    module, _, name = f"sentence_transformers.{name}".rpartition(".")
    peer = getattr(importlib.import_module("sentence_transformers"), peers[kind])
    evaluator, encoder = getattr(importlib.import_module(module), name)(*given), made[kind][0]
    found = encoder.evaluate(evaluator)
    expected = evaluator(peer(str(encoder.folder), device="cpu", prompts=dict(encoder.prompts)))
    assert found == pytest.approx(expected, abs=1e-5)
    assert encoder.model_card_data.metrics.items() >= found.items()
