"""MultiVectorEncoder: formats, tokens, vectors, scores, pooling, saving, and what is refused."""

import pickle
import re
import shutil

import numpy as np
import pytest

from bertcore import MultiVectorEncoder, SentenceEncoder, use_backend
from bertcore.checkpoint import CheckpointError, open_checkpoint, save_checkpoint
from bertcore.models.model import NewlyInitialisedWarning
from bertcore.tasks.low_precision import quantize
from bertcore.tasks.multi_vector import pool_tokens
from bertcore.tasks.multi_vector.modules import is_late
from bertcore.tasks.similarity import maxsim
from bertcore.training.objectives.multi_vector import MultiVectorMultipleNegativesRankingLoss
from tests.checkpoint.test_old_names import write_pickle
from tests.refusals import refuses
from tests.tasks.multi_vector.tiny import DIM, EXPANSION, save_tiny_late, save_tiny_pylate, save_tiny_stanford
from tests.tiny_bert import VOCABULARY, WIDTH, random_texts, save_tiny_bert, save_tiny_encoder, write_json

TEXTS = ["the cat sat on a mat.", "", *random_texts(7, longest=12, seed=5), "cat. is . paris"]
MASKED = VOCABULARY.index("[MASK]")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny_late(tmp_path_factory.mktemp("late"))


@pytest.fixture(scope="module")
def encoder(folder):
    with use_backend("numpy"):
        return MultiVectorEncoder(folder)


def test_backends_batches_and_processes_agree(encoder):
    for encode in (encoder.encode_query, encoder.encode_document, encoder.encode):
        with use_backend("numpy"):
            expected = encode(TEXTS)
        whole, few = encode(TEXTS), encode(TEXTS, batch_size=2, batch_tokens=20)
        for one, (mine, theirs, other) in enumerate(zip(expected, whole, few, strict=True)):
            np.testing.assert_allclose(theirs, mine, atol=2e-6)
            np.testing.assert_array_equal(theirs, other)
            np.testing.assert_array_equal(theirs, encode(TEXTS[one]))
            np.testing.assert_allclose((mine * mine).sum(axis=1), 1, atol=1e-5)


@pytest.mark.parametrize(("save", "query", "document"), [
    (save_tiny_late, "[CLS] the cat . [SEP] [MASK]", "[CLS] paris cat . [SEP]"),
    (save_tiny_pylate, "[CLS] [Q]  cat . [SEP] [MASK]", "[CLS] [D]  cat . [SEP]"),
    (save_tiny_stanford, "[CLS] [unused0] cat . [SEP] [MASK]", "[CLS] [unused1] cat . [SEP]"),
])  # fmt: skip
def test_tokens_of_each_format(tmp_path, save, query, document):
    encoder = MultiVectorEncoder(save(tmp_path))
    for task, prompt, expected in (
        ("query", encoder.query_prompt, query),
        ("document", encoder.document_prompt, document),
    ):
        ((row, was_cut),) = encoder.token_rows(["cat."], prompt, task)
        tokens = {number: token for token, number in encoder.tokenizer.get_vocab().items()}
        words = [tokens[number] for number in row.ids.tolist()]
        assert " ".join(dict.fromkeys(words)) == expected and not was_cut
        assert row.seen.tolist() == [word != "[MASK]" for word in words]
        assert row.scored.tolist() == [word != "." or task == "query" for word in words]
        assert len(row) == (encoder.length_of("query") if task == "query" else 5)


def test_tokens_that_are_not_seen_do_not_change_the_others(encoder):
    expanded, plain = encoder.token_rows(["the cat"], "", "query")[0][0], encoder.token_rows(["the cat"])[0][0]
    expected, found = encoder.vectors([plain, plain])[0], encoder.vectors([expanded, plain])[0]
    np.testing.assert_allclose(found[: len(expected)], expected, atol=2e-6)
    assert len(found) == EXPANSION["length"] and (expanded.ids[len(plain) :] == MASKED).all()
    attended = MultiVectorEncoder(encoder.folder, query_expansion=EXPANSION | {"attend": True, "token": "cat"})
    row = attended.token_rows(["the cat"], "", "query")[0][0]
    assert row.seen.all() and row.ids[-1] == VOCABULARY.index("cat")
    assert np.abs(attended.vectors([row])[0][: len(expected)] - expected).max() > 0.01


def test_options_replace_what_was_published(folder):
    encoder = MultiVectorEncoder(
        folder, query_expansion=False, query_length=5, document_length=6, skiplist_words=["cat"],
        similarity_fn_name="meanmaxsim", prompts={},
    )  # fmt: skip
    with pytest.warns(UserWarning, match=r"texts were cut to 5 tokens.*\(query_length, document_length\)"):
        assert len(encoder.encode_query("a b c d e f g h")) == 5
    assert len(encoder.encode_document("cat cat paris is is is")) == 4
    least = MultiVectorEncoder(folder, query_expansion=EXPANSION | {"strategy": "min"}, prompts={})
    assert [len(each) for each in least.encode_query(["cat", "cat " * 20])] == [17, 22]


def test_scores(encoder):
    queries, documents = encoder.encode_query(TEXTS[:3]), encoder.encode_document(TEXTS)
    expected = np.array([[(q @ d.T).max(axis=1).sum() for d in documents] for q in queries])
    found = encoder.similarity(queries, documents)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_allclose(encoder.similarity_pairwise(queries, documents[:3]), np.diag(expected), rtol=1e-5)
    np.testing.assert_allclose(encoder.similarity(queries[0], documents[1]), expected[:1, 1:2], rtol=1e-5)
    padded = np.zeros((len(documents), 40, DIM), np.float32)
    for row, vectors in zip(padded, documents, strict=True):
        row[: len(vectors)] = vectors
    np.testing.assert_allclose(encoder.similarity(queries, padded), expected, rtol=1e-5)
    assert encoder.similarity([], documents).shape == (0, len(documents))
    assert encoder.similarity(queries, [np.zeros((0, DIM))]).tolist() == [[-1e9]] * 3
    np.testing.assert_allclose(maxsim(queries, documents, length_normalize=True), expected / 17, rtol=1e-5)


def test_rank(encoder):
    scores = encoder.similarity(encoder.encode_query("the cat"), encoder.encode_document(TEXTS))[0]
    found = encoder.rank("the cat", TEXTS, top_k=4, return_documents=True)
    assert [entry["corpus_id"] for entry in found] == np.argsort(-scores, kind="stable")[:4].tolist()
    assert [entry["text"] for entry in found] == [TEXTS[entry["corpus_id"]] for entry in found]
    np.testing.assert_allclose([entry["score"] for entry in found], np.sort(scores)[::-1][:4], rtol=1e-6)
    assert encoder.rank("the cat", []) == []


def test_pooling_of_tokens(encoder, tmp_path):
    pytest.importorskip("scipy")
    whole, pooled = encoder.encode_document(TEXTS), encoder.encode_document(TEXTS, pool_factor=2)
    for text, fewer in zip(whole, pooled, strict=True):
        assert len(fewer) == 1 + max((len(text) - 1) // 2, 1)
        np.testing.assert_allclose(fewer[0], text[0], atol=1e-6)
        np.testing.assert_allclose((fewer * fewer).sum(axis=1), 1, atol=1e-5)
    assert [len(each) for each in encoder.encode_query(TEXTS, pool_factor=2)] == [17] * len(TEXTS)
    near = np.array([[1, 0], [0, 1], [0.1, 1], [1, 0.1]], np.float32)
    found = pool_tokens(near, 2, protected_tokens=0, normalize_embeddings=False)
    np.testing.assert_allclose(sorted(found.tolist()), [[0.05, 1], [1, 0.05]], rtol=1e-6)
    published = save_tiny_late(tmp_path, pooling={"pool_factor": 2, "normalize_embeddings": True})
    for one, other in zip(MultiVectorEncoder(published).encode_document(TEXTS), pooled, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "int8_weight_only"])
def test_low_precision(encoder, tmp_path, dtype):
    low = MultiVectorEncoder(encoder.folder, dtype=dtype)
    assert low.dtype == dtype
    low.save_pretrained(tmp_path / "low")
    for vectors, expected, saved in zip(
        low.encode_document(TEXTS), encoder.encode_document(TEXTS),
        MultiVectorEncoder(tmp_path / "low").encode_document(TEXTS), strict=True,
    ):  # fmt: skip
        np.testing.assert_array_equal(vectors, saved)
        assert (vectors * expected).sum(axis=1).min() > 0.97 and not np.array_equal(vectors, expected)


def test_bge(tmp_path):
    """Its map is a pickle, its first token has no vector, and scores are means."""
    folder, rng = save_tiny_encoder(tmp_path, normalize=True), np.random.default_rng(0)
    arrays = {"weight": rng.normal(size=(WIDTH, WIDTH)).astype("f4"), "bias": rng.normal(size=WIDTH).astype("f4")}
    write_pickle(folder, arrays)
    (folder / "pytorch_model.bin").rename(folder / "colbert_linear.pt")
    refuses(TypeError, "skiplist_words is 'the', expected a list", MultiVectorEncoder, folder, skiplist_words="the")
    encoder = MultiVectorEncoder(folder)
    states = SentenceEncoder(folder).encode(TEXTS, output_value="token_embeddings")
    for texts in (encoder.encode_query(TEXTS), encoder.encode_document(TEXTS)):
        for vectors, hidden in zip(texts, states, strict=True):
            expected = hidden[1:] @ arrays["weight"].T + arrays["bias"]
            expected /= np.sqrt((expected * expected).sum(axis=1, keepdims=True))
            np.testing.assert_allclose(vectors, expected, atol=2e-6)
    found = encoder.similarity(texts[:2], texts[2])
    np.testing.assert_allclose(found[:, 0], [(q @ texts[2].T).max(axis=1).mean() for q in texts[:2]], rtol=1e-5)
    encoder.save_pretrained(tmp_path / "new")
    np.testing.assert_array_equal(
        MultiVectorEncoder(tmp_path / "new").encode_query("the cat"), encoder.encode("the cat")
    )
    assert not is_late(folder) and is_late(tmp_path / "new")


def test_a_model_without_token_vectors_gets_a_map(tmp_path):
    with pytest.warns(NewlyInitialisedWarning, match="no map to token vectors: newly initialised, train before use"):
        plain = MultiVectorEncoder(save_tiny_bert(tmp_path / "plain"), embedding_dimension=16)
    with pytest.warns(NewlyInitialisedWarning):
        dense = MultiVectorEncoder(save_tiny_encoder(tmp_path / "dense"))
    assert (plain.embedding_dimension, dense.embedding_dimension) == (16, 128)
    np.testing.assert_allclose(np.square(plain.encode("the cat")).sum(axis=1), 1, atol=1e-5)


MODULES = [{"path": "", "type": "x.Transformer"}, {"path": "8_MultiVectorMask", "type": "x.MultiVectorMask"}]
NAMED = {"path": "1_Dense", "type": "x.Dense"}
SAYS = "config_sentence_transformers.json"
# What is said in which file -> what is wrong with it.
REFUSED = {
    "modules.json": [
        ([*MODULES, {"path": "x", "type": "x.CNN"}], "x.CNN, which is not supported"),
        ([MODULES[1], MODULES[0]], "modules MultiVectorMask, Transformer, expected one Transformer, any number of"),
        ([*MODULES, NAMED], "modules Transformer, MultiVectorMask, Dense, expected one Transformer"),
        ([*MODULES, MODULES[1]], "modules Transformer, MultiVectorMask, MultiVectorMask, expected"),
        ([], "modules none, expected"),
    ],
    "sentence_bert_config.json": [
        ({"query_length": 0}, "query_length is 0, expected a positive integer"),
        ({"query_expansion": 3}, "sentence_bert_config.json: query_expansion is 3, expected a mapping"),
        ({"query_expansion": {"strategy": "fixed"}}, "query_expansion['length'] is None"),
        ({"query_expansion": EXPANSION | {"length": -1}}, "query_expansion['length'] is -1"),
        ({"query_expansion": EXPANSION | {"length": 10**9}}, "query_expansion['length'] is 1000000000, expected"),
        ({"query_expansion": EXPANSION | {"strategy": "most"}}, "query_expansion['strategy'] is 'most', expected"),
        ({"query_expansion": EXPANSION | {"attend": 1}}, "query_expansion['attend'] is 1, expected"),
        ({"query_expansion": EXPANSION | {"tokens": 1}}, "a name in query_expansion is 'tokens', expected"),
        ({"query_expansion": EXPANSION | {"token": 7}}, "query_expansion['token'] is 7, expected a string"),
    ],
    "8_MultiVectorMask/config.json": [
        ({"skiplist_words": [1]}, "skiplist_words is [1], expected a list of strings, or null"),
        ({"skiplist_words": {}}, "skiplist_words is {}, expected a list of strings"),
        ({"keep_only_token_ids": ["a"]}, "keep_only_token_ids is ['a'], expected a list of int"),
    ],
    "1_Dense/config.json": [
        ({"in_features": 7}, f"in_features is 7, expected {WIDTH}"),
        ({"in_features": WIDTH, "out_features": DIM, "module_input_name": "x"}, "expected 'token_embeddings'"),
        ({"in_features": WIDTH, "out_features": 5, "bias": False}, "linear.weight has shape (21, 39), expected (5"),
    ],
    SAYS: [
        ({"query_prefix": 3}, "query_prefix is 3, expected a string or null"),
        ({"model_type": "ColBERT", "skiplist_words": 5}, "skiplist_words is 5, expected a list of strings"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "message"), [(name, *case) for name, cases in REFUSED.items() for case in cases]
)
def test_what_folders_are_refused_for(tmp_path, folder, name, content, message):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    write_json(tmp_path / name, content)
    if name == SAYS:
        write_json(tmp_path / "modules.json", [MODULES[0], NAMED | {"type": "pylate.models.Dense.Dense"}])
    refuses(CheckpointError, re.escape(message), MultiVectorEncoder, tmp_path)


@pytest.mark.parametrize(("metadata", "message"), [
    ({"query_token_id": 5}, "query_token_id is 5, expected a string or null"),
    ({"doc_maxlen": "x"}, "doc_maxlen is 'x', expected a positive integer"),
    ({"query_maxlen": 99}, "query_expansion['length'] is 99, expected 2 (the special tokens of a text) to 40"),
])  # fmt: skip
def test_what_metadata_is_refused_for(tmp_path, metadata, message):
    refuses(ValueError, re.escape(message), MultiVectorEncoder, save_tiny_stanford(tmp_path, **metadata))


def test_a_stanford_model_without_its_map(tmp_path):
    folder = save_tiny_stanford(tmp_path)
    tensors = {name: np.array(array) for name, array in open_checkpoint(folder).items()}
    tensors["linear.weight"] = tensors["linear.weight"][:, :5]
    save_checkpoint(folder, {"architectures": ["HF_ColBERT"]}, tensors, config_name="other.json")
    refuses(CheckpointError, r"linear.weight has shape \(21, 5\), expected \(vectors, 39\)", MultiVectorEncoder, folder)


CALLS = [
    (TypeError, "has no argument query_len; did you mean query_length", {"query_len": 3}),
    (ValueError, "query_length is 0, expected", {"query_length": 0}),
    (TypeError, "skiplist_words is 'x', expected a list", {"skiplist_words": "x"}),
    (ValueError, "similarity_fn_name is 'cosine', expected one of", {"similarity_fn_name": "cosine"}),
    (ValueError, r"query_expansion\['length'\] is 17, expected 2", {"query_length": 9}),
    (ValueError, r"query_expansion\['token'\] is 'zz', expected", {"query_expansion": EXPANSION | {"token": "zz"}}),
    (TypeError, "query_expansion is 5, expected a mapping", {"query_expansion": 5}),
    (ValueError, "embedding_dimension is 5, expected .* or None", {"embedding_dimension": 5}),
]  # fmt: skip


@pytest.mark.parametrize(("error", "message", "options"), CALLS)
def test_what_arguments_are_refused_for(folder, error, message, options):
    refuses(error, message, MultiVectorEncoder, folder, **options)


def test_expansion_that_is_not_published_is_not_promised(tmp_path):
    folder = save_tiny_late(tmp_path, transformer={"query_expansion": None})
    assert MultiVectorEncoder(folder).query_expansion is None
    refuses(CheckpointError, "this is a late-interaction encoder", SentenceEncoder, folder)
    refuses(ValueError, "query_expansion is True, expected a mapping", MultiVectorEncoder, folder, query_expansion=True)


def test_what_calls_are_refused_for(encoder):
    vectors = encoder.encode(["the cat", "a"])
    for call, given, error, message in (
        (encoder.encode, {"inputs": "a", "task": "doc"}, ValueError, "task is 'doc', expected one of"),
        (encoder.encode, {"inputs": 5}, TypeError, "inputs is int, expected"),
        (encoder.encode, {"inputs": "a", "truncation": "chunk"}, ValueError, "truncation is 'chunk', expected 'warn'"),
        (encoder.encode, {"inputs": "a b " * 30, "truncation": "error"}, ValueError, "more than the 35 tokens"),
        (encoder.encode_document, {"inputs": "a", "pool_factor": 0.5}, ValueError, "pool_factor is 0.5, expected at"),
        (encoder.encode_document, {"inputs": "a", "pool_factor": "2"}, TypeError, "pool_factor is '2', expected"),
        (pool_tokens, {"vectors": vectors[0], "pool_factor": 0}, ValueError, "pool_factor is 0, expected at least 1"),
        (pool_tokens, {"vectors": vectors[0], "pool_factor": None}, TypeError, "pool_factor is None"),
        (pool_tokens, {"vectors": vectors[0], "pool_factor": 2, "protected_tokens": -1}, ValueError, "protected_tok"),
        (encoder.encode, {"inputs": "a", "normalize": True}, TypeError, "has no argument normalize; did you mean"),
        (encoder.rank, {"query": 5, "documents": []}, TypeError, "query is int, expected"),
        (encoder.rank, {"query": "a", "documents": "b"}, TypeError, "documents is str, expected a list"),
        (encoder.rank, {"query": "a", "documents": [], "top_k": 0}, ValueError, "top_k is 0"),
        (maxsim, {"a": vectors, "b": [vectors[0][:, :3]]}, ValueError, "a has vectors of 21, b of 3, expected equal"),
        (maxsim, {"a": vectors[0][0], "b": vectors}, ValueError, r"a has shape \(21,\), expected \(texts, tokens"),
        (maxsim, {"a": ["x"], "b": vectors}, TypeError, r"a\[0\] has dtype <U1, expected numbers"),
        (maxsim, {"a": [vectors[0], vectors[1][:, :2]], "b": []}, ValueError, r"a\[1\] has shape \(3, 2\), expected"),
        (encoder.similarity_pairwise, {"embeddings1": vectors, "embeddings2": []}, ValueError, "a has 2 texts, b 0"),
    ):  # fmt: skip
        refuses(error, message, call, **given)


def test_hidden_states_of_tokens_that_are_not_seen(encoder):
    ids, seen = [[5, 6, 7], [8]], [np.array([True, True, False]), np.array([True])]
    hidden, offsets = encoder.model.encode_packed(ids, seen)
    alone, _ = encoder.model.encode_packed([[5, 6], [8]])
    np.testing.assert_allclose(np.delete(hidden, 2, axis=0), alone, atol=2e-6)
    assert offsets.tolist() == [0, 3, 4]
    for wrong in ([[True]], [seen[0], np.array([1])], [seen[1], seen[0]], seen * 2):
        refuses(ValueError, "seen does not have rows of", encoder.model.encode_packed, ids, wrong)


@pytest.mark.parametrize("save", [save_tiny_late, save_tiny_pylate, save_tiny_stanford])
def test_quantized_folders(tmp_path, save):
    """The maps stay as they are; calibration reads texts with the encoder itself."""
    source = save(tmp_path / "source")
    encoder = MultiVectorEncoder(source)
    for name, texts in (("plain", None), ("calibrated", TEXTS)):
        before, after = quantize(source, tmp_path / name, "int8", texts)
        low = MultiVectorEncoder(tmp_path / name)
        assert low.dtype == "int8" and after < before
        for vectors, expected in zip(low.encode_query(TEXTS), encoder.encode_query(TEXTS), strict=True):
            assert (vectors * expected).sum(axis=1).mean() > 0.98 and not np.array_equal(vectors, expected)


@pytest.mark.slow
def test_processes(encoder):
    pool = encoder.start_multi_process_pool(["cpu", "cpu"])
    try:
        found = encoder.encode_query(TEXTS, pool=pool, chunk_size=2)
        assert encoder.encode_query([], pool=pool) == []
    finally:
        encoder.stop_multi_process_pool(pool)
    for one, other in zip(found, encoder.encode_query(TEXTS), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_copies_answer_alike(encoder):
    again = pickle.loads(pickle.dumps(encoder))
    np.testing.assert_array_equal(again.encode_query("the cat"), encoder.encode_query("the cat"))
    assert repr(again).startswith("<MultiVectorEncoder of <AutoModel: bert") and again.device == "cpu"


@pytest.mark.slow
def test_emulated_gpu(folder, encoder, emulated_gpu):
    with use_backend("numpy"):
        queries, documents = encoder.encode_query(TEXTS[:3]), encoder.encode_document(TEXTS[:3])
        scores = encoder.similarity(queries, documents)
        expected, slopes = _ranked(encoder)
    for dtype, tolerance in (("float32", 1e-4), ("float16", 2e-2)):
        other = MultiVectorEncoder(folder, dtype=dtype)
        found = other.encode_query(TEXTS[:3]), other.encode_document(TEXTS[:3])
        for one, two in zip([*found[0], *found[1]], [*queries, *documents], strict=True):
            np.testing.assert_allclose(one, two, atol=tolerance)
        np.testing.assert_allclose(other.similarity(*found), scores, atol=20 * tolerance)
    out, grads = _ranked(MultiVectorEncoder(folder))
    assert float(out.loss) == pytest.approx(float(expected.loss), abs=1e-4)
    for name, array in slopes.items():
        np.testing.assert_allclose(grads[name].get(), array, atol=2e-3, err_msg=name)


def _ranked(encoder):
    objective = MultiVectorMultipleNegativesRankingLoss(encoder)
    batch = objective.collator(encoder.tokenizer)([{"a": text, "b": f"{text} cat"} for text in TEXTS[:3]])
    return objective.value_and_grad(encoder.model, batch)
