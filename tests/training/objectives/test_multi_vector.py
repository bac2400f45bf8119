"""Losses of late interaction: sentence-transformers' values and gradients, slopes, chunks, refusals."""

from functools import partial

import numpy as np
import pytest

from bertcore import MultiVectorEncoder
from bertcore.training.objectives.multi_vector import MultiVectorDistillKLDivLoss as DistillKLDiv
from bertcore.training.objectives.multi_vector import MultiVectorMarginMSELoss as MarginMSE
from bertcore.training.objectives.multi_vector import (
    MultiVectorMultipleNegativesRankingLoss as MultipleNegativesRanking,
)
from tests.refusals import refuses
from tests.slopes import assert_slope_of_parameters
from tests.tasks.multi_vector.tiny import DEEP, EXPANSION, save_tiny_late

TEXTS = [["the cat", "a cat sat.", "paris is", ""], ["paris is", "the capital of france .", "an upper mat", "cat on"],
         ["a", "mat on a mat on a mat", "sat . sat", "of of"]]  # fmt: skip
SCORES = [[0.9, 0.1, 0.3], [2.0, 1.5, -0.7], [0.0, 0.4, 0.2]]
MARGINS = [[0.8, 0.6], [0.5, 2.7], [-0.4, -0.2]]
CASES = {  # name: (loss, arguments, labels)
    "MultipleNegativesRankingLoss": (MultipleNegativesRanking, {"scale": 0.7}, None),
    "CachedMultiVectorMultipleNegativesRankingLoss": (MultipleNegativesRanking, {}, None),
    "DistillKLDivLoss": (DistillKLDiv, {"temperature": 2.0, "teacher_temperature": 0.5}, SCORES),
    "MarginMSELoss": (MarginMSE, {}, SCORES),
    "MarginMSELoss of margins": (MarginMSE, {}, MARGINS),
}  # fmt: skip


def batch_of(objective, labels=None, texts=TEXTS):
    names = ["query", "positive", "first", "second"]
    examples = [dict(zip(names, row, strict=False)) for row in texts]
    for place, example in enumerate(examples if labels else ()):
        example["label"] = labels[place]
    return objective.collator(objective.encoder.tokenizer)(examples)


@pytest.fixture(params=["unseen", "attended", "not expanded"])
def folder(request, tmp_path):
    expansion = {"unseen": EXPANSION, "attended": EXPANSION | {"attend": True}, "not expanded": None}[request.param]
    return save_tiny_late(tmp_path, transformer={"query_expansion": expansion}, dense=DEEP)


@pytest.mark.parity
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_of_sentence_transformers(folder, name):
    import sentence_transformers
    import torch
    from sentence_transformers.multi_vector_encoder import losses

    kind, given, labels = CASES[name]
    objective = kind(MultiVectorEncoder(folder), **given)
    out, grads = objective.value_and_grad(objective.encoder.model, batch_of(objective, labels))
    peer = sentence_transformers.MultiVectorEncoder(str(folder), device="cpu").eval()
    theirs = name.partition(" ")[0]
    loss = getattr(losses, theirs if theirs.startswith("Cached") else f"MultiVector{theirs}")(peer, **given)
    features = []
    for number, column in enumerate(zip(*TEXTS, strict=True)):
        task = "document" if number else "query"
        features.append(peer.preprocess(list(column), prompt=peer.prompts[task], task=task) | {"task": task})
    value = loss(features, None if labels is None else torch.tensor(labels))
    value.backward()
    assert float(out.loss) == pytest.approx(float(value.detach()), rel=1e-5, abs=1e-6)
    expected = {
        f"{place}_Dense.{name}": each.grad for place in (1, 2, 3) for name, each in peer[place].named_parameters()
    }
    expected |= {name: each.grad for name, each in peer[0].model.named_parameters()}
    largest = max(np.abs(array).max() for array in grads.values())
    for name, array in grads.items():
        if expected[name] is not None:  # the pooler's are not used
            np.testing.assert_allclose(array, expected[name].numpy(), atol=2e-5 * largest, err_msg=name)
    assert set(grads) <= set(expected)


@pytest.mark.parity
def test_normalized_scores_are_those_of_pylate(tmp_path):
    pytest.importorskip("pylate.models", exc_type=ImportError)
    import torch
    from pylate.losses import Distillation

    scores = torch.tensor([[3.0, 1.0, 2.5], [2.0, 2.0, 2.0], [7.0, 9.0, 8.0]], requires_grad=True)
    model = torch.nn.Linear(1, 1)
    model.skiplist, model.do_query_expansion = [], True
    model.forward = lambda texts: {"token_embeddings": torch.zeros(len(texts["input_ids"]), 2, 1)}
    texts = [dict.fromkeys(("input_ids", "attention_mask"), torch.ones(count, 2, dtype=int)) for count in (3, 9)]
    theirs = Distillation(model, lambda *embeddings, **masks: scores)(texts, torch.tensor(SCORES))
    theirs.backward()
    objective = DistillKLDiv(MultiVectorEncoder(save_tiny_late(tmp_path)), normalize_scores=True)
    value, grad = objective.of_scores(scores.detach().numpy().astype(float), np.array(SCORES))
    assert value == pytest.approx(theirs.item(), rel=1e-5)
    np.testing.assert_allclose(np.delete(grad, 1, 0), np.delete(scores.grad.numpy(), 1, 0), atol=1e-6)


NORMALIZED = partial(DistillKLDiv, normalize_scores=True)


@pytest.mark.parametrize("kind", [MultipleNegativesRanking, DistillKLDiv, NORMALIZED, MarginMSE])
@pytest.mark.parametrize("similarity_fn_name", ["maxsim", "meanmaxsim"])
def test_chunks_and_slopes(tmp_path, kind, similarity_fn_name, on_numpy):
    encoder = MultiVectorEncoder(save_tiny_late(tmp_path, dense=DEEP), dtype="float64")
    labels = None if kind is MultipleNegativesRanking else SCORES
    objective = kind(encoder, similarity_fn_name=similarity_fn_name)
    batch = batch_of(objective, labels)
    out, grads = objective.value_and_grad(encoder.model, batch)
    assert float(objective.forward(encoder.model, batch).loss) == pytest.approx(float(out.loss), rel=1e-9)
    in_chunks = kind(encoder, similarity_fn_name=similarity_fn_name, mini_batch_size=5)
    chunked, others = in_chunks.value_and_grad(encoder.model, batch)
    assert float(chunked.loss) == pytest.approx(float(out.loss), rel=1e-9) and set(others) == set(grads)
    for name, array in grads.items():
        np.testing.assert_allclose(others[name], array, atol=1e-9, err_msg=name)
    parameters = list(encoder.head.parameters())
    assert_slope_of_parameters(parameters, grads, lambda: objective.forward(encoder.model, batch).loss, rel=1e-4)


def test_a_document_without_vectors_takes_no_part(tmp_path, on_numpy):
    encoder = MultiVectorEncoder(save_tiny_late(tmp_path, mask={"keep_only_token_ids": [6]}))  # cat
    objective = MultipleNegativesRanking(encoder)
    batch = batch_of(objective, texts=[["cat", "cat", "paris", "cat cat"], ["a", "the cat", "mat", ""]])
    out, grads = objective.value_and_grad(encoder.model, batch)
    assert np.isfinite(out.loss) and all(np.isfinite(array).all() for array in grads.values())
    assert 0 < float(out.loss) < 20


def test_what_is_refused(tmp_path, on_numpy):
    encoder = MultiVectorEncoder(save_tiny_late(tmp_path))
    ranking, margin, divergence = MultipleNegativesRanking(encoder), MarginMSE(encoder), DistillKLDiv(encoder)
    batch, model = batch_of(ranking), encoder.model
    two = {name: array[:, :2] for name, array in batch.items()}
    for error, message, objective, given in (
        (ValueError, r"input_ids has shape \(3, 2, \d+\), expected .* at least 3 columns", margin, two),
        (ValueError, "batch has no labels, expected some", margin, batch),
        (ValueError, "batch has labels, expected none", ranking, {**batch, "labels": [1, 2, 3]}),
        (ValueError, r"scoring_mask has shape \(1,\), expected \(3, 4,", ranking, {**batch, "scoring_mask": [1]}),
        (ValueError, r"labels has shape \(3, 2\), expected \(3, 3\)", divergence, {**batch, "labels": MARGINS}),
        (ValueError, r"labels has shape \(3, 1\), expected \(3, 2\)", margin, {**batch, "labels": [1, 2, 3]}),
    ):
        refuses(error, message, objective.loss, model, given)
    for error, message, call in (
        (TypeError, "model is str, expected a MultiVectorEncoder", lambda: MarginMSE("x")),
        (ValueError, "similarity_fn_name is 'dot', expected", lambda: MarginMSE(encoder, similarity_fn_name="dot")),
        (ValueError, "scale is 0, expected", lambda: MultipleNegativesRanking(encoder, scale=0)),
        (TypeError, "MarginMSELoss has no argument similarity_fct; did", lambda: MarginMSE(encoder, similarity_fct=1)),
        (ValueError, "student_temperature is -1, expected", lambda: DistillKLDiv(encoder, student_temperature=-1)),
    ):
        refuses(error, message, call)
