"""Muon: which parameters it orthogonalises, and beside torch.optim.Muon."""

import numpy as np
import pytest

from bertcore import value_and_grad
from bertcore.training import AdamW, Muon
from bertcore.training.optimizers import is_matrix_of_a_layer
from tests.refusals import refuses
from tests.tiny_bert import CONFIG
from tests.training.test_optimizers import BATCH, new_model

pytestmark = pytest.mark.usefixtures("on_numpy")

VALUE = "bert.encoder.layer.0.attention.self.value.weight"


def test_the_matrices_of_layers_and_nothing_else():
    model = new_model("float64")
    chosen = {name for parameter in model.parameters() if is_matrix_of_a_layer(parameter) for name in parameter.names}
    parts = ["query", "key", "value", "attention.output.dense", "intermediate.dense", "output.dense"]
    assert len(chosen) == len(parts) * CONFIG["num_hidden_layers"]
    assert all(name.startswith("bert.encoder.layer.") and name.endswith("weight") for name in chosen)
    other = new_model("float64")
    _, grads = value_and_grad(model)(**BATCH)
    Muon(model, lr=0.01).step(dict(grads))
    AdamW(other, lr=0.01).step(dict(grads))
    ours, adamws = model.state_dict(), other.state_dict()
    assert {name for name in ours if (ours[name] != adamws[name]).any()} == chosen


def test_invalid_momenta():
    refuses(ValueError, "momentum is 1", Muon, new_model(), momentum=1)


@pytest.mark.parity
def test_torchs_steps(monkeypatch):
    """Five, with a schedule and decay. torch orthogonalises in bfloat16; here it is made to do so in float64."""
    import torch

    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.double)
    model = new_model("float64")
    weights = {name: torch.tensor(array) for name, array in model.state_dict().items() if "layer.0" in name}
    weights = {name: tensor.requires_grad_() for name, tensor in weights.items() if tensor.ndim == 2}
    peer = torch.optim.Muon(weights.values(), lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    ours = Muon(model, lr=0.02, weight_decay=0.1)
    assert VALUE in weights and len(weights) == 6
    for step in range(5):
        _, grads = value_and_grad(model)(**BATCH)
        for name, tensor in weights.items():
            tensor.grad = torch.tensor(grads[name])
        for group in peer.param_groups:
            group["lr"] = 0.02 / (step + 1)
        for group in ours.groups:
            group.lr = 0.02 / (step + 1)
        peer.step()
        ours.step(grads)
        for name, tensor in weights.items():
            np.testing.assert_allclose(model.state_dict()[name], tensor.detach().numpy(), rtol=1e-9, atol=1e-12)
