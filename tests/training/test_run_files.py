"""Checkpoints of a run: resumed runs end with the bits of uninterrupted ones, and nothing that was saved is lost."""

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import asdict
from unittest import mock

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bertcore import AutoModelForMaskedLM, value_and_grad
from bertcore.checkpoint.files import digest_of
from bertcore.training import Masking, NotSaved, TrainerCallback, TrainingDiverged
from bertcore.training.checkpoints import checkpoints_in, recover_checkpoints, write_folder
from bertcore.training.objectives.language_modeling import DEFAULT
from tests.refusals import refuses
from tests.tiny_bert import CONFIG
from tests.tolerances import assert_same_arrays
from tests.training.tiny_runs import TEXTS, At, assert_same_weights, language_trainer, names_in, spoil, without_times


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A trainer after its run, whose folder has checkpoints of the steps 3, 6 and 7."""
    trainer = language_trainer(tmp_path_factory.mktemp("finished"))
    trainer.train()
    return trainer


def test_an_epoch_that_a_callback_ended_stays_ended_after_resuming(tmp_path):
    short = At(1, lambda event: setattr(event["control"], "should_epoch_stop", True))
    whole = language_trainer(tmp_path / "whole", [short], save_steps=1, max_steps=3)
    whole.train()
    resumed = language_trainer(tmp_path / "resumed", [short], save_steps=1, max_steps=3)
    resumed.train(resume_from_checkpoint=tmp_path / "whole" / "checkpoint-1")
    assert whole.state.epochs_done == resumed.state.epochs_done == 1 and resumed.state.batches_of_epoch == 2
    assert_same_weights(whole.model, resumed.model)


@pytest.mark.parametrize("settings", [
    {},
    {"gradient_accumulation_steps": 2, "group_by_length": True, "optim": "lamb"},
    {"max_tokens_per_batch": 25, "warmup_steps": 0.3, "lr_scheduler_type": "cosine", "optim": "muon"},
    {"max_steps": -1, "num_train_epochs": 1.5, "save_strategy": "epoch", "gradient_checkpointing": True},
    {"optim_in_backward": True, "max_grad_norm": 0.1, "optim": "muon"},
])  # fmt: skip
def test_a_resumed_run_ends_with_the_same_bits(tmp_path, settings):
    whole = language_trainer(tmp_path / "whole", **settings)
    done = whole.train()
    first, *_ = sorted((tmp_path / "whole").glob("checkpoint-*"))
    (tmp_path / "resumed").mkdir()
    first.rename(tmp_path / "resumed" / first.name)
    resumed = language_trainer(tmp_path / "resumed", **settings)
    assert resumed.train(resume_from_checkpoint=True)[:2] == done[:2]
    assert resumed.state.global_step > int(first.name.split("-")[1])
    assert_same_weights(whole.model, resumed.model)
    assert without_times(resumed.state.log_history) == without_times(whole.state.log_history)
    lines = (tmp_path / "resumed" / "log.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == resumed.state.log_history


def test_what_was_just_saved_stays_beside_later_checkpoints(tmp_path):
    """After a return to an earlier step, those of the run that went further are there."""
    seen = []

    class Note(TrainerCallback):
        def on_save(self, args, state, control, **event):
            seen.append((event["folder"].name, event["folder"].is_dir()))

    language_trainer(tmp_path, save_steps=2).train()
    again = language_trainer(tmp_path, [Note], save_steps=2, save_total_limit=1)
    again.train(resume_from_checkpoint=tmp_path / "checkpoint-2")
    assert seen == [("checkpoint-4", True), ("checkpoint-6", True), ("checkpoint-7", True)]
    assert [name for name in names_in(tmp_path) if "check" in name] == ["checkpoint-7"]


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_once_it_is_saved(tmp_path, number):
    whole = language_trainer(tmp_path / "whole", save_strategy="no")
    whole.train()
    stopped = language_trainer(tmp_path / "stopped", [At(4, lambda event: signal.raise_signal(number))], save_steps=100)
    before = signal.signal(signal.SIGTERM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    try:
        refuses(KeyboardInterrupt, None, stopped.train)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert [name for name in names_in(tmp_path / "stopped") if "check" in name] == ["checkpoint-4"]
    resumed = language_trainer(tmp_path / "stopped", save_steps=100)
    resumed.train(resume_from_checkpoint=True)
    assert_same_weights(whole.model, resumed.model)


@pytest.mark.usefixtures("ctrl_c")
def test_a_second_signal_acts_at_once(tmp_path):
    def twice(event):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    refuses(KeyboardInterrupt, None, language_trainer(tmp_path, [At(2, twice)], save_steps=100).train)
    assert not [name for name in names_in(tmp_path) if "checkpoint" in name]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path, finished):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fails(event):
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))  # the model's file has 72,000 bytes

    message = r"File too large.*checkpoint-6; the last whole checkpoint is .*checkpoint-3"
    try:
        refuses(NotSaved, message, language_trainer(tmp_path, [At(5, fails)]).train)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [name for name in names_in(tmp_path) if "checkpoint" in name] == ["checkpoint-3"]
    resumed = language_trainer(tmp_path)
    resumed.train(resume_from_checkpoint=True)
    assert_same_weights(finished.model, resumed.model)


def test_a_nan_loss_ends_the_run_and_is_kept(tmp_path):
    with pytest.raises(TrainingDiverged, match="step 3: the loss is nan") as caught:
        language_trainer(tmp_path, [At(2, spoil)], gradient_accumulation_steps=2).train()
    folder = caught.value.folder
    assert names_in(folder) == ["batch-0.npz", "batch-1.npz", "config.json", "failure.json", "model.safetensors"]
    assert json.loads((folder / "failure.json").read_text())["step"] == 3
    batch = np.load(folder / "batch-0.npz")
    model = AutoModelForMaskedLM.from_pretrained(folder)
    out, _ = value_and_grad(model)(**batch)
    assert np.isnan(out.loss)


@pytest.mark.parametrize("most", [1.0, 0.0])
def test_nan_gradients_end_the_run_before_the_step(tmp_path, most):
    trainer = language_trainer(tmp_path, max_grad_norm=most)
    before = {name: array.copy() for name, array in trainer.model.state_dict().items()}
    spoiled = trainer.objective.value_and_grad

    def value_and_grad_with_inf(model, batch):
        out, grads = spoiled(model, batch)
        next(iter(grads.values())).flat[0] = np.inf
        return out, grads

    trainer.objective.value_and_grad = value_and_grad_with_inf
    with pytest.raises(TrainingDiverged, match="norm of the gradients inf") as caught:
        trainer.train()
    assert_same_arrays(trainer.model.state_dict(), before)
    assert len(json.loads((caught.value.folder / "failure.json").read_text())["non_finite_gradients"]) == 1


def test_a_failure_at_the_end_does_not_hide_the_first(tmp_path):
    class Full(TrainerCallback):
        def on_train_end(self, args, state, control, **event):
            raise OSError(errno.ENOSPC, "No space left on device")

    def fails(event):
        raise ArithmeticError("the first")

    with pytest.raises(ArithmeticError, match="the first") as caught:
        language_trainer(tmp_path / "fails", [At(1, fails), Full]).train()
    assert "No space left" in caught.value.__notes__[0]
    refuses(OSError, "No space left", language_trainer(tmp_path / "ends", [Full], max_steps=1).train)


def test_existing_checkpoints_are_not_overwritten(tmp_path, finished):
    refuses(ValueError, "checkpoint-7 already", language_trainer(finished.args.output_dir).train)
    refuses(ValueError, "not a checkpoint of a run", language_trainer(tmp_path).train, resume_from_checkpoint=tmp_path)


KILLED = """
import sys
from tests.training.tiny_runs import language_trainer
language_trainer(sys.argv[1], max_steps=60, save_steps=1).train(resume_from_checkpoint=True)
"""


@pytest.mark.slow
def test_a_killed_run_goes_on(tmp_path):
    """kill -9 at moments that differ, most of them while a checkpoint is being written: each time it goes on."""
    whole = language_trainer(tmp_path / "whole", max_steps=60, save_strategy="no")
    whole.train()
    folder = tmp_path / "killed"
    for extra in (0.0, 0.003, 0.011, 0.027):
        reached = max((int(path.name.split("-")[1]) for path in folder.glob("checkpoint-*")), default=0)
        with subprocess.Popen([sys.executable, "-c", KILLED, str(folder)]) as process:
            while not (folder / f"checkpoint-{reached + 5}").exists() and process.poll() is None:
                time.sleep(0.001)
            time.sleep(extra)
            process.kill()
        assert process.returncode == -signal.SIGKILL
    resumed = language_trainer(folder, max_steps=60, save_steps=1)
    resumed.train(resume_from_checkpoint=True)
    assert_same_weights(whole.model, resumed.model)
    assert not list(folder.glob(".*"))


@pytest.mark.parametrize("change, error", [
    ({"optim": "lamb"}, "optim is 'lamb', in .* it was 'adamw'"),
    ({"label_smoothing_factor": 0.1}, "label_smoothing_factor is 0.1"),
    ({"seed": 1}, "seed is 1, in .* it was 42"),
    ({"learning_rate": 0.1}, "learning_rate is 0.1, in .* it was 0.01"),
    ({"bf16": True}, "bf16 is True, in .* it was False"),
    ({"texts": TEXTS[1:]}, "the number of examples is 22, in .* it was 23"),
    ({"texts": [*TEXTS[:-1], {"input_ids": [5, 6, 7]}]}, "the dataset's fingerprint is"),
    ({"masking": Masking(0.2, unit="word")}, "masking is .*'word'.* it was .*'token'"),
])  # fmt: skip
def test_a_run_goes_on_with_what_it_began_with(tmp_path, change, error):
    def trainer(texts=TEXTS, masking=DEFAULT, **settings):
        made = language_trainer(tmp_path, **{"max_steps": 1, **settings})
        made.train_dataset, made.data_collator.masking_settings = texts, lambda: asdict(masking)
        return made

    trainer().train()
    again = trainer(**change)
    before = again.model.state_dict()
    refuses(ValueError, error, again.train, resume_from_checkpoint=True)
    assert_same_weights(again.model, language_trainer(tmp_path).model)
    assert before.keys() == again.model.state_dict().keys()


@pytest.mark.parametrize("kind, steps, problem", [("linear", 5, True), ("linear", 2, False), ("constant", 5, False)])
def test_another_length_is_reported_where_the_rates_depend_on_it(tmp_path, kind, steps, problem):
    language_trainer(tmp_path, max_steps=3, lr_scheduler_type=kind).train()
    again = language_trainer(tmp_path, max_steps=steps, lr_scheduler_type=kind)
    with warnings.catch_warnings(record=True) as caught:
        done = again.train(resume_from_checkpoint=True)
    found = [str(each.message) for each in caught if "max_steps is 5, in " in str(each.message)]
    assert len(found) == problem and all("checkpoint-3 it was 3: the learning rates now follow" in it for it in found)
    assert (done.global_step, done.metrics["train_steps"]) == (max(steps, 3), max(steps - 3, 0))


@pytest.mark.parametrize("file, content, error", [
    ("scheduler.json", {"position": "x"}, "scheduler.json: position is 'x', expected a number"),
    ("scheduler.json", {}, "scheduler.json: position is None, expected a number"),
    ("training_args.json", -1.5, "training_args.json holds a JSON float, expected an object"),
    ("trainer_state.json", {"global_step": "3"}, "trainer_state.json: global_step is '3', expected int"),
    ("trainer_state.json", {"global_step": 10**18}, "global_step is 10{18}, expected a number from 0 to 1"),
    ("trainer_state.json", {"global_step": -5}, "global_step is -5, expected a number from 0 to 1"),
    ("trainer_state.json", {"batches_done": 10**18, "global_step": 10**18}, "batches_done is 10{18}, expected"),
    ("trainer_state.json", {"log_history": [1]}, r"log_history\[0\] is 1, expected an object with a step"),
    ("trainer_state.json", {"log_history": [{"loss": 1}]}, r"log_history\[0\] is {'loss': 1}, expected an object"),
    ("trainer_state.json", {"callbacks": None}, "trainer_state.json: callbacks is None, expected dict"),
])  # fmt: skip
def test_a_checkpoint_whose_files_hold_something_else_is_refused(tmp_path, file, content, error):
    language_trainer(tmp_path, max_steps=1, save_steps=1).train()
    changed = tmp_path / "checkpoint-1" / file
    if file == "trainer_state.json":
        state = json.loads(changed.read_text())
        own = state["stateful_callbacks"]["bertcore"]
        for name, value in content.items():
            (own if name in own else state)[name] = value
        content = state
    changed.write_text(json.dumps(content))
    digests = json.loads((changed.parent / "digests.json").read_text()) | {file: digest_of(changed)}
    (changed.parent / "digests.json").write_text(json.dumps(digests))
    refuses(ValueError, error, language_trainer(tmp_path, max_steps=1, save_steps=1).train, resume_from_checkpoint=True)


def changed(file, without=None, **more):
    content = json.loads(file.read_text()) | more
    file.write_text(json.dumps({name: value for name, value in content.items() if name != without}))


def flip(file):
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)


DAMAGE = [
    ("model.safetensors", flip, "model.safetensors is damaged: its SHA-256 is"),
    ("optimizer.safetensors", flip, "optimizer.safetensors is damaged"),
    ("optimizer.safetensors", lambda file: file.unlink(), "optimizer.safetensors cannot be read: No such file"),
    ("trainer_state.json", lambda file: file.write_text(""), "trainer_state.json is damaged"),
    ("digests.json", lambda file: file.unlink(), "checkpoint-7 is not a checkpoint of a run: it lacks digests.json"),
    ("digests.json", lambda file: file.write_text("[]"), "digests.json holds a JSON list, expected an object"),
    ("digests.json", lambda file: file.write_text("{}"), "digests.json lacks config.json, model.safetensors, opt"),
    ("config.json", flip, "config.json is damaged"),
    ("config.json", lambda file: changed(file.with_name("digests.json"), without=file.name), "json lacks config"),
    ("digests.json", lambda file: changed(file, **{"/dev/zero": ""}), "names '/dev/zero', expected a file inside"),
    ("model.safetensors", lambda file: changed(file.with_name("digests.json"), without=file.name), "json lacks model"),
]


@pytest.mark.parametrize("file, damage, error", DAMAGE)
def test_a_damaged_checkpoint_is_passed_over(tmp_path, finished, file, damage, error):
    shutil.copytree(finished.args.output_dir, tmp_path, dirs_exist_ok=True)
    damage(tmp_path / "checkpoint-7" / file)
    refuses(ValueError, error, language_trainer(tmp_path).train, resume_from_checkpoint=tmp_path / "checkpoint-7")
    resumed = language_trainer(tmp_path)
    with pytest.warns(UserWarning, match=f"{error}.*: continuing from .*checkpoint-6 instead"):
        resumed.train(resume_from_checkpoint=True)
    assert_same_weights(finished.model, resumed.model)
    for folder in tmp_path.glob("checkpoint-*"):
        damage(folder / file)
    with pytest.raises(ValueError, match=f"{error}.*; there is no earlier checkpoint to continue from"):
        language_trainer(tmp_path).train(resume_from_checkpoint=True)


@pytest.mark.parametrize("name, array, error", [
    ("foreign", np.ones(2, np.float32), "unknown are foreign"),
    ("first_moment.cls.predictions.bias", np.ones(2, np.float32), "has shape .2,., expected"),
    ("first_moment.cls.predictions.bias", np.ones(CONFIG["vocab_size"], np.int32), "holds int32, expected floating"),
])  # fmt: skip
def test_an_optimizer_of_another_model_is_refused(tmp_path, name, array, error):
    language_trainer(tmp_path, max_steps=1).train()
    file = tmp_path / "checkpoint-1" / "optimizer.safetensors"
    save_file({key: np.array(each) for key, each in load_file(file).items()} | {name: array}, file)
    changed(file.with_name("digests.json"), **{file.name: digest_of(file)})
    again = language_trainer(tmp_path, max_steps=1)
    refuses(ValueError, rf"optimizer\.safetensors: state.*{error}", again.train, resume_from_checkpoint=True)


@pytest.mark.parametrize("moment", [1, 2, 3])
def test_a_checkpoint_that_is_replaced_is_never_lost(tmp_path, moment):
    """A process that is killed before the first, second or third rename of the folders."""
    folder = tmp_path / "checkpoint-3"
    write_folder(folder, lambda new: (new / "which").write_text("old"))
    replace, calls = os.replace, []

    def until(source, target):
        calls.append(target)
        if len(calls) >= moment:
            os._exit(0)
        replace(source, target)

    process = os.fork()
    if not process:
        with mock.patch("os.replace", until):
            write_folder(folder, lambda new: (new / "which").write_text("new"))
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    recover_checkpoints(tmp_path)
    assert [path.name for path in checkpoints_in(tmp_path)] == names_in(tmp_path) == ["checkpoint-3"]
    assert (folder / "which").read_text() == ("old" if moment < 3 else "new")
    write_folder(folder, lambda new: (new / "which").write_text("newest"))
    assert names_in(tmp_path) == ["checkpoint-3"] and (folder / "which").read_text() == "newest"
