"""Train all-MiniLM-L6-v2 to match short and long package descriptions, with in-batch negatives.

    python examples/improve_embeddings.py [--seconds 240] [--out packages]

Packages with similar names stay together, so that none of the 2,000 held-out packages is related to a training pair.
The accuracy, before and after, is the share of short descriptions that rank their own long one first among the 2,000.
"""

from __future__ import annotations

import argparse
from zlib import crc32

from corpora import package_descriptions
from retrieval import Found, found

from bertcore import SentenceEncoder, SentenceTransformerTrainer, SentenceTransformerTrainingArguments, losses
from bertcore.demo_model import demo_model_folder

HELD_OUT, MAX_LENGTH = 2000, 64


def search(encoder: SentenceEncoder, pairs: list[dict]) -> Found:
    """Search long descriptions with short ones, by the vectors of an encoder."""
    return found(*(encoder.encode([pair[name] for pair in pairs], normalize_embeddings=True) for name in pairs[0]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--out", default="packages")
    given = parser.parse_args()

    described = sorted(package_descriptions(), key=lambda package: crc32(package[0].split("-")[0].encode()))
    pairs = [{"anchor": short, "positive": long} for _, short, long in described]
    encoder = SentenceEncoder(demo_model_folder(), max_seq_length=MAX_LENGTH)
    args = SentenceTransformerTrainingArguments(
        output_dir=given.out,
        max_seconds=given.seconds,
        per_device_train_batch_size=64,
        learning_rate=5e-5,
        warmup_steps=0.1,
        logging_steps=20,
        save_strategy="no",
    )
    loss = losses.MultipleNegativesRankingLoss(encoder)
    trainer = SentenceTransformerTrainer(encoder, args, pairs[HELD_OUT:], loss=loss)
    before = search(encoder, pairs[:HELD_OUT])
    done = trainer.train()
    trainer.save_model()
    after = search(SentenceEncoder(given.out), pairs[:HELD_OUT])
    print(f"{len(pairs) - HELD_OUT:,} pairs, {done.global_step} steps in {done.metrics['train_runtime']:.0f} s")
    print(f"the right description is found, before: {before}; after: {after}")


if __name__ == "__main__":
    main()
