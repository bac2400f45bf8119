"""DeBERTa v2 and v3: every head and kind of position against transformers, buckets, the convolution, old files."""

import numpy as np
import pytest

from bertcore import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForTokenClassification,
    use_backend,
    value_and_grad,
)
from bertcore.families.deberta.blocks import Disentanglement, distance_rows
from tests.models.family_checks import check_backends, check_refused, check_spellings, drawn_anew
from tests.models.family_parity import check
from tests.models.test_deberta import padded_batch
from tests.models.test_deberta import small_config as config_of

TASKS = (None, "MaskedLM", "SequenceClassification", "TokenClassification", "QuestionAnswering", "MultipleChoice")
TINY = {
    "model_type": "deberta-v2", "vocab_size": 40, "hidden_size": 24, "num_attention_heads": 2, "num_hidden_layers": 2,
    "intermediate_size": 32, "max_position_embeddings": 24, "relative_attention": True, "pos_att_type": "p2c|c2p",
}  # fmt: skip
V3 = {"position_buckets": 6, "share_att_key": True, "norm_rel_ebd": "layer_norm", "position_biased_input": False}
SIZES = {
    "base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
    "small": {"hidden_size": 768, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 3072},
    "large": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
}
POSITIONS = {
    "own maps, all distances": {},
    "own maps, c2p": {"pos_att_type": ["c2p"], "position_buckets": 4},
    "own maps, p2c": {"pos_att_type": ["p2c"], "position_buckets": 7, "max_relative_positions": 9},
    "v3": V3,
    "v3, c2p": V3 | {"pos_att_type": "c2p"},
    "v3, p2c": V3 | {"pos_att_type": "p2c", "position_biased_input": True},
    "v3 without a norm": V3 | {"norm_rel_ebd": "none"},
    "shared, no type": V3 | {"pos_att_type": None},
    "twice the same": V3 | {"pos_att_type": ["p2c", "p2c", "c2p"]},
    "types without relative": {"relative_attention": False, "share_att_key": True, "norm_rel_ebd": "layer_norm"},
    "neither": {"relative_attention": False, "pos_att_type": None},
    "buckets of one": V3 | {"position_buckets": 2},
    "all near": V3 | {"position_buckets": 64, "position_biased_input": True},
    "narrow embeddings": V3 | {"embedding_size": 20, "type_vocab_size": 2},
    "the newer head": V3 | {"legacy": False},
    "decoder of its own": V3 | {"tie_word_embeddings": False},
}
CONVOLUTIONS = {
    "as published": {"conv_kernel_size": 3, "conv_act": "gelu"},
    "of one": {"conv_kernel_size": 1},
    "of five in groups": {"conv_kernel_size": 5, "conv_groups": 13},
    "without relative positions": {"conv_kernel_size": 3, "relative_attention": False, "pos_att_type": None},
}
AWKWARD = {
    "one head of 39": ({"num_attention_heads": 1}, [5, 3, 11]),
    "heads of 160": ({"hidden_size": 320, "num_attention_heads": 2, "num_hidden_layers": 1}, [7, 2]),
    "length 1": ({}, [1, 1, 1]),
    "lengths up to the longest": ({"position_biased_input": True, "max_position_embeddings": 11}, list(range(1, 12))),
    "longer than the positions": ({"max_position_embeddings": 24}, [53, 6]),
    "convolution, length 1": ({"conv_kernel_size": 3}, [1, 2, 1]),
}
UNUSED = ("cls.predictions.bias",)  # where the decoder has a bias of its own


def small_config(**changes):
    return config_of("DebertaV2", **changes)


@pytest.mark.parity
@pytest.mark.parametrize("task", TASKS)
def test_heads(cpu_backend, task):
    config = small_config(num_labels=3, **V3)
    check(config, task, padded_batch(config, [11, 1, 7], "right"))


@pytest.mark.parity
@pytest.mark.parametrize("name", POSITIONS)
def test_positions(cpu_backend, name):
    config = small_config(**POSITIONS[name])
    unwritten = UNUSED if "tie_word_embeddings" in POSITIONS[name] else ()
    check(config, "MaskedLM", padded_batch(config, [23, 1, 7], "right"), unwritten=unwritten)


@pytest.mark.parity
@pytest.mark.parametrize("task", ["MaskedLM", "QuestionAnswering"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("kind", ["right", "left", "holes"])
def test_convolutions_and_padding(cpu_backend, task, name, kind):
    # with padding on the left, transformers counts positions from the first column
    config = small_config(position_biased_input=kind != "left", **CONVOLUTIONS[name])
    check(config, task, padded_batch(config, [11, 1, 7], kind))


@pytest.mark.parity
@pytest.mark.parametrize(
    "task, kind",
    [
        *(("MaskedLM", "left"), ("QuestionAnswering", "left"), ("MaskedLM", "holes"), ("QuestionAnswering", "holes")),
        ("MultipleChoice", "holes"),  # with padding on the left, transformers classifies the first column, a padding
    ],
)
def test_padding(cpu_backend, task, kind):
    config = small_config(**V3)
    check(config, task, padded_batch(config, [11, 1, 7], kind))


@pytest.mark.parity
@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_configurations(cpu_backend, name):
    changes, lengths = AWKWARD[name]
    config = small_config(**V3 | changes)
    check(config, "MaskedLM", padded_batch(config, lengths, "right"))


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


@pytest.mark.parametrize("changes", [V3, {"conv_kernel_size": 3, "position_buckets": 6}], ids=["v3", "convolution"])
def test_backends_and_dtypes_agree(changes):
    check_backends(lambda **options: AutoModelForMaskedLM.from_config(TINY | changes, **options))


def test_components_of_choices(cpu_backend):
    model = drawn_anew(AutoModelForMultipleChoice.from_config(TINY | V3))
    ids = np.arange(1, 31).reshape(2, 3, 5)
    out = model(ids, output_attention_components=True)
    np.testing.assert_allclose(out.logits, model(ids).logits, rtol=0, atol=1e-6)
    for layer in out.attention_components:
        assert [term.shape for term in layer] == 3 * [(6, 2, 5, 5)]
        assert all(np.abs(term).max() > 0.1 for term in layer)
        assert not np.allclose(layer.content_to_position, layer.position_to_content, rtol=0, atol=0.05)


@pytest.mark.parametrize("groups", [1, 3])
def test_gradients_through_the_convolution(groups):
    """In float64 against finite differences, with holes that the convolution sees as zeros."""
    changes = {"conv_kernel_size": 3, "conv_groups": groups, "num_hidden_layers": 1, "num_labels": 2, **V3}
    model = AutoModelForTokenClassification.from_config(TINY | changes, dtype="float64")
    rng = np.random.default_rng(0)
    state = {name: rng.normal(0.0, 0.4, array.shape) for name, array in model.state_dict().items()}
    assert state["deberta.encoder.conv.conv.weight"].shape == (24, 24 // groups, 3)
    ids, mask = rng.integers(1, 40, (2, 6)), np.ones((2, 6), int)
    mask[0, 4:] = mask[1, 2] = 0
    batch = {"input_ids": ids, "attention_mask": mask, "labels": np.where(mask, ids % 2, -100)}

    def loss(values):
        model.load_state_dict(values)
        return float(model(**batch).loss)

    with use_backend("numpy"):
        loss(state)
        _, grads = value_and_grad(model)(**batch)
        for name in (name for name in state if "conv" in name or "embeddings" in name):
            way = rng.normal(0.0, 1.0, state[name].shape)
            ends = [loss(state | {name: state[name] + step * way}) for step in (1e-5, -1e-5)]
            np.testing.assert_allclose((grads[name] * way).sum(), (ends[0] - ends[1]) / 2e-5, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("changes", [V3, {"conv_kernel_size": 3, "relative_attention": False}])
def test_holes_are_columns(cpu_backend, changes):
    """Tokens beside a hole are two apart, which is not what they are without it; nothing sees the word in it."""
    model, ids = drawn_anew(AutoModel.from_config(TINY | changes)), np.array([[3, 4, 5, 6, 7]])
    holed = model(ids, [[1, 1, 0, 1, 1]]).last_hidden_state
    other = model([[3, 4, 9, 6, 7]], [[1, 1, 0, 1, 1]]).last_hidden_state
    np.testing.assert_array_equal(holed, other)
    assert not holed[0, 2].any()
    assert np.abs(holed[0, [0, 1, 3, 4]] - model([[3, 4, 6, 7]]).last_hidden_state[0]).max() > 0.05


def test_old_files_load(tmp_path):
    copies = {"cls.predictions.decoder.weight": "deberta.embeddings.word_embeddings.weight"}
    model = drawn_anew(AutoModelForMaskedLM.from_config(TINY | V3 | {"conv_kernel_size": 3}))
    check_spellings(model, tmp_path, prefix="deberta.", copies=copies)


@pytest.mark.parametrize("name, parameters", [("small", 141_304_320), ("base", 183_831_552), ("large", 434_012_160)])
def test_parameters(name, parameters):
    published = {"vocab_size": 128100, "position_buckets": 256, "max_position_embeddings": 512}
    assert AutoModel(TINY | V3 | SIZES[name] | published).num_parameters() == parameters


def test_configs_that_are_refused():
    refused = {"pos_att_type": ["p2p"], "norm_rel_ebd": "batch_norm", "conv_kernel_size": 4, "attention_head_size": 13}
    check_refused(AutoModel, TINY, refused)
    check_refused(AutoModel, TINY | {"conv_kernel_size": 3}, {"conv_groups": 5, "conv_act": "mish"})
    check_refused(AutoModel, TINY, {"position_buckets": 1})
    check_refused(AutoModel, TINY | {"position_biased_input": False}, {"position_buckets": 64})
    assert AutoModel({"model_type": "deberta-v2"}).spec.hidden_size == 1536
