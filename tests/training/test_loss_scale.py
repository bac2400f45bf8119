"""The loss scale: when it grows and shrinks, beside torch.amp.GradScaler."""

from unittest import mock

import numpy as np
import pytest

from bertcore.training import TrainingArguments, safeguards
from bertcore.training.safeguards import LossScale
from tests.refusals import refuses
from tests.training.tiny_runs import class_trainer

STEPS = [True, False, True, True, True, True, False, False, True, True, True, True, True, True, True, False]


def states(steps):
    scale, found = LossScale(), []
    for is_finite in steps:
        scale.update(np.asarray(is_finite))
        found.append(scale.state_dict())
    return found


def test_it_does_not_leave_float32():
    scale = LossScale()
    scale.load_state_dict({"scale": 2.0**127, "good_steps": 1999, "skipped_steps": 0})
    scale.update(np.asarray(True))
    assert scale.state_dict() == {"scale": 2.0**127, "good_steps": 0, "skipped_steps": 0}
    scale.load_state_dict({"scale": 1.0, "good_steps": 0, "skipped_steps": 0})
    assert not scale.is_too_small
    scale.update(np.asarray(False))
    assert scale.is_too_small


def test_on_the_cpu_float16_is_refused(tmp_path):
    refuses(ValueError, "fp16 is for GPUs", class_trainer(tmp_path, fp16=True).train)
    refuses(ValueError, "bf16 and fp16 are both set", TrainingArguments, tmp_path, bf16=True, fp16=True)


@pytest.mark.parity
def test_torch():
    torch = pytest.importorskip("torch")
    scaler = torch.amp.GradScaler("cpu", growth_interval=3)
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer, expected = torch.optim.SGD([parameter]), []
    for is_finite in STEPS:
        scaler.scale(parameter.sum()).backward()
        parameter.grad.fill_(1.0 if is_finite else np.inf)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        expected.append((scaler.get_scale(), scaler.state_dict()["_growth_tracker"]))
    with mock.patch.object(safeguards, "INTERVAL", 3):
        found = states(STEPS)
    assert [(state["scale"], state["good_steps"]) for state in found] == expected
    assert [state["skipped_steps"] for state in found] == np.cumsum(~np.array(STEPS)).tolist()
