"""Every family of the table against transformers: each head, and each unusual config."""

import copy
import dataclasses
import json

import numpy as np
import pytest

from bertcore import AutoModel, use_backend
from bertcore.models.registry import family_of
from bertcore.models.spec import ConfigReader
from tests.models.family_cases import TASKS, FamilyCase, Variant
from tests.models.family_parity import check, random_batch, random_model
from tests.models.family_table import FAMILIES, WITH_OWN_LAYERS, WITH_PEER

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.parity
HEADS = [(name, task) for name, case in WITH_PEER.items() for task in (None, *case.tasks)]
VARIANTS = [
    (name, variant) for name, case in WITH_PEER.items() if name in WITH_OWN_LAYERS for variant in case.all_variants
]


def config_of(case: FamilyCase, changes: dict):
    return transformers.AutoConfig.for_model(**case.with_changes(changes))


def batch_of(case: FamilyCase, config, variant: Variant) -> dict[str, np.ndarray]:
    """A batch padded, and with holes, as the variant says."""
    padding = "left" if variant.padding == "left" else "right"
    batch = random_batch(config, list(variant.lengths or case.lengths), np.random.default_rng(2), padding=padding)
    if case.padding_word is not None:
        batch["input_ids"][batch["attention_mask"] == 0] = case.padding_word
    if variant.padding in ("holes", "words"):
        if case.counts == "words":
            batch["input_ids"][0, [2, 5, 6]] = config.pad_token_id
        if variant.padding == "holes":
            batch["attention_mask"][0, [2, 5, 6]] = 0
    if padding == "left" and case.counts == "columns":
        first = batch["attention_mask"].argmax(axis=1)[:, None]
        batch["position_ids"] = np.maximum(np.arange(batch["input_ids"].shape[1]) - first, 0)
    return batch


@pytest.mark.parametrize(("name", "task"), HEADS)
def test_heads(name, task):
    case = FAMILIES[name]
    config = config_of(case, dict(case.in_task.get(task, {})))
    check(config, task, batch_of(case, config, Variant({})))


@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_unusual_configs(name, variant):
    case = FAMILIES[name]
    variant = case.all_variants[variant]
    task = variant.task or case.words
    config = config_of(case, {**case.in_task.get(task, {}), **variant.changes})
    check(config, task, batch_of(case, config, variant))


def test_as_many_classes_as_tokens():
    """Logits of the batch's shape are of sequences: padding does not zero them."""
    config = config_of(FAMILIES["bert"], {"num_labels": 3})
    check(config, "SequenceClassification", random_batch(config, [3, 1, 2], np.random.default_rng(0)))


@pytest.mark.parametrize("name", WITH_PEER)
def test_no_head_is_missing(name):
    case = WITH_PEER[name]
    kind = type(config_of(case, {}))
    theirs = {task for task in TASKS if kind in getattr(transformers, f"AutoModelFor{task}")._model_mapping}
    apart = {"PreTraining", *case.elsewhere} | ({"CausalLM"} if "MaskedLM" in theirs else set())  # decoders
    assert theirs - apart == set(case.tasks) - apart


@pytest.mark.parametrize("name", WITH_PEER)
def test_absent_keys_mean_what_they_do_in_transformers(name):
    absent = {"model_type": WITH_PEER[name].config["model_type"]}
    said = json.loads(transformers.AutoConfig.for_model(**absent).to_json_string(use_diff=False))
    expected, found = (_read(config) for config in (said, absent))
    assert found == expected


ROPE = {"rope_type": "linear", "factor": 3.0, "rope_theta": 7.0}


@pytest.mark.parametrize(("name", "older"), [
    ("nomic_bert", {"rope_theta": 7.0}),
    ("nomic_bert", {"rope_scaling": ROPE}),
    ("ultrabert", {"rope_scaling": {"full_attention": ROPE, "sliding_attention": ROPE}}),
    ("ultrabert", {"rope_parameters": {"full_attention": {"rope_type": "default"}, "sliding_attention": ROPE}}),
    ("modernbert", {"sliding_window": 8}),
    ("t5", {"dense_act_fn": "tanh"}),
    ("t5", {"feed_forward_proj": "gelu", "is_gated_act": True}),
])  # fmt: skip
def test_older_keys_mean_what_they_do_in_transformers(name, older):
    config = WITH_PEER[name].config
    said = transformers.AutoConfig.for_model(**copy.deepcopy({**config, **older}))
    expected = _read(json.loads(said.to_json_string(use_diff=False)))
    assert _read({**config, **older}) == expected != _read(config)


def _read(config: dict) -> tuple:
    """The spec of a config, the width of its heads written out, and its heads."""
    family = family_of(config)
    spec = family.spec_from_config(config)
    layers = tuple(dataclasses.replace(layer, head_dim=layer.head_size) for layer in spec.layers)
    return dataclasses.replace(spec, layers=layers), dict(family.heads(ConfigReader(config)))


@pytest.mark.parametrize("problem_type", [None, "regression", "multi_label_classification"])
@pytest.mark.parametrize("num_labels", [1, 3])
@pytest.mark.parametrize("name", ["roberta", "deberta"])
def test_losses_of_sequence_classification(name, problem_type, num_labels):
    if name == "deberta" and num_labels == 1 and problem_type != "regression":
        pytest.skip("transformers returns logits of another shape than without labels")
    case, rng = FAMILIES[name], np.random.default_rng(3)
    config = config_of(case, {"num_labels": num_labels, "problem_type": problem_type})
    labels = rng.random((3, num_labels)).astype(np.float32)
    if problem_type == "regression" and num_labels == 1:
        labels = 10 * labels[:, 0]
    batch = batch_of(case, config, Variant({}, (4, 9, 2)))
    check(config, "SequenceClassification", batch, targets={"labels": labels})


@pytest.mark.parametrize("name", WITH_PEER)
def test_tokens_that_are_not_seen(name, tmp_path):
    """Hidden states of padding are those that transformers computes."""
    config, rng = config_of(FAMILIES[name], {}), np.random.default_rng(4)
    peer = random_model(config, None, rng).float()
    peer.save_pretrained(tmp_path)
    ids = rng.integers(6, config.vocab_size, (3, 11))
    seen = np.arange(11) < np.array([[9], [11], [8]])  # in the window of each token one is seen
    with torch.no_grad():
        given = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(seen.astype(np.int64))}
        expected = peer(**given).last_hidden_state.numpy()
    for backend in ("numpy", "numba"):
        with use_backend(backend):
            model = AutoModel.from_pretrained(tmp_path, add_pooling_layer=False)
            found, _ = model.encode_packed(list(ids), list(seen))
        np.testing.assert_allclose(found.reshape(expected.shape), expected, atol=3e-5 * np.abs(expected).max())
