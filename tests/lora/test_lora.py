"""Adapters of low rank: what they compute, what is trained, what is saved."""

import json
import math

import numpy as np
import pytest
from safetensors.numpy import load_file

from bertcore import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification, kernels, value_and_grad
from bertcore.checkpoint import CheckpointError
from bertcore.lora import LoraConfig, PeftModel, get_peft_model
from bertcore.training import AdamW, Trainer, TrainingArguments
from bertcore.training.objectives import MultipleNegativesRankingLoss
from tests.checkpoint.files import write_tensors
from tests.refusals import refuses
from tests.tiny_bert import CONFIG
from tests.tiny_families import drawn_anew, runnable, tiny_config
from tests.tolerances import assert_same_arrays

RNG = np.random.default_rng(3)
IDS = RNG.integers(6, 60, (3, 11))
LABELS = np.where(RNG.random(IDS.shape) < 0.5, IDS, -100)
LABELS[0, 0] = 7
BATCH = {"input_ids": IDS, "labels": LABELS}
QUERY = "bert.encoder.layer.0.attention.self.query"
TOLERANCE = {"float64": 1e-11, "float32": 2e-5}  # of the results' scale


def query_and_value(**options):
    return LoraConfig(**{"r": 3, "lora_alpha": 7, "target_modules": ["query", "value"]} | options)


def new_model(kind=AutoModelForMaskedLM, dtype="float32", **config):
    return kind.from_config(CONFIG | config, dtype=dtype, seed=1)


def drawn(adapted, seed=0):
    """An adapted model, with adapters that change much."""
    rng, state = np.random.default_rng(seed), adapted.state_dict()
    adapted.load_state_dict({name: rng.normal(0.0, 0.2, array.shape) for name, array in state.items()})
    return adapted


def test_new_adapters_change_nothing(cpu_backend):
    model = new_model()
    expected = model(IDS).logits
    adapted = get_peft_model(model, query_and_value())
    np.testing.assert_array_equal(adapted(IDS).logits, expected)
    state = adapted.state_dict()
    down = state[f"{QUERY}.lora_A.weight"] * 39**0.5
    assert down.shape == (3, 39) and -1 <= down.min() < -0.8 and 0.8 < down.max() <= 1  # uniform
    assert not state[f"{QUERY}.lora_B.weight"].any()


@pytest.mark.parametrize("rs, scale", [(False, 7 / 3), (True, 7 / 3**0.5)])
def test_the_definition(cpu_dtype, rs, scale):
    """The same as a model whose weights have the products; the key, of the same joined map, has none."""
    tolerance = TOLERANCE[cpu_dtype]
    adapted = drawn(get_peft_model(new_model(dtype=cpu_dtype), query_and_value(use_rslora=rs)))
    state, plain = adapted.state_dict(), new_model(dtype=cpu_dtype)
    whole = {name: np.array(array) for name, array in plain.state_dict().items()}
    for name in whole:
        if name.endswith(("query.weight", "value.weight")):
            down, up = (state[name.replace("weight", f"lora_{factor}.weight")] for factor in "AB")
            whole[name] += scale * up @ down
    plain.load_state_dict(whole)
    expected = plain(IDS).logits
    np.testing.assert_allclose(adapted(IDS).logits, expected, rtol=0, atol=tolerance * np.abs(expected).max())
    merged = adapted.merge_and_unload()
    for name, array in merged.state_dict().items():
        np.testing.assert_allclose(array, whole[name], rtol=0, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("name", runnable())
def test_all_linear_maps_of_every_family(name):
    with kernels.use_backend("numpy"):
        model = drawn_anew(AutoModel.from_config(tiny_config(name), dtype="float64"))
        before = model(IDS)[0]
        adapted = drawn(get_peft_model(model, LoraConfig(r=2, target_modules="all-linear")))
        weights = {weight for layer in model.encoder.layers for weight in layer.token_weights()}
        assert {adapter.adapted for adapter in adapted.adapters} >= weights
        found = adapted(IDS)[0]
        merged = adapted.merge_and_unload()
        scale = np.abs(found).max()
        assert np.abs(found - before).max() > 1e-2 * scale
        np.testing.assert_allclose(found, merged(IDS)[0], atol=1e-11 * scale)


@pytest.mark.parametrize("name", ["bert-base-uncased", "deberta-base", "deberta-v3-base", "modernbert-base"])
def test_gradients_follow_from_those_of_the_whole_weights(cpu_dtype, name):
    """Of W + s B A by A and B: s Bᵀ dW and s dW Aᵀ; nothing else gets any."""
    adapted = AutoModelForMaskedLM.from_config(tiny_config(name), dtype=cpu_dtype, seed=1)
    adapted = drawn(get_peft_model(drawn_anew(adapted), LoraConfig(r=3, lora_alpha=6, target_modules="all-linear")))
    _, grads = value_and_grad(adapted)(**BATCH)
    factors = {name: np.array(array) for name, array in adapted.state_dict().items()}
    assert grads.keys() == factors.keys()
    _, whole = value_and_grad(adapted.merge_and_unload())(**BATCH)
    largest = max(np.abs(array).max() for array in whole.values())
    for name in factors:
        of_map = whole[name.replace(".lora_A", "").replace(".lora_B", "")]
        if "lora_A" in name:
            expected = 2 * factors[name.replace("lora_A", "lora_B")].T @ of_map
        else:
            expected = 2 * of_map @ factors[name.replace("lora_B", "lora_A")].T
        np.testing.assert_allclose(grads[name], expected, rtol=0, atol=TOLERANCE[cpu_dtype] * largest, err_msg=name)


def train(model, steps=3, **options):
    optimizer, losses = AdamW(model, lr=0.02, **options), []
    for _ in range(steps):
        out, grads = value_and_grad(model)(**BATCH)
        optimizer.step(grads)
        losses.append(float(out.loss))
    return losses


def test_the_base_stays_and_is_packed_once():
    adapted = get_peft_model(new_model(dtype="float32"), query_and_value())
    base = adapted.get_base_model()
    before = {name: np.array(array) for name, array in base.state_dict().items()}
    train(adapted, 1)
    weights = [parameter.forms.weights.get(("numba", 0)) for parameter in base.parameters()]
    losses = train(adapted, 4)
    assert losses[-1] < losses[0]
    assert [parameter.forms.weights.get(("numba", 0)) for parameter in base.parameters()] == weights
    assert any(weight is not None for weight in weights)
    assert_same_arrays(base.state_dict(), before)


def test_programs_follow_the_adapters():
    adapted = new_model(dtype="float32")
    for change in (
        lambda model: model,
        lambda model: drawn(get_peft_model(model, query_and_value())),
        lambda model: (train(model, 1), model)[1],
        lambda model: drawn(model, seed=5),
        lambda model: model.merge_and_unload(),
    ):
        adapted = change(adapted)
        with kernels.use_backend("numpy"):
            expected = adapted(IDS).logits
        for _ in range(3):  # the second pass is recorded, the third replayed
            np.testing.assert_allclose(adapted(IDS).logits, expected, atol=1e-4 * np.abs(expected).max())


def test_modules_to_save_are_trained_and_saved(tmp_path):
    targets = ["query", "value", "classifier"]  # the last one is trained whole
    config = query_and_value(target_modules=targets, modules_to_save=["pooler"], task_type="SEQ_CLS")
    adapted = get_peft_model(new_model(AutoModelForSequenceClassification, num_labels=3), config)
    labels = np.array([0, 2, 1])
    _, grads = value_and_grad(adapted)(input_ids=IDS, labels=labels)
    whole = {name for name in grads if "lora" not in name}
    assert whole == {f"{name}.{kind}" for name in ("bert.pooler.dense", "classifier") for kind in ("weight", "bias")}
    AdamW(adapted, lr=0.1).step(grads)
    adapted.save_pretrained(tmp_path)
    again = PeftModel.from_pretrained(new_model(AutoModelForSequenceClassification, num_labels=3), tmp_path)
    np.testing.assert_array_equal(again(IDS).logits, adapted(IDS).logits)
    refuses(ValueError, "frozen", value_and_grad(again), input_ids=IDS, labels=labels)
    fresh = new_model(AutoModelForSequenceClassification, num_labels=3)
    again = PeftModel.from_pretrained(fresh, tmp_path, is_trainable=True)
    assert value_and_grad(again)(input_ids=IDS, labels=labels)[1].keys() == grads.keys()


@pytest.mark.parametrize("bias, trained", [("lora_only", ("query", "value")), ("all", ("query", "key", "value"))])
def test_ranks_and_biases_of_some_maps_of_a_joined_one(tmp_path, cpu_backend, bias, trained):
    """Query, key and value are one map; each trains its own rank and bias, and the key may train neither."""
    config = query_and_value(rank_pattern={"value": 2}, alpha_pattern={"query": 5}, bias=bias)
    adapted = get_peft_model(new_model(), config)
    start = {name: np.array(array) for name, array in adapted.get_base_model().state_dict().items()}
    losses = train(adapted, 4)
    assert losses[-1] < losses[0]
    layer = QUERY.removesuffix(".query")
    ends = adapted.get_base_model().state_dict()
    for name in ("query", "key", "value"):
        key = f"{layer}.{name}.bias"
        assert (ends[key] != start[key]).any() == (name in trained)
        np.testing.assert_array_equal(ends[f"{layer}.{name}.weight"], start[f"{layer}.{name}.weight"])
    adapted = drawn(adapted)
    adapted.save_pretrained(tmp_path)
    names = list(load_file(tmp_path / "adapter_model.safetensors"))
    assert f"base_model.model.{QUERY}.base_layer.bias" in names
    assert (f"base_model.model.{layer}.key.bias" in names) == ("key" in trained)
    sizes = [math.prod(shape) for shape in adapted.expected_tensors().values()]
    assert adapted.get_nb_trainable_parameters()[0] == sum(sizes)
    again, expected = PeftModel.from_pretrained(new_model(), tmp_path), adapted(IDS).logits
    np.testing.assert_array_equal(again(IDS).logits, expected)
    merged = adapted.merge_and_unload()
    np.testing.assert_allclose(merged(IDS).logits, expected, atol=2e-5 * np.abs(expected).max())
    assert value_and_grad(merged)(**BATCH)[1][f"{layer}.value.bias"].any()


def test_a_file_without_the_biases_of_its_config(tmp_path):
    """The model's own stay, as in PEFT, which has not always written them."""
    adapted = drawn(get_peft_model(new_model(), query_and_value()))
    adapted.save_pretrained(tmp_path)
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"bias": "lora_only"}))
    with pytest.warns(UserWarning, match="has no biases, expected some for bias 'lora_only': the model's own stay"):
        again = PeftModel.from_pretrained(new_model(), tmp_path)
    np.testing.assert_array_equal(again(IDS).logits, adapted(IDS).logits)


def test_dropout_of_adapters():
    """It is that of the adapters' input alone, the same for the same seed, and where layers run again."""
    rates = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    adapted = drawn(get_peft_model(new_model(**rates), query_and_value(lora_dropout=0.4)))
    still = adapted(IDS).logits
    out, grads = value_and_grad(adapted.train(seed=3))(**BATCH)
    assert (out.logits != still).any()
    adapted.gradient_checkpointing_enable()
    again, same = value_and_grad(adapted.train(seed=3))(**BATCH)
    assert again.loss == out.loss
    assert_same_arrays(same, grads)
    np.testing.assert_array_equal(adapted.eval()(IDS).logits, still)


def test_the_dropout_of_an_adapted_model_is_that_of_its_base():
    """Chunks drop in their second pass what they dropped in the first; what an evaluation switches is switched back."""
    adapted = get_peft_model(new_model(AutoModel), query_and_value())
    MultipleNegativesRankingLoss(mini_batch_size=2).value_and_grad(
        adapted.train(seed=3), {"input_ids": IDS[:, :10].reshape(3, 2, 5)}
    )
    assert adapted.passes == adapted.get_base_model().passes == 3
    adapted.training = False
    assert not adapted.get_base_model().training
    assert adapted.train().training


def test_counts(capsys):
    model = new_model()
    whole, adapted = model.num_parameters(), get_peft_model(model, query_and_value())
    trained = 2 * 2 * (3 * 39 + 39 * 3)
    assert adapted.get_nb_trainable_parameters() == (trained, whole + trained)
    adapted.print_trainable_parameters()
    assert capsys.readouterr().out.startswith(f"trainable params: {trained:,} || all params: {whole + trained:,} ||")
    merged = adapted.merge_and_unload()
    assert not any(parameter.is_frozen for parameter in merged.parameters())
    get_peft_model(merged, query_and_value())


@pytest.mark.parametrize("options, error", [
    ({"target_modules": ["colour"]}, "matches no linear layer"),
    ({"target_modules": ["LayerNorm"]}, "LayerNorm.weight is not the weight of a linear layer"),
    ({"target_modules": ["word_embeddings"]}, "word_embeddings.weight is not the weight of a linear layer"),
    ({"modules_to_save": ["colour"]}, "'colour' is not a module"),
    ({"modules_to_save": ["query"]}, "are one parameter"),
    ({"modules_to_save": ["attention"]}, "matches no linear layer"),  # but what is trained as it is
    ({"target_modules": "query"}, "matches no linear layer"),  # a regular expression for the whole name
    ({"target_modules": [1]}, r"target_modules\[0\] is int, expected str"),
    ({"modules_to_save": 3}, "modules_to_save is 3, expected a list of strings"),
    ({"target_modules": "(query"}, "expected a regular expression"),
    ({"target_modules": "(.*.*.*.*.*.*.*.*)*x"}, r"pattern '.*' takes more than 100,000 steps to match"),
    ({"exclude_modules": "(.*.*.*.*.*.*.*.*)*x"}, "takes more than 100,000 steps"),
    ({"rank_pattern": {"(.*.*.*.*.*.*.*.*)*x": 1}}, "takes more than 100,000 steps"),
    ({"target_modules": r"(.)\1"}, "it has a groupref, which is not supported"),
    ({"target_modules": "a*+"}, "it has a possessive_repeat, which is not supported"),
    ({"target_modules": "a{4294967296}"}, "expected a regular expression: the repetition number is too large"),
    ({"target_modules": "(" * 900 + ")" * 900}, "expected a regular expression: it is nested too deeply"),
    ({"target_modules": "a" * 2001}, "expected a regular expression: it has 2001 characters, expected at most 2000"),
    ({"r": 0}, "r is 0"),
    ({"lora_alpha": 0}, "lora_alpha is 0"),
    ({"lora_dropout": 1.0}, "lora_dropout is 1.0"),
    ({"task_type": "CHESS"}, "task_type is 'CHESS'"),
    ({"bias": "lora"}, "bias is 'lora', expected one of 'none', 'lora_only', 'all'"),
    ({"exclude_modules": ["query", "value"]}, "matches no linear layer"),
    ({"exclude_modules": "(query"}, r"exclude_modules is '\(query', expected a regular expression"),
    ({"rank_pattern": {"query": 0}}, r"rank_pattern\['query'\] is 0, expected a positive integer"),
    ({"rank_pattern": {"(": 2}}, r"rank_pattern is '\(', expected a regular expression"),
    ({"alpha_pattern": {"query": -1}}, r"alpha_pattern\['query'\] is -1"),
    ({"layers_to_transform": [7]}, "matches no linear layer"),
    ({"layers_to_transform": -1}, "layers_to_transform is -1"),
    ({"layers_pattern": "layer"}, "layers_pattern is given without layers_to_transform"),
    ({"target_modules": "all-linear", "layers_to_transform": 0}, "expected None if target_modules is a string"),
])  # fmt: skip
def test_invalid_settings(options, error):
    model = new_model()
    refuses((TypeError, ValueError), error, lambda: get_peft_model(model, query_and_value(**options)))
    assert not any(parameter.is_frozen or parameter.adapter for parameter in model.parameters())


def test_default_targets():
    adapted = get_peft_model(new_model(), LoraConfig())
    assert adapted.peft_config.target_modules == ["query", "value"] and len(adapted.adapters) == 2
    error = "target_modules is None, expected names of layers: mpnet has no default"
    refuses(ValueError, error, LoraConfig().for_model, "mpnet")


def test_an_adapted_model_is_adapted_once_and_trained_as_one():
    model = new_model()
    adapted = get_peft_model(model, query_and_value(target_modules=r".*layer\.1.*(query|dense)"))
    assert len(adapted.state_dict()) == 8
    for given in (model, adapted):
        refuses(ValueError, "adapters already", get_peft_model, given, query_and_value())
    refuses(TypeError, "peft_config is dict, expected a LoraConfig", get_peft_model, new_model(), {"r": 8})
    refuses(ValueError, "differentiate the PeftModel made from it", value_and_grad(model), **BATCH)
    with pytest.raises(ValueError, match="model is in int8, which has no gradients"):
        get_peft_model(new_model(dtype="int8"), query_and_value())


@pytest.mark.parametrize("damage", ["missing", "unknown", "shape"])
def test_files_and_states_that_do_not_fit_change_nothing(tmp_path, damage):
    adapted, name = drawn(get_peft_model(new_model(), query_and_value())), f"{QUERY}.lora_B.weight"
    before = {name: np.array(array) for name, array in adapted.state_dict().items()}
    state = {name: 2 * array for name, array in before.items()}
    state[name + "x" * (damage == "unknown")] = np.ones((2, 2))
    if damage == "missing":
        del state[name]
    refuses(ValueError, name, adapted.load_state_dict, state)
    assert_same_arrays(adapted.state_dict(), before)
    adapted.save_pretrained(tmp_path)
    tensors = {f"base_model.model.{name}": array for name, array in state.items()}
    write_tensors(tmp_path / "adapter_model.safetensors", tensors)
    model = new_model()
    refuses(CheckpointError, name, PeftModel.from_pretrained, model, tmp_path)
    assert not any(parameter.is_frozen or parameter.adapter for parameter in model.parameters())


@pytest.mark.parametrize("changes, error", [
    ({"target_modules": None}, "no target_modules"),
    ({"use_dora": True}, "asks for options that are not supported: use_dora"),
    ({"rank_pattern": {"query": 4}}, r"arrays\['.*query.lora_A.weight'\] has shape \(3, 39\), expected \(4, 39\)"),
    ({"bias": "all"}, "'bert.embeddings.LayerNorm.bias' is missing"),
    ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
    ({"r": "8"}, "r is '8'"),
    *(({"init_lora_weights": name}, f"init_lora_weights is '{name}'") for name in ("pissa", "olora")),
    ({"modules_to_save": 1.5}, "adapter_config.json: .*not iterable"),
    ({"task_type": []}, "adapter_config.json: "),
])  # fmt: skip
def test_files_of_other_adapters(tmp_path, changes, error):
    get_peft_model(new_model(), query_and_value()).save_pretrained(tmp_path)
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    refuses(ValueError, error, PeftModel.from_pretrained, new_model(), tmp_path)


@pytest.mark.parametrize("bias", ["none", "lora_only"])
def test_a_run_of_adapters_goes_on_from_its_checkpoint(tmp_path, bias):
    """The Trainer saves adapters alone, and a resumed run ends with the bits of a whole one."""
    texts = [{"input_ids": row, "labels": labels} for row, labels in zip(IDS, LABELS, strict=True)]

    def collate(examples):
        return {name: np.stack([example[name] for example in examples]) for name in BATCH}

    def trained(folder, steps, seed=1, **options):
        config = query_and_value(lora_dropout=0.2, bias=bias)
        model = get_peft_model(AutoModelForMaskedLM.from_config(CONFIG, seed=seed), config)
        settings = {"save_steps": 2, "per_device_train_batch_size": 2, "lr_scheduler_type": "constant"}
        args = TrainingArguments(folder, max_steps=steps, **settings)
        Trainer(model, args, collate, texts).train(**options)
        return model

    whole = trained(tmp_path / "whole", 4)
    trained(tmp_path / "parts", 2)
    resumed = trained(tmp_path / "parts", 4, resume_from_checkpoint=True)
    files = {path.name for path in (tmp_path / "whole" / "checkpoint-4").iterdir()}
    assert "adapter_model.safetensors" in files and "model.safetensors" not in files
    assert_same_arrays(resumed.state_dict(), whole.state_dict())
    with pytest.raises(ValueError, match="fingerprint of the weights beside the adapters is"):
        trained(tmp_path / "parts", 6, seed=2, resume_from_checkpoint=True)


def test_a_merge_that_cannot_be_made_changes_nothing(tmp_path):
    """int8 has no form for inf; the first maps could be merged, the last one could not."""
    drawn(get_peft_model(new_model(dtype="float32"), query_and_value())).save_pretrained(tmp_path)
    adapted = PeftModel.from_pretrained(new_model(dtype="int8"), tmp_path)
    expected, last = adapted(IDS).logits, adapted.adapters[-1]
    up = last.up.array().copy()
    last.up.update(np.full_like(up, np.inf))
    with pytest.raises(ValueError, match=r"value.weight.*inf or NaN"), np.errstate(invalid="ignore"):
        adapted.merge_and_unload()
    last.up.update(up)
    np.testing.assert_array_equal(adapted(IDS).logits, expected)
    assert all(adapter.adapted.adapter is adapter for adapter in adapted.adapters)
    adapted.merge_and_unload()


def test_adapters_beside_maps_in_bfloat16(cpu_backend):
    """Their gradients are those beside the same weights in float32, but for the rounding of what is multiplied."""
    low, plain = new_model(dtype="bfloat16"), new_model(dtype="float32")
    plain.load_state_dict({name: array.astype(np.float32) for name, array in low.state_dict().items()})
    models = [drawn(get_peft_model(model, query_and_value())) for model in (low, plain)]
    (out, grads), (expected, expected_grads) = (value_and_grad(model)(**BATCH) for model in models)
    assert out.loss == pytest.approx(expected.loss, rel=0.02)
    assert cpu_backend == "numba" or out.loss != expected.loss  # Numba keeps inputs in float32 on some CPUs
    assert grads.keys() == expected_grads.keys()
    found, other = (np.concatenate([part.ravel() for part in some.values()]) for some in (grads, expected_grads))
    assert found.dtype == np.float32
    assert np.linalg.norm(found - other) < 0.05 * np.linalg.norm(other)
    before = low.state_dict()
    AdamW(models[0], lr=0.01).step(grads)
    assert value_and_grad(models[0])(**BATCH)[0].loss < out.loss
    assert_same_arrays(low.state_dict(), before)
