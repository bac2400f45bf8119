"""DeBERTa v1, v2 and v3: components, tables of positions, buckets, the convolution, holes, names of the head."""

import numpy as np
import pytest

import bertcore
from bertcore import AutoModel, AutoModelForMaskedLM, AutoModelForMultipleChoice, use_backend, value_and_grad
from bertcore.families.deberta.blocks import Disentanglement, PositionsOfPass, distance_rows
from bertcore.passes import Pass
from bertcore.tape import Tape
from tests.models.family_checks import check_gradients, check_loads, check_recorded, check_refused, drawn_anew
from tests.models.family_table import FAMILIES, V3
from tests.refusals import refuses
from tests.slopes import assert_slope

TINY = FAMILIES["deberta"].config
BASE = {"model_type": "deberta", "relative_attention": True, "position_biased_input": False, "pos_att_type": "c2p|p2c"}


def test_labels_may_be_probabilities():
    """Rows of certainty are classes; the gradient is that of finite differences."""
    model = bertcore.AutoModelForSequenceClassification.from_config(TINY | {"num_labels": 3}, dtype="float64")
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

    def tables_of_layer():
        return next(each for each in layer.in_use() if isinstance(each, tuple))

    assert not tables_of_layer()[1] and np.abs(grads["deberta.encoder.rel_embeddings.weight"]).max() > 1e-3
    before = model(ids).logits
    version, kept = tables_of_layer()
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


V2_TINY = FAMILIES["deberta"].config | {"model_type": "deberta-v2"}


@pytest.mark.parity
@pytest.mark.parametrize("furthest", [16, 33, 128, 256, 512, 1000])
@pytest.mark.parametrize("buckets", [2, 3, 8, 17, 32, 256])
def test_buckets(buckets, furthest):
    """All distances a model can meet, as the bits of a logarithm in float32 divide them."""
    import torch
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    if furthest - 1 <= buckets // 2:
        pytest.skip("there are no far distances")
    distances = np.arange(-2 * furthest, 2 * furthest + 1)
    places = make_log_bucket_position(torch.from_numpy(distances), buckets, furthest).long().numpy()
    rows = distance_rows(Disentanglement(True, True, 3, max_distance=furthest, buckets=buckets))
    middle = len(rows) // 2
    found = rows[np.clip(distances, -middle, middle) + middle]
    np.testing.assert_array_equal(found, np.clip(places + buckets, 0, 2 * buckets - 1))


def test_rows_of_distances():
    """He et al. 2021, section 3.1: near distances have an embedding each, beyond the span all have the last one."""
    rows = distance_rows(Disentanglement(True, True, 3, max_distance=3))
    np.testing.assert_array_equal(rows, [0, 1, 2, 3, 4, 5, 5])
    rows = distance_rows(Disentanglement(True, True, 3, max_distance=512, buckets=256))
    middle = len(rows) // 2
    assert rows.dtype == np.int32 and rows[middle] == 256 and rows[0] == 0 and rows[-1] == 511
    np.testing.assert_array_equal(np.diff(rows[middle - 128 : middle + 129]), 1)
    far = rows[middle + 128 :]
    assert (np.diff(far) >= 0).all() and (np.diff(far) <= 1).all() and (np.diff(far) == 0).sum() > 200
    places = np.maximum(rows - 256, -255)  # on one side there is a row more
    np.testing.assert_array_equal(places, -places[::-1])


@pytest.mark.parametrize("length, rows", [(0, 31), (1, 31), (16, 31), (17, 47)])
def test_training_maps_the_positions_of_its_texts_alone(cpu_backend, length, rows):
    """Of the next of a few lengths; what comes out equals inference, which maps all 128 once, on Numba to the bit."""
    model = drawn_anew(AutoModel.from_config(V2_TINY | V3 | {"position_buckets": 64, "max_position_embeddings": 96}))
    block, ids = model.encoder.adapter.relative, np.arange(length)[None] + 1
    with Tape():
        positions = PositionsOfPass(Pass.begin(), block, length)
        assert len(positions.embeddings.value) == rows
    np.testing.assert_array_equal(np.unique(positions.distance_rows), np.arange(rows))
    assert len(PositionsOfPass(Pass.begin(), block, length).embeddings) == 128
    out, _ = bertcore.vjp(model)(ids)
    most = 1e-5 if cpu_backend == "numpy" else 0  # a BLAS may sum other numbers of rows in another order
    np.testing.assert_allclose(out.last_hidden_state, model(ids).last_hidden_state, rtol=most, atol=most)


def test_components_of_choices(cpu_backend):
    model = drawn_anew(AutoModelForMultipleChoice.from_config(V2_TINY | V3))
    ids = np.arange(1, 31).reshape(2, 3, 5)
    out = model(ids, output_attention_components=True)
    np.testing.assert_allclose(out.logits, model(ids).logits, rtol=0, atol=1e-6)
    for layer in out.attention_components:
        assert [term.shape for term in layer] == 3 * [(6, 3, 5, 5)]
        assert all(np.abs(term).max() > 0.1 for term in layer)
        assert not np.allclose(layer.content_to_position, layer.position_to_content, rtol=0, atol=0.05)


@pytest.mark.parametrize("groups", [1, 3])
def test_gradients_through_the_convolution(groups):
    changes = {"conv_kernel_size": 3, "conv_groups": groups, "num_hidden_layers": 1, "num_labels": 2, **V3}
    model = bertcore.AutoModelForTokenClassification.from_config(V2_TINY | changes, dtype="float64")
    assert model.expected_tensors()["deberta.encoder.conv.conv.weight"] == (39, 39 // groups, 3)
    ids, mask = np.random.default_rng(0).integers(1, 40, (2, 6)), np.ones((2, 6), int)
    mask[0, 4:] = mask[1, 2] = 0
    labels = np.where(mask, ids % 2, -100)
    check_gradients(model, "conv", "embeddings", input_ids=ids, attention_mask=mask, labels=labels)


@pytest.mark.parametrize("changes", [V3, {"conv_kernel_size": 3, "relative_attention": False}])
def test_holes_are_columns(cpu_backend, changes):
    """Tokens beside a hole are two apart, which is not what they are without it; nothing sees the word in it."""
    model, ids = drawn_anew(AutoModel.from_config(V2_TINY | changes)), np.array([[3, 4, 5, 6, 7]])
    holed = model(ids, [[1, 1, 0, 1, 1]]).last_hidden_state
    other = model([[3, 4, 9, 6, 7]], [[1, 1, 0, 1, 1]]).last_hidden_state
    np.testing.assert_array_equal(holed, other)
    assert not holed[0, 2].any()
    assert np.abs(holed[0, [0, 1, 3, 4]] - model([[3, 4, 6, 7]]).last_hidden_state[0]).max() > 0.05


def test_configs_that_are_refused():
    check_refused(AutoModel, V2_TINY | {"conv_kernel_size": 3}, {"conv_groups": 5, "conv_act": "mish"})
    check_refused(AutoModel, V2_TINY | {"position_biased_input": False}, {"position_buckets": 64})
    near = V2_TINY | V3 | {"position_buckets": 2, "max_relative_positions": 2}
    refuses(ValueError, "position_buckets is 2, expected at most 0", AutoModel, near)
    assert AutoModel({"model_type": "deberta-v2"}).spec.hidden_size == 1536


def test_a_program_holds_the_whole_encoder():
    check_recorded(drawn_anew(AutoModel.from_config(V2_TINY | V3)))
