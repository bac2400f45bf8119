"""Losses of sparse encoders: sentence-transformers' values and gradients, slopes, chunks, runs, refusals."""

import numpy as np
import pytest

from bertcore import SparseEncoder, losses
from bertcore.training import Trainer
from bertcore.training.objectives import MultipleNegativesRankingLoss as Cosines
from bertcore.training.objectives.sparse import CSRLoss, FlopsLoss, SpladeLoss
from bertcore.training.objectives.sparse import SparseDistillKLDivLoss as DistillKLDiv
from bertcore.training.objectives.sparse import SparseMarginMSELoss as MarginMSE
from bertcore.training.objectives.sparse import SparseMultipleNegativesRankingLoss as MultipleNegativesRanking
from tests.refusals import refuses
from tests.tasks.sparse_encoder.tiny import save_tiny_csr, save_tiny_router, save_tiny_splade
from tests.tiny_bert import random_texts, write_json
from tests.training.tiny_runs import quiet_arguments

TEXTS = [["the cat", "a cat sat.", "paris is"], ["paris is", "the capital of france .", "an upper mat"],
         ["a", "mat on a mat on a mat", "sat . sat"]]  # fmt: skip
SCORES = [[0.9, 0.1], [2.0, 1.5], [0.0, 0.4]]
WEIGHTS = {"document_regularizer_weight": 0.3, "query_regularizer_weight": 0.2}
CASES = {  # name: (inner loss, its arguments, labels, arguments of Splade)
    "SparseMultipleNegativesRankingLoss": (MultipleNegativesRanking, {"scale": 0.7}, None, WEIGHTS),
    "SparseMarginMSELoss": (MarginMSE, {}, SCORES, WEIGHTS | {"document_regularizer_threshold": 30}),
    "SparseDistillKLDivLoss": (DistillKLDiv, {}, SCORES, {"document_regularizer_weight": 0.3}),
    "SparseMarginMSELoss of documents": (
        MarginMSE, {}, SCORES, {"document_regularizer_weight": 0.3, "use_document_regularizer_only": True},
    ),
}  # fmt: skip
FOLDERS = {
    "max": lambda at: save_tiny_splade(at, {"pooling_strategy": "max"}),
    "sum": lambda at: save_tiny_splade(at, {"pooling_strategy": "sum", "activation_function": "log1p_relu"}),
    "router": lambda at: trained_router(at),
}


def trained_router(folder):
    save_tiny_router(folder)
    write_json(folder / "query_0_SparseStaticEmbedding" / "config.json", {"frozen": False})
    return folder


def batch_of(objective, labels=None):
    examples = [dict(zip(["query", "positive", "negative"], row, strict=True)) for row in TEXTS]
    for place, example in enumerate(examples if labels else ()):
        example["label"] = labels[place]
    return objective.collator(objective.encoder.tokenizer)(examples)


def compare(objective, loss, folder, peer, labels=None):
    """Compare value and gradients with those of a peer's loss."""
    import torch

    out, grads = objective.value_and_grad(objective.encoder.model, batch_of(objective, labels))
    columns = []
    for number, column in enumerate(zip(*TEXTS, strict=True)):
        task = "document" if number else "query"
        columns.append(peer.preprocess(list(column), task=task) | {"task": task})
    values = loss(columns, None if labels is None else torch.tensor(labels, dtype=torch.float64))
    value = sum(values.values())
    value.backward()
    assert float(out.loss) == pytest.approx(float(value.detach()), rel=1e-6, abs=1e-9)
    expected = {name: each.grad.numpy() for name, each in peer.named_parameters() if each.grad is not None}
    matched = 0
    for name, grad in grads.items():
        ends = [theirs for theirs in expected if theirs.endswith(name)] or [None]
        if ends[0] is not None:
            scale = max(np.abs(expected[ends[0]]).max(), 1e-3)
            np.testing.assert_allclose(grad, expected[ends[0]], atol=1e-6 * scale, err_msg=name)
            matched += 1
        else:
            assert np.abs(grad).max() < 1e-9, name
    assert matched > 10
    return out


@pytest.mark.parity
@pytest.mark.parametrize("kind", FOLDERS)
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_of_sentence_transformers(tmp_path, name, kind):
    import sentence_transformers
    from sentence_transformers.sparse_encoder import losses

    inner, given, labels, options = CASES[name]
    folder = FOLDERS[kind](tmp_path)
    objective = SpladeLoss(SparseEncoder(folder, dtype="float64"), inner(**given), **options)
    peer = sentence_transformers.SparseEncoder(str(folder), device="cpu").double().eval()
    for module in peer.modules():  # computes in place otherwise
        module.training = type(module).__name__ == "SpladePooling"
    base = getattr(losses, name.partition(" ")[0])(peer, **given)
    compare(objective, losses.SpladeLoss(peer, base, **options), folder, peer, labels)


@pytest.mark.parity
@pytest.mark.parametrize("options", [
    {},
    {"unit": True, "normalize": True},
    {"k_aux": 0},
    {"dead_threshold": 1},
    {"pooling": {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}},
])  # fmt: skip
def test_values_and_gradients_of_csr(tmp_path, options):
    import sentence_transformers
    from sentence_transformers.sparse_encoder import losses

    folder = save_tiny_csr(tmp_path, **options)
    objective = CSRLoss(SparseEncoder(folder, dtype="float64"), beta=0.3, gamma=0.7)
    peer = sentence_transformers.SparseEncoder(str(folder), device="cpu").double()
    for module in peer.modules():
        if isinstance(module, type(peer[0])):
            module.eval()
    loss = losses.CSRLoss(peer, beta=0.3, gamma=0.7)
    for _ in range(3):  # entries become unused
        peer.zero_grad()
        compare(objective, loss, folder, peer)
    np.testing.assert_array_equal(objective.encoder.head.unused, peer[-1].stats_last_nonzero.numpy())


def objectives(at):
    router, csr = (
        SparseEncoder(trained_router(at / "router"), dtype="float64"),
        SparseEncoder(save_tiny_csr(at / "csr")),
    )
    return [SpladeLoss(router, MultipleNegativesRanking(), 0.01, 0.02), CSRLoss(csr)]


def test_chunks_change_no_gradient(tmp_path, on_numpy):
    encoder = SparseEncoder(trained_router(tmp_path), dtype="float64")
    found = []
    for chunk in (None, 2):
        objective = SpladeLoss(encoder, MultipleNegativesRanking(mini_batch_size=chunk), 0.1, 0.2)
        assert objective.mini_batch_size == chunk
        found.append(objective.value_and_grad(encoder.model, batch_of(objective)))
    assert float(found[0][0].loss) == pytest.approx(float(found[1][0].loss))
    for name, grad in found[0][1].items():
        np.testing.assert_allclose(found[1][1][name], grad, atol=1e-9, err_msg=name)


def test_flops():
    rows = np.random.default_rng(0).normal(size=(4, 2, 5)) * (np.arange(5) < 3)
    rows[0] = 0
    for threshold in (None, 0, 2, 3):
        value, grad = FlopsLoss(threshold=threshold).of_embeddings(rows, None)
        kept = rows if threshold is None or threshold < 3 else rows * 0
        assert value == pytest.approx((kept.reshape(8, 5).mean(axis=0) ** 2).sum())
        step = 1e-6 * grad
        assert FlopsLoss(threshold=threshold).of_embeddings(rows - step, None)[0] <= value


def test_runs_lower_the_loss_and_save_the_heads(tmp_path, on_numpy):
    examples = [{"query": text, "positive": text} for text in random_texts(16, seed=4) if text]
    for number, objective in enumerate(objectives(tmp_path)):
        encoder = objective.encoder
        before = [parameter.array().copy() for parameter in objective.parameters(encoder.model)]
        settings = {"num_train_epochs": 3, "per_device_train_batch_size": 8, "learning_rate": 1e-3}
        arguments = quiet_arguments(tmp_path / f"run{number}", **settings)
        trainer = Trainer(
            encoder.model, arguments, objective=objective, train_dataset=examples, processing_class=encoder.tokenizer
        )
        first = objective.forward(encoder.model, batch_of(objective)).loss
        trainer.train()
        assert objective.forward(encoder.model, batch_of(objective)).loss < first
        after = [parameter.array() for parameter in objective.parameters(encoder.model)]
        assert all((one != other).any() for one, other in zip(before, after, strict=True))
        encoder.save_pretrained(tmp_path / f"saved{number}")
        saved = SparseEncoder(tmp_path / f"saved{number}", dtype=encoder.dtype)
        assert abs(saved.encode_query(TEXTS[1]) - encoder.encode_query(TEXTS[1])).max() < 1e-6


def test_refusals(tmp_path):
    encoder = SparseEncoder(save_tiny_splade(tmp_path))
    refuses(TypeError, "model is str, expected a SparseEncoder", SpladeLoss, "x", MultipleNegativesRanking(), 1)
    refuses(TypeError, "expected a loss of embeddings", SpladeLoss, encoder, "loss", 1)
    refuses(ValueError, "expected one with an autoencoder", CSRLoss, encoder)
    guided = losses.GISTEmbedLoss(None, encoder)
    for inner in (guided, losses.MatryoshkaLoss(None, guided, [8])):
        refuses(TypeError, "loss is GISTEmbedLoss, expected a loss of embeddings and", SpladeLoss, encoder, inner, 1)
    for options in ({"pooling": "cls"}, {"max_length": 9}):
        refuses(ValueError, "expected neither: those of", SpladeLoss, encoder, losses.AnglELoss(**options), 1)
    other = Cosines(SparseEncoder(tmp_path))
    refuses(ValueError, "expected the model of loss, <SparseEncoder", SpladeLoss, encoder, other, 1)
    largest = SparseEncoder(save_tiny_csr(tmp_path / "max", pooling={"pooling_mode": "max"}))
    refuses(ValueError, "model has the pooling max and 0 modules after it, expected mean or cls", CSRLoss, largest)
    refuses(ValueError, "threshold is -1", FlopsLoss, None, -1)
    single = losses.BatchHardTripletLoss()
    refuses(ValueError, "loss is BatchHardTripletLoss of one text, expected use_", SpladeLoss, encoder, single, 1)
    objective, rows = SpladeLoss(encoder, losses.MSELoss(), 1), [{"text": "the cat", "label": [0.0] * 75}]
    batch = objective.collator(encoder.tokenizer)(rows)
    refuses(ValueError, "with at least 2 columns for SpladeLoss", objective.forward, encoder.model, batch)
    unused = {"query_regularizer_threshold": -1}
    refuses(ValueError, "threshold is -1", SpladeLoss, encoder, MultipleNegativesRanking(), 1, **unused)
    refuses((TypeError, ValueError), "document_regularizer_weight is", SpladeLoss, encoder, Cosines(), "x")
    objective = SpladeLoss(encoder, MarginMSE(), 1.0)
    refuses(ValueError, "batch has no labels, expected some", objective.forward, encoder.model, batch_of(objective))
