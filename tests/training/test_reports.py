"""Reports of a run: the progress bar, the log, the plot, TensorBoard's files."""

import copy
import json
import os
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from bertcore.nn import functional
from bertcore.passes import Pass
from bertcore.training import Trainer, TrainerCallback, TrainerState, TrainingArguments, callbacks
from tests.refusals import refuses
from tests.training.tiny_runs import LABELLED, class_trainer


def run_of_4_steps(folder, report_to, **settings):
    settings |= {"max_steps": 4, "logging_steps": 1, "eval_strategy": "steps", "eval_steps": 2}
    trainer = class_trainer(folder, report_to=report_to, **settings)
    trainer.train()
    return trainer


def test_progress_bar_and_log(tmp_path, capsys):
    trainer = run_of_4_steps(tmp_path, "none", disable_tqdm=False)
    shown = capsys.readouterr().err
    assert "4/4" in shown and "loss " in shown and "tokens/s" in shown
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert lines == trainer.state.log_history
    assert [line["step"] for line in lines] == [1, 2, 2, 3, 4, 4, 4]
    assert [("loss" in line, "eval_loss" in line) for line in lines[:3]] == [*[(True, False)] * 2, (False, True)]
    assert [path.name for path in tmp_path.iterdir()] == ["log.jsonl"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_log_on_a_full_disk_is_named(tmp_path):
    (tmp_path / "log.jsonl").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"No space left on device: '.*log.jsonl'"):
        callbacks.JsonLog().on_train_begin(TrainingArguments(tmp_path), TrainerState(log_history=[{"loss": 1.0}]), None)


@pytest.mark.skipif(os.name != "posix", reason="files are locked by POSIX's means")
def test_two_runs_do_not_write_one_log(tmp_path):
    first, second, args = callbacks.JsonLog(), callbacks.JsonLog(), TrainingArguments(tmp_path)
    first.on_train_begin(args, TrainerState(log_history=[{"loss": 1.0}]), None)
    with pytest.raises(ValueError, match=r"log\.jsonl is the log of a run in progress"):
        second.on_train_begin(args, TrainerState(), None)
    first.on_log(args, None, None, logs={"loss": 2.0})
    first.on_train_end(args, None, None)
    assert (tmp_path / "log.jsonl").read_text() == '{"loss": 1.0}\n{"loss": 2.0}\n'
    second.on_train_begin(args, TrainerState(), None)
    second.on_train_end(args, None, None)
    assert (tmp_path / "log.jsonl").read_text() == ""


class Failing(TrainerCallback):
    def on_train_begin(self, *now, **event):
        raise LookupError("this one does not begin")


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda trainer: pickle.loads(pickle.dumps(trainer))])
def test_a_trainer_that_has_trained_can_be_copied(tmp_path, copied):
    trainer = run_of_4_steps(tmp_path, "none", disable_tqdm=False)
    assert copied(trainer).state.log_history == trainer.state.log_history


def test_a_run_that_does_not_begin_frees_its_log(tmp_path):
    refuses(LookupError, None, class_trainer(tmp_path, [Failing()], max_steps=1).train)
    again = class_trainer(tmp_path, max_steps=1)
    again.train()
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == len(again.state.log_history) == 2


def test_the_plot(tmp_path, monkeypatch):
    figures = pytest.importorskip("matplotlib.figure")
    drawn, save = [], figures.Figure.savefig

    def savefig(figure, *where, **options):
        drawn.append(figure)
        save(figure, *where, **options)

    monkeypatch.setattr(figures.Figure, "savefig", savefig)
    history = run_of_4_steps(tmp_path, ["plot"], disable_tqdm=True).state.log_history
    ((axes, _),) = [figure.axes for figure in drawn]
    for line, name in zip(axes.lines, ("loss", "eval_loss"), strict=True):
        logged = [(logs["step"], logs[name]) for logs in history if name in logs]
        assert [tuple(point) for point in line.get_xydata()] == logged
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.jsonl", "loss.png"]


@pytest.mark.parity
def test_tensorboard_reads_what_was_written(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    trainer = run_of_4_steps(tmp_path, "tensorboard", disable_tqdm=True)
    trainer.evaluate(LABELLED[:2], "test")
    history = trainer.state.log_history
    events = accumulator.EventAccumulator(str(tmp_path / "runs"))
    events.Reload()
    names = {name for logs in history for name in logs if name != "step"}
    assert set(events.Tags()["tensors"]) == names
    for name in names:
        logged = [(logs["step"], np.float32(logs[name])) for logs in history if name in logs]
        assert [(tensor.step, tensor_value(tensor)) for tensor in events.Tensors(name)] == logged


def tensor_value(event):
    from tensorboard.util import tensor_util

    return tensor_util.make_ndarray(event.tensor_proto).item()


def test_a_report_without_its_package(tmp_path, monkeypatch):
    monkeypatch.setattr(callbacks, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="report_to has 'plot', which needs matplotlib"):
        callbacks.reports_of(TrainingArguments(tmp_path, report_to="plot"))
    for given in ("all", ["all"], "none", ["none"]):
        assert len(callbacks.reports_of(TrainingArguments(tmp_path, report_to=given))) == 2


def test_the_log_is_json_whatever_is_logged(tmp_path):
    metrics = {"compute_metrics": lambda found: {"ratio": float("nan"), "most": float("inf"), "count": 3}}
    class_trainer(tmp_path, **metrics, max_steps=2, logging_steps=1, eval_strategy="steps").train()

    def refuse(name):
        raise AssertionError(name)

    lines = [json.loads(line, parse_constant=refuse) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    evaluated = [line for line in lines if "eval_count" in line]
    assert evaluated and all(line["eval_ratio"] is line["eval_most"] is None for line in evaluated)


class FakeRun:
    """A run of wandb, and the module mlflow."""

    id = run_id = "the first"

    def __init__(self):
        self.lines, self.started, self.settings, self.is_over, self.info = [], [], None, False, self

    def log(self, logs, step):
        self.lines.append({**logs, "step": step})

    def finish(self):
        self.is_over = True

    log_metrics, end_run = log, finish

    def start_run(self, run_id, run_name):
        self.is_over = False
        assert run_name == "films"
        self.started.append(run_id)
        return self

    def log_params(self, settings):
        self.settings = settings


@pytest.mark.parametrize("report", ["wandb", "mlflow"])
def test_reports_by_other_packages(tmp_path, monkeypatch, report):
    run = FakeRun()

    def init(dir, name, config, id=None, resume=None):
        run.settings = config
        return run.start_run(id, name)

    monkeypatch.setattr(callbacks, "find_spec", lambda name: name)
    monkeypatch.setitem(sys.modules, report, run if report == "mlflow" else SimpleNamespace(init=init))
    trainer = run_of_4_steps(tmp_path, report, disable_tqdm=True, run_name="films")
    trainer.evaluate()
    assert run.lines == trainer.state.log_history and run.is_over and run.started == [None, "the first"]
    assert run.settings["learning_rate"] == 1e-2 and run.settings["output_dir"] == str(tmp_path)
    run.lines = None  # writing fails
    refuses(AttributeError, None, trainer.evaluate)
    assert run.is_over
    every = callbacks.reports_of(TrainingArguments(tmp_path, report_to="all"))
    assert not any(isinstance(each, callbacks.WeightsAndBiases | callbacks.MLflow) for each in every)


def test_callbacks_come_and_go(tmp_path):
    trainer = class_trainer(tmp_path, max_steps=1)
    trainer.add_callback(Failing)
    assert isinstance(trainer.pop_callback(Failing), Failing) and trainer.pop_callback(Failing) is None
    refuses(TypeError, "callback is int, expected TrainerCallbacks", trainer.add_callback, 3)
    trainer.train()


def test_callbacks_turn_switches_off(tmp_path):
    """Callbacks are called once the due actions are set."""
    seen = []

    class Quiet(TrainerCallback):
        def on_step_end(self, args, state, control, processing_class, **event):
            seen.append((control.should_log, control.should_save, state.is_world_process_zero))
            control.should_log, control.should_save = False, state.global_step == 1
            with pytest.raises(AttributeError, match="should_stop"):
                control.should_stop = True

    trainer = class_trainer(tmp_path, [Quiet], max_steps=4, logging_steps=1, save_strategy="steps", save_steps=3)
    trainer.train()
    assert seen == [(True, step >= 3, True) for step in range(1, 5)]
    assert [logs["step"] for logs in trainer.state.log_history] == [4, 4]  # at the end
    assert sorted(folder.name for folder in tmp_path.glob("checkpoint-*")) == ["checkpoint-1", "checkpoint-4"]


def test_an_evaluation_before_the_first_step(tmp_path):
    trainer = class_trainer(tmp_path, max_steps=1, eval_on_start=True)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert [(logs["step"], "eval_loss" in logs) for logs in trainer.state.log_history[:2]] == [(0, True), (1, False)]
    assert trainer.state.log_history[0]["eval_loss"] == before
    refuses(ValueError, "eval_on_start is True, and there is no eval_dataset", Trainer, trainer.model, trainer.args)


def test_a_loss_of_a_subclass(tmp_path):
    class Doubled(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False):
            loss, out = super().compute_loss(model, inputs, return_outputs=True)
            return (functional.add(Pass.begin(inputs["input_ids"]), loss, loss), out) if return_outputs else loss

    losses = []
    for kind in (Trainer, Doubled):
        trainer = class_trainer(tmp_path / kind.__name__, kind=kind, max_steps=2, max_grad_norm=0, logging_steps=1)
        losses.append(trainer.evaluate()["eval_loss"])
        trainer.train()
        losses.append(trainer.state.log_history[0]["loss"])
    np.testing.assert_allclose(losses[2:], [2 * loss for loss in losses[:2]], rtol=1e-6)
