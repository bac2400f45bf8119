"""Events, log, state and files of a run: those of transformers' Trainer."""

import json
from pathlib import Path

import numpy as np
import pytest

from bertcore import AutoModelForSequenceClassification, training
from bertcore.training import Trainer, TrainerState, TrainingArguments
from tests.tiny_bert import CONFIG
from tests.training.tiny_runs import names_in

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.parity
ROWS = [{"input_ids": [5, 6, 7, 8 + at], "attention_mask": [1] * 4, "labels": at % 2} for at in range(18)]
STEPS = {"eval_strategy": "steps", "eval_steps": 3, "save_strategy": "steps", "save_steps": 3}
EPOCHS = {"eval_strategy": "epoch", "save_strategy": "epoch"}
OTHERS = {"step", "seconds", "tokens", "total_flos", *(f"{part}_model_preparation_time" for part in ("eval", "test"))}
EVENTS = "on_epoch_begin", "on_step_end", "on_log", "on_evaluate", "on_save", "on_epoch_end", "on_train_end"


def arrays(rows):
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def tensors(rows):
    return {name: torch.from_numpy(column) for name, column in arrays(rows).items()}


def ours(folder, callbacks, **settings):
    args = TrainingArguments(folder, **settings)
    model = AutoModelForSequenceClassification.from_config(CONFIG)
    return Trainer(model, args, arrays, ROWS, ROWS[:6], compute_metrics=lambda _: {"score": 0.5}, callbacks=callbacks)


def theirs(folder, callbacks, **settings):
    args = transformers.TrainingArguments(folder, use_cpu=True, **settings)
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**CONFIG))
    given = {"train_dataset": ROWS, "eval_dataset": ROWS[:6], "compute_metrics": lambda _: {"score": 0.5}}
    return transformers.Trainer(model, args, tensors, callbacks=callbacks, **given)


def noted(make, peer, folder, stop, **settings):
    """Return the events of a run with an evaluation before and after it, its trainer and its result.

    The run ends by itself, or at the step `stop`, or "early".
    With "epoch" the first two epochs end at the steps 2 and 3.
    """
    seen = []

    def note(name):
        def method(self, args, state, control, logs=None, **event):
            seen.append((name, state.global_step, round(state.epoch, 3), *sorted(set(logs or ()) - OTHERS)))
            control.should_training_stop |= state.global_step == stop
            control.should_epoch_stop |= stop == "epoch" and name == "on_step_end" and state.global_step in (2, 3)

        return method

    own = [peer.EarlyStoppingCallback(2)] if stop == "early" else []
    note_all = type("Note", (peer.TrainerCallback,), {name: note(name) for name in EVENTS})()
    settings |= {"per_device_train_batch_size": 4, "logging_steps": 1, "report_to": "none", "disable_tqdm": True}
    trainer = make(folder, [*own, note_all], **settings)
    trainer.evaluate()
    done = trainer.train()
    trainer.evaluate(ROWS[:2], metric_key_prefix="test")
    return seen, trainer, done


@pytest.mark.parametrize("stop, settings", [
    (None, STEPS | {"num_train_epochs": 2}),
    (None, EPOCHS | {"max_steps": 7, "load_best_model_at_end": True}),
    (None, STEPS | {"max_steps": 7, "save_strategy": "no", "num_train_epochs": 1}),
    (None, {"eval_strategy": "epoch", "num_train_epochs": 1.5, "gradient_accumulation_steps": 2}),
    ("epoch", EPOCHS), (3, EPOCHS), (4, STEPS | {"save_strategy": "no"}), (5, EPOCHS),
    ("early", STEPS | {"metric_for_best_model": "score", "load_best_model_at_end": True}),
])  # fmt: skip
def test_events_logs_and_state(tmp_path, stop, settings):
    """At the end of a run, too: its last evaluation, the end of its last epoch, and the line with its timings."""
    expected, peer, other = noted(theirs, transformers, tmp_path / "theirs", stop, **settings)
    found, trainer, done = noted(ours, training, tmp_path / "ours", stop, **settings)
    assert found == expected
    assert other.metrics.keys() <= done.metrics.keys()
    assert names_in(tmp_path / "ours") == sorted([*names_in(tmp_path / "theirs"), "log.jsonl"])
    names = ("global_step", "max_steps", "num_train_epochs", "logging_steps", "save_steps", "train_batch_size")
    for name in (*names, *(["eval_steps"] if "eval_steps" in settings else ())):
        assert getattr(trainer.state, name) == getattr(peer.state, name), name


def test_files_of_metrics_and_state(tmp_path, capsys):
    trainers = [make(tmp_path / make.__name__, [], report_to="none") for make in (ours, theirs)]
    for trainer in trainers:
        trainer.save_metrics("train", {"train_loss": 0.5})
        trainer.save_metrics("eval", {"eval_loss": 0.25, "epoch": 1.0})
        trainer.save_metrics("test", {"test_loss": 0.125}, combined=False)
        trainer.save_state()
        trainer.log_metrics("eval", {"eval_loss": 0.123456, "epoch": 1.0})
        trainer.log_metrics("train", {"epoch": 2.0})
    folder, other = (Path(trainer.args.output_dir) for trainer in trainers)
    assert names_in(folder) == names_in(other)
    for name in ("train", "eval", "test", "all"):
        first, second = (json.loads((place / f"{name}_results.json").read_text()) for place in (folder, other))
        assert first == second
    file = folder / "trainer_state.json"
    assert TrainerState.load_from_json(file) == trainers[0].state
    assert transformers.TrainerState.load_from_json(file).log_history == trainers[0].state.log_history
    shown = capsys.readouterr().out.splitlines()
    assert shown[: len(shown) // 2] == shown[len(shown) // 2 :]
