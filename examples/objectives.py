"""Compare pretraining objectives on one corpus, with one budget and one model size.

    python examples/objectives.py [--seconds 100 | --steps 2000] [--seed 0] [--only mlm rtd] [--json FILE]
    python examples/spread.py FILE --plot curves.png        # for several seeds

Each objective trains a model of Mini-BERT's size on package descriptions. Its own metric is measured on 1,000 held-out
texts and compared with a trivial guess: the most frequent word or class, or, for the average precision of replaced
tokens, a random order. The probe is the same for all: logistic regression on the mean of the last hidden states
predicts the 20 largest sections, with TF-IDF and random weights as baselines. "mlm+nsp" and "mlm+sop, own layers" learn
from pairs of the same texts in encoders of the same size: one predicts whether segments belong together, the other
their order.
"""

from __future__ import annotations

import statistics
from argparse import Namespace
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from corpora import package_descriptions, package_sections
from runs import arguments, count, curve_of, options, report
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import bertcore
from bertcore import SentenceEncoder
from bertcore.presets import preset_config
from bertcore.tokenization import train_tokenizer
from bertcore.training import Masking, Trainer, metrics
from bertcore.training.data import Documents
from bertcore.training.objectives import (
    MaskedLM,
    NextSentence,
    Objective,
    PermutationLM,
    ReplacedToken,
    SentenceOrder,
    SpanBoundary,
)

HELD_OUT, MAX_LENGTH, WORDS, SECTIONS, PROBED = 1000, 64, 8192, 20, 8000
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}  # no text is read often
BERT = {**preset_config("mini-bert"), **NO_DROPOUT}
WIDTH = BERT["hidden_size"]
ALBERT = {**BERT, "model_type": "albert", "embedding_size": WIDTH, "classifier_dropout_prob": 0.0}
ALBERT_OWN_LAYERS = {**ALBERT, "num_hidden_groups": BERT["num_hidden_layers"]}
ELECTRA = {**BERT, "model_type": "electra", "embedding_size": WIDTH}
XLNET = {
    "model_type": "xlnet", "vocab_size": WORDS, "d_model": WIDTH, "n_layer": BERT["num_hidden_layers"],
    "n_head": BERT["num_attention_heads"], "d_inner": BERT["intermediate_size"], "dropout": 0.0,
}  # fmt: skip


class Way(NamedTuple):
    """An objective, its model, metric and learning rate, and options of its model."""

    objective: Objective
    config: dict[str, Any]
    figure: str = "masked_accuracy"
    learning_rate: float = 1e-3
    options: Mapping[str, Any] = {}


WAYS = {
    "mlm, static": Way(MaskedLM(Masking(is_static=True)), BERT),
    "mlm": Way(MaskedLM(), BERT),
    "mlm+nsp": Way(MaskedLM() + NextSentence(), BERT, "pair_accuracy"),
    "mlm+sop": Way(MaskedLM() + SentenceOrder(), ALBERT, "pair_accuracy"),  # ALBERT's layers share their weights
    "mlm+sop, own layers": Way(MaskedLM() + SentenceOrder(), ALBERT_OWN_LAYERS, "pair_accuracy"),
    # With a rate of 1e-3, some seeds learn nothing.
    "rtd": Way(ReplacedToken(), ELECTRA, "replaced_precision", 5e-4, {"embeddings": "gradient_disentangled"}),
    "rtd, tied": Way(ReplacedToken(), ELECTRA, "replaced_precision", 5e-4),
    "plm": Way(PermutationLM(), XLNET),
    "mlm+sbo": Way(SpanBoundary(), BERT),
}


def run(way: Way, texts: list[str], tokenizer: Any, given: Namespace, folder: Path) -> dict[str, Any]:
    """Train, save the encoder in the folder, and return the results."""
    seed = given.seed
    kind = getattr(bertcore, way.objective.model_class)
    model = kind.from_config({**way.config, "pad_token_id": tokenizer.pad_token_id}, seed=seed, **way.options)
    records, language = [{"text": text} for text in texts], "en" if way.figure == "pair_accuracy" else None
    held_out, examples = (
        list(way.objective.examples(Documents(some, language=language), tokenizer, max_length=MAX_LENGTH, seed=seed))
        for some in (records[:HELD_OUT], records[HELD_OUT:])
    )
    # With batches of 32, the model predicts only the most frequent word after 100 s on one core.
    sizes = {"per_device_train_batch_size": 8, "per_device_eval_batch_size": 64}
    by_steps = {} if given.steps is None else {"max_steps": given.steps, "max_seconds": None}
    args = arguments(folder, given.seconds, seed, way.learning_rate, **sizes, **by_steps)
    own = {"pair_accuracy": metrics.pair_accuracy, "replaced_precision": metrics.replaced_tokens}
    trainer = Trainer(
        model,
        args,
        train_dataset=examples,
        eval_dataset=held_out,
        processing_class=tokenizer,
        objective=way.objective,
        compute_metrics=metrics.combined(metrics.masked_accuracy, *([own[way.figure]] if way.figure in own else [])),
        preprocess_logits_for_metrics=metrics.predicted_words,
    )
    done = trainer.train()
    measured = trainer.evaluate()
    figure, trivial = measured[f"eval_{way.figure}"], measured.get(f"eval_{way.figure}_trivial")
    trivial = trivial_share(way, trainer, examples, held_out) if trivial is None else trivial
    model.save_pretrained(folder)
    encoder = model.discriminator if way.figure == "replaced_precision" else model
    tokenizer.save_pretrained(encoder_of(folder))
    figures = {"tokens": done.metrics["train_tokens"], "figure": figure, "trivial": trivial}
    return {"parameters": encoder.num_parameters(), **figures, "curve": curve_of(trainer)}


def encoder_of(folder: Path) -> Path:
    """Return the encoder's folder in the folder of a run."""
    return folder / "discriminator" if (folder / "discriminator").is_dir() else folder


def trivial_share(way: Way, trainer: Trainer, examples: list[dict], held_out: list[dict]) -> float:
    """Return the share of held-out labels that equal the most frequent word, or class, of the examples."""
    if way.figure == "pair_accuracy":
        (name,) = [name for name in held_out[0] if name.endswith("_label")]
        often = statistics.mode(int(example[name]) for example in examples)
        return statistics.fmean(int(example[name]) == often for example in held_out)
    words = Counter(int(word) for example in examples for word in example["input_ids"][1:-1])
    batches = [trainer.data_collator(held_out[start : start + 64]) for start in range(0, HELD_OUT, 64)]
    labels = np.concatenate([batch["labels"][batch["labels"] != -100] for batch in batches])
    return float((labels == words.most_common(1)[0][0]).mean())


def probe(folder: Path, texts: list[str], sections: list[str]) -> float:
    """Return the accuracy of logistic regression on the encoder's vectors; three quarters are training data."""
    vectors = SentenceEncoder(folder, max_seq_length=MAX_LENGTH).encode(texts)
    return _accuracy(make_pipeline(StandardScaler(), LogisticRegression(max_iter=300)), vectors, sections)


def _accuracy(classifier: Any, inputs: Any, classes: list[str]) -> float:
    count = 3 * len(classes) // 4
    return float(classifier.fit(inputs[:count], classes[:count]).score(inputs[count:], classes[count:]))


def random_encoder(tokenizer: Any, seed: int, folder: Path) -> Path:
    """Save an encoder with random weights, and return its folder."""
    bertcore.AutoModel.from_config(BERT, seed=seed).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def main() -> None:
    parser = options(__doc__, seconds=100, out="objectives")
    parser.add_argument("--steps", type=count, help="steps of each training run, in place of seconds")
    parser.add_argument("--only", nargs="*", choices=WAYS, default=list(WAYS))
    given = parser.parse_args()

    described, section_of = package_descriptions(), package_sections()
    order = np.random.default_rng(0).permutation(len(described))[: given.texts]
    names, texts = zip(*((described[i][0], "\n".join(described[i][1:])) for i in order), strict=True)
    tokenizer = train_tokenizer(texts[HELD_OUT:], vocab_size=WORDS, model_max_length=MAX_LENGTH)
    tokenizer.model_input_names.append("token_type_ids")  # pairs have two segments
    largest = [section for section, _ in Counter(map(section_of.get, names)).most_common() if section][:SECTIONS]
    probed = [
        (text, section_of[name]) for name, text in zip(names, texts, strict=True) if section_of.get(name) in largest
    ]
    probed_texts, sections = map(list, zip(*probed[:PROBED], strict=True))
    words = make_pipeline(TfidfVectorizer(sublinear_tf=True), LogisticRegression(max_iter=300))
    report(given, "TF-IDF", probe=_accuracy(words, probed_texts, sections))
    untrained = random_encoder(tokenizer, given.seed, given.out / f"untrained-{given.seed}")
    report(given, "random weights", probe=probe(untrained, probed_texts, sections))
    for name in given.only:
        folder = given.out / f"{name.replace(', ', '-').replace(' ', '-')}-{given.seed}"
        figures = run(WAYS[name], list(texts), tokenizer, given, folder)
        report(given, name, **figures, probe=probe(encoder_of(folder), probed_texts, sections))


if __name__ == "__main__":
    main()
