"""Pretrain Mini-BERT by masked language modelling on package descriptions, from scratch, in 10 minutes on 2 cores.

    python examples/pretrain_mini_bert.py [--seconds 600] [--out mini-bert]

The vocabulary is learnt from the training texts; 1,000 of the 60,000 texts are held out. The baselines of masked
accuracy and loss come from word frequencies: the share of the most frequent word, and the cross entropy.
"""

from __future__ import annotations

import argparse

import numpy as np
from corpora import package_descriptions

from bertcore import AutoModelForMaskedLM
from bertcore.presets import preset_config
from bertcore.tokenization import train_tokenizer
from bertcore.training import Trainer, TrainingArguments
from bertcore.training.metrics import masked_accuracy, predicted_words
from bertcore.training.objectives import MaskedLM

HELD_OUT, MAX_LENGTH, WORDS = 1000, 64, 8192


def unigram_guess(examples: list[dict], labels: np.ndarray) -> tuple[float, float]:
    """Return the accuracy of the most frequent word and the cross entropy of word frequencies, at the labels."""
    counts = np.bincount(np.concatenate([example["input_ids"][1:-1] for example in examples]), minlength=WORDS) + 1
    labels = labels[labels != -100]
    return float((labels == counts.argmax()).mean()), float(-np.log(counts[labels] / counts.sum()).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--out", default="mini-bert")
    given = parser.parse_args()

    texts = [f"{short}\n{long}" for _, short, long in package_descriptions()]
    texts = [texts[index] for index in np.random.default_rng(0).permutation(len(texts))]
    tokenizer = train_tokenizer(texts[HELD_OUT:], vocab_size=WORDS, model_max_length=MAX_LENGTH)
    objective = MaskedLM()
    documents = [text.split("\n") for text in texts]
    held_out = list(objective.examples(documents[:HELD_OUT], tokenizer, max_length=MAX_LENGTH))
    examples = list(objective.examples(documents[HELD_OUT:], tokenizer, max_length=MAX_LENGTH))

    without_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}  # no text is read often
    model = AutoModelForMaskedLM.from_config({**preset_config("mini-bert"), **without_dropout})
    args = TrainingArguments(
        output_dir=given.out,
        max_seconds=given.seconds,
        per_device_train_batch_size=32,
        per_device_eval_batch_size=64,
        learning_rate=1.5e-3,
        weight_decay=0.01,
        warmup_steps=0.05,
        logging_steps=50,
        save_strategy="no",
    )
    trainer = Trainer(
        model,
        args,
        train_dataset=examples,
        eval_dataset=held_out,
        processing_class=tokenizer,
        compute_metrics=masked_accuracy,
        preprocess_logits_for_metrics=predicted_words,
        objective=objective,
    )
    done = trainer.train()
    metrics = trainer.evaluate()
    guess, entropy = unigram_guess(examples, trainer.predict(held_out).label_ids)
    print(
        f"{done.global_step:,} steps, {done.metrics['train_tokens']:,} tokens in {done.metrics['train_runtime']:.0f} s"
    )
    print(f"held out: loss {metrics['eval_loss']:.2f}, masked accuracy {metrics['eval_masked_accuracy']:.1%}")
    print(f"word frequencies alone: loss {entropy:.2f}, accuracy {guess:.1%}")
    trainer.save_model()


if __name__ == "__main__":
    main()
