"""The goldens themselves: complete, small, loadable by name, and still what transformers gives."""

from math import erf
from pathlib import Path

import numpy as np
import pytest

from bertcore.checkpoint import load_parameters, open_checkpoint, read_config
from bertcore.families.bert import BERT as FAMILY
from tests.goldens import FOLDERS

BERT = FAMILY.name_rules
NAMES = [folder.name for folder in FOLDERS]


def bert_shapes(config) -> dict[str, tuple[int, ...]]:
    """The parameters of BertForPreTraining, written out from the paper's architecture."""
    hidden, inner, words = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    shapes = {
        "embeddings.word_embeddings.weight": (words, hidden),
        "embeddings.position_embeddings.weight": (config["max_position_embeddings"], hidden),
        "embeddings.token_type_embeddings.weight": (config["type_vocab_size"], hidden),
    }
    linear = {"pooler.dense": (hidden, hidden)}
    norms = ["embeddings.LayerNorm"]
    for layer in range(config["num_hidden_layers"]):
        names = ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense")
        linear |= {f"encoder.layer.{layer}.{name}": (hidden, hidden) for name in names}
        linear[f"encoder.layer.{layer}.intermediate.dense"] = (inner, hidden)
        linear[f"encoder.layer.{layer}.output.dense"] = (hidden, inner)
        norms += [f"encoder.layer.{layer}.attention.output.LayerNorm", f"encoder.layer.{layer}.output.LayerNorm"]
    for name, shape in linear.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    for name in norms:
        shapes |= {f"{name}.weight": (hidden,), f"{name}.bias": (hidden,)}
    return shapes


def head_shapes(config) -> dict[str, tuple[int, ...]]:
    """The parameters of the masked-LM head."""
    hidden, words = config["hidden_size"], config["vocab_size"]
    shapes = {f"cls.predictions.transform.{part}.bias": (hidden,) for part in ("dense", "LayerNorm")}
    shapes["cls.predictions.transform.dense.weight"] = (hidden, hidden)
    shapes["cls.predictions.transform.LayerNorm.weight"] = (hidden,)
    if config["tie_word_embeddings"]:
        return shapes | {"cls.predictions.bias": (words,)}
    return shapes | {"cls.predictions.decoder.weight": (words, hidden), "cls.predictions.decoder.bias": (words,)}


def load(folder: Path) -> tuple[dict, dict[str, np.ndarray]]:
    """(config with defaults filled in, parameters of the masked-LM model by name)"""
    config = {"tie_word_embeddings": True} | read_config(folder)
    encoder = {f"bert.{name}": shape for name, shape in bert_shapes(config).items() if not name.startswith("pooler")}
    return config, load_parameters(open_checkpoint(folder), encoder | head_shapes(config), BERT)


@pytest.mark.parametrize("folder", FOLDERS, ids=NAMES)
def test_parameters_fit_and_have_gradients(folder):
    _, parameters = load(folder)
    truth = np.load(folder / "io.npz")
    gradients = {name.removeprefix("grad "): truth[name] for name in truth.files if name.startswith("grad ")}
    assert gradients.keys() == parameters.keys()
    for name, array in parameters.items():
        assert gradients[name].shape == array.shape
        assert np.abs(gradients[name]).max() > 1e-8 or name.endswith("self.key.bias")  # softmax ignores a key's bias


@pytest.mark.parametrize("folder", FOLDERS, ids=NAMES)
def test_encoder_and_pooler_load_from_it(folder):
    shapes = bert_shapes(read_config(folder))
    assert load_parameters(open_checkpoint(folder), shapes, BERT).keys() == shapes.keys()


@pytest.mark.parametrize("folder", FOLDERS, ids=NAMES)
def test_logits_follow_from_the_hidden_states(folder):
    """The names are the right ones: the head written out in NumPy float64 gives the golden logits, loss included."""
    config, parameters = load(folder)
    truth = np.load(folder / "io.npz")
    real = truth["attention_mask"].astype(bool)
    weights = {name.removeprefix("cls.predictions."): array.astype(np.float64) for name, array in parameters.items()}
    x = truth["hidden_states"][-1][real] @ weights["transform.dense.weight"].T + weights["transform.dense.bias"]
    x = {
        "gelu": lambda x: 0.5 * x * (1 + np.vectorize(erf)(x / np.sqrt(2))),
        "gelu_new": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
        "relu": lambda x: np.maximum(x, 0),
    }[config.get("hidden_act", "gelu")](x)
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + config.get("layer_norm_eps", 1e-12))
    x = x * weights["transform.LayerNorm.weight"] + weights["transform.LayerNorm.bias"]
    tied = config["tie_word_embeddings"]
    decoder, bias = ("bert.embeddings.word_embeddings.weight", "bias") if tied else ("decoder.weight", "decoder.bias")
    logits = x @ weights[decoder].T + weights[bias]
    np.testing.assert_allclose(logits, truth["logits"][real], rtol=0, atol=1e-12 * np.abs(logits).max())
    assert not truth["logits"][~real].any() and not truth["hidden_states"][:, ~real].any()

    labels = truth["labels"][real]
    scored = labels != -100
    log_sum = np.log(np.exp(logits).sum(-1))
    loss = (log_sum[scored] - logits[scored, labels[scored]]).mean()
    np.testing.assert_allclose(loss, truth["loss"], rtol=1e-12)
    assert (truth["labels"][~real] == -100).all()


def test_total_size():
    total = sum(file.stat().st_size for folder in FOLDERS for file in folder.iterdir())
    assert len(FOLDERS) == 6 and total < 1_000_000


@pytest.mark.parity
@pytest.mark.parametrize("folder", [folder for folder in FOLDERS if folder.name != "old_names"], ids=lambda f: f.name)
def test_transformers_still_gives_them(folder):
    import transformers

    from tests.goldens.make_goldens import outputs

    model = transformers.BertForPreTraining.from_pretrained(folder, attn_implementation="eager").eval().double()
    truth = np.load(folder / "io.npz")
    inputs = {name: truth[name] for name in ("input_ids", "attention_mask", "token_type_ids", "labels")}
    found = outputs(model, inputs)
    assert found.keys() | inputs.keys() == set(truth.files)
    for name, array in found.items():
        np.testing.assert_allclose(array, truth[name], rtol=1e-6 if array.dtype == np.float32 else 1e-11, atol=1e-10)


@pytest.mark.parity
def test_cases_cover_what_they_say():
    from tests.parity_cases import LENGTHS, MAX_POSITIONS, SEEDS, bert_case

    cases = [bert_case(seed) for seed in SEEDS]
    configs = [case.model.config for case in cases]
    assert {config.hidden_act for config in configs} == {"gelu", "relu", "gelu_new"}
    assert {config.tie_word_embeddings for config in configs} == {True, False}
    assert {config.type_vocab_size for config in configs} == {1, 2}
    assert {config.layer_norm_eps for config in configs} == {1e-12, 1e-5, 1e-3}
    assert 1 in {config.num_attention_heads for config in configs}
    for case, lengths in zip(cases, LENGTHS, strict=True):
        assert case.inputs["attention_mask"].sum(1).tolist() == lengths
        assert case.inputs["input_ids"].max() < case.model.config.vocab_size
        assert max(lengths) <= MAX_POSITIONS == case.model.config.max_position_embeddings
        assert (case.folder / "model.safetensors").is_file()
    assert bert_case(0) is cases[0]
