"""Training beside PyTorch: from the same weights, by the same batches, every step has the same loss."""

from typing import NamedTuple

import numpy as np
import pytest

import bertcore
from bertcore import value_and_grad
from bertcore.training import AdamW, clip_grad_norm, get_scheduler
from tests.models.family_parity import random_batch, random_model, random_targets
from tests.models.family_table import FAMILIES

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.parity
STEPS, WARMUP, NORM = 50, 5, 1.0
SETTINGS = {"lr": 2e-3, "betas": (0.9, 0.98), "eps": 1e-6}
XLNET = {"model_type": "xlnet", "vocab_size": 61, "d_model": 78, "n_head": 2, "d_inner": 53, "n_layer": 2, "dropout": 0}


class Case(NamedTuple):
    """A config as transformers spells it, its head, the lengths of the texts of a batch, and batches for each step."""

    config: dict
    task: str
    lengths: tuple[int, ...] = (11, 3, 7, 13)
    accumulated: int = 1


NO_DROPOUT = dict.fromkeys(
    (
        *("hidden_dropout_prob", "attention_probs_dropout_prob", "resid_pdrop", "embd_pdrop", "attn_pdrop"),
        *("embedding_dropout", "attention_dropout", "mlp_dropout", "classifier_dropout", "summary_last_dropout"),
    ),
    0.0,
)
CASES = {
    "bert": Case(FAMILIES["bert"].config, "MaskedLM"),
    "albert": Case(FAMILIES["albert"].config, "MaskedLM"),
    "electra generator": Case(FAMILIES["electra"].config, "MaskedLM"),
    "electra discriminator": Case(FAMILIES["electra"].config, "PreTraining"),
    "deberta-v3": Case(FAMILIES["deberta-v2"].config, "MaskedLM"),
    "xlnet": Case(XLNET, "CausalLM"),
    "gpt2": Case(FAMILIES["gpt2"].config, "CausalLM"),
    "modernbert": Case(FAMILIES["modernbert"].config, "MaskedLM", FAMILIES["modernbert"].lengths),
    "classes, batches accumulated": Case(FAMILIES["bert"].config, "SequenceClassification", accumulated=3),
}


def peer_optimizer(peer):
    """AdamW whose matrices and tables decay, as transformers' Trainer chooses them."""
    from transformers.trainer import Trainer

    decayed = Trainer.get_decay_parameter_names(None, peer)
    groups = [[], []]
    for name, weight in peer.named_parameters():
        groups[name in decayed].append(weight)
    rates = [{"params": some, "weight_decay": 0.1 * index} for index, some in enumerate(groups)]
    return torch.optim.AdamW(rates, **SETTINGS)


def batches_of_steps(case, config):
    """The batches of each step, of new words every time."""
    rng = np.random.default_rng(1)

    def batch():
        inputs = random_batch(config, list(case.lengths), rng)
        return inputs | random_targets(config, case.task, inputs, rng)

    return [[batch() for _ in range(case.accumulated)] for _ in range(STEPS)]


def peer_losses(peer, steps):
    """PyTorch's mean loss before each step."""
    optimizer, losses = peer_optimizer(peer), []
    schedule = transformers.get_scheduler("linear", optimizer, num_warmup_steps=WARMUP, num_training_steps=STEPS)
    for batches in steps:
        optimizer.zero_grad()
        found = []
        for batch in batches:
            loss = peer(**{name: torch.from_numpy(np.array(array)) for name, array in batch.items()}).loss
            (loss / len(batches)).backward()
            found.append(loss.item())
        torch.nn.utils.clip_grad_norm_(peer.parameters(), NORM)
        optimizer.step()
        schedule.step()
        losses.append(np.mean(found))
    return losses


def our_losses(model, steps):
    """The mean loss before each step."""
    optimizer, losses = AdamW(model, **SETTINGS, weight_decay=0.1), []
    schedule = get_scheduler("linear", optimizer, num_warmup_steps=WARMUP, num_training_steps=STEPS)
    for batches in steps:
        (out, grads), *others = [value_and_grad(model)(**batch) for batch in batches]
        found = [out.loss, *(other.loss for other, _ in others)]
        for name, array in grads.items():
            for _, more in others:
                array += more[name]
            array /= len(batches)
        clip_grad_norm(grads, NORM)
        optimizer.step(grads)
        schedule.step()
        losses.append(np.mean(found))
    return losses


QUICK = ("bert", "xlnet")  # the others run with `-m parity`
EVERY_CASE = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CASES]


@pytest.mark.parametrize("name", EVERY_CASE)
def test_fifty_steps_have_the_losses_of_torch(name, tmp_path):
    case = CASES[name]
    config = transformers.AutoConfig.for_model(**case.config | NO_DROPOUT)
    peer = random_model(config, case.task, np.random.default_rng(0))
    peer.save_pretrained(tmp_path)
    model = getattr(bertcore, f"AutoModelFor{case.task}").from_pretrained(tmp_path)
    steps = batches_of_steps(case, config)
    ours, theirs = our_losses(model.train(), steps), peer_losses(peer.train(), steps)
    assert np.std(theirs) > 1e-2
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)
