"""Objectives of sentence embeddings: definitions written out pair by pair, extremes, chunks, errors."""

import numpy as np
import pytest

from bertcore import AutoModel
from bertcore.gradients import differentiate, with_loss
from bertcore.models.outputs import EncoderOutput
from bertcore.nn import functional
from bertcore.passes import Pass
from bertcore.tasks.sentence_encoder.modules import pool
from bertcore.training.objectives import (
    AdaptiveLayerLoss,
    ColumnCollator,
    CoSENTLoss,
    EmbeddingObjective,
    MarginMSELoss,
    MatryoshkaLoss,
    MultipleNegativesRankingLoss,
    SoftmaxLoss,
    TripletLoss,
)
from bertcore.training.objectives.embeddings import pooled
from tests.refusals import refuses
from tests.tiny_bert import CONFIG
from tests.training.objectives.students import assert_gradients

LABELS = np.array([0.3, 0.9, 0.3, -0.2, 0.5])


pytestmark = pytest.mark.usefixtures("on_numpy")


def test_extremes_are_finite():
    """Equal vectors, zeros, and scores beyond what exp can take."""
    for vectors in (np.zeros((3, 3, 4)), np.ones((3, 3, 4)), 1e200 * np.ones((3, 3, 4)) / 7):
        for objective, labels in (
            (MultipleNegativesRankingLoss(scale=1e4), None),
            (TripletLoss(), None),
            (CoSENTLoss(scale=1e4), np.arange(3.0)),
        ):
            given = vectors[:, :2] if labels is not None else vectors
            if given.max() < 1e100 or not isinstance(objective, TripletLoss):
                with np.errstate(over="ignore", invalid="ignore"):
                    value, grad = objective.of_embeddings(np.minimum(given, 1e100), labels)
                assert np.isfinite(value)
                assert np.isfinite(grad).all()


def batch_of(columns, examples=5, labels=None, seed=0, side="right"):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 8, (examples, columns))
    lengths[0, 0] = 7
    real = np.arange(7) < lengths[:, :, None]
    real = real if side == "right" else real[:, :, ::-1]
    ids = np.where(real, rng.integers(5, 40, real.shape), 0)
    batch = {"input_ids": ids, "attention_mask": real.astype(int)}
    return batch if labels is None else batch | {"labels": labels}


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_gradients_of_parameters(pooling, side):
    """Along a random direction of all of them."""
    model = AutoModel.from_config(CONFIG, dtype="float64", add_pooling_layer=False)
    objective, batch = CoSENTLoss(pooling=pooling), batch_of(2, labels=LABELS, side=side)
    assert_gradients(objective, model, batch)
    assert objective.weight(batch) == 5


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_vectors_are_those_of_a_sentence_encoder(pooling):
    model, batch = AutoModel.from_config(CONFIG), batch_of(1, side="left")
    ids, mask = batch["input_ids"][:, 0], batch["attention_mask"][:, 0]
    hidden, cu_seqlens = model.encode_packed([row[real > 0] for row, real in zip(ids, mask, strict=True)])
    found, _ = pooled(model(ids, mask).last_hidden_state, mask, pooling)
    np.testing.assert_allclose(found, pool(hidden, cu_seqlens, [pooling]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("chunk", [1, 3, 14, 15, 99])
@pytest.mark.parametrize("is_training", [False, True])
def test_chunks_have_the_same_gradients(chunk, is_training):
    """In evaluation as the whole batch; in training the second pass drops what the first one dropped."""
    rates = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.2}
    model = AutoModel.from_config(CONFIG | rates, dtype="float64", add_pooling_layer=False)
    batch = batch_of(3)
    for inner in (
        MultipleNegativesRankingLoss(mini_batch_size=chunk),
        MatryoshkaLoss(None, MultipleNegativesRankingLoss(mini_batch_size=chunk), [39, 8]),
    ):
        if is_training:
            model.train(seed=4)
        out, grads = inner.value_and_grad(model, batch)
        if is_training:
            passes = -(-15 // chunk)
            assert model.passes == passes
            model.train(seed=4)
            expected = cut_up(inner, model, batch, chunk)
        else:
            inner.mini_batch_size = None
            whole, expected = inner.value_and_grad(model, batch)
            assert out.loss == pytest.approx(whole.loss, rel=1e-12)
            assert (out.last_hidden_state is None) == (chunk < 15)  # those of all texts are not kept
        assert grads.keys() == expected.keys()
        assert all(array is not None for array in grads.whole(list(model.parameters())))  # no copy at the step
        for name, gradient in expected.items():
            np.testing.assert_allclose(grads[name], gradient, rtol=1e-8, atol=1e-10, err_msg=name)
        model.eval()


def cut_up(objective, model, batch, chunk):
    """The gradients of the loss of a batch whose chunks pass one after another, all on one tape."""
    texts, of_rows = objective.prepared(batch)

    def run():
        starts = range(0, len(texts["input_ids"]), chunk)
        outs = [model(**{name: array[at : at + chunk] for name, array in texts.items()}) for at in starts]
        whole = functional.concatenate(Pass.begin(), *(out.last_hidden_state for out in outs))

        def loss(out):
            vectors, spread = objective.rows_of(out, texts)
            value, grad = of_rows(vectors)
            return value, {"last_hidden_state": spread(grad)}

        return with_loss(EncoderOutput(last_hidden_state=whole), loss)

    return differentiate(model, run)[1]


def test_columns_are_collated_in_their_order(tokenizer):
    examples = [{"query": "the cat", "score": 2, "answer": "sat"}, {"query": "paris", "score": 0.5, "answer": ""}]
    batch = ColumnCollator(tokenizer)(examples)
    assert batch["labels"].tolist() == [2.0, 0.5]
    expected = tokenizer(["the cat", "sat", "paris", ""], padding=True, return_tensors="np")
    for name in expected:
        np.testing.assert_array_equal(batch[name].reshape(4, -1), expected[name])
    assert batch["input_ids"].shape[:2] == (2, 2)
    assert ColumnCollator(tokenizer, max_length=3)(examples)["input_ids"].shape == (2, 2, 3)


@pytest.mark.parametrize("examples, error, message", [
    ([], ValueError, "examples is empty"),
    ([{"a": "x"}, {"b": "x"}], ValueError, r"examples\[1\] has b, expected a"),
    ([{"a": "x", "b": ["x"]}], TypeError, r"examples\[0\]\['b'\] is list, expected a text"),
])  # fmt: skip
def test_columns_that_do_not_fit(tokenizer, examples, error, message):
    refuses(error, message, ColumnCollator(tokenizer), examples)


def test_labels_may_be_booleans(tokenizer):
    rows = [{"a": "the", "b": "cat", "label": label} for label in (True, False)]
    assert ColumnCollator(tokenizer)(rows)["labels"].tolist() == [1, 0]
    model, labels = AutoModel.from_config(CONFIG), np.array([True, False, True, False, False])
    batches = [batch_of(2, labels=each) for each in (labels * 1, labels)]
    as_numbers, as_booleans = (CoSENTLoss().forward(model, batch).loss for batch in batches)
    assert as_numbers == as_booleans > 0


@pytest.mark.parametrize("objective, batch, message", [
    (CoSENTLoss(), batch_of(2), "batch has no labels, expected some for CoSENTLoss"),
    (TripletLoss(), batch_of(3, labels=LABELS), "batch has labels, expected none for TripletLoss"),
    (CoSENTLoss(), batch_of(3, labels=LABELS), r"\(5, 3, 7\), expected \(examples, columns, length\) with 2 columns"),
    (MultipleNegativesRankingLoss(), batch_of(1), "with at least 2 columns for MultipleNegativesRankingLoss"),
    (MultipleNegativesRankingLoss(), {"input_ids": [[1, 2]]}, r"input_ids has shape \(1, 2\)"),
    (CoSENTLoss(), batch_of(2, labels=LABELS[:3]), r"labels has shape \(3,\), expected \(5,\)"),
    (CoSENTLoss(), batch_of(2, labels=LABELS * np.nan), "labels holds inf or NaN"),
    (MarginMSELoss(), batch_of(4, labels=LABELS), r"labels has shape \(5, 1\), expected \(5, 2\)"),
    (MatryoshkaLoss(None, CoSENTLoss(), [40]), batch_of(2, labels=LABELS), "matryoshka_dims has 40, expected 1 to 39"),
    (CoSENTLoss(), batch_of(2, labels=LABELS) | {"attention_mask": np.ones((5, 7))}, r"attention_mask has shape"),
])  # fmt: skip
def test_batches_that_do_not_fit(objective, batch, message):
    refuses(ValueError, message, objective.forward, AutoModel.from_config(CONFIG), batch)


@pytest.mark.parametrize("make, message", [
    (lambda: CoSENTLoss(pooling="max"), "pooling is 'max', expected one of 'mean', 'cls'"),
    (lambda: CoSENTLoss(mini_batch_size=0), "mini_batch_size is 0, expected a positive integer"),
    (lambda: CoSENTLoss(scale=float("nan")), "scale is nan, expected a finite number above 0"),
    (lambda: TripletLoss(distance_metric="far"), "distance_metric is 'far', expected one of 'euclidean'"),
    (lambda: MatryoshkaLoss(None, CoSENTLoss(), []), "matryoshka_dims has 0 and matryoshka_weights 0"),
    (lambda: MatryoshkaLoss(None, CoSENTLoss(), [1, 2], [1.0]), "matryoshka_dims has 2 and matryoshka_weights 1"),
    (lambda: MatryoshkaLoss(None, CoSENTLoss(), [1, 0]), r"matryoshka_dims\[1\] is 0, expected a positive integer"),
    (lambda: MatryoshkaLoss(None, CoSENTLoss(), [1], [-1.0]), r"matryoshka_weights\[0\] is -1.0, expected a fin"),
    (lambda: AdaptiveLayerLoss(None, CoSENTLoss(), -2), "n_layers_per_step is -2"),
    (lambda: AdaptiveLayerLoss(None, CoSENTLoss(), kl_div_weight=float("inf")), "kl_div_weight is inf"),
    (lambda: MatryoshkaLoss(None, 5, [8]), "loss is 5, expected a loss of embeddings"),
    (lambda: MatryoshkaLoss(None, SoftmaxLoss(num_labels=2), [8]), "loss is <SoftmaxLoss.*, expected a loss of embed"),
    (lambda: MatryoshkaLoss(None, CoSENTLoss(), 8), "matryoshka_dims is int, expected a list"),
    (lambda: MatryoshkaLoss(None, CoSENTLoss(), ["8"]), r"matryoshka_dims\[0\] is '8', expected a positive integer"),
    (lambda: MatryoshkaLoss(None, CoSENTLoss(), [8], "1"), "matryoshka_weights is str, expected a list"),
    (lambda: MatryoshkaLoss(None, CoSENTLoss(), np.array(8)), "matryoshka_dims is ndarray, expected a list"),
    (lambda: AdaptiveLayerLoss(None, None), "loss is None, expected a loss of embeddings"),
    (lambda: AdaptiveLayerLoss(None, CoSENTLoss(), 1.5), "n_layers_per_step is 1.5"),
    (lambda: AdaptiveLayerLoss(None, CoSENTLoss(), 1, "1"), "last_layer_weight is '1', expected a number"),
])  # fmt: skip
def test_wrong_arguments(make, message):
    refuses((TypeError, ValueError), message, make)


def test_a_new_objective_says_what_its_loss_is():
    with pytest.raises(NotImplementedError, match="EmbeddingObjective"):
        EmbeddingObjective().forward(AutoModel.from_config(CONFIG), batch_of(2))
