"""Small runs that the tests of the Trainer share."""

from pathlib import Path

import numpy as np

from bertcore import AutoModelForMaskedLM, AutoModelForSequenceClassification
from bertcore.training import Trainer, TrainerCallback, TrainingArguments
from tests.tiny_bert import CONFIG
from tests.tolerances import assert_same_arrays

RNG = np.random.default_rng(5)
LENGTHS = RNG.integers(2, 14, 23).tolist()
TEXTS = [{"input_ids": RNG.integers(5, CONFIG["vocab_size"], length).tolist()} for length in LENGTHS]
LABELLED = [{**text, "label": int(index % 3 == 0)} for index, text in enumerate(TEXTS)]


class MaskingCollator:
    """Masks at random, as a collator of the caller's own may."""

    rng = None

    def __call__(self, examples):
        width = max(len(example["input_ids"]) for example in examples)
        ids, mask = np.zeros((2, len(examples), width), np.int64)
        for row, example in enumerate(examples):
            ids[row, : len(example["input_ids"])] = example["input_ids"]
            mask[row, : len(example["input_ids"])] = 1
        is_chosen = (self.rng.random(ids.shape) < 0.3) & (mask == 1)
        labels = np.where(is_chosen, ids, -100)
        return {"input_ids": np.where(is_chosen, 3, ids), "attention_mask": mask, "labels": labels}


def collate(examples):
    made = MaskingCollator.__call__(type("NoMask", (), {"rng": np.random.default_rng(0)}), examples)
    ids = np.zeros_like(made["input_ids"])
    for row, example in enumerate(examples):
        ids[row, : len(example["input_ids"])] = example["input_ids"]
    return {**made, "input_ids": ids, "labels": np.array([example["label"] for example in examples])}


def quiet_arguments(folder, **settings):
    return TrainingArguments(folder, **{"report_to": "none", "disable_tqdm": True, "save_strategy": "no"} | settings)


def language_trainer(folder, callbacks=(), **settings):
    model = AutoModelForMaskedLM.from_config({**CONFIG, "hidden_dropout_prob": 0.1}, seed=2)
    given = {"max_steps": 7, "learning_rate": 1e-2, "logging_steps": 2, "save_strategy": "steps", "save_steps": 3}
    args = quiet_arguments(folder, **{"per_device_train_batch_size": 4} | given | settings)
    return Trainer(model, args, MaskingCollator(), TEXTS, callbacks=callbacks)


def classifier(**config):
    return AutoModelForSequenceClassification.from_config({**CONFIG, **config}, num_labels=2, seed=2)


def class_trainer(folder, callbacks=(), model=None, compute_metrics=None, kind=Trainer, **settings):
    given = {"max_steps": 6, "learning_rate": 1e-2, "per_device_train_batch_size": 4}
    args = quiet_arguments(folder, **given | settings)
    options = {"eval_dataset": LABELLED[:9], "compute_metrics": compute_metrics, "callbacks": callbacks}
    return kind(model or classifier(), args, collate, LABELLED, **options)


def objective_trainer(folder, model, objective, examples, tokenizer=None, collator=None, settings=None, **more):
    """A run of a few steps whose schedule does not depend on their number."""
    given = {"max_steps": 4, "learning_rate": 1e-2, "save_steps": 2, "per_device_train_batch_size": 3}
    given |= {"lr_scheduler_type": "constant", "save_strategy": "steps", **(settings or {})}
    args = quiet_arguments(folder, **given)
    return Trainer(model, args, collator, examples, examples[:4], tokenizer, objective=objective, **more)


def assert_same_weights(first, second):
    assert_same_arrays(first.state_dict(), second.state_dict())


def assert_resumes(trainer, folder, steps):
    """A run that is stopped after `steps` and goes on has the bits of one that was not.

    `trainer` makes one for a folder and settings of its own. Returns that of the whole run, and the one that went on.
    """
    whole, part = trainer(folder / "whole"), trainer(folder / "part", max_steps=steps)
    whole.train()
    part.train()
    again = trainer(folder / "part")
    again.train(resume_from_checkpoint=True)
    assert_same_weights(again.model, whole.model)
    return whole, again


def without_times(history):
    return [
        {name: value for name, value in logs.items() if not name.endswith(("seconds", "runtime", "per_second"))}
        for logs in history
    ]


class At(TrainerCallback):
    """Does something at the end of one step, with the event, `control` in it."""

    def __init__(self, step, action):
        self.step, self.action = step, action

    def on_step_end(self, args, state, control, **event):
        if state.global_step == self.step:
            self.action(event | {"control": control})


def spoil(event):
    """Set a parameter to NaN."""
    parameter = next(iter(event["model"].parameters()))
    parameter.change(lambda array: array.fill(np.nan))


def names_in(folder):
    return sorted(path.name for path in Path(folder).iterdir())


def accuracy(prediction):
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}
