"""The Trainer: resumed runs end with the bits of uninterrupted ones, and nothing that was saved is lost."""

import errno
import itertools
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from bertcore import (
    AutoModelForMaskedLM,
    AutoModelForNextSentencePrediction,
    AutoModelForSequenceClassification,
    value_and_grad,
)
from bertcore.nn.dropout import mixed_seed
from bertcore.training import (
    AdamW,
    DataCollatorWithPadding,
    EarlyStoppingCallback,
    EvalPrediction,
    NotSaved,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    TrainingDiverged,
    clip_grad_norm,
    get_scheduler,
    run,
    run_files,
)
from bertcore.training.data import Batches
from bertcore.training.numbered_collator import NumberedCollator
from bertcore.training.objectives import CustomLoss, NextSentence
from tests.tiny_bert import CONFIG

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


def language_trainer(folder, callbacks=(), **settings):
    model = AutoModelForMaskedLM.from_config({**CONFIG, "hidden_dropout_prob": 0.1}, seed=2)
    given = {"max_steps": 7, "learning_rate": 1e-2, "logging_steps": 2, "save_steps": 3}
    given |= {"per_device_train_batch_size": 4}
    args = TrainingArguments(output_dir=folder, report_to="none", disable_tqdm=True, **(given | settings))
    return Trainer(model, args, MaskingCollator(), TEXTS, callbacks=callbacks)


def classifier(**config):
    return AutoModelForSequenceClassification.from_config({**CONFIG, **config}, num_labels=2, seed=2)


def class_trainer(folder, callbacks=(), model=None, compute_metrics=None, **settings):
    given = {"max_steps": 6, "learning_rate": 1e-2, "per_device_train_batch_size": 4, "save_strategy": "no"}
    args = TrainingArguments(output_dir=folder, report_to="none", disable_tqdm=True, **(given | settings))
    options = {"eval_dataset": LABELLED[:9], "compute_metrics": compute_metrics, "callbacks": callbacks}
    return Trainer(model or classifier(), args, collate, LABELLED, **options)


def assert_same_weights(first, second):
    assert first.state_dict().keys() == second.state_dict().keys()
    for name, array in first.state_dict().items():
        np.testing.assert_array_equal(array, second.state_dict()[name], err_msg=name)


def without_times(history):
    return [{name: value for name, value in logs.items() if name != "seconds"} for logs in history]


class At(TrainerCallback):
    """Does something at the end of one step."""

    def __init__(self, step, action):
        self.step, self.action = step, action

    def on_step_end(self, args, state, control, **event):
        if state.global_step == self.step:
            self.action(event)


def names_in(folder):
    return sorted(path.name for path in Path(folder).iterdir())


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"gradient_accumulation_steps": 2, "group_by_length": True, "optim": "lamb"},
        {"max_tokens_per_batch": 25, "warmup_steps": 0.3, "lr_scheduler_type": "cosine"},
        {"max_steps": -1, "num_train_epochs": 1.5, "save_strategy": "epoch", "gradient_checkpointing": True},
    ],
)
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


def test_a_run_is_the_loop_that_its_parts_make(tmp_path):
    trainer = language_trainer(tmp_path, max_steps=3, weight_decay=0.1, warmup_steps=1)
    before = trainer.model.state_dict()
    twin = AutoModelForMaskedLM.from_config(trainer.model.config)
    twin.load_state_dict(before)
    optimizer = AdamW(twin, lr=1e-2, weight_decay=0.1)
    schedule = get_scheduler("linear", optimizer, num_warmup_steps=1, num_training_steps=3)
    batches = []
    collate = NumberedCollator(MaskingCollator(), 42)
    for number, examples in enumerate(Batches(TEXTS, batch_size=4, seed=42).epoch(0)):
        batches.append(collate(examples, number))
    for number, batch in enumerate(batches[:3]):
        twin.train(mixed_seed(42, number))
        _, grads = value_and_grad(twin)(**batch)
        clip_grad_norm(grads, 1.0)
        optimizer.step(grads)
        schedule.step()
    trainer.train()
    assert_same_weights(trainer.model, twin)


def test_accumulated_batches_count_by_their_labels(tmp_path):
    """Two batches of one step move the weights as their union does, whatever number of labels each has."""
    options = {"max_steps": 1, "lr_scheduler_type": "constant", "save_strategy": "no", "max_grad_norm": 0.5}
    without_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}

    def labels_of(examples):
        batch = collate(examples)
        rows = [example["row"] for example in examples]
        labels = np.where(np.array(rows)[:, None] < 2, batch["input_ids"], -100)  # 2 of 4 rows have labels
        labels[np.array(rows) == 2, 0] = 7
        return {**batch, "labels": np.where(batch["attention_mask"] == 1, labels, -100)}

    examples = [{**LABELLED[index], "row": index} for index in range(4)]
    trained = []
    for batch_size, parts in ((4, 1), (2, 2)):
        model = AutoModelForMaskedLM.from_config({**CONFIG, **without_dropout}, dtype="float64", seed=2)
        args = TrainingArguments(
            output_dir=tmp_path / str(parts),
            per_device_train_batch_size=batch_size,
            gradient_accumulation_steps=parts,
            report_to="none",
            **options,
        )
        trainer = Trainer(model, args, labels_of, examples)
        trained.append((trainer.train().training_loss, model))
    (loss, first), (loss_of_parts, second) = trained
    assert loss_of_parts == pytest.approx(loss, rel=1e-12)
    for name, array in first.state_dict().items():
        np.testing.assert_allclose(second.state_dict()[name], array, atol=1e-9, err_msg=name)


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
        with pytest.raises(KeyboardInterrupt):
            stopped.train()
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

    with pytest.raises(KeyboardInterrupt):
        language_trainer(tmp_path, [At(2, twice)], save_steps=100).train()
    assert not [name for name in names_in(tmp_path) if "checkpoint" in name]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path):
    write = run_files.write_safetensors

    def fails(event):
        def full(file, arrays):
            write(file, {name: arrays[name] for name in list(arrays)[:1]})
            raise OSError(errno.ENOSPC, "No space left on device")

        run_files.write_safetensors = full

    message = r"No space left.*checkpoint-6; the last whole checkpoint is .*checkpoint-3"
    with mock.patch.object(run_files, "write_safetensors", write), pytest.raises(NotSaved, match=message):
        language_trainer(tmp_path, [At(5, fails)]).train()
    assert [name for name in names_in(tmp_path) if "checkpoint" in name] == ["checkpoint-3"]
    resumed = language_trainer(tmp_path)
    resumed.train(resume_from_checkpoint=True)
    whole = language_trainer(tmp_path / "whole")
    whole.train()
    assert_same_weights(whole.model, resumed.model)


def test_a_loss_that_is_no_number_ends_the_run_and_is_kept(tmp_path):
    def spoil(event):
        parameter = next(iter(event["model"].parameters()))
        parameter.change(lambda array: array.fill(np.nan))

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
def test_gradients_that_are_no_numbers_end_the_run_before_the_step(tmp_path, most):
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
    for name, array in trainer.model.state_dict().items():
        np.testing.assert_array_equal(array, before[name])
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
    with pytest.raises(OSError, match="No space left"):
        language_trainer(tmp_path / "ends", [Full], max_steps=1).train()


def test_a_callback_that_would_never_be_called_is_refused(tmp_path):
    class Substep(TrainerCallback):
        def on_substep_end(self, args, state, control, **event): ...

    with pytest.raises(TypeError, match="Substep has on_substep_end, which is never called"):
        language_trainer(tmp_path, [Substep])


def accuracy(prediction):
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def test_evaluate_and_predict(tmp_path):
    trainer = class_trainer(tmp_path, compute_metrics=accuracy, per_device_eval_batch_size=4)
    batch = collate(LABELLED[:9])
    out = trainer.model(**batch)
    metrics = trainer.evaluate()
    assert metrics["eval_loss"] == pytest.approx(float(out.loss), rel=1e-5)  # 4 + 4 + 1, each by its labels
    expected = accuracy(EvalPrediction(out.logits, batch["labels"]))
    assert metrics["eval_accuracy"] == expected["accuracy"]
    assert set(metrics) == {"eval_loss", "eval_accuracy", "eval_runtime", "eval_samples_per_second"}
    predicted = trainer.predict(LABELLED[:9])
    np.testing.assert_allclose(predicted.predictions, out.logits, atol=1e-6)
    np.testing.assert_array_equal(predicted.label_ids, batch["labels"])
    assert predicted.metrics["test_accuracy"] == metrics["eval_accuracy"]
    several = trainer.evaluate({"one": LABELLED[:2], "two": LABELLED[2:5]})
    assert {"eval_one_loss", "eval_two_accuracy"} <= set(several)


def test_a_dataset_that_gives_nothing_is_not_evaluated(tmp_path):
    trainer, rows = class_trainer(tmp_path), iter(LABELLED)
    assert "eval_loss" in trainer.evaluate(rows)
    for nothing in (rows, []):
        with pytest.raises(ValueError, match="the dataset for eval gave no examples"):
            trainer.evaluate(nothing)


def test_predictions_of_texts_of_different_lengths(tmp_path):
    trainer = language_trainer(tmp_path, per_device_eval_batch_size=5)
    found = trainer.predict(TEXTS)
    assert found.predictions.shape == (len(TEXTS), max(LENGTHS), CONFIG["vocab_size"])
    assert found.label_ids.shape == (len(TEXTS), max(LENGTHS))
    assert (found.label_ids[0, LENGTHS[0] :] == -100).all()
    reduced = language_trainer(tmp_path, per_device_eval_batch_size=5)
    reduced.reduce = lambda logits, labels: logits.argmax(-1)
    best = reduced.predict(TEXTS).predictions
    assert best.shape == found.label_ids.shape
    np.testing.assert_array_equal(best[0, : LENGTHS[0]], found.predictions[0, : LENGTHS[0]].argmax(-1))


def test_the_best_model_is_kept_and_loaded(tmp_path):
    values = iter([0.2, 0.9, 0.1, 0.3])
    weights = {}

    class Note(TrainerCallback):
        def on_evaluate(self, args, state, control, **event):
            weights[state.global_step] = event["model"].state_dict()["classifier.weight"].copy()

    trainer = class_trainer(
        tmp_path,
        [Note],
        compute_metrics=lambda prediction: {"score": next(values)},
        max_steps=8,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="steps",
        save_steps=2,
        save_total_limit=2,
        load_best_model_at_end=True,
        metric_for_best_model="score",
    )
    trainer.train()
    assert trainer.state.best_metric == 0.9 and trainer.state.best_global_step == 4
    assert [name for name in names_in(tmp_path) if "check" in name] == ["checkpoint-4", "checkpoint-8"]
    np.testing.assert_array_equal(trainer.model.state_dict()["classifier.weight"], weights[4])
    assert not np.array_equal(weights[8], weights[4])


def test_a_metric_that_is_no_number_is_no_best_one(tmp_path):
    """Numbers of NumPy's that are no floats of Python's are logged, too."""
    values = iter([np.nan, 0.5, np.nan])
    trainer = class_trainer(
        tmp_path,
        compute_metrics=lambda prediction: {"score": np.float32(next(values))},
        max_steps=3,
        eval_strategy="steps",
        eval_steps=1,
        metric_for_best_model="score",
    )
    trainer.train()
    assert (trainer.state.best_metric, trainer.state.best_global_step) == (0.5, 2)


def test_the_best_model_is_found_where_the_folder_was_moved_to(tmp_path):
    values = iter([0.9, 0.1, 0.2])
    settings = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    settings |= {"metric_for_best_model": "score", "load_best_model_at_end": True}
    settings |= {"compute_metrics": lambda prediction: {"score": next(values)}}
    class_trainer(tmp_path / "here", max_steps=4, **settings).train()
    (tmp_path / "here").rename(tmp_path / "there")
    moved = class_trainer(tmp_path / "there", max_steps=6, **settings)
    moved.train(resume_from_checkpoint=True)
    assert moved.state.best_model_checkpoint == str(tmp_path / "there" / "checkpoint-2")


NAN = float("nan")
STOPS = [(True, [1, 3, 2, 2, 9], 4), (False, [5, 4, 4.5, 4.2, 1], 4), (True, [NAN, 1, NAN, NAN, 2], 4)]


@pytest.mark.parametrize("greater, values, steps", STOPS)
def test_early_stopping(tmp_path, greater, values, steps):
    values = iter(values)
    trainer = class_trainer(
        tmp_path,
        [EarlyStoppingCallback(early_stopping_patience=2)],
        compute_metrics=lambda prediction: {"score": float(next(values))},
        eval_strategy="steps",
        eval_steps=1,
        metric_for_best_model="score",
        greater_is_better=greater,
    )
    trainer.train()
    assert trainer.state.global_step == steps


def test_a_budget_of_seconds_ends_the_run_and_its_schedule(tmp_path, monkeypatch):
    rates = []

    class Note(TrainerCallback):
        def on_step_end(self, args, state, control, **event):
            rates.append((state.seconds, event["optimizer"].lr))

    clock = itertools.count(100.0, 0.125)  # every look at it takes an eighth of a second
    monkeypatch.setattr(run, "time", mock.Mock(monotonic=lambda: next(clock)))
    trainer = language_trainer(tmp_path, [Note], max_steps=-1, max_seconds=4, warmup_steps=0.25, learning_rate=1.0)
    trainer.train()
    for seconds, rate in rates:
        assert rate == pytest.approx(seconds if seconds < 1 else max(0, 1 - (seconds - 1) / 3), abs=1e-9)
    assert len(rates) > 10 and 3.5 <= rates[-1][0] <= 4.25


def from_next_sentence(out, next_sentence_label):
    difference = out.logits[:, 0] - next_sentence_label
    grad = np.stack([2 * difference, np.zeros_like(difference)], axis=1)
    return (difference**2).sum(), {"logits": grad}


def test_columns_that_the_model_does_not_take(tmp_path):
    tokenizer = mock.Mock(pad_token_id=0, pad_token_type_id=0, padding_side="right")
    rows = [{**row, "sentence": "a text", "idx": 3} for row in LABELLED]
    args = {"max_steps": 1, "save_strategy": "no", "report_to": "none", "disable_tqdm": True}
    trainer = Trainer(classifier(), TrainingArguments(tmp_path, **args), DataCollatorWithPadding(tokenizer), rows)
    assert np.isfinite(trainer.train().training_loss)
    kept = TrainingArguments(tmp_path, remove_unused_columns=False, **args)
    with pytest.raises(ValueError, match="sentence"):
        Trainer(classifier(), kept, DataCollatorWithPadding(tokenizer), rows).train()


@pytest.mark.parametrize("objective", [NextSentence(), CustomLoss(from_next_sentence, targets=["next_sentence_label"])])
def test_columns_that_only_the_objective_takes(tmp_path, objective):
    tokenizer = mock.Mock(pad_token_id=0, pad_token_type_id=0, padding_side="right")
    rows = [{**text, "next_sentence_label": index % 2, "sentence": "a text"} for index, text in enumerate(TEXTS)]
    args = TrainingArguments(tmp_path, max_steps=1, save_strategy="no", report_to="none", disable_tqdm=True)
    model = AutoModelForNextSentencePrediction.from_config(CONFIG)
    trainer = Trainer(model, args, DataCollatorWithPadding(tokenizer), rows, objective=objective)
    assert np.isfinite(trainer.train().training_loss)


def test_what_is_there_is_not_overwritten(tmp_path):
    language_trainer(tmp_path).train()
    with pytest.raises(ValueError, match="checkpoint-7 already"):
        language_trainer(tmp_path).train()
    with pytest.raises(ValueError, match=r"seed is 1, in .* it was 42"):
        language_trainer(tmp_path, seed=1).train(resume_from_checkpoint=True)
    fewer = language_trainer(tmp_path)
    fewer.train_dataset = TEXTS[1:]
    with pytest.raises(ValueError, match=r"the number of examples is 22, in .* it was 23"):
        fewer.train(resume_from_checkpoint=True)
    with pytest.raises(ValueError, match="no checkpoint of a run"):
        language_trainer(tmp_path).train(resume_from_checkpoint=tmp_path)


@pytest.mark.parametrize(
    "settings, error",
    [
        ({"fp16": True}, "fp16"),
        ({"max_steps": 0}, "max_steps is 0"),
        ({"max_steps": 1.5}, "max_steps must be an integer"),
        ({"per_device_train_batch_size": 0}, "per_device_train_batch_size is 0"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"lr_scheduler_type": "steep"}, "lr_scheduler_type is 'steep'"),
        ({"optim": "sgd"}, "optim is 'sgd'"),
        ({"warmup_steps": 2.5}, "warmup_steps is 2.5"),
        ({"max_seconds": 0}, "max_seconds is 0"),
        ({"max_seconds": 9, "warmup_steps": 10}, "warmup_steps is 10"),
        ({"load_best_model_at_end": True}, "load_best_model_at_end needs an eval_strategy"),
        ({"report_to": "wandb"}, "report_to has 'wandb'"),
        ({"group_by_length": 1}, "group_by_length must be True or False"),
        ({"seed": -1}, "seed is -1"),
        ({"label_smoothing_factor": 1.0}, "label_smoothing_factor is 1.0"),
    ],
)
def test_settings_that_are_none(tmp_path, settings, error):
    with pytest.raises((TypeError, ValueError), match=error):
        TrainingArguments(tmp_path, **settings)


def test_what_gives_nothing_to_train_on(tmp_path):
    args = TrainingArguments(tmp_path, report_to="none", disable_tqdm=True, max_steps=5)
    for dataset, error in (([], "no batch with labels in epoch 1"), (iter(TEXTS[:3]), "can be read once")):
        with pytest.raises(ValueError, match=error):
            Trainer(language_trainer(tmp_path).model, args, MaskingCollator(), dataset).train()
    with pytest.raises(ValueError, match="max_steps or max_seconds is needed"):
        endless = TrainingArguments(tmp_path, report_to="none")
        Trainer(language_trainer(tmp_path).model, endless, MaskingCollator(), iter(TEXTS)).train()


KILLED = """
import sys
from tests.training.test_trainer import language_trainer
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
