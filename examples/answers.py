"""Find the answers to real questions with all-MiniLM-L6-v2, its int8 form, and static and late-interaction children.

    python examples/answers.py [--seconds 600] [--seed 0] [--json FILE]

The 171 frequently asked questions of Python's documentation should find their own answers among all its sections. The
short descriptions of packages that were held out from training should find their long ones. The late-interaction child
learns from the other packages' descriptions, with in-batch negatives, and keeps a vector of 128 numbers for each token.
To separate the effects of training and architecture, a copy of the model itself gets the same training. The static
child is made only from the model's vocabulary, without training. A seed decides which packages are held out and the
order of training.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

from corpora import documentation_sections, package_descriptions
from runs import arguments, options, report

from bertcore import AutoModel, AutoTokenizer, MultiVectorEncoder, SentenceEncoder
from bertcore.demo_model import demo_model_folder
from bertcore.evaluation import InformationRetrievalEvaluator
from bertcore.tasks.sentence_encoder import save_sentence_encoder
from bertcore.tasks.static import distill_static
from bertcore.training import Trainer
from bertcore.training.objectives import MultipleNegativesRankingLoss, multi_vector

HELD_OUT, MAX_LENGTH, BATCH, WIDTH = 2000, 128, 32, 128
CUTS = {"mrr_at_k": [10], "ndcg_at_k": [10], "accuracy_at_k": [1], "precision_recall_at_k": [10], "map_at_k": [100]}
SHOWN = {"ndcg@10": "ndcg", "mrr@10": "reciprocal rank", "accuracy@1": "first", "recall@10": "among ten"}
Pairs = list[tuple[str, str]]


def asked_questions() -> InformationRetrievalEvaluator:
    """Return the questions of Python's documentation, which should find their own answers among all its sections."""
    corpus, queries = {}, {}
    for number, (page, title, text) in enumerate(documentation_sections()):
        is_question = page.startswith("faq/") and title.endswith("?")
        corpus[str(number)] = text if is_question else f"{title}\n{text}"
        if is_question:
            queries[str(number)] = title
    return InformationRetrievalEvaluator(queries, corpus, {key: {key} for key in queries}, **CUTS)


def described_packages(seed: int) -> tuple[InformationRetrievalEvaluator, Pairs]:
    """Return held-out packages, and the other packages' pairs; packages with similar names stay together."""
    by_family = sorted(package_descriptions(), key=lambda each: crc32(f"{seed} {each[0].split('-')[0]}".encode()))
    held_out, pairs = by_family[:HELD_OUT], [(short, long) for _, short, long in by_family[HELD_OUT:]]
    queries, corpus = ({name: each[i] for name, *each in held_out} for i in (0, 1))
    return InformationRetrievalEvaluator(queries, corpus, {name: {name} for name in queries}, **CUTS), pairs


def trained_late(folder: Path, pairs: Pairs, out: Path, given: Any) -> MultiVectorEncoder:
    """Train a late-interaction encoder on pairs of descriptions."""
    lengths = {"embedding_dimension": WIDTH, "query_length": 32, "document_length": MAX_LENGTH}
    late = MultiVectorEncoder(folder, **lengths, query_expansion=None)
    rows = [{"query": short, "document": long} for short, long in pairs]
    # The scores are sums over a query's tokens, so they are not scaled.
    objective = multi_vector.MultiVectorMultipleNegativesRankingLoss(late)
    args = arguments(out, given.seconds, given.seed, 5e-5, per_device_train_batch_size=BATCH)
    trainer = Trainer(late.model, args, train_dataset=rows, processing_class=late.tokenizer, objective=objective)
    trainer.train()
    print(f"late interaction: {trainer.state.global_step} steps of {BATCH} pairs", flush=True)
    late.save_pretrained(out)
    return MultiVectorEncoder(out)


def trained_dense(folder: Path, pairs: Pairs, out: Path, given: Any) -> SentenceEncoder:
    """Train a copy of the model itself on the same pairs."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    rows = [{"anchor": short, "positive": long} for short, long in pairs]
    objective = MultipleNegativesRankingLoss(max_length=MAX_LENGTH)
    args = arguments(out, given.seconds, given.seed, 5e-5, per_device_train_batch_size=BATCH)
    trainer = Trainer(model, args, train_dataset=rows, processing_class=tokenizer, objective=objective)
    trainer.train()
    print(f"one vector: {trainer.state.global_step} steps of {BATCH} pairs", flush=True)
    save_sentence_encoder(out, model, tokenizer, normalize=True, max_seq_length=MAX_LENGTH)
    return SentenceEncoder(out)


def encoders(pairs: Pairs, given: Any) -> Iterator[tuple[str, Any]]:
    """Yield the encoders, each made when it is needed."""
    folder, out = demo_model_folder(), given.out / str(given.seed)
    yield "float32", SentenceEncoder(folder, max_seq_length=MAX_LENGTH)
    yield "int8", SentenceEncoder(folder, max_seq_length=MAX_LENGTH, dtype="int8")
    if not (out / "static").exists():
        out.mkdir(parents=True, exist_ok=True)
        distill_static(folder, out / "static")
    yield "static", SentenceEncoder(out / "static", max_seq_length=MAX_LENGTH)
    yield "trained", trained_dense(folder, pairs, out / "dense", given)
    yield "trained, late interaction", trained_late(folder, pairs, out / "late", given)


def main() -> None:
    given = options(__doc__, seconds=600, out="answers").parse_args()
    packages, pairs = described_packages(given.seed)
    pairs = pairs[: given.texts]
    tasks = {"questions": asked_questions(), "packages": packages}
    for name, encoder in encoders(pairs, given):
        for task, evaluator in tasks.items():
            metrics, start = evaluator(encoder), encoder.similarity_fn_name
            report(given, f"{task}: {name}", **{shown: metrics[f"{start}_{key}"] for key, shown in SHOWN.items()})


if __name__ == "__main__":
    main()
