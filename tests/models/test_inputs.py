"""Invalid inputs of models: every error names the argument, the place, the value and what was expected."""

import numpy as np
import pytest

from bertcore import AutoModel, AutoModelForMaskedLM
from tests.refusals import refuses

CONFIG = {
    "model_type": "bert", "vocab_size": 19, "hidden_size": 6, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 5, "max_position_embeddings": 8, "type_vocab_size": 2,
}  # fmt: skip
IDS = [[1, 2, 3], [4, 5, 6]]


@pytest.fixture(scope="module")
def model():
    return AutoModel.from_config(CONFIG)


@pytest.fixture(scope="module")
def masked_lm():
    return AutoModelForMaskedLM.from_config(CONFIG)


pytestmark = pytest.mark.usefixtures("on_numpy")


@pytest.mark.parametrize(("batch", "error", "message"), [
    ({"input_ids": [[1, 2], [3, 99]]}, ValueError, r"input_ids\[1, 1\] is 99, expected 0 to 18"),
    ({"input_ids": [[1, -1]]}, ValueError, r"input_ids\[0, 1\] is -1, expected 0 to 18"),
    ({"input_ids": [[1, 2], [3]]}, ValueError, r"ragged: input_ids\[0\] has 2 entries, input_ids\[1\] has 1"),
    ({"input_ids": 3}, TypeError, "input_ids is int, expected"),
    ({"input_ids": [1, 2, 3]}, TypeError, r"input_ids\[0\] is 1, expected a list of integers"),
    ({"input_ids": np.zeros(3, int)}, ValueError, r"input_ids has shape \(3,\), expected \(sequences, length\)"),
    ({"input_ids": [["a", "b"]]}, TypeError, r"input_ids holds <U1, expected integers"),
    ({"input_ids": [[1.0, 2.0]]}, TypeError, r"input_ids holds float64, expected integers"),
    ({"input_ids": "text"}, TypeError, r"input_ids is str, expected"),
    ({"input_ids": [[[1], [2, 3]]]}, ValueError, "input_ids is not a table of integers, expected"),
    ({"input_ids": [[True, False]]}, TypeError, r"input_ids holds bool, expected integers"),
    ({"input_ids": None}, TypeError, r"input_ids is NoneType, expected \(sequences, length\): lists or an array"),
    ({"input_ids": (row for row in IDS)}, TypeError, r"input_ids is generator, expected"),
    ({"input_ids": {1, 2}}, TypeError, r"input_ids is set, expected"),
    ({"attention_mask": {1, 2}}, TypeError, r"attention_mask is set, expected"),
    ({"input_ids": [[1, 2], [True, 2]]}, TypeError, r"input_ids\[1\] holds bool, expected integers"),
    ({"input_ids": [[1, 2], np.array([True, False])]}, TypeError, r"input_ids\[1\] holds bool"),
    ({"token_type_ids": [[0, 0, 0], [0, 0, True]]}, TypeError, r"token_type_ids\[1\] holds bool"),
    ({"input_ids": np.array([[2**63]], np.uint64)}, ValueError, r"input_ids\[0, 0\] is 9223372036854775808"),
    ({"input_ids": [[1] * 9] * 2}, ValueError, r"input_ids\[0\] has 9 tokens, the model has 8 positions"),
    (
        {"input_ids": [[1] * 9] * 2, "attention_mask": [[1] * 8 + [0], [1] * 9]},
        ValueError,
        r"input_ids\[1\] has 9 tokens, the model has 8 positions",
    ),
    ({"attention_mask": [[1, 1, 1]]}, ValueError, r"attention_mask has shape \(1, 3\), expected \(2, 3\)"),
    ({"attention_mask": [[1, 2, 1], [1, 1, 1]]}, ValueError, r"attention_mask\[0, 1\] is 2, expected 0 or 1"),
    ({"attention_mask": np.full((2, 3), 0.5)}, TypeError, r"attention_mask holds float64"),
    ({"attention_mask": np.full((2, 3), np.nan)}, TypeError, r"attention_mask holds float64"),
    ({"token_type_ids": [[0, 0, 0], [0, 2, 0]]}, ValueError, r"token_type_ids\[1, 1\] is 2, expected 0 to 1"),
    ({"token_type_ids": [[0, 0, 0]]}, ValueError, r"token_type_ids has shape \(1, 3\), expected \(2, 3\)"),
    ({"position_ids": [[0, 1, 8], [0, 1, 2]]}, ValueError, r"position_ids\[0, 2\] is 8, expected 0 to 7"),
])  # fmt: skip
def test_bad_batch(model, batch, error, message):
    refuses(error, message, model, **{"input_ids": IDS, **batch})


@pytest.mark.parametrize(("labels", "message"), [
    ([[0, 0, 19], [0, 0, 0]], r"labels\[0, 2\] is 19, expected 0 to 18, or -100"),
    ([[0, 0, 0]], r"labels has shape \(1, 3\), expected \(2, 3\)"),
    ([[0, 0, 0], [0, 0, 0]], r"labels has a label at a padded position"),
    (np.ones((2, 3), bool), "labels holds bool, expected integers"),
])  # fmt: skip
def test_bad_labels(masked_lm, labels, message):
    refuses((TypeError, ValueError), message, masked_lm, IDS, attention_mask=[[1, 1, 1], [1, 1, 0]], labels=labels)


def test_what_stands_under_padding_does_not_matter(model):
    mask = [[1, 1, 1], [1, 1, 0]]
    clean = model(IDS, attention_mask=mask).last_hidden_state
    dirty = model([[1, 2, 3], [4, 5, 999]], attention_mask=mask, token_type_ids=[[0] * 3, [0, 0, 77]])
    np.testing.assert_array_equal(dirty.last_hidden_state, clean)


@pytest.mark.parametrize(
    ("empty", "shape"), [([], (0, 0)), (np.zeros((0, 5), int), (0, 5)), ([[]], (1, 0)), (np.zeros((3, 0), int), (3, 0))]
)
def test_empty_batches_give_empty_results(masked_lm, model, empty, shape):
    out = model(empty, output_hidden_states=True, output_attentions=True)
    assert out.last_hidden_state.shape == (*shape, 6)
    assert out.pooler_output.shape == (shape[0], 6)
    assert out.attentions[0].shape == (shape[0], 2, shape[1], shape[1])
    assert masked_lm(empty).logits.shape == (*shape, 19)


def test_a_sequence_of_padding_alone_gives_zeros(model):
    out = model(IDS, attention_mask=[[1, 1, 1], [0, 0, 0]])
    assert not out.last_hidden_state[1].any()
    assert not out.pooler_output[1].any()
    np.testing.assert_allclose(out.last_hidden_state[0], model(IDS[:1]).last_hidden_state[0], atol=1e-6)


def test_masks_of_every_kind_agree(model):
    mask = np.array([[1, 1, 1], [1, 1, 0]])
    results = [
        model(IDS, attention_mask=kind).last_hidden_state
        for kind in (
            mask, mask.tolist(), mask.astype(bool), mask.astype(bool).tolist(), mask.astype(np.float32),
            mask.astype(float).tolist(), mask.astype(np.uint8),
        )
    ]  # fmt: skip
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", ">i4", "uint64", ">u8"])
def test_ids_of_every_integer_dtype_agree(masked_lm, dtype):
    expected = masked_lm(IDS, labels=IDS)
    found = masked_lm(np.array(IDS, dtype), labels=np.array(IDS, dtype))
    np.testing.assert_array_equal(found.logits, expected.logits)
    assert found.loss == expected.loss


@pytest.mark.parametrize(("change", "message"), [
    ({"hidden_size": 7}, "hidden_size is 7, expected a multiple of num_attention_heads 2"),
    ({"hidden_act": "mish"}, "hidden_act is 'mish', known are"),
    ({"num_hidden_layers": -1}, "num_hidden_layers is -1, expected a positive integer"),
    ({"pad_token_id": 19}, "pad_token_id is 19, expected 0 to 18, or null"),
    ({"vocab_size": "many"}, "vocab_size is 'many', expected a positive integer"),
    ({"hidden_act": ["gelu"]}, r"hidden_act is \['gelu'\], known are"),
    ({"layer_norm_eps": float("inf")}, "layer_norm_eps is inf, expected a finite number of at least 0"),
    ({"layer_norm_eps": 10**400}, "layer_norm_eps is 10+, expected a finite number of at least 0"),
    ({"layer_norm_eps": -1e-5}, "layer_norm_eps is -1e-05, expected a finite number of at least 0"),
])  # fmt: skip
def test_bad_config(change, message):
    refuses(ValueError, message, AutoModel.from_config, {**CONFIG, **change})


def test_unknown_dtype_lists_those_known():
    refuses(ValueError, "dtype is 'int3', expected one of 'float32', 'flo", AutoModel.from_config, CONFIG, dtype="int3")


def test_a_model_without_weights_says_how_to_make_one():
    text = r"embeddings\.\S+ has no values yet: models are made by from_pretrained\(folder\) or from_config\(config\)$"
    refuses(RuntimeError, text, AutoModel(CONFIG), IDS)


def test_unknown_arguments_are_named(model, masked_lm):
    refuses(TypeError, "AutoModel got an unexpected argument 'labels'", model, IDS, labels=IDS)
    refuses(TypeError, "MaskedLM got an unexpected argument 'lables'; it takes labels, too", masked_lm, IDS, lables=IDS)
