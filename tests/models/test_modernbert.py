"""ModernBERT: every head against transformers, keys of today and of before, programs."""

import numpy as np
import pytest

from bertcore import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification, use_backend
from tests.models.family_checks import check_backends, check_loads, check_refused, drawn_anew
from tests.models.family_parity import check, random_batch

TASKS = (*(None, "MaskedLM", "SequenceClassification", "TokenClassification", "QuestionAnswering", "MultipleChoice"),)
TINY = {
    "model_type": "modernbert", "vocab_size": 40, "hidden_size": 24, "num_attention_heads": 2, "num_hidden_layers": 4,
    "intermediate_size": 20, "pad_token_id": 3, "local_attention": 4,
}  # fmt: skip
BIASES = dict.fromkeys(("norm_bias", "attention_bias", "mlp_bias", "classifier_bias"), True)
LINEAR = {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}
# Configurations and the lengths of a batch's sequences.
AWKWARD = {
    "all biases": (BIASES | {"decoder_bias": False}, [9, 8, 11]),
    "heads of 160": ({"hidden_size": 320, "num_attention_heads": 2, "num_hidden_layers": 2}, [7, 2]),
    "heads of 2": ({"hidden_size": 6, "num_attention_heads": 3}, [23, 19]),
    "a window of the token alone": ({"local_attention": 1}, [6, 6]),
    "an odd window": ({"local_attention": 7}, [23, 20]),
    "a window wider than the texts": ({"local_attention": 64}, [8, 1, 31]),
    "longer than trained": ({"max_position_embeddings": 8}, [29, 26]),
    "other activations": ({"hidden_activation": "silu", "classifier_activation": "tanh"}, [13, 12]),
    "decoder of its own": ({"tie_word_embeddings": False, "pad_token_id": 5}, [6, 9]),
    "layers by name": ({"layer_types": ["sliding_attention", "full_attention"], "num_hidden_layers": 2}, [9, 8]),
    "thetas and scalings": ({"rope_parameters": {"full_attention": LINEAR, "sliding_attention": {"rope_theta": 10.0}}},
                            [31, 30]),
    "dynamic": ({"rope_parameters": {"full_attention": LINEAR | {"rope_type": "dynamic"}, "sliding_attention": {}},
                 "max_position_embeddings": 16}, [29, 29]),
}  # fmt: skip


def small_config(**changes):
    import transformers

    sizes = {"vocab_size": 61, "hidden_size": 36, "num_attention_heads": 3, "num_hidden_layers": 4,
             "intermediate_size": 25, "local_attention": 10, "norm_eps": 1e-3}  # fmt: skip
    words = {"pad_token_id": 60, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
    return transformers.ModernBertConfig(**sizes | words | {"num_labels": 3} | changes)


@pytest.mark.parity
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_heads(cpu_backend, task, pooling):
    if pooling == "mean" and task not in ("SequenceClassification", "MultipleChoice"):
        pytest.skip("without pooling")
    # transformers gives NaN where a token of padding has none within its window.
    window = {"local_attention": 24} if task == "QuestionAnswering" else {}
    config = small_config(classifier_pooling=pooling, **window)
    check(config, task, random_batch(config, [13, 9, 11], np.random.default_rng(1)))


@pytest.mark.parity
@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_configurations(cpu_backend, name):
    changes, lengths = AWKWARD[name]
    config = small_config(**changes)
    check(config, "MaskedLM", random_batch(config, lengths, np.random.default_rng(1)))


@pytest.mark.parity
@pytest.mark.parametrize("task", ["MaskedLM", "MultipleChoice"])
def test_left_padding_and_holes(cpu_backend, task):
    config = small_config(classifier_pooling="mean")
    batch = random_batch(config, [13, 9, 11], np.random.default_rng(2), padding="left")
    batch["attention_mask"][0, [2, 6]] = 0  # a window counts columns, whether they hold a word or not
    check(config, task, batch)


def test_backends_and_dtypes_agree():
    everywhere = TINY | {"layer_types": ["full_attention"] * 4}
    check_backends(lambda **options: AutoModelForMaskedLM.from_config(everywhere, **options))
    windows = {"lengths": (19, 1, 4), "on_gpu": False}  # where attention has none yet
    check_backends(lambda **options: AutoModelForMaskedLM.from_config(TINY, **options), **windows)


def test_a_program_holds_the_whole_encoder():
    model, ids = drawn_anew(AutoModel.from_config(TINY)), np.arange(38).reshape(2, 19) % 40
    with use_backend("numba"):
        found = [model(ids).last_hidden_state for _ in range(3)]
    (recordings,) = model.encoder._recordings.at(model.encoder.version)._kept.values()
    assert len(recordings) == 1
    with use_backend("numpy"):
        truth = model(ids).last_hidden_state
        far = model(np.where(np.arange(19) > 15, 7, ids)).last_hidden_state
    for hidden in found:
        np.testing.assert_allclose(hidden, truth, rtol=0, atol=2e-5)
    assert np.abs(far - truth)[:, 0].max() > 1e-3  # through the layers that see all


def test_a_text_does_not_change_with_its_padding(cpu_backend):
    """Also where padding is longer than the window, of which transformers makes NaN."""
    model, ids = drawn_anew(AutoModelForMaskedLM.from_config(TINY)), np.arange(6)[None] + 4
    padded = np.concatenate([np.full((1, 30), 3), ids, np.full((1, 9), 3)], axis=1)
    np.testing.assert_array_equal(model(padded, padded != 3).logits[:, 30:36], model(ids).logits)


def test_files_of_other_spellings_load(tmp_path):
    model = drawn_anew(AutoModelForMaskedLM.from_config(TINY))
    tensors = model.state_dict()
    buffers = {f"model.layers.{index}.attn.rotary_emb.inv_freq": np.ones(6, np.float32) for index in range(4)}
    check_loads(model, tmp_path, tensors | buffers)
    check_loads(model, tmp_path, {f"module.{name}": array for name, array in tensors.items()})
    words = tensors["model.embeddings.tok_embeddings.weight"]
    check_loads(model, tmp_path, tensors | {"decoder.weight": words})


def test_old_keys_say_the_same_as_new_ones():
    rope = {"full_attention": {"rope_theta": 30.0, "rope_type": "default"}, "sliding_attention": {"rope_theta": 20.0}}
    kinds = ["full_attention", "sliding_attention"] * 2
    new = AutoModel(TINY | {"rope_parameters": rope, "layer_types": kinds})
    old = {"global_rope_theta": 30.0, "local_rope_theta": 20, "global_attn_every_n_layers": 2}
    assert AutoModel(TINY | old).spec == new.spec
    assert [layer.window for layer in new.spec.layers] == [None, (2, 2)] * 2
    assert [layer.rotary.theta for layer in AutoModel(TINY).spec.layers] == [160_000, 10_000, 10_000, 160_000]


def test_configs_that_are_refused():
    refused = {
        "hidden_size": 25, "local_attention": 0, "layer_types": ["full_attention"], "global_rope_theta": -1,
        "global_attn_every_n_layers": 0, "norm_bias": 1, "hidden_activation": "mish", "classifier_pooling": "last",
        "rope_scaling": {"factor": 2}, "rope_parameters": 3, "max_position_embeddings": 2**30,
    }  # fmt: skip
    check_refused(AutoModelForSequenceClassification, TINY, refused)
    check_refused(AutoModel, TINY, {"layer_types": ["full_attention", "chunked", "full_attention", {}]})
    for section, message in (
        ({"rope_type": "yarn"}, r"rope_parameters\.full_attention\.rope_type is 'yarn'"),
        ({"rope_theta": 0}, r"rope_parameters\.full_attention\.rope_theta is 0"),
        ({"rope_type": "linear", "factor": 0.5}, r"rope_parameters\.full_attention\.factor is 0\.5"),
    ):
        with pytest.raises(ValueError, match=message):
            AutoModel(TINY | {"rope_parameters": {"full_attention": section}})
    with pytest.raises(ValueError, match="heads are 3 wide, expected an even width"):
        AutoModel(TINY | {"num_attention_heads": 8})
