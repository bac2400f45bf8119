"""The Trainer: its steps, its settings and its data."""

import itertools
from unittest import mock

import numpy as np
import pytest

from bertcore import (
    AutoModelForMaskedLM,
    AutoModelForNextSentencePrediction,
    AutoModelForSequenceClassification,
    value_and_grad,
)
from bertcore.passes import mixed_seed
from bertcore.training import (
    AdamW,
    DataCollatorWithPadding,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    clip_grad_norm,
    get_scheduler,
    run,
)
from bertcore.training.collators import NumberedCollator
from bertcore.training.data import Batches
from bertcore.training.objectives import CustomLoss, MaskedLM, NextSentence
from tests.refusals import refuses
from tests.tiny_bert import CONFIG
from tests.training.tiny_runs import (
    LABELLED,
    TEXTS,
    MaskingCollator,
    assert_same_weights,
    class_trainer,
    classifier,
    collate,
    language_trainer,
    quiet_arguments,
)


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


def test_steps_in_the_backward_pass_have_the_bits_of_others(tmp_path):
    settings = {"max_grad_norm": 0, "weight_decay": 0.1, "save_strategy": "no"}
    first = language_trainer(tmp_path / "0", optim_in_backward=True, **settings)
    other = language_trainer(tmp_path / "1", **settings)
    with mock.patch.object(other.objective, "in_backward", side_effect=AssertionError):
        assert first.train()[:2] == other.train()[:2]
    assert_same_weights(first.model, other.model)


def test_steps_in_the_backward_pass_are_clipped_by_the_norm_before(tmp_path):
    trainer = language_trainer(tmp_path, optim_in_backward=True, max_grad_norm=0.01, max_steps=3, logging_steps=1)
    factors, begin = [], AdamW.begin_step

    def noted(optimizer, scale=None):
        factors.append(scale)
        return begin(optimizer, scale)

    with mock.patch.object(AdamW, "begin_step", noted):
        trainer.train()
    norms = [line["grad_norm"] for line in trainer.state.log_history[:3]]
    assert factors == [None, *(np.float32(0.01 / norm) for norm in norms[:2])]


def test_what_steps_in_the_backward_pass_cannot_do(tmp_path):
    trainer = language_trainer(tmp_path, optim_in_backward=True)
    objective = MaskedLM() + CustomLoss(lambda out: None)
    error = "optim_in_backward is set, and Sum computes gradients in several passes, expected one"
    refuses(ValueError, error, Trainer, trainer.model, trainer.args, objective=objective)
    trainer.processes = mock.Mock(count=2, is_first=True, from_first=lambda make: make())
    refuses(ValueError, "optim_in_backward is True, expected False for 2 processes", trainer.train)


def test_a_callback_that_would_never_be_called_is_refused(tmp_path):
    class Substep(TrainerCallback):
        def on_substep_end(self, args, state, control, **event): ...

    refuses(TypeError, "Substep has on_substep_end, which is never called", language_trainer, tmp_path, [Substep])


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


def test_a_clock_that_stands_still_gives_no_rates(tmp_path, monkeypatch):
    for module in ("run", "trainer"):
        monkeypatch.setattr(f"bertcore.training.{module}.time", mock.Mock(monotonic=lambda: 7.0))
    one = class_trainer(tmp_path, max_steps=1)
    found = one.train().metrics | one.evaluate(one.train_dataset)
    assert found["train_runtime"] == found["eval_runtime"] == 0 and "train_loss" in found
    assert not [name for name in found if name.endswith("_per_second")]


def from_next_sentence(out, next_sentence_label):
    difference = out.logits[:, 0] - next_sentence_label
    grad = np.stack([2 * difference, np.zeros_like(difference)], axis=1)
    return (difference**2).sum(), {"logits": grad}


def test_columns_that_the_model_does_not_take(tmp_path):
    tokenizer = mock.Mock(pad_token_id=0, pad_token_type_id=0, padding_side="right")
    rows = [{**row, "sentence": "a text", "idx": 3} for row in LABELLED]
    arguments, collator = quiet_arguments(tmp_path, max_steps=1), DataCollatorWithPadding(tokenizer)
    assert np.isfinite(Trainer(classifier(), arguments, collator, rows).train().training_loss)
    arguments.remove_unused_columns = False
    refuses(ValueError, "sentence", Trainer(classifier(), arguments, collator, rows).train)


@pytest.mark.parametrize("objective", [NextSentence(), CustomLoss(from_next_sentence, targets=["next_sentence_label"])])
def test_columns_that_only_the_objective_takes(tmp_path, objective):
    tokenizer = mock.Mock(pad_token_id=0, pad_token_type_id=0, padding_side="right")
    rows = [{**text, "next_sentence_label": index % 2, "sentence": "a text"} for index, text in enumerate(TEXTS)]
    model, args = AutoModelForNextSentencePrediction.from_config(CONFIG), quiet_arguments(tmp_path, max_steps=1)
    trainer = Trainer(model, args, DataCollatorWithPadding(tokenizer), rows, objective=objective)
    assert np.isfinite(trainer.train().training_loss)


@pytest.mark.parametrize("settings, error", [
    ({"tf32": True}, "tf32"),
    ({"max_steps": 0}, "max_steps is 0"),
    ({"max_steps": 1.5}, "max_steps is 1.5, expected a positive integer"),
    ({"save_steps": True}, "save_steps is True, expected a positive integer"),
    ({"per_device_train_batch_size": 0}, "per_device_train_batch_size is 0"),
    ({"learning_rate": float("nan")}, "learning_rate is nan"),
    ({"lr_scheduler_type": "steep"}, "lr_scheduler_type is 'steep'"),
    ({"optim": "adafactor"}, "optim is 'adafactor', expected one of 'adamw'"),
    ({"optim": ["adamw"]}, "optim is .*, expected one of 'adamw"),
    ({"warmup_steps": 2.5}, "warmup_steps is 2.5"),
    ({"max_seconds": 0}, "max_seconds is 0"),
    ({"max_seconds": 9, "warmup_steps": 10}, "warmup_steps is 10"),
    ({"max_seconds": 9, "lr_scheduler_kwargs": {"num_decay_steps": 10}}, "num_decay_steps is 10, expected a share"),
    ({"lr_scheduler_type": "reduce_lr_on_plateau"}, "which needs an eval_strategy other than 'no'"),
    ({"load_best_model_at_end": True}, "load_best_model_at_end needs an eval_strategy"),
    ({"report_to": "comet_ml"}, "report_to has 'comet_ml'"),
    ({"report_to": None}, "report_to is None, expected a string"),
    ({"seed": np.array([1])}, "seed is .*, expected an integer"),
    ({"group_by_length": 1}, "group_by_length is 1, expected True or False"),
    ({"disable_tqdm": "no"}, "disable_tqdm is 'no', expected True, False or None"),
    ({"learning_rate": 10**400}, "learning_rate is an integer of 1329 bits"),
    ({"output_dir": None}, "output_dir is None, expected a folder's path"),
    ({"output_dir": ""}, "output_dir '' is empty, expected a folder's path"),
    ({"output_dir": __file__}, "output_dir '.*py' is a file, expected a folder's path"),
    ({"adam_beta2": 1.0}, "adam_beta2 is 1.0, expected from 0 to below 1"),
    ({"metric_for_best_model": 3}, "metric_for_best_model is 3, expected a name or None"),
    ({"lr_scheduler_kwargs": [1]}, r"lr_scheduler_kwargs is \[1\], expected {option: value}"),
    ({"seed": -1}, "seed is -1"),
    ({"seed": None}, "seed is None"),
    ({"data_seed": 2**32}, "data_seed is 4294967296, expected at most 4294967295"),
    ({"label_smoothing_factor": 1.0}, "label_smoothing_factor is 1.0"),
    ({"optim_in_backward": True, "fp16": True}, "optim_in_backward and fp16 are both set"),
    ({"optim_in_backward": True, "gradient_accumulation_steps": 2}, "gradient_accumulation_steps is 2, expected 1"),
])  # fmt: skip
def test_invalid_settings(tmp_path, settings, error):
    refuses((TypeError, ValueError), error, TrainingArguments, **{"output_dir": tmp_path} | settings)


def test_wrong_types_of_model_and_example(tmp_path):
    args = TrainingArguments(tmp_path, max_steps=1)
    for wrong, kind in ((None, "NoneType"), ("bert-base-uncased", "str")):
        refuses(TypeError, f"model is {kind}, expected one of bertcore's", Trainer, wrong, args, collate, LABELLED)
    trainer = Trainer(classifier(), args, DataCollatorWithPadding(mock.Mock(pad_token_id=0)), [None])
    refuses(ValueError, r"examples\[0\] is None, expected a mapping", trainer.train)


def test_what_gives_nothing_to_train_on(tmp_path):
    cases = ([], 5, "no batch with labels in epoch 1"), (iter(TEXTS[:3]), 5, "can be read once")
    for dataset, steps, error in (*cases, (iter(TEXTS), -1, "max_steps or max_seconds is needed")):
        trainer = language_trainer(tmp_path, max_steps=steps)
        trainer.train_dataset = dataset
        refuses(ValueError, error, trainer.train)


def test_a_run_in_bfloat16_learns_as_one_in_float32(tmp_path):
    losses = {}
    for bf16 in (False, True):
        settings = {"max_steps": 50, "logging_steps": 10, "save_strategy": "no", "lr_scheduler_type": "constant"}
        trainer = language_trainer(tmp_path / str(bf16), learning_rate=3e-3, bf16=bf16, **settings)
        trainer.train()
        assert all(array.dtype == np.float32 for array in trainer.model.state_dict().values())
        losses[bf16] = [logs["loss"] for logs in trainer.state.log_history[:5]]
    assert losses[True] != losses[False]
    assert losses[False][-1] < 0.95 * losses[False][0]
    np.testing.assert_allclose(losses[True], losses[False], rtol=0.01)


def test_an_evaluation_is_in_the_precision_of_the_run(tmp_path):
    plain, rounded = (class_trainer(tmp_path / str(bf16), bf16=bf16).evaluate()["eval_loss"] for bf16 in (False, True))
    assert plain != rounded and abs(plain - rounded) < 0.02 * plain
    with pytest.raises(ValueError, match="bf16 is for models in float32, model has dtype 'float64'"):
        model = AutoModelForSequenceClassification.from_config(CONFIG, dtype="float64", num_labels=2)
        class_trainer(tmp_path, model=model, bf16=True)


@pytest.mark.parametrize("optimizers", [AdamW, (None,), (object(), None), (None, "linear")])
def test_invalid_pair_of_optimiser_and_schedule(tmp_path, optimizers):
    with pytest.raises(TypeError, match=r"optimizers is .*, expected \(an Optimizer or None, a Schedule or None\)"):
        Trainer(classifier(), TrainingArguments(tmp_path), collate, LABELLED, optimizers=optimizers)


def test_schedules_optimisers_and_collators_that_do_not_fit(tmp_path):
    model = classifier()
    optimizer, args = AdamW(model), TrainingArguments(tmp_path, max_seconds=5)
    with pytest.raises(ValueError, match="optimizers has a schedule by steps, and max_seconds is set"):
        Trainer(model, args, collate, LABELLED, optimizers=(optimizer, get_scheduler("constant", optimizer)))
    trainer = Trainer(classifier(), TrainingArguments(tmp_path), collate, LABELLED, optimizers=(optimizer, None))
    refuses(ValueError, r"optimizers\[0\] was made for another model", trainer.train)
    trainer = Trainer(model, TrainingArguments(tmp_path), lambda examples: None, LABELLED)
    refuses(TypeError, "data_collator returned NoneType, expected a mapping", trainer.train)


def test_batches_without_labels_do_not_lengthen_a_run(tmp_path):
    labelled = [{**row, "label": row["label"] if index % 4 else -100} for index, row in enumerate(LABELLED[:16])]
    trainer = class_trainer(tmp_path, max_steps=-1, num_train_epochs=2, per_device_train_batch_size=1)
    trainer.train_dataset = labelled
    trainer.train()
    assert (trainer.state.global_step, trainer.state.epochs_done) == (24, 2)


def test_spellings_of_transformers():
    assert TrainingArguments("out", optim="adamw_torch").optim == "adamw"


def test_unknown_arguments_name_the_nearest(tmp_path):
    refuses(TypeError, "did you mean learning_rate?", TrainingArguments, tmp_path, learning_rat=1)
    refuses(TypeError, "did you mean train_dataset?", Trainer, None, traindataset=[])
