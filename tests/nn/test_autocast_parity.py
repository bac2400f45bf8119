"""autocast beside torch.autocast: no further from float64 than that is."""

import numpy as np
import pytest

from bertcore import AutoModelForMaskedLM, autocast, use_backend, value_and_grad
from tests.conftest import CPU_BACKENDS
from tests.models.family_parity import random_batch, random_model, run_torch
from tests.models.family_table import FAMILIES

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.parity


def distance(grads, truth, names):
    return np.sqrt(sum(np.sum((np.asarray(grads[name], np.float64) - truth[name]) ** 2) for name in names))


@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_bert_beside_torch(backend, tmp_path):
    rng = np.random.default_rng(5)
    config = transformers.AutoConfig.for_model(**FAMILIES["bert"].with_changes({}))
    batch = random_batch(config, [17, 23, 5], rng)
    labels = rng.integers(0, config.vocab_size, batch["input_ids"].shape)
    targets = {"labels": np.where(batch["attention_mask"] == 1, labels, -100)}
    model = random_model(config, "MaskedLM", rng)
    model.save_pretrained(tmp_path)
    exact, truth = run_torch(model, batch, targets, double=True, traced=False)
    with torch.autocast("cpu", torch.bfloat16):
        theirs, their_grads = run_torch(model, batch, targets, double=False, traced=False)
    with use_backend(backend), autocast("bfloat16"):
        out, grads = value_and_grad(AutoModelForMaskedLM.from_pretrained(tmp_path))(**batch, **targets)
    assert abs(out.loss - exact["loss"]) <= 2 * abs(theirs["loss"] - exact["loss"]) + 1e-3
    assert grads.keys() == truth.keys()
    ours, others = distance(grads, truth, truth), distance(their_grads, truth, truth)
    assert 0.1 * others < ours <= 1.2 * others
    for name in truth:  # each of them, where there is more than what rounding leaves
        assert distance(grads, truth, [name]) <= 1.5 * distance(their_grads, truth, [name]) + 1e-3 * others, name
