"""Fine-tune all-MiniLM-L6-v2 to classify sentences of film reviews, and compare it with TF-IDF.

    python examples/finetune_films.py [--epochs 2] [--bf16] [--seed 0] [--split 0] [--out films]

2,000 sentences with a mean score above 0.5 or below -0.5 are held out. All others are training data, including the
undecided ones, with soft labels: the probability that a sentence is good, given its score.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
from corpora import film_snippets
from runs import curve_of, report

from bertcore import AutoModelForSequenceClassification, AutoTokenizer
from bertcore.demo_model import demo_model_folder
from bertcore.training import Trainer, TrainingArguments
from bertcore.training.metrics import accuracy

HELD_OUT = 2000


def labelled_films(split: int = 0) -> tuple[list[tuple[str, list[float]]], list[tuple[str, int]]]:
    """Return (sentence, probabilities of bad and good) to train on, and held-out (sentence, 1 for good), by `split`."""
    films = film_snippets()
    clear = [film for film in films if abs(film[1]) > 0.5]
    order = np.random.default_rng(split).permutation(len(clear))  # the file starts with good ones
    clear = [clear[index] for index in order]
    train = clear[:-HELD_OUT] + [film for film in films if abs(film[1]) <= 0.5]
    return [(text, probabilities(score)) for text, score in train], [
        (text, int(score > 0)) for text, score in clear[-HELD_OUT:]
    ]


def probabilities(score: float) -> list[float]:
    """Return the probabilities of bad and good; their logits differ by twice the mean score (-4 to 4)."""
    good = 1 / (1 + math.exp(-2 * score))
    return [1 - good, good]


def as_tokens(tokenizer: Any, labelled: list[tuple[str, Any]]) -> list[dict[str, Any]]:
    """Make examples from labelled sentences, of at most 64 tokens."""
    return [{**tokenizer(text, truncation=True, max_length=64), "label": label} for text, label in labelled]


def tfidf_accuracy(train: list[tuple[str, list[float]]], held_out: list[tuple[str, int]]) -> float:
    """Return the accuracy of logistic regression on words and pairs of words, trained on the likelier labels."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    classifier = make_pipeline(TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), LogisticRegression(C=10))
    classifier.fit([text for text, _ in train], [round(good) for _, (_, good) in train])
    return classifier.score(*zip(*held_out, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=float, default=2)
    parser.add_argument("--seed", type=int, default=0, help="seed of the order and of dropout (default: 0)")
    parser.add_argument("--split", type=int, default=0, help="seed of the held-out sentences (default: 0)")
    parser.add_argument("--bf16", action="store_true", help="multiply by weights in bfloat16")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append a line for each run, for spread.py")
    parser.add_argument("--out", default="films")
    given = parser.parse_args()

    train, held_out = labelled_films(given.split)
    folder = demo_model_folder()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(
        folder, num_labels=2, problem_type="single_label_classification"
    )
    for parameter in model.parameters():  # embeddings are half of all parameters: freezing them saves time
        parameter.is_frozen = parameter.names[0].endswith("word_embeddings.weight")
    args = TrainingArguments(
        output_dir=given.out,
        num_train_epochs=given.epochs,
        per_device_train_batch_size=32,
        per_device_eval_batch_size=64,
        learning_rate=2e-4,
        weight_decay=0.01,
        warmup_steps=0.1,
        group_by_length=True,
        logging_steps=25,
        save_strategy="no",
        seed=given.seed,
        bf16=given.bf16,
    )
    trainer = Trainer(
        model,
        args,
        train_dataset=as_tokens(tokenizer, train),
        eval_dataset=as_tokens(tokenizer, held_out),
        processing_class=tokenizer,
        compute_metrics=accuracy,
    )
    started = time.monotonic()
    trainer.train()
    print(f"{len(train):,} sentences, {given.epochs:g} epochs in {time.monotonic() - started:.0f} s")
    figures = {"accuracy": trainer.evaluate()["eval_accuracy"], "TF-IDF": tfidf_accuracy(train, held_out)}
    report(given, "bfloat16" if given.bf16 else "float32", curve=curve_of(trainer), **figures)
    trainer.save_model()


if __name__ == "__main__":
    main()
