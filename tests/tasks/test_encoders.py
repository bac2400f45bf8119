"""sentence-transformers' interface of the three encoders: names, batches, devices, processes, saved folders."""

import functools
import importlib
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from bertcore import CrossEncoder, SentenceEncoder, SparseEncoder, use_backend, util
from bertcore.checkpoint import CheckpointError
from bertcore.models.model import NewlyInitialisedWarning
from bertcore.tasks.encoder_pool import backend_of
from tests.refusals import refuses
from tests.tasks.cross_encoder.tiny import save_tiny_classifier
from tests.tasks.sparse_encoder.tiny import save_tiny_splade
from tests.tiny_bert import random_texts, save_tiny_bert, save_tiny_encoder

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
def test_tensors_without_pytorch(made, kind, monkeypatch):
    _, call, inputs = made[kind]
    monkeypatch.setitem(sys.modules, "torch", None)
    refuses(ImportError, "PyTorch is not installed.*pip install torch", call, inputs, convert_to_tensor=True)


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


@pytest.mark.parametrize("kind", ["dense", "sparse", "pairs"])
def test_the_length_of_one_call(made, kind):
    encoder, call, inputs = made[kind]
    whole, most = dense(call(inputs)), encoder.max_seq_length
    found = dense(call(inputs, processing_kwargs={"text": {"max_length": 7, "truncation": True}}, truncation=True))
    assert encoder.max_seq_length == most and np.abs(found - whole).max() > 1e-3
    again = type(encoder)(encoder.folder, **{"max_length" if kind == "pairs" else "max_seq_length": 7})
    again.prompts = encoder.prompts
    np.testing.assert_array_equal(dense(getattr(again, call.__name__)(inputs, truncation=True)), found)
    for given, error, message in (
        ({"text": {"padding": True}}, ValueError, "an option in processing_kwargs is 'padding'"),
        ({"text": {"max_length": 0}}, ValueError, "max_seq_length is 0"),
        ({"text": {"truncation": False}}, ValueError, "truncation in processing_kwargs is False"),
        ({"image": {}}, ValueError, "a key of processing_kwargs is 'image'"),
        ({"text": 7}, TypeError, "processing_kwargs is {'text': 7}"),
        (5, TypeError, "processing_kwargs is 5"),
    ):
        refuses(error, message, call, inputs, processing_kwargs=given)


def test_a_pool_of_another_kind(made):
    for _, call, inputs in made.values():
        refuses(TypeError, "pool is int, expected the result of start_multi_process_pool", call, inputs, pool=5)


def test_values_of_tokens(made):
    _, encode, texts = made["dense"]
    states = encode(texts, output_value="token_embeddings")
    whole = encode(texts, output_value=None)
    embeddings = encode(texts)
    for given, found, embedding in zip(states, whole, embeddings, strict=True):
        np.testing.assert_array_equal(found["token_embeddings"], given)
        np.testing.assert_array_equal(found["sentence_embedding"], embedding)
        assert len(found["input_ids"]) == len(given) == found["attention_mask"].sum()
    assert encode(texts[0], output_value="token_embeddings").shape == states[0].shape
    bits = encode(texts, output_value="token_embeddings", precision="ubinary")
    for given, found in zip(states, bits, strict=True):
        np.testing.assert_array_equal(found, np.packbits(given > 0, axis=1))
    with pytest.warns(UserWarning, match=f"only {sum(map(len, states))} embeddings"):  # of all texts
        codes = encode(texts, output_value="token_embeddings", precision="uint8")
    assert [len(code) for code in codes] == [len(given) for given in states]
    assert encode([], output_value="token_embeddings", precision="int8") == []
    refuses(ValueError, "precision is 'int8', expected 'float32'", encode, texts, output_value=None, precision="int8")


def test_dimensions_and_devices(made):
    encoder, encode, texts = made["dense"]
    width = encoder.get_embedding_dimension()
    with encoder.truncate_embeddings(5):
        assert encode(texts).shape == (len(texts), 5) and encoder.get_sentence_embedding_dimension() == 5
    assert encoder.embedding_dimension == width
    with use_backend("numpy"):
        assert backend_of("cpu") == "numpy" and encoder.device == "cpu"
    assert backend_of("cuda") == "cupy"


def test_the_device_is_a_name_with_a_type(made):
    device = made["dense"][0].device
    assert device == "cpu" == device.type and device != "cuda" and device != 5 and {"cpu": 1}[device] == 1


def test_prompts_of_queries_and_documents(made):
    encoder, encode, texts = made["dense"]
    np.testing.assert_array_equal(encoder.encode_query(sentences=texts), encode(texts, prompt="q: "))
    np.testing.assert_array_equal(encoder.encode_document(texts), encode(sentences=texts, task="document"))
    np.testing.assert_array_equal(encoder.encode_document(texts, prompt_name="query"), encode(texts, prompt="q: "))
    encoder = SentenceEncoder(encoder.folder, prompts={"passage": "p: "}, default_prompt_name="passage")
    np.testing.assert_array_equal(encoder.encode_document(texts), encode(texts, prompt="p: "))
    np.testing.assert_array_equal(encoder.encode_query(texts), encode(texts))
    given = texts, None, None, 1, False, "sentence_embedding", "binary"
    assert all(method(*given).dtype == np.int8 for method in (encoder.encode_query, encoder.encode_document))
    refuses(TypeError, "inputs and sentences, its older name, are both given", encode, inputs="a", sentences="b")


def test_encode_of_a_subclass_may_have_another_order(made):
    class Own(SentenceEncoder):
        def encode(self, inputs, batch_size=2, **options):
            return super().encode(inputs, batch_size=batch_size, **options)

    encoder, encode, texts = made["dense"]
    own = Own(encoder.folder, prompts={"document": "q: "})
    np.testing.assert_array_equal(own.encode_document(texts), encode(texts, prompt="q: "))


def test_prompts_and_tasks_are_checked(made):
    folder = made["dense"][0].folder
    for prompts in (5, {"query": 5}):
        refuses(TypeError, r"prompts is .*5.*, expected texts by name", SentenceEncoder, folder, prompts=prompts)
    refuses(TypeError, "prompts is", SentenceEncoder, folder, prompts={1: "a"})
    refuses(TypeError, "model_kwargs is int, expected a mapping", SentenceEncoder, folder, model_kwargs=5)
    refuses(TypeError, "evaluator is None, expected a function", SentenceEncoder(folder).evaluate, None)
    refuses(TypeError, "folder is None, expected the name", SentenceEncoder(folder).save_pretrained, None)
    refuses(TypeError, "prompts is 5", setattr, SentenceEncoder(folder), "prompts", 5)
    encoder, encode, texts = made["sparse"]
    refuses(ValueError, "task is 'x', expected one of", encode, texts, task="x")
    refuses(TypeError, "embeddings is int, expected a table", encoder.intersection, 5, 6)


def test_pooling_without_the_prompt(made):
    encoder, _, texts = made["dense"]
    encoder = SentenceEncoder(encoder.folder)
    with_prompt = encoder.encode(texts, prompt="the cat ")
    encoder.set_pooling_include_prompt(False)
    without = encoder.encode(texts, prompt="the cat ")
    assert np.abs(without - with_prompt).max() > 1e-3
    np.testing.assert_array_equal(without[4], encoder.encode(texts[4], prompt="the cat "))


@pytest.mark.parametrize("name", ["cosine", "euclidean", "manhattan"])
def test_similarities_of_sparse_embeddings(made, name, tmp_path):
    encoder, encode, texts = made["sparse"]
    rows = encode(texts)
    of_all, of_pairs = (getattr(util, f"{prefix}{name[:3]}_sim", None) for prefix in ("", "pairwise_"))
    of_all, of_pairs = of_all or getattr(util, f"{name}_sim"), of_pairs or getattr(util, f"pairwise_{name}_sim")
    encoder = SparseEncoder(encoder.folder, similarity_fn_name=name)
    np.testing.assert_allclose(encoder.similarity(rows, rows), of_all(rows.toarray(), rows.toarray()))
    again = rows[::-1].toarray()
    np.testing.assert_allclose(encoder.similarity_pairwise(rows, rows[::-1]), of_pairs(rows.toarray(), again))
    encoder.save_pretrained(tmp_path / "new")
    assert SparseEncoder(tmp_path / "new").similarity_fn_name == name
    for name, error in (("x", "expected one"), ("maxsim", "which MultiVectorEncoder has")):
        refuses(ValueError, f"similarity_fn_name is '{name}', {error}", setattr, encoder, "similarity_fn_name", name)


def test_a_new_head(made, tmp_path):
    plain = made["dense"][0].folder
    with pytest.warns(NewlyInitialisedWarning):
        encoder = CrossEncoder(plain, num_labels=3, activation_fn="tanh")
    scores = encoder.predict(PAIRS)
    assert scores.shape == (len(PAIRS), 3) and np.abs(scores).max() <= 1
    encoder.save_pretrained(tmp_path / "new")
    np.testing.assert_array_equal(CrossEncoder(tmp_path / "new").predict(PAIRS), scores)
    refuses(CheckpointError, "this is a sentence encoder", CrossEncoder, plain)
    assert encoder.is_singular_input(("a", "b")) and not encoder.is_singular_input(PAIRS)


def test_uploads(made, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    calls = []

    def call(name):
        def noted(self, *args, **given):
            calls.append((name, args, given))
            return SimpleNamespace(commit_url="commit", pr_url="pull request")

        return noted

    for name in ("create_repo", "create_branch", "upload_folder"):
        monkeypatch.setattr(hub.HfApi, name, call(name))
    encoder = made["dense"][0]
    assert encoder.push_to_hub("me/model", private=True) == "commit"
    assert [name for name, *_ in calls] == ["create_repo", "upload_folder"] and calls[0][2]["private"] is True
    assert encoder.push_to_hub("me/model", revision="dev", create_pr=True, local_model_path="here") == "pull request"
    assert calls[3][0] == "create_branch" and calls[4][2]["folder_path"] == "here"
    refuses(ValueError, "safe_serialization is False", encoder.save_pretrained, "x", safe_serialization=False)


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
    refuses(ValueError, r"embeddings has shape \(0, \d+\), expected at least one row", encoder.sparsity, rows[:0])


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
    rows = call(inputs, **{"convert_to_tensor" if kind == "sparse" else "convert_to_numpy": False})
    assert len(rows) == len(inputs) and all(isinstance(row, torch.Tensor) for row in rows)
    if kind == "dense":
        whole = call(inputs, output_value=None, convert_to_tensor=True)
        assert all(torch.equal(each["sentence_embedding"], row) for each, row in zip(whole, rows, strict=True))
    if kind == "sparse":
        encoder = made[kind][0]
        assert encoder.decode(found) == encoder.decode(found.to_dense()) == encoder.decode(call(inputs))
        products = found[0].to_dense() * found.to_dense()
        assert torch.equal(encoder.intersection(found[0], found).to_dense(), products)


@pytest.mark.parity
@pytest.mark.parametrize("kind", ["dense", "sparse", "pairs"])
def test_settings_of_a_plain_model_are_saved_for_sentence_transformers(kind, tmp_path):
    """It reads none from a folder without modules.json."""
    import sentence_transformers as peer

    settings = {"truncate_dim": 7, "similarity_fn_name": "dot"}
    ours, theirs, save, own = {
        "dense": (SentenceEncoder, peer.SentenceTransformer, save_tiny_bert, settings),
        "sparse": (
            SparseEncoder,
            peer.SparseEncoder,
            functools.partial(save_tiny_bert, head=True),
            {"max_active_dims": 3},
        ),
        "pairs": (CrossEncoder, peer.CrossEncoder, save_tiny_classifier, {"activation_fn": "tanh"}),
    }[kind]
    length = "max_length" if kind == "pairs" else "max_seq_length"
    encoder = ours(save(tmp_path / "old"), prompts={"a": "cat"}, **{length: 9}, **own)
    encoder.save_pretrained(tmp_path / "new")
    read = theirs(str(tmp_path / "new"), device="cpu")
    assert read.prompts["a"] == "cat" and read.max_seq_length == 9
    assert all(getattr(read, name) == value for name, value in own.items() if name != "activation_fn")
    expected, again = read.predict(PAIRS) if kind == "pairs" else read.encode(TEXTS), ours(tmp_path / "new")
    expected = expected.to_dense() if kind == "sparse" else expected
    for each in (encoder, again):
        found = dense(each.predict(PAIRS) if kind == "pairs" else each.encode(TEXTS))
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parity
def test_activations_of_torch(made):
    import torch

    encoder, call, pairs = made["pairs"]
    expected = call(pairs, activation_fn="tanh")
    for given in (torch.nn.Tanh(), torch.tanh, lambda logits: logits.tanh()):
        np.testing.assert_allclose(call(pairs, activation_fn=given), expected, atol=1e-6)
    refuses(TypeError, "unsupported operand", call, pairs, activation_fn=lambda logits: logits + "a")
    given = torch.from_numpy(np.float32([[3, 4], [0, 2]]))
    assert torch.equal(util.normalize_embeddings(given), torch.tensor([[0.6, 0.8], [0, 1]]))
    assert torch.equal(util.truncate_embeddings(given, 1), given[:, :1])
    assert encoder.device == torch.device("cpu") == encoder.device


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
