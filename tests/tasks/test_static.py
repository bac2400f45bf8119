"""Static embeddings made of an encoder: rows and files as Model2Vec makes them."""

import contextlib
import json

import numpy as np
import pytest

from bertcore import AutoModel, SentenceEncoder
from bertcore.checkpoint import CheckpointError
from bertcore.cli import main
from bertcore.tasks import static
from bertcore.tasks.static import StaticModelPipeline, distill_static
from tests.refusals import refuses
from tests.tiny_bert import CONFIG, VOCABULARY, save_tiny_encoder, write_json
from tests.tokenization.family_folders import write_family

TEXTS = [
    "the cat sat", "Paris is the capital of France", "", "values thes", "☃ the ☃", "[CLS] the [unused1]",
    "the " * 600,
]  # fmt: skip
FAMILIES = {"bert": None, "roberta": "RobertaTokenizer", "xlm-roberta": "XLMRobertaTokenizer"}


def save_family(folder, name):
    if FAMILIES[name] is None:
        return save_tiny_encoder(folder)
    config = CONFIG | {"model_type": name, "vocab_size": 40, "pad_token_id": 1, "type_vocab_size": 1}
    AutoModel.from_config(config, seed=7).save_pretrained(folder)
    write_family(folder, FAMILIES[name])
    return folder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return SentenceEncoder(save_tiny_encoder(tmp_path_factory.mktemp("encoder")))


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_are_the_means_of_single_tokens(tmp_path, family):
    folder = save_family(tmp_path / "model", family)
    encoder = SentenceEncoder(folder)
    options = {"pca_dims": None, "sif_coefficient": None, "quantize_to": "float32"}
    made = distill_static(folder, tmp_path / "static", **options)
    table = made.model.table
    known = json.loads((tmp_path / "static" / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    names = list(known) if isinstance(known, dict) else [name for name, _ in known]
    assert len(table) == len(names) < len(json.loads(encoder.tokenizer.backend_tokenizer.to_str())["model"]["vocab"])
    backend = encoder.tokenizer.backend_tokenizer
    for number in range(0, len(names), 5):
        row = encoder.tokenizer("the")["input_ids"]
        row = [row[0], backend.token_to_id(names[number]), row[-1]]
        states, _ = encoder.model.encode_packed([np.array(row, np.int32)])
        np.testing.assert_allclose(table[number], states.mean(axis=0), atol=1e-5)


def test_components_and_weights(encoder, tmp_path):
    plain = distill_static(encoder, tmp_path / "a", pca_dims=None, sif_coefficient=None, quantize_to="float32")
    turned = distill_static(encoder, tmp_path / "b", pca_dims="auto", sif_coefficient=None, quantize_to="float32")
    first, second = plain.model.table, turned.model.table
    distances = [np.linalg.norm(rows[:, None] - rows, axis=2) for rows in (first, second)]
    np.testing.assert_allclose(*distances, atol=1e-4)
    spread = second.var(axis=0)
    assert (np.diff(spread) <= 1e-6).all() and (np.abs(second).max(axis=0) == second.max(axis=0)).all()
    half = distill_static(
        encoder, tmp_path / "c", pca_dims=0.5, sif_coefficient=1e-3, quantize_to="float32"
    ).model.table
    share = np.cumsum(spread) / spread.sum()
    assert half.shape[1] == np.searchsorted(share, 0.5) + 1
    inverse = 1 / np.arange(2, len(half) + 2)
    weights = 1e-3 / (1e-3 + inverse / inverse.sum())
    np.testing.assert_allclose(half, second[:, : half.shape[1]] * weights[:, None], atol=1e-5)
    few = distill_static(encoder, tmp_path / "d", pca_dims=500, token_remove_pattern="^[^a]", quantize_to="int8")
    assert few.embedding_dimension == CONFIG["hidden_size"] and few.model.table.max() <= 127


def test_words_and_phrases_are_added(encoder, tmp_path):
    made = distill_static(encoder, tmp_path, vocabulary=["Snowman", "the cat", "cat", " "], quantize_to="float32")
    rows = made.tokenizer(["the cat snowman cat"], add_special_tokens=False)["input_ids"][0]
    names = made.tokenizer.backend_tokenizer
    assert [names.id_to_token(row) for row in rows] == ["the cat", "snowman", "cat"]
    assert made.encode(["the cat"]).shape == (1, made.embedding_dimension)


def test_unknown_words(encoder, tmp_path):
    distill_static(encoder, tmp_path, quantize_to="float32")
    dropped, pooled = SentenceEncoder(tmp_path), SentenceEncoder(tmp_path, unknown="mean")
    known, mixed = dropped.encode(["the", "the ☃ ☃"])
    np.testing.assert_array_equal(known, mixed)
    assert not np.allclose(pooled.encode(["the ☃"]), known)
    assert not dropped.encode(["☃"]).any() and dropped.max_seq_length == 512
    refuses(ValueError, "unknown is 'no', expected one of 'drop', 'mean'", SentenceEncoder, tmp_path, unknown="no")
    refuses(ValueError, "unknown is 'drop', expected one of None", SentenceEncoder, encoder.folder, unknown="drop")


def test_a_folder_without_modules(encoder, tmp_path):
    made = distill_static(encoder, tmp_path)
    expected = made.encode(TEXTS)
    made.save_pretrained(tmp_path / "inside")
    np.testing.assert_array_equal(SentenceEncoder(tmp_path / "inside").encode(TEXTS), expected)
    (tmp_path / "modules.json").unlink()
    np.testing.assert_array_equal(SentenceEncoder(tmp_path).encode(TEXTS), expected)
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    write_json(tmp_path / "config.json", config | {"normalize": False, "max_length": None})
    plain = SentenceEncoder(tmp_path)
    assert not np.allclose(np.linalg.norm(plain.encode(["the cat"])), 1) and plain.max_seq_length > 512


@pytest.mark.parametrize("error, text, options", [
    (ValueError, "pca_dims is 0, expected a positive integer", {"pca_dims": 0}),
    (ValueError, "pca_dims is 1.5", {"pca_dims": 1.5}),
    (TypeError, "pca_dims is 'all'", {"pca_dims": "all"}),
    (ValueError, "sif_coefficient is 1", {"sif_coefficient": 1}),
    (TypeError, "sif_coefficient is 'a'", {"sif_coefficient": "a"}),
    (ValueError, r"token_remove_pattern is '\(', expected a regular", {"token_remove_pattern": "("}),
    (TypeError, "token_remove_pattern is bytes", {"token_remove_pattern": b"a"}),
    (ValueError, "token_remove_pattern matches every token", {"token_remove_pattern": "."}),
    (ValueError, "quantize_to is 'int4'", {"quantize_to": "int4"}),
    (ValueError, "pooling is 'max'", {"pooling": "max"}),
    (TypeError, "vocabulary is str", {"vocabulary": "cat"}),
])  # fmt: skip
def test_wrong_options(encoder, tmp_path, error, text, options):
    refuses(error, text, distill_static, encoder, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_other_tokenizers_take_no_words_and_tables_are_not_made_of_tables(encoder, tmp_path):
    folder = save_family(tmp_path / "roberta", "roberta")
    refuses(ValueError, "expected one of WordPiece", distill_static, folder, tmp_path / "out", vocabulary=["cat"])
    made = distill_static(encoder, tmp_path / "table")
    refuses(ValueError, "expected an encoder with layers", distill_static, made, tmp_path / "out")


@pytest.mark.parity
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_model2vec_makes_the_same(tmp_path, family, dtype):
    peer = pytest.importorskip("model2vec")
    distill = pytest.importorskip("model2vec.distill", exc_type=ImportError).distill  # its extra
    folder = save_family(tmp_path / "model", family)
    made = distill_static(folder, tmp_path / "ours", pca_dims=7, quantize_to=dtype)
    expected = distill(str(folder), pca_dims=7, quantize_to=dtype)
    assert made.model.table.shape == expected.embedding.shape
    ours, theirs = made.model.table, expected.embedding.astype(np.float32)
    cosines = np.abs((ours * theirs).sum(axis=0)) / np.linalg.norm(ours, axis=0) / np.linalg.norm(theirs, axis=0)
    assert cosines.min() > 0.9999
    again = peer.StaticModel.from_pretrained(tmp_path / "ours", force_download=False)
    assert again.tokens == expected.tokens
    close = 5e-6 if dtype == "float32" else 2e-3  # the peer adds a long text's rows in another order
    short = TEXTS[:-1]
    np.testing.assert_allclose(made.encode(short), again.encode(short), atol=1e-6 if dtype == "float32" else close)
    expected.save_pretrained(tmp_path / "theirs")
    theirs = SentenceEncoder(tmp_path / "theirs")
    texts = TEXTS if family == "bert" else short  # it cuts texts by characters, too: 512 times the median of a token's
    np.testing.assert_allclose(theirs.encode(texts), expected.encode(texts), atol=close)


@pytest.mark.parity
@pytest.mark.parametrize("family", FAMILIES)
def test_a_table_that_model2vec_did_not_distil(tmp_path, family):
    """Its config names no model; rows and weights of tokens, unknown words and pieces, the normalisation."""
    model2vec, tokenizers = pytest.importorskip("model2vec"), pytest.importorskip("tokenizers")
    made = distill_static(save_family(tmp_path / "model", family), tmp_path / "static", quantize_to="float32")
    backend, rng = tokenizers.Tokenizer.from_file(str(tmp_path / "static" / "tokenizer.json")), np.random.default_rng(0)
    tokens = backend.get_vocab_size()
    more = {"token_mapping": rng.integers(0, 5, tokens), "weights": rng.random(tokens)}
    for number, (normalize, options) in enumerate([(True, {}), (False, more)]):
        table = rng.normal(size=(5 if options else tokens, made.embedding_dimension)).astype(np.float32)
        expected = model2vec.StaticModel(table, backend, {}, normalize=normalize, **options)
        expected.save_pretrained(tmp_path / str(number))
        found = SentenceEncoder(tmp_path / str(number))
        np.testing.assert_allclose(found.encode(TEXTS[:-1]), expected.encode(TEXTS[:-1]), atol=1e-6)


NAMES = ["cats", "trains", "ships"]
HEADS = {"softmax": ([5, 3], NAMES), "one map": ([3], [2, 0, 7]), "sigmoid": ([4], ["a", "b", "c", "d"]),
         "identity": ([6, 5, 2], None), "nothing": ([], None)}  # fmt: skip


@pytest.fixture(scope="module")
def table(encoder, tmp_path_factory):
    return distill_static(encoder, tmp_path_factory.mktemp("table"), pca_dims=7, quantize_to="float32")


def head_of(table, kind):
    """Return the arguments of a random head."""
    rng, (widths, classes) = np.random.default_rng(len(kind)), HEADS[kind]
    inputs = [table.embedding_dimension, *widths]
    layers = [(rng.normal(size=shape).astype("f4"), rng.normal(size=shape[0]).astype("f4"))
              for shape in zip(widths, inputs, strict=False)]  # fmt: skip
    return layers, kind if kind == "sigmoid" else "identity" if classes is None else "softmax", classes


@pytest.mark.parity
@pytest.mark.parametrize("kind", HEADS)
def test_model2vec_predicts_the_same_with_a_head(table, tmp_path, kind):
    peer = pytest.importorskip("model2vec.inference", exc_type=ImportError)
    mlp = pytest.importorskip("model2vec.inference.mlp")
    layers, activation, classes = head_of(table, kind)
    ours = StaticModelPipeline(table, layers, activation, classes)
    ours.save_pretrained(tmp_path / "ours")
    theirs = peer.StaticModelPipeline.from_pretrained(tmp_path / "ours")
    known = None if classes is None else np.array(classes)
    written = mlp.MLPHead([mlp.Layer(*pair) for pair in layers], mlp.Activation(activation), known)
    peer.StaticModelPipeline(theirs.model, written).save_pretrained(str(tmp_path / "theirs"))
    for found in (ours, *map(StaticModelPipeline.from_pretrained, (tmp_path / "ours", tmp_path / "theirs"))):
        for texts in (TEXTS[:-1], "the cat"):
            if classes is not None:
                np.testing.assert_allclose(found.predict_proba(texts), theirs.predict_proba(texts), atol=1e-6)
            if activation == "identity":
                np.testing.assert_allclose(found.predict(texts), theirs.predict(texts), atol=1e-5)
            else:
                expected = [list(np.atleast_1d(row)) for row in theirs.predict(texts, threshold=0.4)]
                assert [list(np.atleast_1d(row)) for row in found.predict(texts, threshold=0.4)] == expected
    np.testing.assert_allclose(SentenceEncoder(tmp_path / "theirs").encode(TEXTS[:-1]), table.encode(TEXTS[:-1]))


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("kind", ["LogisticRegression", "MLPClassifier", "several", "MLPRegressor"])
def test_heads_of_scikit_learn(table, tmp_path, kind, classes):
    linear, network = (pytest.importorskip(f"sklearn.{name}") for name in ("linear_model", "neural_network"))
    texts, rng = [f"the cat {letter} sat" for letter in "abcdefghijklm"], np.random.default_rng(0)
    targets = {"several": rng.integers(0, 2, (13, classes)), "MLPRegressor": rng.normal(size=(13, classes))}
    labels = targets.get(kind, np.array(NAMES)[np.arange(13) % classes])
    options = {} if kind == "LogisticRegression" else {"hidden_layer_sizes": (4,), "max_iter": 5, "random_state": 0}
    rows = table.encode(texts)
    module, name = network if options else linear, "MLPClassifier" if kind == "several" else kind
    estimator = getattr(module, name)(**options)
    with pytest.warns() if options else contextlib.nullcontext():
        estimator.fit(rows, labels)
    made = StaticModelPipeline.from_estimator(table, estimator)
    assert repr(made).startswith(f"<StaticModelPipeline, activation {made.activation}, layers of ")
    made.save_pretrained(tmp_path)
    found = StaticModelPipeline.from_pretrained(tmp_path)
    if kind == "MLPRegressor":
        np.testing.assert_allclose(found.predict(texts), estimator.predict(rows), atol=1e-5)
        return refuses(ValueError, "activation is 'identity'", found.predict_proba, texts)
    np.testing.assert_allclose(found.predict_proba(texts), estimator.predict_proba(rows), atol=1e-5)
    predicted = estimator.predict(rows)
    expected = [np.flatnonzero(row).tolist() for row in predicted] if kind == "several" else predicted.tolist()
    assert [row.tolist() if kind == "several" else row for row in found.predict(texts)] == expected


def test_heads_that_do_not_fit(table, encoder, tmp_path):
    layers, activation, classes = head_of(table, "softmax")
    opened = SentenceEncoder(table.folder, unknown="mean")
    for error, text, given in [
        (TypeError, "model is str", ("a", layers, activation, classes)),
        (ValueError, "expected a SentenceEncoder of static embeddings", (encoder, layers, activation, classes)),
        (ValueError, "pools unknown words", (opened, layers, activation, classes)),
        (TypeError, "layers has 3, expected pairs", (table, [3], activation, classes)),
        (ValueError, "holds inf or NaN", (table, [(np.full((5, 7), np.nan), layers[0][1])], activation, "a")),
        (ValueError, "activation is 'relu'", (table, layers, "relu", classes)),
        (ValueError, r"layers\[0\]\[0\]", (table, layers[1:], activation, classes)),
        (ValueError, "expected 3 names, one of each output", (table, layers, activation, classes[1:])),
        (ValueError, "expected None", (table, layers, "identity", classes)),
    ]:
        refuses(error, text, StaticModelPipeline, *given)
    for wrong in (3, pytest.importorskip("sklearn.linear_model").LogisticRegression()):
        refuses(ValueError, "estimator is .*, expected a fitted", StaticModelPipeline.from_estimator, table, wrong)
    StaticModelPipeline(table, layers, activation, classes).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    for changes, text in [({"n_layers": 1}, "expected the maps head.0 to 1"), ({"classes": None}, "classes is None")]:
        write_json(tmp_path / "config.json", config | {"head_config": config["head_config"] | changes})
        refuses(CheckpointError, text, StaticModelPipeline.from_pretrained, tmp_path)
    (tmp_path / "head.safetensors").unlink()
    refuses(CheckpointError, "has no head.safetensors; it holds", StaticModelPipeline.from_pretrained, tmp_path)
    (tmp_path / "pipeline.skops").write_bytes(b"")
    refuses(CheckpointError, "pipeline.skops, which may hold code", StaticModelPipeline.from_pretrained, tmp_path)


@pytest.mark.parity
def test_sentence_transformers_reads_the_folder(encoder, tmp_path):
    from sentence_transformers import SentenceTransformer

    distill_static(encoder, tmp_path, quantize_to="float32")
    peer = SentenceTransformer(str(tmp_path), device="cpu")
    found = SentenceEncoder(tmp_path, unknown="mean").encode(TEXTS[:-1])
    np.testing.assert_allclose(peer.encode(TEXTS[:-1]), found, atol=1e-6)


def test_the_whole_vocabulary_goes_in_batches(encoder, tmp_path, monkeypatch):
    expected = distill_static(encoder, tmp_path / "a").model.table
    monkeypatch.setattr(static, "ROWS", 7)
    np.testing.assert_allclose(distill_static(encoder, tmp_path / "b").model.table, expected, atol=2e-3)
    assert len(expected) == len(VOCABULARY) - 3


@pytest.mark.parametrize("kind", HEADS)
def test_the_command_classifies(table, tmp_path, capsys, kind):
    ours = StaticModelPipeline(table, *head_of(table, kind))
    ours.save_pretrained(tmp_path)
    texts = ["the cat sat", "paris", "the"]
    expected = ours.predict(texts) if ours.classes_ is None else ours.predict_proba(texts)
    names = [f"LABEL_{n}" for n in range(len(expected[0]))] if ours.classes_ is None else list(map(str, ours.classes_))
    given = ["classify", str(tmp_path), *(part for text in texts for part in ("--text", text)), "--json"]
    assert main([*given, "--top-k", "2"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for answer, scores in zip(lines, expected, strict=True):
        best = np.argsort(-scores, kind="stable")[:2]
        assert [each["label"] for each in answer] == [names[place] for place in best]
        np.testing.assert_allclose([each["score"] for each in answer], scores[best], atol=1e-5)
    assert main([*given, "--calibration", "a"]) == 1
    assert "static embeddings with a head, has no use for" in capsys.readouterr().err
