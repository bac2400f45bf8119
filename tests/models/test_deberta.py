"""DeBERTa v1: components of attention, labels that are probabilities, tables of positions, names of the head."""

import numpy as np
import pytest

from bertcore import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification, use_backend, value_and_grad
from tests.models.family_checks import check_loads, drawn_anew
from tests.models.family_table import FAMILIES
from tests.slopes import assert_slope

TINY = FAMILIES["deberta"].config
BASE = {"model_type": "deberta", "relative_attention": True, "position_biased_input": False, "pos_att_type": "c2p|p2c"}


def test_labels_may_be_probabilities():
    """Rows of certainty are classes; the gradient is that of finite differences."""
    model = AutoModelForSequenceClassification.from_config(TINY | {"num_labels": 3}, dtype="float64")
    model, ids = drawn_anew(model), np.arange(8).reshape(2, 4)
    with use_backend("numpy"):
        certain = model(ids, labels=np.eye(3)[[2, 0]]).loss
        np.testing.assert_allclose(certain, model(ids, labels=[2, 0]).loss, rtol=1e-12)
        soft = np.array([[0.2, 0.5, 0.3], [0.9, 0.0, 0.3]])
        _, grads = value_and_grad(model)(ids, labels=soft)
        assert_slope(model, grads, lambda: model(ids, labels=soft).loss, ["classifier.bias"], rel=1e-6, least=1e-9)


def test_components(cpu_backend):
    model, rng = drawn_anew(AutoModelForMaskedLM.from_config(TINY)), np.random.default_rng(0)
    ids, mask = rng.integers(1, 40, (2, 9)), np.ones((2, 9), int)
    mask[0, 6:] = mask[1, 3] = 0
    out = model(ids, mask, output_attention_components=True, output_attentions=True)
    np.testing.assert_allclose(out.logits, model(ids, mask).logits, rtol=0, atol=1e-5)
    assert list(out)[-1] == "attention_components" and len(out.attention_components) == 2
    both = (mask[:, None, :, None] * mask[:, None, None, :]).astype(bool)
    for layer, probabilities in zip(out.attention_components, out.attentions, strict=True):
        scores = sum(layer)
        assert all(np.abs(term).max() > 0.1 and not term[~np.broadcast_to(both, term.shape)].any() for term in layer)
        exponentials = np.where(both, np.exp(scores), 0)
        expected = exponentials / np.maximum(exponentials.sum(axis=-1, keepdims=True), 1e-30)
        np.testing.assert_allclose(probabilities, expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("changes, terms", [({"pos_att_type": "p2c"}, 2), ({"relative_attention": False}, 1)])
def test_components_that_a_model_lacks(cpu_backend, changes, terms):
    out = AutoModel.from_config(TINY | changes)([[1, 2, 3]], output_attention_components=True)
    for layer in out.attention_components:
        assert layer.content_to_position is None and sum(term is not None for term in layer) == terms
        assert layer.content_to_content.shape == (1, 3, 3, 3)


def test_tables_of_positions_are_kept_until_parameters_change(cpu_backend):
    """In inference; while a tape records they are computed with it, and nothing is kept of that."""
    model, ids = drawn_anew(AutoModelForMaskedLM.from_config(TINY)), np.arange(14).reshape(2, 7)
    layer, positions = model.encoder.layers[1].attention, model.encoder.adapter.relative
    labels = np.where(ids % 3, ids, -100)
    _, grads = value_and_grad(model)(ids, labels=labels)
    assert not layer._constants.kept[1] and np.abs(grads["deberta.encoder.rel_embeddings.weight"]).max() > 1e-3
    before = model(ids).logits
    version, kept = layer._constants.kept
    assert version == (layer.version, positions.version)
    ((_, tables),) = kept.items()
    assert [table.shape for table in tables] == [(117,), (48, 3, 13), (48, 3, 13)]
    assert np.array_equal(model(ids).logits, before) and next(iter(kept.values())) is tables
    state = {name: array.copy() for name, array in model.state_dict().items()}
    state["deberta.encoder.rel_embeddings.weight"] *= 2
    model.load_state_dict(state)
    fresh = AutoModelForMaskedLM.from_config(TINY)
    fresh.load_state_dict(state)
    for _ in range(3):  # noted, recorded, run again
        assert np.array_equal(model(ids).logits, fresh(ids).logits)
    assert np.abs(model(ids).logits - before).max() > 1e-2


@pytest.mark.parametrize("legacy", [True, False])
def test_either_name_of_the_head_loads(legacy, tmp_path):
    """Published files have the newer names, and configs that do not say so; the table of positions is not used."""
    model = drawn_anew(AutoModelForMaskedLM.from_config(TINY | {"position_biased_input": False, "legacy": legacy}))
    names = {"cls.predictions.transform.": "lm_predictions.lm_head.", "cls.predictions.": "lm_predictions.lm_head."}
    tensors = {"deberta.embeddings.position_embeddings.weight": np.zeros((24, 39), np.float32)}
    for name, array in model.state_dict().items():
        for old, new in names.items():
            name = name.replace(old, new)
        tensors[name] = array
    assert "lm_predictions.lm_head.dense.weight" in tensors and "lm_predictions.lm_head.bias" in tensors
    check_loads(model, tmp_path, tensors | {"mask_predictions.dense.weight": np.zeros((24, 39), np.float32)})


def test_defaults():
    assert AutoModel({"model_type": "deberta"}).spec.vocab_size == 50265
    assert AutoModel(BASE).spec.longest_sequence is None
    with pytest.raises(TypeError, match="unexpected argument 'output_attention_components'"):
        AutoModel.from_config(TINY | {"model_type": "bert"})([[1]], output_attention_components=True)
