"""Jina v3: published keys, and the adapters of tasks."""

import numpy as np
import pytest

from bertcore import AutoModel, SentenceEncoder, use_backend
from bertcore.checkpoint import CheckpointError, save_checkpoint
from tests.models.family_checks import drawn_anew
from tests.refusals import refuses
from tests.tokenization.family_folders import write_family
from tests.tolerances import assert_same_arrays

TINY = {
    "model_type": "xlm-roberta-flash", "vocab_size": 40, "hidden_size": 24, "num_attention_heads": 2,
    "num_hidden_layers": 2, "intermediate_size": 32, "max_position_embeddings": 24, "rotary_emb_base": 77.0,
    "position_embedding_type": "rotary",
    "auto_map": {"AutoModel": "jinaai/xlm-roberta-flash-implementation--modeling_lora.XLMRobertaLoRA"},
}  # fmt: skip


def test_published_keys_are_read():
    spec = AutoModel(TINY).spec
    assert {layer.rotary.theta for layer in spec.layers} == {77.0} and spec.longest_sequence == 24


TASKS = ["retrieval.query", "separation", "text-matching"]
ADAPTED = TINY | {"lora_adaptations": TASKS, "lora_rank": 4, "lora_alpha": 2.0, "lora_dropout_p": 0.0}


def adapted_file(folder, *, without=()):
    """A file as published: every map and every table parametrized. Its originals, and the weights of each task."""
    rng, model = np.random.default_rng(0), drawn_anew(AutoModel.from_config(TINY))
    weights, tensors = [model.state_dict() | {} for _ in (None, *TASKS)], {}
    for name, array in model.state_dict().items():
        if array.ndim < 2:
            tensors[f"roberta.{name}"] = array
            continue
        stem, (rows, columns) = f"roberta.{name.removesuffix('weight')}parametrizations.weight.", array.shape
        left, right = rng.normal(0, 0.3, (3, rows, 4)).astype("f4"), rng.normal(0, 0.3, (3, 4, columns)).astype("f4")
        is_table = "embeddings" in name  # lora_A has a table's rows
        factors = {"0.lora_A": left if is_table else right, "0.lora_B": right if is_table else left}
        tensors |= {f"{stem}{part}": values for part, values in ({"original": array} | factors).items()}
        for task in range(3):
            weights[task + 1][name] = array + 2.0 / 4 * (left[task] @ right[task])
    for name in without:
        del tensors[name]
    save_checkpoint(folder, ADAPTED, tensors)
    return dict(zip((None, *TASKS), weights, strict=True))


def test_an_adapter_is_added_to_the_weights(tmp_path):
    """W + B A alpha / rank, the definition; without a task the model is that without adapters."""
    for task, expected in adapted_file(tmp_path).items():
        model = AutoModel.from_pretrained(tmp_path, task=task)
        assert model.state_dict().keys() == expected.keys() and not model.newly_initialised
        for name, array in model.state_dict().items():
            np.testing.assert_allclose(array, expected[name], rtol=0, atol=1e-6, err_msg=name)
    with use_backend("numpy"):
        plain, query = (AutoModel.from_pretrained(tmp_path, task=task)([[5, 9, 8]]) for task in (None, TASKS[0]))
        assert np.abs(plain.last_hidden_state - query.last_hidden_state).max() > 0.1
        model = AutoModel.from_pretrained(tmp_path, task=TASKS[0], dtype="int8")
        error = np.abs(model([[5, 9, 8]]).last_hidden_state - query.last_hidden_state).max()
        assert error < 0.1 * np.abs(query.last_hidden_state).max()


def test_a_sentence_encoder_of_a_task(tmp_path):
    adapted_file(tmp_path)
    write_family(tmp_path, "XLMRobertaTokenizer")
    with use_backend("numpy"):
        plain, query = (SentenceEncoder(tmp_path, task=task) for task in (None, TASKS[0]))
        ids = query.tokenizer(["the value"])["input_ids"]
        expected = AutoModel.from_pretrained(tmp_path, task=TASKS[0])(ids).last_hidden_state[0].mean(axis=0)
        np.testing.assert_allclose(query.encode("the value"), expected, rtol=0, atol=1e-5)
        assert np.abs(plain.encode("the value") - expected).max() > 0.1
        np.testing.assert_array_equal(query.encode("the value", task=TASKS[0]), query.encode("the value"))
        with pytest.raises(ValueError, match=rf"task is .{TASKS[1]}., but .* adapter for .{TASKS[0]}. in"):
            query.encode("the value", task=TASKS[1])
        with pytest.raises(ValueError, match=rf"has no task's adapter .*SentenceEncoder\(folder, task='{TASKS[0]}'\)"):
            plain.encode_stream(["the value"], task=TASKS[0])


def test_an_adapted_model_is_saved_without_its_adapters(tmp_path):
    adapted_file(tmp_path / "published")
    model = AutoModel.from_pretrained(tmp_path / "published", task=TASKS[1])
    model.save_pretrained(tmp_path / "saved")
    again = AutoModel.from_pretrained(tmp_path / "saved")
    assert not {key for key in again.config if key.startswith("lora_")}
    assert_same_arrays(again.state_dict(), model.state_dict())
    with pytest.raises(ValueError, match="task is 'separation', known are none"):
        AutoModel.from_pretrained(tmp_path / "saved", task=TASKS[1])


def test_adapters_that_are_not_there(tmp_path):
    adapted_file(tmp_path)
    with pytest.raises(ValueError, match=r"task is 'retrieval', known are retrieval\.query, separation, text-"):
        AutoModel.from_pretrained(tmp_path, task="retrieval")
    adapted_file(tmp_path, without=["roberta.encoder.layers.1.mixer.Wqkv.parametrizations.weight.0.lora_B"])
    with pytest.raises(CheckpointError, match=r"layers\.1\.mixer\.Wqkv.*shapes \(3, 4, 24\) and None, expected"):
        AutoModel.from_pretrained(tmp_path, task=TASKS[2])
    save_checkpoint(tmp_path, ADAPTED, AutoModel.from_config(TINY).state_dict())
    refuses(CheckpointError, "holds no adapters", AutoModel.from_pretrained, tmp_path, task=TASKS[2])
    wrong = {"lora_adaptations": ["a", "a"], "lora_rank": 0, "lora_alpha": -1}
    for key, value in wrong.items():
        save_checkpoint(tmp_path, ADAPTED | {key: value}, AutoModel.from_config(TINY).state_dict())
        refuses(ValueError, f"config: {key} is", AutoModel.from_pretrained, tmp_path)
