"""Adapters beside the library PEFT: the same outputs, files and losses."""

import warnings

import numpy as np
import pytest

import bertcore
from bertcore import value_and_grad
from bertcore.lora import PeftModel, TaskType
from bertcore.lora.config import TARGETS
from bertcore.training import AdamW
from tests.models.family_parity import random_batch, random_model, random_targets
from tests.models.family_table import FAMILIES

pytestmark = pytest.mark.parity
CASES = {
    "bert": ("SequenceClassification", {"target_modules": ["query", "value"], "task_type": TaskType.SEQ_CLS}),
    "albert": ("TokenClassification", {"target_modules": ["query", "ffn"], "modules_to_save": ["classifier"]}),
    "deberta": ("TokenClassification", {"target_modules": ["in_proj", "pos_proj"], "task_type": "TOKEN_CLS"}),
    "deberta-v2": ("MaskedLM", {"target_modules": ["query_proj", "value_proj"], "use_rslora": True}),
    "gpt2": ("CausalLM", {"target_modules": ["c_attn", "c_fc"], "task_type": "CAUSAL_LM"}),
    "modernbert": ("MaskedLM", {"target_modules": "all-linear"}),
    "bert of ranks": (
        "SequenceClassification",
        {
            "target_modules": ["query", "value", "dense"],
            "rank_pattern": {"value": 2, r"layer\.1\.attention\.self\.query": 3},
            "alpha_pattern": {"value": 5, r"layer\.0\..*dense": 2.5},
        },
    ),
    "bert of a layer": (
        "TokenClassification",
        {
            "target_modules": ["query", "dense"],
            "layers_to_transform": 1,
            "exclude_modules": ["intermediate.dense"],
            "bias": "lora_only",
        },
    ),
    "bert of some layers": (
        "MaskedLM",
        {"target_modules": ["query", "value"], "layers_to_transform": [0, 5], "layers_pattern": "layer", "bias": "all"},
    ),
    "roberta of all biases": (
        "SequenceClassification",
        {"target_modules": ["value"], "bias": "all", "task_type": "SEQ_CLS"},
    ),
    "deberta-v2 of names": (
        "TokenClassification",
        {
            "target_modules": "all-linear",
            "exclude_modules": r".*layer\.0\..*",
            "bias": "lora_only",
            "rank_pattern": {"key_proj": 7},
            "use_rslora": True,
        },
    ),
    "gpt2 of biases": ("CausalLM", {"target_modules": ["c_attn"], "rank_pattern": {"c_attn": 3}, "bias": "lora_only"}),
}


def test_default_targets_are_those_of_peft():
    peers = pytest.importorskip("peft.utils.constants").TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
    assert {name: peers[name] for name in FAMILIES if name in peers} == {
        n: t for n, t in TARGETS.items() if n in FAMILIES
    }


@pytest.mark.filterwarnings("ignore")  # PEFT's of models that are not on a hub
@pytest.mark.parametrize("name", CASES)
def test_outputs_files_and_losses_are_those_of_peft(name, tmp_path):
    peft, torch, transformers = map(pytest.importorskip, ("peft", "torch", "transformers"))
    (task, options), case, rng = CASES[name], FAMILIES[name.split()[0]], np.random.default_rng(0)
    rates = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    rates |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop", "classifier_dropout_prob"), 0.0)
    config = transformers.AutoConfig.for_model(**case.config | rates)
    base = random_model(config, task, rng)
    base.save_pretrained(tmp_path / "base")

    def ours():
        return getattr(bertcore, f"AutoModelFor{task}").from_pretrained(tmp_path / "base")

    options = {"r": 4, "lora_alpha": 6} | options
    theirs = peft.get_peft_model(base, peft.LoraConfig(**options))
    with torch.no_grad():
        for tensor in (tensor for tensor in theirs.parameters() if tensor.requires_grad):
            tensor += torch.from_numpy(rng.normal(0.0, 0.1, tensor.shape).astype(np.float32))
    theirs.save_pretrained(tmp_path / "theirs")
    adapted = PeftModel.from_pretrained(ours(), tmp_path / "theirs", is_trainable=True)
    inputs = random_batch(config, list(case.lengths), rng)
    batch = inputs | random_targets(config, task, inputs, rng)
    tensors = {key: torch.from_numpy(np.array(array)) for key, array in batch.items()}

    trained = [tensor for tensor in theirs.parameters() if tensor.requires_grad]
    assert sum(tensor.numel() for tensor in trained) == adapted.get_nb_trainable_parameters()[0]
    settings = {"lr": 1e-3, "betas": (0.9, 0.98), "eps": 1e-6, "weight_decay": 0.0}
    peer_optimizer, optimizer = torch.optim.AdamW(trained, **settings), AdamW(adapted, **settings)
    for step in range(10):
        out, grads = value_and_grad(adapted)(**batch)
        optimizer.step(grads)
        loss = theirs.train()(**tensors).loss
        peer_optimizer.zero_grad()
        loss.backward()
        peer_optimizer.step()
        assert abs(float(out.loss) - loss.item()) < 1e-4, f"step {step}"

    adapted.save_pretrained(tmp_path / "ours")
    whole = type(base).from_pretrained(tmp_path / "base")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*missing adapter keys.*")
        again = peft.PeftModel.from_pretrained(whole, tmp_path / "ours").eval()
    with torch.no_grad():
        expected = again(**{key: tensors[key] for key in inputs}).logits.numpy()
    found, mask = adapted(**inputs).logits, inputs["attention_mask"].astype(bool)
    if found.shape[:2] == mask.shape:
        found, expected = found[mask], expected[mask]
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * np.abs(expected).max())
