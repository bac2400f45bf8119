"""SparseEncoder: weights by their definition, limits, decoding, and what it refuses."""

import functools

import numpy as np
import pytest

from bertcore import MultiVectorEncoder, SentenceEncoder, SparseEncoder, use_backend
from bertcore.checkpoint import CheckpointError, open_checkpoint
from bertcore.passes import Pass
from bertcore.tasks import sparse_modules
from bertcore.tasks.texts import TextsCutWarning
from tests.checkpoint.test_old_names import write_pickle
from tests.refusals import refuses
from tests.tasks.sparse_encoder.tiny import save_tiny_splade
from tests.tiny_bert import WIDTH, random_texts, save_tiny_bert, save_tiny_encoder, write_json, write_modules

TEXTS = ["the cat sat on a mat.", "", "paris is the capital of france.", "a " * 60]
DEFINITIONS = {
    ("max", "relu"): lambda logits: np.log1p(np.maximum(logits, 0)).max(axis=0),
    ("sum", "relu"): lambda logits: np.log1p(np.maximum(logits, 0)).sum(axis=0),
    ("max", "log1p_relu"): lambda logits: np.log1p(np.log1p(np.maximum(logits, 0))).max(axis=0),
}


pytestmark = pytest.mark.usefixtures("on_numpy")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    with use_backend("numpy"):
        return SparseEncoder(save_tiny_splade(tmp_path_factory.mktemp("splade")))


@pytest.mark.parametrize(("strategy", "activation"), DEFINITIONS)
def test_weights(tmp_path, strategy, activation):
    folder = save_tiny_splade(tmp_path, {"pooling_strategy": strategy, "activation_function": activation})
    encoder = SparseEncoder(folder)
    found = encoder.encode(TEXTS).toarray()
    for text, weights in zip(TEXTS, found, strict=True):
        ids = encoder.tokenizer([text], truncation=True, max_length=40)["input_ids"]
        expected = DEFINITIONS[strategy, activation](encoder.model(ids).logits[0].astype(np.float64))
        np.testing.assert_allclose(weights, expected, rtol=1e-4, atol=1e-5)
    assert 0 < (found > 0).mean() < 1 and found.dtype == np.float32


def test_a_plain_masked_language_model(tmp_path, encoder):
    plain = SparseEncoder(save_tiny_bert(tmp_path, head=True))
    np.testing.assert_array_equal(plain.encode(TEXTS).toarray(), encoder.encode(TEXTS).toarray())


@pytest.mark.parametrize("strategy", ["max", "sum"])
def test_the_batch_changes_no_bit(tmp_path, monkeypatch, strategy):
    texts = random_texts(31, seed=1)
    folder = save_tiny_splade(tmp_path, {"pooling_strategy": strategy})
    with use_backend("numba"):
        encoder = SparseEncoder(folder)
        whole = encoder.encode(texts).toarray()
        np.testing.assert_array_equal(encoder.encode(texts, batch_tokens=1).toarray(), whole)
        if strategy == "max":
            monkeypatch.setattr(sparse_modules, "GROUP_TOKENS", 3)
            np.testing.assert_array_equal(encoder.encode(texts).toarray(), whole)


def test_logits_of_few_tokens_are_in_memory(encoder, monkeypatch):
    head, sizes = functools.partial(encoder.model.heads[0], Pass.begin()), []

    def counted(hidden):
        sizes.append(len(hidden))
        return head(hidden)

    monkeypatch.setattr(sparse_modules, "GROUP_TOKENS", 16)
    hidden = np.random.default_rng(0).normal(size=(70, 39)).astype(np.float32)
    offsets = np.array([0, 5, 5, 16, 30, 67, 70])
    found = list(sparse_modules.pooled_words(counted, hidden, offsets[[0, 1, 3, 4, 5, 6]], encoder.settings))
    assert max(sizes) <= 16 and sum(sizes) == 70 and len(found) == 5
    np.testing.assert_allclose(found[3], np.log1p(np.maximum(head(hidden[30:67]), 0)).max(axis=0), rtol=1e-5, atol=1e-6)


def test_max_active_dims(encoder):
    whole, cut = encoder.encode(TEXTS).toarray(), encoder.encode(TEXTS, max_active_dims=5).toarray()
    assert ((cut > 0).sum(axis=1) == 5).all()
    for before, after in zip(whole, cut, strict=True):
        np.testing.assert_array_equal(np.sort(after[after > 0]), np.sort(before)[-5:])
    np.testing.assert_array_equal(cut[cut > 0], whole[cut > 0])


def test_decode(encoder):
    (row,) = encoder.encode_stream(["the cat"])
    words, known = encoder.decode(row), row.indices < len(encoder.tokenizer)
    assert [weight for _, weight in words] == sorted(row.values[known].tolist())[::-1]
    best = int(row.indices[known][row.values[known].argmax()])
    assert encoder.decode(encoder.encode(["the cat", "paris"]), top_k=1)[0] == words[:1]
    assert words[0][0] == encoder.tokenizer.convert_ids_to_tokens([best])[0]


def test_similarity_and_prompts(tmp_path, encoder):
    folder = save_tiny_splade(tmp_path)
    settings = {"prompts": {"query": "paris is "}, "max_active_dims": 7}
    write_json(folder / "config_sentence_transformers.json", settings)
    prompted = SparseEncoder(folder)
    found, expected = prompted.encode_query(["the"]), encoder.encode(["paris is the"], max_active_dims=7)
    np.testing.assert_array_equal(found.toarray(), expected.toarray())
    documents = prompted.encode_document(TEXTS)
    np.testing.assert_array_equal(documents.toarray(), encoder.encode(TEXTS, max_active_dims=7).toarray())
    np.testing.assert_allclose(encoder.similarity(found, documents), found.toarray() @ documents.toarray().T, rtol=1e-5)
    one, other = (list(encoder.encode_stream(texts, max_active_dims=9)) for texts in (TEXTS[:2], TEXTS[2:]))
    expected = np.diagonal(encoder.similarity(one, other))
    np.testing.assert_allclose(encoder.similarity_pairwise(one, other), expected, rtol=1e-5)


@pytest.mark.parametrize(("merge", "combined"), [("max", np.max), ("mean", np.mean)])
def test_long_texts_are_read_in_windows(encoder, merge, combined):
    words = ["the", "cat", "sat", "on", "paris", "is", "capital", "of", "a"]
    text = " ".join(words * 8)  # 72 words; 38 fit beside the two special tokens
    windows = [" ".join(text.split()[start:stop]) for start, stop in ((0, 38), (34, 72))]
    parts = encoder.encode(windows).toarray()
    assert np.abs(parts[0] - parts[1]).max() > 1e-3
    options = {"truncation": "chunk", "stride": 4, "merge": merge}
    found = encoder.encode([text, TEXTS[0]], **options).toarray()
    np.testing.assert_allclose(found[0], combined(parts, axis=0), atol=1e-5)
    np.testing.assert_allclose(found[1], encoder.encode(TEXTS[:1]).toarray()[0], rtol=1e-4, atol=1e-5)
    few = encoder.encode([text], max_active_dims=5, **options).toarray()[0]
    best = np.sort(np.argsort(-found[0], kind="stable")[:5])
    np.testing.assert_array_equal(np.flatnonzero(few), best)


def test_a_warning_names_the_callers_file(tmp_path):
    with pytest.warns(TextsCutWarning, match="1 of 4 texts were cut to 40 tokens; truncation 'chunk' reads") as caught:
        SparseEncoder(save_tiny_splade(tmp_path)).encode(TEXTS)
    assert caught[0].filename == __file__


def test_one_text(encoder):
    row, rows = encoder.encode(TEXTS[0]), encoder.encode(TEXTS[:1])
    assert row.shape == (encoder.embedding_dimension,) and encoder.decode(row) == encoder.decode(rows)[0]
    np.testing.assert_array_equal(row.toarray(), rows[0].toarray())
    np.testing.assert_allclose(encoder.similarity(row, rows), encoder.similarity(rows, rows))


def test_no_texts(encoder):
    assert encoder.encode([]).shape == (0, encoder.embedding_dimension)
    assert list(encoder.encode_stream(iter([]))) == [] and encoder.decode(encoder.encode([])) == []


@pytest.mark.parametrize(("options", "error", "message"), [
    ({"max_active_dims": 0}, ValueError, "max_active_dims is 0, expected a positive"),
    ({"truncation": "chunk", "stride": 38}, ValueError, "stride is 38, expected less than the 38 tokens"),
    ({"truncation": "error"}, ValueError, r"inputs\[3\] has more than the 40 tokens"),
    ({"prompt_name": "q"}, ValueError, "prompt_name is 'q', this model has query"),
    ({"inputs": 3}, TypeError, "inputs is int, expected a string or a list of strings"),
    ({"convert_to_tensor": "x"}, TypeError, "convert_to_tensor is 'x', expected True or False"),
    ({"max_active_dim": 3}, TypeError, "has no argument max_active_dim; did you mean max_active_dims?"),
])  # fmt: skip
def test_bad_arguments(encoder, options, error, message):
    refuses(error, message, encoder.encode, **{"inputs": TEXTS, **options})


def test_folders_that_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"does not hold cls\..*: expected a masked language model"):
        SparseEncoder(save_tiny_bert(tmp_path / "plain"))
    folder = save_tiny_splade(tmp_path / "splade", {"pooling_strategy": "mean"})
    refuses(CheckpointError, "pooling_strategy is 'mean', expected one of max, sum", SparseEncoder, folder)
    write_modules(folder, {"": "x.MLMTransformer", "1_": "x.SparseAutoEncoder"})
    refuses(CheckpointError, "has the modules MLMTransformer, SparseAutoEncoder, expected", SparseEncoder, folder)
    write_modules(folder, {"": "x.MLMTransformer", "1_": "x.MultiVectorMask"})
    refuses(CheckpointError, r"x\.MultiVectorMask, which is not supported", SparseEncoder, folder)


def test_decoding_a_row_of_a_matrix(encoder):
    matrix = encoder.encode(TEXTS[:2])
    assert encoder.decode(matrix[0]) == encoder.decode(matrix)[0]
    assert encoder.decode(matrix.tocsc()) == encoder.decode(matrix)
    with pytest.raises(TypeError, match="embeddings is ndarray, expected a SparseRow or a sparse matrix"):
        encoder.decode(matrix.toarray())


def test_bge_m3_gives_dense_sparse_and_token_vectors(tmp_path):
    """Its weights of tokens are relu(w h + b), the highest of a text, and zero for special tokens."""
    folder, rng = save_tiny_encoder(tmp_path / "m3", normalize=True), np.random.default_rng(0)
    for name, rows in (("colbert_linear.pt", WIDTH), ("sparse_linear.pt", 1)):
        write_pickle(tmp_path, {"weight": rng.normal(size=(rows, WIDTH)).astype("f4"), "bias": np.full(rows, 9, "f4")})
        (tmp_path / "pytorch_model.bin").rename(folder / name)
    linear = open_checkpoint(folder / "sparse_linear.pt")
    texts, encoder, dense = ["the cat sat on the mat", "paris", ""], SparseEncoder(folder), SentenceEncoder(folder)
    found = encoder.encode(texts).toarray()
    for row, text, states in zip(found, texts, dense.encode(texts, output_value="token_embeddings"), strict=True):
        expected = np.zeros(encoder.embedding_dimension, np.float32)
        for token, state in zip(encoder.tokenizer(text)["input_ids"], states, strict=True):
            if token not in (encoder.tokenizer.cls_token_id, encoder.tokenizer.unk_token_id):
                weight = max(float(linear["weight"][0] @ state + linear["bias"][0]), 0)
                expected[token] = max(expected[token], weight)
        np.testing.assert_allclose(row, expected, atol=1e-5)
    assert (found > 0).any()
    assert MultiVectorEncoder(folder).encode("the cat").shape[1] == WIDTH
    encoder.save_pretrained(tmp_path / "new")
    np.testing.assert_array_equal(SparseEncoder(tmp_path / "new").encode(texts).toarray(), found)
    write_pickle(tmp_path, {"weight": np.ones((2, WIDTH), "f4")})
    (tmp_path / "pytorch_model.bin").rename(folder / "sparse_linear.pt")
    refuses(CheckpointError, r"weight has shape \(2, \d+\), expected \(1, ", SparseEncoder, folder)
