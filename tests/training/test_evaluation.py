"""Evaluations of the Trainer, and the best model by them."""

import numpy as np
import pytest

from bertcore import AutoModel, AutoModelForNextSentencePrediction
from bertcore.training import EarlyStoppingCallback, EvalPrediction, Trainer, TrainerCallback, TrainingArguments
from bertcore.training.callbacks import Callbacks
from bertcore.training.objectives import MultipleNegativesRankingLoss, NextSentence
from tests.refusals import refuses
from tests.tiny_bert import CONFIG
from tests.training.tiny_runs import (
    LABELLED,
    LENGTHS,
    TEXTS,
    accuracy,
    class_trainer,
    collate,
    language_trainer,
    names_in,
)


def scored_trainer(folder, values, callbacks=(), every=1, **settings):
    """A trainer whose evaluations have these scores, one after another."""
    coming = iter(values)
    given = {"eval_strategy": "steps", "eval_steps": every, "metric_for_best_model": "score"} | settings
    return class_trainer(folder, callbacks, compute_metrics=lambda prediction: {"score": next(coming)}, **given)


def test_rates_fall_when_the_evaluations_no_longer_improve(tmp_path):
    """The more the score, the better; a run that goes on remembers the evaluations."""
    options = {"lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": {"patience": 0, "factor": 0.5}}
    options |= {"learning_rate": 1.0, "max_grad_norm": 1e-6, "save_strategy": "steps", "save_steps": 3}
    first = scored_trainer(tmp_path, [0.5, 0.6, 0.6], **options, max_steps=3)
    first.train()
    assert first.state.log_history[-2]["learning_rate"] == 0.5
    again = scored_trainer(tmp_path, [0.55, 0.7, 0.8], **options, logging_steps=1)
    again.train(resume_from_checkpoint=True)
    rates = [logs["learning_rate"] for logs in again.state.log_history if "learning_rate" in logs]
    assert rates == [0.5, 0.25, 0.25]


def test_evaluate_and_predict(tmp_path):
    trainer = class_trainer(tmp_path, compute_metrics=accuracy, per_device_eval_batch_size=4)
    batch = collate(LABELLED[:9])
    out = trainer.model(**batch)
    metrics = trainer.evaluate()
    assert metrics["eval_loss"] == pytest.approx(float(out.loss), rel=1e-5)  # 4 + 4 + 1, each by its labels
    expected = accuracy(EvalPrediction(out.logits, batch["labels"]))
    assert metrics["eval_accuracy"] == expected["accuracy"]
    assert set(metrics) == {
        "eval_loss",
        "eval_accuracy",
        "eval_runtime",
        *(f"eval_{kind}_per_second" for kind in ("samples", "steps")),
        "epoch",
    }
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
        refuses(ValueError, "the dataset for eval gave no examples", trainer.evaluate, nothing)


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
    weights = {}

    class Note(TrainerCallback):
        def on_evaluate(self, args, state, control, **event):
            weights[state.global_step] = event["model"].state_dict()["classifier.weight"].copy()

    settings = {"max_steps": 8, "save_strategy": "steps", "save_steps": 2, "save_total_limit": 2}
    trainer = scored_trainer(tmp_path, [0.2, 0.9, 0.1, 0.3], [Note], 2, load_best_model_at_end=True, **settings)
    trainer.train()
    assert trainer.state.best_metric == 0.9 and trainer.state.best_global_step == 4
    assert [name for name in names_in(tmp_path) if "check" in name] == ["checkpoint-4", "checkpoint-8"]
    np.testing.assert_array_equal(trainer.model.state_dict()["classifier.weight"], weights[4])
    assert not np.array_equal(weights[8], weights[4])


@pytest.mark.parametrize(("metrics", "error"), [
    (0.5, "returned float, expected {name: number}"),
    ({"a": np.eye(2)}, "returned 'a' as ndarray, expected a number"),
])  # fmt: skip
def test_invalid_metrics(tmp_path, metrics, error):
    with pytest.raises(TypeError, match=f"compute_metrics {error}"):
        class_trainer(tmp_path, compute_metrics=lambda prediction: metrics).evaluate()


def test_the_best_model_is_found_where_the_folder_was_moved_to(tmp_path):
    settings = {"every": 2, "save_strategy": "steps", "save_steps": 2, "load_best_model_at_end": True}
    scored_trainer(tmp_path / "here", [0.9, 0.1], max_steps=4, **settings).train()
    (tmp_path / "here").rename(tmp_path / "there")
    moved = scored_trainer(tmp_path / "there", [0.2], max_steps=6, **settings)
    moved.train(resume_from_checkpoint=True)
    assert moved.state.best_model_checkpoint == str(tmp_path / "there" / "checkpoint-2")


NAN = float("nan")
STOPS = [
    (True, 0, [1, 3, 2, 2, 9], 4),
    (False, 0, [5, 4, 4.5, 4.2, 1], 4),
    (True, 0, [NAN, 1, NAN, NAN, 2], 4),
    (True, 0.75, [1, 1.5, 2, 9], 3),  # small steps do not add up, as in transformers
]


@pytest.mark.parametrize("greater, threshold, values, steps", STOPS)
def test_early_stopping(tmp_path, greater, threshold, values, steps):
    patience = [EarlyStoppingCallback(2, threshold)]
    trainer = scored_trainer(tmp_path, values, patience, greater_is_better=greater)
    trainer.train()
    assert trainer.state.global_step == steps


def test_early_stopping_needs_its_metric_within_a_run_alone(tmp_path):
    callback = EarlyStoppingCallback()
    trainer = class_trainer(tmp_path, [callback], eval_strategy="steps", eval_steps=1, metric_for_best_model="score")
    trainer.evaluate()
    refuses(ValueError, "metric_for_best_model is eval_score, which the evaluation lacks", trainer.train)
    trainer.evaluate()
    assert callback.failures == 0 and trainer.callbacks.details["optimizer"] is None


def test_metrics_of_labels_that_the_objective_names(tmp_path):
    seen = []
    rows = [{**row, "next_sentence_label": row["label"]} for row in LABELLED[:9]]
    model = AutoModelForNextSentencePrediction.from_config(CONFIG)

    def pairs(examples):
        batch = collate(examples)
        return {"next_sentence_label": batch.pop("labels"), **batch}

    args = TrainingArguments(tmp_path, per_device_eval_batch_size=4, report_to="none")
    given = {"objective": NextSentence(), "compute_metrics": lambda found: seen.append(found) or {}}
    Trainer(model, args, pairs, eval_dataset=rows, **given).evaluate()
    (found,) = seen
    np.testing.assert_array_equal(found.label_ids, [row["label"] for row in rows])
    assert found.predictions.shape == (9, 2)


def test_metrics_that_could_not_be_computed_are_refused(tmp_path):
    def two(examples):
        ids = collate(examples)["input_ids"]
        return {"input_ids": np.stack([ids, ids], axis=1)}

    args = TrainingArguments(tmp_path, per_device_eval_batch_size=3, report_to="none")
    given = {"eval_dataset": LABELLED[:6], "objective": MultipleNegativesRankingLoss(), "compute_metrics": accuracy}
    trainer = Trainer(AutoModel.from_config(CONFIG), args, two, **given)
    refuses(ValueError, "compute_metrics is given, and the evaluation's batches have no labels", trainer.evaluate)


def test_two_callbacks_of_one_class_keep_their_own_states():
    def pair():
        return Callbacks([EarlyStoppingCallback(1), EarlyStoppingCallback(5)])

    before, after = pair(), pair()
    before.all[0].failures, before.all[1].failures = 1, 3
    after.load_state_dict(before.state_dict())
    assert [callback.failures for callback in after.all] == [1, 3]
