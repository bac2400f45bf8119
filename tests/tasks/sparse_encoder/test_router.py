"""Routers, token weights, autoencoders and the inverted index: what holds for them, and what is refused."""

import json

import numpy as np
import pytest

from bertcore import SentenceEncoder, SparseEncoder, use_backend, util
from bertcore.checkpoint import CheckpointError, save_checkpoint
from bertcore.tasks.loading import load_encoder
from bertcore.tasks.search import BLOCK_DOCUMENTS, SparseIndex
from bertcore.tasks.sparse_modules import SparseRow
from tests.refusals import refuses
from tests.tasks.sparse_encoder.tiny import KINDS, TOKENS, save_plain_idf, save_tiny_csr, save_tiny_router, write_router
from tests.tiny_bert import WIDTH, save_tiny_encoder, write_json

pytestmark = pytest.mark.usefixtures("on_numpy")

TEXTS = ["the cat the cat", "", "paris is the capital of france."]
QUERY, DOCUMENT, POOLING = KINDS
sparse = pytest.importorskip("scipy.sparse")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny_router(tmp_path_factory.mktemp("router"), settings={"prompts": {"query": "on "}})


@pytest.fixture(scope="module")
def encoder(folder):
    with use_backend("numpy"):
        return SparseEncoder(folder)


def test_queries_have_the_weights_of_their_different_tokens(encoder):
    table, ids = encoder.readers["query"].head.table, encoder.tokenizer.get_vocab()
    found = encoder.encode_query(TEXTS).toarray()
    expected = np.zeros((3, TOKENS), np.float32)
    for row, words in enumerate(["on the cat", "on", "on paris is the capital of france ."]):
        for word in words.split():
            expected[row, ids[word]] = table[ids[word]]
    np.testing.assert_array_equal(found, expected)
    long = "the cat " * 40
    for text, row in (*zip(TEXTS, expected, strict=True), (long, encoder.encode_query([long]).toarray()[0])):
        one = encoder.encode_query(text)  # a shorter way
        assert one.shape == (TOKENS,) and one.dtype == np.float32
        np.testing.assert_array_equal(one.toarray(), row)
    assert encoder.encode_query([]).shape == (0, TOKENS)
    few = encoder.encode_query(TEXTS, max_active_dims=2).toarray()
    np.testing.assert_array_equal(np.sort(few, axis=1)[:, -2:], np.sort(expected, axis=1)[:, -2:])


def test_documents_and_texts_without_a_task_are_read_by_the_model(encoder, folder):
    document = SparseEncoder.encode(encoder, TEXTS).toarray()
    np.testing.assert_array_equal(encoder.encode_document(TEXTS).toarray(), document)
    rows = list(encoder.encode_stream(TEXTS, task="document"))
    np.testing.assert_array_equal(encoder.similarity(rows, rows), encoder.similarity(*[sparse.csr_array(document)] * 2))
    assert (encoder.encode(TEXTS, task="query") != encoder.encode(TEXTS)).nnz
    assert type(load_encoder(folder)) is SparseEncoder


def test_what_is_set_holds_for_all_routes(encoder, folder):
    ours = SparseEncoder(folder, max_seq_length=4)
    words = "cat sat on paris"
    assert ours.encode_query(words, prompt="").nnz == 4
    ours.max_seq_length = 2
    assert ours.encode_query(words, prompt="", truncation=True).nnz == 2
    ours.prompts, ours.max_active_dims = {"query": "mat "}, 1
    with pytest.warns(UserWarning, match="1 of 1 texts were cut to 2 tokens"):
        assert ours.encode_query(words).nnz == 1
    assert ours.encode_query(words).nnz == ours.encode_document(words, truncation=True).nnz == 1  # warned once


def test_a_router_is_saved_before_its_other_route_was_used(folder, tmp_path):
    SparseEncoder(folder, max_active_dims=2).save_pretrained(tmp_path)
    found, expected = SparseEncoder(tmp_path), SparseEncoder(folder, max_active_dims=2)
    for call in ("encode_query", "encode_document"):
        rows = [getattr(each, call)(["the cat sat on a mat"]).toarray() for each in (found, expected)]
        np.testing.assert_array_equal(*rows)


@pytest.mark.parametrize(("max_active_dims", "most"), [(None, 6), (2, 2), (500, 100)])
def test_an_autoencoder_keeps_its_greatest(tmp_path, max_active_dims, most):
    ours = SparseEncoder(save_tiny_csr(tmp_path))
    found = ours.encode(TEXTS, max_active_dims=max_active_dims).toarray()
    vectors, head = SentenceEncoder(save_tiny_encoder(tmp_path / "plain")).encode(TEXTS), ours.head
    codes = (vectors - head.pre_bias.array()) @ head.encoder.weight.array().T + head.encoder.bias.array()
    expected = np.where(codes >= np.sort(codes, axis=1)[:, [-most]], np.maximum(codes, 0), 0)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_a_dense_router_keeps_truncation_and_normalisation(tmp_path):
    for route in ("query", "document"):
        save_tiny_encoder(tmp_path / route)
    types = {"query": "x.Transformer", "document": "x.Transformer", "query/1_Pooling": "x.Pooling"}
    write_router(tmp_path, {"query": ["query", "query/1_Pooling"], "document": ["document", "query/1_Pooling"]}, types)
    ours, whole = SentenceEncoder(tmp_path, truncate_dim=7), SentenceEncoder(tmp_path / "query")
    expected = whole.encode(TEXTS, truncate_dim=7, normalize_embeddings=True)
    np.testing.assert_array_equal(ours.encode_query(TEXTS, normalize_embeddings=True), expected)
    with ours.truncate_embeddings(3):
        assert ours.encode_query(TEXTS).shape == (3, 3)
    assert ours.preprocess(["cat"], task="query")["input_ids"].shape == (1, 3)
    refuses(ValueError, "task is 'sts', expected one of query, document", ours.encode, TEXTS, task="sts")


def random_rows(rng, rows, width, share=0.1):
    table = rng.normal(size=(rows, width)).astype(np.float32) * (rng.random((rows, width)) < share)
    return sparse.csr_array(table)


@pytest.mark.parametrize("backend", ["numpy", "numba"])
@pytest.mark.parametrize(("queries", "documents", "width"), [(3, 50, 20), (1, 0, 5), (0, 4, 5), (5, 7, 1), (2, 3, 0)])
def test_the_index_scores_as_a_product(backend, queries, documents, width):
    rng = np.random.default_rng(0)
    left, right = random_rows(rng, queries, width, 0.5), random_rows(rng, documents, width)
    with use_backend(backend):
        index = SparseIndex(right)
        found, (scores, places) = index.scores(left), index.search(left, 4)
    expected = left.toarray() @ right.toarray().T
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(scores, -np.sort(-expected, axis=1)[:, :4], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(np.take_along_axis(found, places, axis=1), scores)


@pytest.mark.parametrize("backend", ["numpy", "numba"])
def test_the_index_takes_every_format(backend):
    rng = np.random.default_rng(0)
    queries, documents = random_rows(rng, 3, 40, 0.5), random_rows(rng, 5, 40, 0.5)
    with use_backend(backend):
        expected = SparseIndex(documents).scores(queries)
        for kind in ("tocsc", "tocoo", "toarray"):
            index = SparseIndex(getattr(documents, kind)())
            np.testing.assert_array_equal(index.scores(getattr(queries, kind)()), expected)
        np.testing.assert_array_equal(index.search(queries[0], 1)[0][0], expected[0].max())
    queries.data[0] = np.nan
    refuses(ValueError, "queries holds inf or NaN", index.search, queries)


def test_many_blocks_and_threads_change_no_bit():
    rng, rows = np.random.default_rng(0), 2 * BLOCK_DOCUMENTS + 100
    corpus = sparse.random_array((rows, 300), density=0.05, rng=rng, dtype=np.float32).tocsr()
    index, queries = SparseIndex(corpus), random_rows(rng, 4, 300)
    found = index.scores(queries)
    with use_backend("numba"):
        np.testing.assert_array_equal(index.scores(queries), found)
        np.testing.assert_array_equal(index.scores(queries[[2]])[0], found[2])


@pytest.mark.parametrize("function", [util.cos_sim, util.dot_score])
def test_semantic_search_of_sparse_rows(function):
    rng = np.random.default_rng(0)
    queries, corpus = random_rows(rng, 3, 30, 0.5), random_rows(rng, 40, 30, 0.5)
    found = util.semantic_search(queries, corpus, top_k=5, score_function=function, query_chunk_size=2)
    expected = util.semantic_search(queries.toarray(), corpus.toarray(), top_k=5, score_function=function)
    for ours, wanted in zip(found, expected, strict=True):
        assert [each["corpus_id"] for each in ours] == [each["corpus_id"] for each in wanted]
        np.testing.assert_allclose([each["score"] for each in ours], [each["score"] for each in wanted], rtol=1e-5)
    assert util.semantic_search(queries[0], corpus, score_function=function)[0][:5] == found[0]


def test_refused_searches(encoder):
    table = sparse.csr_array(np.eye(3, dtype=np.float32))
    bad = table.copy()
    bad.data[1] = np.nan
    other = util.manhattan_sim
    refuses(ValueError, "corpus_embeddings holds inf or NaN", util.semantic_search, table, bad)
    refuses(ValueError, r"has shape \(3, 3\), corpus_embeddings \(3, 2\)", util.semantic_search, table, table[:, :2])
    refuses(ValueError, "expected cos_sim or dot_score", util.semantic_search, table, table, score_function=other)
    refuses(ValueError, f"expected rows of {TOKENS}", encoder.similarity, table, table)
    refuses(TypeError, "embeddings is str", encoder.similarity, "cat", table)
    refuses(ValueError, "expected rows of 3", encoder.intersection, table, table[:, :2])
    refuses(ValueError, "task is 'sts', expected one of query, document", encoder.encode, "cat", task="sts")
    chunk = {"truncation": "chunk"}
    refuses(ValueError, "token weights need no windows", encoder.encode_query, "cat", **chunk)
    row = SparseRow(np.array([TOKENS], np.int32), np.ones(1, np.float32))
    refuses(ValueError, f"the index {TOKENS}, expected 0 to {TOKENS - 1}", encoder.similarity, [row], [row])


def changed(file, **values):
    write_json(file, json.loads(file.read_text()) | values)


def router(**values):
    return lambda at: changed(at / "router_config.json", **values)


def weights(**tensors):
    return lambda at: save_checkpoint(at / QUERY, {}, {name: np.float32(values) for name, values in tensors.items()})


def query(name, **values):
    return lambda at: write_json(at / QUERY / name, values)


HOSTILE = {
    "types is": router(types=[1]),
    "structure is {}": router(structure={}),
    "parameters is 3, expected an object": router(parameters=3),
    "the route 'query' is 'x', expected a list": router(structure={"query": "x"}),
    "has 'y', which types does not have": router(structure={"query": ["y"]}),
    "a Router within a Router": router(structure={"query": ["r"]}, types={"r": "x.Router"}),
    "expected a folder inside": router(types={"../r": "x.Router"}),
    "default_route is 'other', expected one of query, document": router(parameters={"default_route": "other"}),
    "allow_empty_key is 'no', expected true or false": router(parameters={"allow_empty_key": "no"}),
    "route_mappings is 3": router(parameters={"route_mappings": 3}),
    r"has the key 'query', expected the text of \(task": router(parameters={"route_mappings": {"query": "query"}}),
    "has the key '\\(\\(": router(parameters={"route_mappings": {"(" * 5000: "query"}}),
    "has 'other', expected one of": router(parameters={"route_mappings": {"('query', None)": "other"}}),
    "not valid JSON": lambda at: (at / "router_config.json").write_text("{"),
    "has 2 Routers, expected one": lambda at: write_json(
        at / "modules.json", [{"type": "x.Router", "path": ""}, {"type": "x.Asym", "path": "a"}]
    ),
    "weight is missing, expected": weights(w=[0, 0, 0]),
    r"weight has shape \(3,\), expected": weights(weight=[0, 0, 0]),
    "weight holds inf or NaN": weights(weight=[np.nan] * TOKENS),
    "frozen is 3, expected true or false": query("config.json", frozen=3),
    "path is 'x.json', expected the name": query("config.json", path="x.json"),
    "expected a folder inside .*": query("config.json", path="/etc/x.json"),
    "idf.json has 'zebra', expected tokens": query("idf.json", zebra=1),
    "the weight of 'cat' is '1', expected a number": query("idf.json", cat="1"),
    "the weight of 'cat' is 1000.*expected a number": query("idf.json", cat=10**400),
    "idf.json: weight holds inf or NaN": query("idf.json", cat=np.nan),
}


@pytest.mark.parametrize("message", HOSTILE)
def test_hostile_routers(tmp_path, message):
    folder = save_tiny_router(tmp_path)
    HOSTILE[message](folder)
    refuses(CheckpointError, message, SparseEncoder, folder)


def test_missing_modules_and_routes_of_different_sizes(tmp_path):
    folder = save_tiny_router(tmp_path / "missing")
    (folder / QUERY / "model.safetensors").unlink()
    refuses(CheckpointError, QUERY, SparseEncoder, folder)
    folder = save_tiny_csr(tmp_path / "sizes")
    structure = {"query": [QUERY], "document": ["document", "1_Pooling", "3_SparseAutoEncoder"]}
    kinds = {QUERY: KINDS[QUERY], "document": "x.Transformer", "1_Pooling": "x.Pooling"}
    save_tiny_router(folder / "other")
    (folder / "other" / QUERY).rename(folder / QUERY)
    save_tiny_encoder(folder / "document")
    write_router(folder, structure, kinds | {"3_SparseAutoEncoder": "x.SparseAutoEncoder"})
    refuses(CheckpointError, rf"the routes make {TOKENS} \(query\), 100 \(document\) dimensions", SparseEncoder, folder)


@pytest.mark.parametrize(("config", "message"), [
    ({"input_dim": 3}, f"input_dim is 3, expected {WIDTH}"),
    ({"hidden_dim": 0}, "hidden_dim is 0, expected a positive integer"),
    ({"hidden_dim": 10**15}, r"weight has shape \(100, 39\), expected \(1000000000000000, 39\)|latent_bias has"),
    ({"k": 101}, "k is 101, expected at most 100"),
    ({"k_aux": "x"}, "k_aux is 'x', expected a positive integer"),
    ({"normalize": 1}, "normalize is 1, expected true or false"),
    ({"hidden_dim": 101}, r"encoder.weight has shape \(100, 39\), expected \(101, 39\)|latent_bias has shape"),
])  # fmt: skip
def test_hostile_autoencoders(tmp_path, config, message):
    changed(save_tiny_csr(tmp_path) / "3_SparseAutoEncoder" / "config.json", **config)
    refuses(CheckpointError, message, SparseEncoder, tmp_path)


def test_idf_beside_a_plain_model(tmp_path):
    ours = SparseEncoder(save_plain_idf(tmp_path))
    assert dict(ours.decode(ours.encode_query("the cat sat on the mat"))) == {"cat": 2.5, "mat": 1.25}
    assert type(load_encoder(tmp_path)) is SparseEncoder
