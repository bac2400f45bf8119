"""Distil the classifier of film snippets into 3 layers, and compare the loss terms that a student can learn from.

    python examples/finetune_films.py                       # the teacher, once
    python examples/distill_films.py [--seconds 120] [--seed 0] [--json FILE]    # for each student

Every student starts with the same layers of the teacher and learns for the same time from the same sentences: only from
their labels, or also from the teacher, with one term or with all of them.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from finetune_films import as_tokens, labelled_films
from runs import curve_of, options, report

from bertcore import AutoModelForSequenceClassification, AutoTokenizer, student_from_teacher
from bertcore.models.student import with_layers
from bertcore.training import Trainer, TrainingArguments
from bertcore.training.metrics import accuracy
from bertcore.training.objectives import (
    AttentionDistributions,
    AttentionScores,
    Distillation,
    HiddenCosine,
    HiddenStates,
    Relations,
    SoftTargets,
    Supervised,
)

# Weights scale the terms to about the size of the labels' loss; `Distillation.losses` has the unweighted values.
TERMS = {
    "soft targets, T = 2": [SoftTargets()],
    "cosine of the last hidden states": [HiddenCosine()],
    "attention and value relations (MiniLM)": [AttentionDistributions(), Relations(of=("value",))],
    "query, key and value relations (MiniLMv2)": [Relations()],
    "hidden states and scores by layer (TinyBERT)": [HiddenStates(), AttentionScores(weight=0.1)],
    "hidden states and attention by layer (MobileBERT)": [
        HiddenStates(projected=False),
        AttentionDistributions(layers="even"),
    ],
}
TERMS["all of them"] = [SoftTargets(), HiddenCosine(), Relations(), HiddenStates(), AttentionScores(weight=0.1)]
TIMED = 5  # passes; speed is their median


def settings(given: argparse.Namespace, **more: Any) -> TrainingArguments:
    """Return the training arguments of every student."""
    common = {"per_device_train_batch_size": 32, "per_device_eval_batch_size": 64, "group_by_length": True}
    common |= {"save_strategy": "no", "report_to": "none", "disable_tqdm": True, "weight_decay": 0.01}
    return TrainingArguments(output_dir=given.out, learning_rate=2e-4, warmup_steps=0.1, **common, **more)


def measured(model: Any, given: argparse.Namespace, tokenizer: Any, examples: list[dict[str, Any]]) -> float:
    """Return the accuracy of a model."""
    trainer = Trainer(model, settings(given), processing_class=tokenizer, compute_metrics=accuracy)
    return trainer.evaluate(examples)["eval_accuracy"]


def seconds(models: list[Any], given: argparse.Namespace, tokenizer: Any, examples: list[Any]) -> list[float]:
    """Return the seconds of each model for the examples: the median of interleaved passes."""
    trainers = [Trainer(model, settings(given), processing_class=tokenizer) for model in models]
    times = [[trainer.evaluate(examples)["eval_runtime"] for trainer in trainers] for _ in range(TIMED + 1)]
    return [statistics.median(some) for some in zip(*times[1:], strict=True)]


def main() -> None:
    parser = options(__doc__, seconds=120, out="students")
    parser.add_argument("--teacher", default="films", help="the folder of finetune_films.py (default: films)")
    parser.add_argument("--layers", type=int, default=3)
    given = parser.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(given.teacher)
    teacher = AutoModelForSequenceClassification.from_pretrained(given.teacher)
    train, held_out = (as_tokens(tokenizer, part[: given.texts]) for part in labelled_films())
    begun = student_from_teacher(with_layers(teacher.config, given.layers), teacher)
    slow, fast = seconds([teacher, begun], given, tokenizer, held_out[:256])
    best, first = (measured(model, given, tokenizer, held_out) for model in (teacher, begun))
    often = statistics.mode(round(example["label"][1]) for example in train)
    trivial = statistics.fmean(example["label"] == often for example in held_out)
    report(given, "teacher", parameters=teacher.num_parameters(), figure=best, trivial=trivial, times_as_fast=1.0)
    common = {"parameters": begun.num_parameters(), "trivial": trivial, "times_as_fast": slow / fast}
    report(given, "student before", figure=first, of_teacher=first / best, **common)
    for name, terms in {"labels alone": [], **TERMS}.items():
        student = student_from_teacher(begun.config, teacher)
        objective = Distillation(teacher, *terms, objective=Supervised()) if terms else Supervised()
        args = settings(given, max_seconds=given.seconds, seed=given.seed, logging_steps=10)
        trainer = Trainer(student, args, train_dataset=train, processing_class=tokenizer, objective=objective)
        trainer.train()
        found = {"figure": (figure := measured(student, given, tokenizer, held_out)), "of_teacher": figure / best}
        common |= {"steps": trainer.state.global_step, "tokens": trainer.state.num_input_tokens_seen}
        report(given, name, **found, **common, curve=curve_of(trainer))


if __name__ == "__main__":
    main()
