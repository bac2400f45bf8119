"""Adapters of tasks: jina-embeddings-v3's in its weights file, jina-embeddings-v5-text-nano's in PEFT's files."""

import json

import numpy as np
import pytest

from bertcore import AutoModel, SentenceEncoder, use_backend
from bertcore.checkpoint import CheckpointError, save_checkpoint
from tests.models.family_checks import drawn_anew
from tests.models.family_table import FAMILIES
from tests.refusals import refuses
from tests.tokenization.family_folders import write_family
from tests.tolerances import assert_same_arrays

TINY = {
    "model_type": "xlm-roberta-flash", "vocab_size": 40, "hidden_size": 24, "num_attention_heads": 2,
    "num_hidden_layers": 2, "intermediate_size": 32, "max_position_embeddings": 24, "rotary_emb_base": 77.0,
    "position_embedding_type": "rotary",
    "auto_map": {"AutoModel": "jinaai/xlm-roberta-flash-implementation--modeling_lora.XLMRobertaLoRA"},
}  # fmt: skip
TASKS = ["retrieval.query", "separation", "text-matching"]
ADAPTED = TINY | {"lora_adaptations": TASKS, "lora_rank": 4, "lora_alpha": 2.0, "lora_dropout_p": 0.0}
V5 = FAMILIES["eurobert"].config | {
    "model_type": "jina_embeddings_v5", "task_names": TASKS[1:], "vocab_size": 61,
    "auto_map": {"AutoModel": "modeling_jina_embeddings_v5.JinaEmbeddingsV5Model"},
    "architectures": ["JinaEmbeddingsV5Model"],
}  # fmt: skip
ADAPTER = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "bias": "none", "target_modules": ["q_proj", "down_proj"]}


def test_published_keys_are_read():
    spec = AutoModel(TINY).spec
    assert {layer.rotary.theta for layer in spec.layers} == {77.0} and spec.longest_sequence == 24


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


def adapted_folder(folder, **changes):
    """A folder as published; the base weights' state, and that of each task."""
    rng, model = np.random.default_rng(0), drawn_anew(AutoModel.from_config(V5))
    state = dict(model.state_dict())
    save_checkpoint(folder, V5, {f"model.{name}": array for name, array in state.items()})
    weights = {None: state}
    for task in TASKS[1:]:
        factors, weights[task] = {}, dict(state)
        for name, array in state.items():
            if "q_proj" not in name and "down_proj" not in name:
                continue
            down, up = (rng.normal(0, 0.3, shape).astype("f4") for shape in ((4, array.shape[1]), (array.shape[0], 4)))
            stem = f"base_model.model.{name.removesuffix('.weight')}.lora_"
            factors |= {f"{stem}A.weight": down, f"{stem}B.weight": up}
            weights[task][name] = array + 2.0 * (up @ down)
        factors = changes.get("factors", lambda given: given)(factors)
        names = {"config_name": "adapter_config.json", "weights_name": "adapter_model.safetensors"}
        save_checkpoint(folder / "adapters" / task, ADAPTER | changes.get("config", {}), factors, **names)
    return weights


@pytest.mark.parametrize(("write", "saved_as"), [
    (adapted_file, "jina_embeddings_v3"), (adapted_folder, "eurobert"),
])  # fmt: skip
def test_an_adapter_is_added_to_the_weights(write, saved_as, tmp_path):
    """W + B A alpha / rank, the definition; without a task the model is that without adapters. None is saved."""
    for task, expected in write(tmp_path).items():
        model = AutoModel.from_pretrained(tmp_path, task=task)
        assert model.state_dict().keys() == expected.keys() and not model.newly_initialised
        for name, array in model.state_dict().items():
            np.testing.assert_allclose(array, expected[name], rtol=0, atol=1e-5, err_msg=name)
    with use_backend("numpy"):
        exact, low = (AutoModel.from_pretrained(tmp_path, task=TASKS[1], dtype=dtype) for dtype in (None, "int8"))
        exact, low = (each([[5, 9, 8]]).last_hidden_state for each in (exact, low))
        assert np.abs(exact - low).max() < 0.12 * np.abs(exact).max()
    model.save_pretrained(tmp_path / "saved")
    again = AutoModel.from_pretrained(tmp_path / "saved")
    assert again.config["model_type"] == saved_as
    assert not {key for key in again.config if key.startswith(("lora_", "task_names"))}
    assert_same_arrays(again.state_dict(), model.state_dict())
    refuses(ValueError, "task is 'separation', known are none", AutoModel.from_pretrained, tmp_path / "saved",
            task="separation")  # fmt: skip


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
    save_checkpoint(tmp_path, V5 | {"task_names": ["../separation"]}, AutoModel.from_config(V5).state_dict())
    refuses(ValueError, "task_names has '../separation'", AutoModel.from_pretrained, tmp_path, task="../separation")


@pytest.mark.parity
def test_peft_adds_the_same(tmp_path):
    import peft
    import torch
    import transformers

    weights = adapted_folder(tmp_path)
    config = transformers.EuroBertConfig(**{key: value for key, value in V5.items() if key != "model_type"})
    peer = transformers.EuroBertModel(config).eval()
    peer.load_state_dict({name: torch.from_numpy(array) for name, array in weights[None].items()})
    peer = peft.PeftModel.from_pretrained(peer, tmp_path / "adapters" / TASKS[1])
    with torch.no_grad():
        expected = peer(torch.tensor([[5, 9, 8]])).last_hidden_state.numpy()
    found = AutoModel.from_pretrained(tmp_path, task=TASKS[1])([[5, 9, 8]]).last_hidden_state
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


def test_a_folder_is_a_sentence_encoder_of_last_tokens(tmp_path):
    adapted_folder(tmp_path)
    write_family(tmp_path, "XLMRobertaTokenizer")
    modules = [{"idx": 0, "name": "transformer", "path": "", "type": "custom_st.Transformer"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    settings = {"prompts": {"query": "Query: ", "document": "Document: "}, "similarity_fn_name": "cosine"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(settings))
    with use_backend("numpy"):
        encoder = SentenceEncoder(tmp_path, task=TASKS[1])
        ids = encoder.tokenizer(["Query: the value"])["input_ids"]
        last = AutoModel.from_pretrained(tmp_path, task=TASKS[1])(ids).last_hidden_state[0, -1]
        expected = last / np.linalg.norm(last)
        np.testing.assert_allclose(encoder.encode_query("the value"), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("changes", "problem"), [
    ({"config": {"peft_type": "LOHA"}}, "peft_type is 'LOHA', expected 'LORA'"),
    ({"config": {"r": 0}}, "r is 0 and lora_alpha 8, expected positive numbers"),
    ({"config": {"r": 2}}, r"factors of model.layers.0\..* have the shapes .* expected factors of rank 2"),
    ({"config": {"use_dora": True}}, "use_dora is True, expected False"),
    ({"factors": lambda given: given | {"base_model.model.x.lora_A.weight": np.zeros((4, 4), "f4")}}, "x.lora_A"),
    ({"factors": lambda given: {k: v for k, v in given.items() if "lora_A" in k}}, r"shapes \[None, "),
])  # fmt: skip
def test_adapters_that_do_not_fit(tmp_path, changes, problem):
    adapted_folder(tmp_path, **changes)
    refuses(CheckpointError, problem, AutoModel.from_pretrained, tmp_path, task=TASKS[1])
