"""CrossEncoder: scores, orders, what its folder says, and what it refuses."""

import numpy as np
import pytest

from bertcore import CrossEncoder, use_backend
from bertcore.checkpoint import CheckpointError
from bertcore.tasks.texts import TextsCutWarning
from tests.refusals import refuses
from tests.tasks.cross_encoder.tiny import save_tiny_classifier
from tests.tiny_bert import random_texts, save_tiny_bert, write_json, write_modules

PAIRS = [("the cat sat", "on a mat"), ("paris", ""), ("", ""), ("is", "paris is the capital of france ." * 3)]
IDENTITY = "torch.nn.modules.linear.Identity"
pytestmark = pytest.mark.usefixtures("on_numpy")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A reranker that was published with no activation."""
    return save_tiny_classifier(tmp_path_factory.mktemp("reranker"))


@pytest.fixture(scope="module")
def reranker(folder):
    return CrossEncoder(folder, activation_fn="identity")


def by_hand(encoder, pairs):
    """The logits of each pair on its own, by way of the model's padded door."""
    rows = [encoder.tokenizer([a], [b], truncation=True, max_length=40) for a, b in pairs]
    return np.array([encoder.model(row["input_ids"], None, row["token_type_ids"]).logits[0] for row in rows])


def test_scores_are_the_model_s_logits(folder, reranker):
    expected = by_hand(reranker, PAIRS)
    assert np.ptp(expected) > 0.1
    np.testing.assert_allclose(reranker.predict(PAIRS), expected[:, 0], atol=1e-5)
    np.testing.assert_allclose(CrossEncoder(folder).predict(PAIRS), 1 / (1 + np.exp(-expected[:, 0])), atol=1e-5)
    assert reranker.predict(PAIRS).dtype == np.float32
    one = reranker.predict(PAIRS[0])
    assert np.shape(one) == () and abs(one - expected[0, 0]) < 1e-5


def test_several_labels(tmp_path):
    encoder = CrossEncoder(save_tiny_classifier(tmp_path, labels=3))
    expected = by_hand(encoder, PAIRS)
    np.testing.assert_allclose(encoder.predict(PAIRS), expected, atol=1e-5)
    sums = encoder.predict(PAIRS, apply_softmax=True).sum(axis=1)
    np.testing.assert_allclose(sums, 1, atol=1e-5)
    assert encoder.predict(PAIRS[1]).shape == (3,) and encoder.predict([]).shape == (0, 3)
    refuses(ValueError, "the model has 3 labels; rank needs one", encoder.rank, "a", ["b"])


@pytest.mark.parametrize("stated", ["my.own.Function", "torch.nn.GLU", 3])
def test_unknown_activations_are_refused(tmp_path, reranker, stated):
    folder = save_tiny_classifier(tmp_path, config={"sbert_ce_default_activation_function": stated})
    refuses(CheckpointError, r"config\.json: sbert_ce_\w+ is .* activation_fn= chooses another", CrossEncoder, folder)
    chosen = CrossEncoder(folder, activation_fn=lambda logits: 2 * logits)
    np.testing.assert_allclose(chosen.predict(PAIRS), 2 * reranker.predict(PAIRS), atol=1e-5)


def test_the_batch_changes_no_bit(folder):
    pairs = list(zip(random_texts(37, seed=1), random_texts(37, seed=2), strict=True))
    with use_backend("numba"):
        encoder = CrossEncoder(folder)
        whole = encoder.predict(pairs)
        np.testing.assert_array_equal(encoder.predict(pairs, batch_tokens=1), whole)
        np.testing.assert_array_equal(list(encoder.predict_stream(iter(pairs), batch_tokens=31)), whole)


def test_rank(folder):
    with use_backend("numba"):  # on which equal texts have equal scores
        check_rank(CrossEncoder(folder))


def check_rank(reranker):
    documents = ["on a mat", "paris", "on a mat", "the cat"]
    scores = reranker.predict([("the cat sat", document) for document in documents])
    order = sorted(range(4), key=lambda index: -scores[index])
    assert order.index(0) + 1 == order.index(2)  # equal scores stay in their order
    found = reranker.rank("the cat sat", documents)
    assert [entry["corpus_id"] for entry in found] == order and "text" not in found[0]
    np.testing.assert_array_equal([entry["score"] for entry in found], scores[order])
    best = reranker.rank("the cat sat", documents, 2, True, None, None, 1)
    assert best == [entry | {"text": documents[entry["corpus_id"]]} for entry in found[:2]]
    assert reranker.rank("the cat sat", []) == []


def test_prompts_stand_before_the_first_text(tmp_path, reranker):
    folder = save_tiny_classifier(tmp_path)
    settings = {"prompts": {"q": "paris is "}, "default_prompt_name": "q", "activation_fn": IDENTITY}
    write_json(folder / "config_sentence_transformers.json", settings)
    expected = reranker.predict(("paris is the cat", "on"))
    assert CrossEncoder(folder).predict(("the cat", "on")) == expected
    assert reranker.predict(("the cat", "on"), prompt="paris is ") == expected


def test_long_pairs_are_cut_and_told_of(folder):
    encoder = CrossEncoder(folder, max_length=6)
    with pytest.warns(TextsCutWarning, match="1 of 2 texts were cut to 6 tokens; the model takes up to 40") as caught:
        cut = encoder.predict([("the cat sat", "on a mat"), ("a", "b")])
    assert caught[0].filename == __file__
    kept = CrossEncoder(folder).predict([("the cat", "on"), ("a", "b")])
    assert cut[1] == kept[1] and np.isfinite(cut).all()


@pytest.mark.parametrize(("merge", "combined"), [("max", np.max), ("mean", np.mean)])
def test_long_pairs_are_read_in_windows(reranker, merge, combined):
    words = ["the", "cat", "sat", "on", "paris", "is", "capital", "of"]
    text = " ".join(words * 8)  # 64 words; 34 fit beside the three special tokens and the query's three
    windows = [" ".join(text.split()[start:stop]) for start, stop in ((0, 34), (30, 64))]
    parts = reranker.predict([("the cat sat", window) for window in windows])
    assert np.ptp(parts) > 1e-4
    options = {"truncation": "chunk", "stride": 4, "merge": merge}
    pairs = [("the cat sat", text), PAIRS[0], (text, "the cat sat")]
    found = reranker.predict(pairs, **options)
    np.testing.assert_allclose(found[0], combined(parts), atol=1e-5)
    assert abs(found[1] - reranker.predict(PAIRS[0])) < 1e-5 and abs(found[2] - found[0]) > 1e-4
    np.testing.assert_array_equal(list(reranker.predict_stream(iter(pairs), **options)), found)
    assert reranker.rank("the cat sat", [text], **options)[0]["score"] == pytest.approx(float(found[0]), abs=1e-5)


def test_long_pairs_are_refused_or_cut_in_silence(folder, recwarn):
    encoder, pairs = CrossEncoder(folder, max_length=6), [("a", "b"), ("the cat sat", "on a mat")]
    refuses(ValueError, r"inputs\[1\] has more than the 6 tokens", encoder.predict, pairs, truncation="error")
    assert np.isfinite(encoder.predict(pairs, truncation=True)).all() and not recwarn.list
    encoder.max_length = 5
    assert len(encoder.tokenizer(*pairs[1], truncation=True)["input_ids"]) == 5


def test_a_module_list(tmp_path, reranker):
    folder = save_tiny_classifier(tmp_path)
    write_modules(folder, {"": "sentence_transformers.base.modules.transformer.Transformer"})
    task = {"transformer_task": "sequence-classification", "max_seq_length": 9}
    write_json(folder / "sentence_bert_config.json", task)
    encoder = CrossEncoder(folder, activation_fn="identity")
    assert encoder.max_seq_length == 9
    assert encoder.predict(("the", "cat")) == reranker.predict(("the", "cat"))
    assert encoder.predict(np.array(["the", "cat"])) == reranker.predict(("the", "cat"))
    write_modules(folder, {"": "x.Transformer", "1_": "x.Pooling"})
    refuses(CheckpointError, "supported are Transformer: this is a sentence encoder$", CrossEncoder, folder)
    write_modules(folder, {"": "x.Transformer", "1_Dense": "x.Dense"})
    with pytest.raises(CheckpointError, match=r"module x\.Dense, which is not supported; supported are Transformer"):
        CrossEncoder(folder)


@pytest.mark.parametrize(("call", "error", "message"), [
    (lambda encoder: encoder.predict("text"), TypeError, "inputs is str, expected a list of pairs"),
    (lambda encoder: encoder.predict(np.array("text")), TypeError, "inputs is ndarray, expected a list of pairs"),
    (lambda encoder: encoder.predict(["a", "b", "c"]), TypeError, r"inputs\[0\] is .* expected two strings"),
    (lambda encoder: encoder.predict([("a", "b"), ("c",)]), TypeError, r"inputs\[1\] is \('c',\), expected two"),
    (lambda encoder: encoder.predict([("a", 3)]), TypeError, r"inputs\[0\]\[1\] is int, expected str"),
    (lambda encoder: encoder.predict([("a", "\ud800")]), ValueError, r"inputs\[0\]\[1\] is not valid Unicode"),
    (lambda encoder: encoder.predict(PAIRS, stride=3), ValueError, "stride is 3"),
    (lambda encoder: encoder.predict(PAIRS, activation_fn="gelu"), ValueError, "activation_fn is 'gelu'"),
    (lambda encoder: encoder.predict(PAIRS, prompt_name="q"), ValueError, "prompt_name is 'q', this model has query"),
    (lambda encoder: encoder.rank("q", ["a"], top_k=0), ValueError, "top_k is 0, expected a positive"),
    (lambda encoder: encoder.rank("q", "text"), TypeError, "documents is str"),
    (lambda encoder: encoder.rank(3, ["text"]), TypeError, "query is int"),
])  # fmt: skip
def test_bad_arguments(reranker, call, error, message):
    refuses(error, message, call, reranker)


def test_a_model_without_a_classifier_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"does not hold classifier\..*expected a sequence classifier"):
        CrossEncoder(save_tiny_bert(tmp_path))


def test_activations_of_another_shape(reranker, tmp_path):
    several = CrossEncoder(save_tiny_classifier(tmp_path, labels=3))
    for encoder, wrong in ((several, lambda logits: logits[:, 0]), (reranker, lambda logits: logits[:0])):
        refuses(ValueError, "activation_fn returned shape", encoder.predict, [("a", "b")], activation_fn=wrong)
    with pytest.raises(TypeError, match="apply_softmax is 'no', expected True or False"):
        several.predict([("a", "b")], apply_softmax="no")
    assert len(reranker.rank("a", ["b", "c"], top_k=np.int64(1))) == 1
