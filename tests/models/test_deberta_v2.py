"""DeBERTa v2 and v3: buckets, the convolution, holes."""

import numpy as np
import pytest

import bertcore
from bertcore import AutoModel, AutoModelForMultipleChoice, AutoModelForTokenClassification
from bertcore.families.deberta.blocks import Disentanglement, PositionsOfPass, distance_rows
from bertcore.passes import Pass
from bertcore.tape import Tape
from tests.models.family_checks import check_gradients, check_recorded, check_refused, drawn_anew
from tests.models.family_table import FAMILIES, V3

TINY = FAMILIES["deberta"].config | {"model_type": "deberta-v2"}


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
    """Of the next of a few lengths; what comes out has the bits of inference, which maps all 128 once."""
    model = drawn_anew(AutoModel.from_config(TINY | V3 | {"position_buckets": 64, "max_position_embeddings": 96}))
    block, ids = model.encoder.adapter.relative, np.arange(length)[None] + 1
    with Tape():
        positions = PositionsOfPass(Pass.begin(), block, length)
        assert len(positions.embeddings.value) == rows
    np.testing.assert_array_equal(np.unique(positions.distance_rows), np.arange(rows))
    assert len(PositionsOfPass(Pass.begin(), block, length).embeddings) == 128
    out, _ = bertcore.vjp(model)(ids)
    np.testing.assert_array_equal(out.last_hidden_state, model(ids).last_hidden_state)


def test_components_of_choices(cpu_backend):
    model = drawn_anew(AutoModelForMultipleChoice.from_config(TINY | V3))
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
    model = AutoModelForTokenClassification.from_config(TINY | changes, dtype="float64")
    assert model.expected_tensors()["deberta.encoder.conv.conv.weight"] == (39, 39 // groups, 3)
    ids, mask = np.random.default_rng(0).integers(1, 40, (2, 6)), np.ones((2, 6), int)
    mask[0, 4:] = mask[1, 2] = 0
    labels = np.where(mask, ids % 2, -100)
    check_gradients(model, "conv", "embeddings", input_ids=ids, attention_mask=mask, labels=labels)


@pytest.mark.parametrize("changes", [V3, {"conv_kernel_size": 3, "relative_attention": False}])
def test_holes_are_columns(cpu_backend, changes):
    """Tokens beside a hole are two apart, which is not what they are without it; nothing sees the word in it."""
    model, ids = drawn_anew(AutoModel.from_config(TINY | changes)), np.array([[3, 4, 5, 6, 7]])
    holed = model(ids, [[1, 1, 0, 1, 1]]).last_hidden_state
    other = model([[3, 4, 9, 6, 7]], [[1, 1, 0, 1, 1]]).last_hidden_state
    np.testing.assert_array_equal(holed, other)
    assert not holed[0, 2].any()
    assert np.abs(holed[0, [0, 1, 3, 4]] - model([[3, 4, 6, 7]]).last_hidden_state[0]).max() > 0.05


def test_configs_that_are_refused():
    check_refused(AutoModel, TINY | {"conv_kernel_size": 3}, {"conv_groups": 5, "conv_act": "mish"})
    check_refused(AutoModel, TINY | {"position_biased_input": False}, {"position_buckets": 64})
    assert AutoModel({"model_type": "deberta-v2"}).spec.hidden_size == 1536


def test_a_program_holds_the_whole_encoder():
    check_recorded(drawn_anew(AutoModel.from_config(TINY | V3)))
