"""Checkpoints of distillation: the student in its folder, the learned maps beside it."""

import numpy as np
import pytest

from bertcore import AutoModelForSequenceClassification
from bertcore.checkpoint import open_checkpoint
from bertcore.training.objectives import Distillation, HiddenStates, Relations, SoftTargets, Supervised
from tests.refusals import refuses
from tests.tiny_bert import CONFIG
from tests.tolerances import assert_same_arrays
from tests.training.objectives.students import WIDE
from tests.training.tiny_runs import LABELLED, assert_resumes, collate, objective_trainer

pytestmark = pytest.mark.usefixtures("on_numpy")


def distilling_trainer(folder, teacher, **settings):
    student = AutoModelForSequenceClassification.from_config(
        {**CONFIG, "hidden_dropout_prob": 0.1}, num_labels=2, seed=2
    )
    settings = {"max_steps": 6, "save_steps": 3} | settings
    objective = Distillation(teacher, HiddenStates(), SoftTargets(), Relations(heads=1), objective=Supervised())
    return objective_trainer(folder, student, objective, LABELLED, collator=collate, settings=settings)


def test_a_resumed_run_has_the_same_bits_of_student_and_maps(tmp_path):
    teacher = AutoModelForSequenceClassification.from_config(WIDE, num_labels=2, seed=1)
    new = distilling_trainer(tmp_path, teacher)
    first = [parameter.array() for parameter in new.objective.parameters(new.model)]
    both = assert_resumes(lambda folder, **more: distilling_trainer(folder, teacher, **more), tmp_path, 3)
    other = AutoModelForSequenceClassification.from_config(WIDE, num_labels=2, seed=3)
    with pytest.raises(ValueError, match=r"the teacher's fingerprint is .*, in .* it was "):
        distilling_trainer(tmp_path / "part", other).train(resume_from_checkpoint=True)
    learned = [[p.array() for p in each.objective.parameters(each.model)] for each in both]
    for one, other, initial in zip(*learned, first, strict=True):
        np.testing.assert_array_equal(one, other)
        assert abs(one - initial).max() > 1e-3


def test_maps_are_kept_beside_the_student_and_not_in_it(tmp_path):
    teacher = AutoModelForSequenceClassification.from_config(WIDE, num_labels=2, seed=1)
    trainer = distilling_trainer(tmp_path / "run", teacher)
    trainer.train()
    trainer.save_model(tmp_path / "saved")
    folder = tmp_path / "run" / "checkpoint-6"
    assert not any("distillation" in name for name in open_checkpoint(folder))
    assert not any("distillation" in name for name in open_checkpoint(tmp_path / "saved"))
    assert {path.name for path in (tmp_path / "saved").iterdir()} == {"config.json", "model.safetensors"}
    kept = open_checkpoint(folder / "objective.safetensors")
    for parameter in trainer.objective.parameters(trainer.model):
        np.testing.assert_array_equal(kept[parameter.names[0]], parameter.array())
    (folder / "objective.safetensors").unlink()
    with pytest.raises(ValueError, match=r"objective\.safetensors"):
        distilling_trainer(tmp_path / "run", teacher).train(resume_from_checkpoint=folder)


def test_a_checkpoint_of_other_maps_is_refused(tmp_path):
    teacher = AutoModelForSequenceClassification.from_config(WIDE, num_labels=2)
    distilling_trainer(tmp_path, teacher).train()
    again = distilling_trainer(tmp_path, teacher)
    again.objective = Distillation(teacher, HiddenStates(layers={1: 2}), objective=Supervised())
    before = again.model.state_dict()
    refuses(ValueError, r"objective\.safetensors is of another objective", again.train, resume_from_checkpoint=True)
    assert_same_arrays(before, again.model.state_dict())
