"""jina-embeddings-v5-text-nano: the adapters of tasks in PEFT's files, and its folder as a sentence encoder."""

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

TASKS = ["retrieval", "text-matching"]
CONFIG = FAMILIES["eurobert"].config | {
    "model_type": "jina_embeddings_v5", "task_names": TASKS, "vocab_size": 61,
    "auto_map": {"AutoModel": "modeling_jina_embeddings_v5.JinaEmbeddingsV5Model"},
    "architectures": ["JinaEmbeddingsV5Model"],
}  # fmt: skip
ADAPTER = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "bias": "none", "target_modules": ["q_proj", "down_proj"]}


def adapted_folder(folder, **changes):
    """A folder as published; the base weights' state, and that of each task."""
    rng, model = np.random.default_rng(0), drawn_anew(AutoModel.from_config(CONFIG))
    state = dict(model.state_dict())
    save_checkpoint(folder, CONFIG, {f"model.{name}": array for name, array in state.items()})
    weights = {None: state}
    for task in TASKS:
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


def test_an_adapter_is_added_to_the_weights(tmp_path):
    for task, expected in adapted_folder(tmp_path).items():
        model = AutoModel.from_pretrained(tmp_path, task=task)
        found = model.state_dict()
        assert found.keys() == expected.keys() and not model.newly_initialised
        for name, array in found.items():
            np.testing.assert_allclose(array, expected[name], rtol=0, atol=1e-5, err_msg=name)
    model.save_pretrained(tmp_path / "saved")
    again = AutoModel.from_pretrained(tmp_path / "saved")
    assert again.config["model_type"] == "eurobert" and "task_names" not in again.config
    assert_same_arrays(again.state_dict(), found)
    with use_backend("numpy"):
        exact, low = (AutoModel.from_pretrained(tmp_path, task=TASKS[0], dtype=dtype) for dtype in (None, "int8"))
        exact, low = (each([[5, 9, 8]]).last_hidden_state for each in (exact, low))
        assert np.abs(exact - low).max() < 0.12 * np.abs(exact).max()


@pytest.mark.parity
def test_peft_adds_the_same(tmp_path):
    import peft
    import torch
    import transformers

    weights = adapted_folder(tmp_path)
    config = transformers.EuroBertConfig(**{key: value for key, value in CONFIG.items() if key != "model_type"})
    peer = transformers.EuroBertModel(config).eval()
    peer.load_state_dict({name: torch.from_numpy(array) for name, array in weights[None].items()})
    peer = peft.PeftModel.from_pretrained(peer, tmp_path / "adapters" / TASKS[1])
    with torch.no_grad():
        expected = peer(torch.tensor([[5, 9, 8]])).last_hidden_state.numpy()
    found = AutoModel.from_pretrained(tmp_path, task=TASKS[1])([[5, 9, 8]]).last_hidden_state
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


def test_its_folder_is_a_sentence_encoder_of_last_tokens(tmp_path):
    adapted_folder(tmp_path)
    write_family(tmp_path, "XLMRobertaTokenizer")
    modules = [{"idx": 0, "name": "transformer", "path": "", "type": "custom_st.Transformer"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    settings = {"prompts": {"query": "Query: ", "document": "Document: "}, "similarity_fn_name": "cosine"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(settings))
    with use_backend("numpy"):
        encoder = SentenceEncoder(tmp_path, task="retrieval")
        ids = encoder.tokenizer(["Query: the value"])["input_ids"]
        last = AutoModel.from_pretrained(tmp_path, task="retrieval")(ids).last_hidden_state[0, -1]
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
    refuses(CheckpointError, problem, AutoModel.from_pretrained, tmp_path, task=TASKS[0])


def test_tasks_that_are_not_there(tmp_path):
    adapted_folder(tmp_path)
    known = "task is 'clustering', known are retrieval, text-matching"
    refuses(ValueError, known, AutoModel.from_pretrained, tmp_path, task="clustering")
    save_checkpoint(tmp_path, CONFIG | {"task_names": ["../retrieval"]}, AutoModel.from_config(CONFIG).state_dict())
    refuses(ValueError, "task_names has '../retrieval'", AutoModel.from_pretrained, tmp_path, task="../retrieval")
